"""One job of `jobs.json`: written and read back without loss, and edited by hand."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.errors import InvalidError
from ksana.base.instant import HOUR, MINUTE, SECOND, parse_instant
from ksana.domain.schedule import Cron, Every, Once, make_cron, make_every
from ksana.domain.tasks.records import (
    Definition,
    NodeSpec,
    Options,
    QueueSpec,
    RetryPolicy,
    Task,
)
from ksana.domain.tasks.timer_document import (
    TimerDefaults,
    place,
    read_timer,
    write_head,
    write_tail,
)

NOW = parse_instant("2026-01-01T00:00:00Z")
SEED = {
    "id": "uuid-1",
    "name": "ping service",
    "enabled": True,
    "type": "http",
    "http": {
        "method": "GET",
        "url": "https://example.com/ping",
        "headers": {"X-Token": "abc"},
        "body": "",
    },
    "schedule": {"kind": "every", "every": "5m", "start_at": "", "jitter": "5s"},
    "timeout": "10s",
    "max_retries": 3,
    "retry_backoff": "5s",
    "last_run_at": "",
    "next_run_at": "2025-09-19T11:05:00Z",
    "last_status": "",
    "last_error": "",
}


def job(**members: Any) -> bytes:
    """The seed's job with some members changed; None leaves one out."""
    return msgspec.json.encode(
        {name: value for name, value in {**SEED, **members}.items() if value is not None}
    )


def task_of(definition: Definition, **members: Any) -> Task:
    plain: dict[str, Any] = {
        "id": 7,
        "job_id": "j",
        "dialect": "T",
        "definition": definition,
        "status": "ENABLED",
        "version": 3,
        "created_at": NOW,
        "updated_at": NOW + 1,
        "is_deleted": False,
        "next_slot_at": None,
        "fire_at": None,
        "runs_fired": 0,
        "last_run_at": None,
        "last_status": "",
        "last_error": "",
    }
    return Task(**{**plain, **members})


def text_of(task: Task) -> bytes:
    tail = write_tail(
        task.last_run_at, task.next_slot_at, task.last_status, task.last_error, task.runs_fired
    )
    return msgspec.json.encode({**write_head(task), **tail})


spans = st.integers(0, 30 * 24 * HOUR)
instants = st.integers(NOW, NOW + 1000 * HOUR)
schedules = st.one_of(
    st.builds(Once, instants, spans),
    st.builds(lambda every, at: make_every(every, now=at), st.integers(SECOND, HOUR), instants),
    st.builds(
        lambda every, at: make_every(every, now=NOW, start_at=at, jitter_us=1),
        st.integers(SECOND, HOUR),
        instants,
    ),
    st.builds(
        lambda expr, zone, gap, overlap: make_cron(expr, zone, dst_gap=gap, dst_overlap=overlap),
        st.sampled_from(["*/5 * * * *", "0 30 2 * * MON-FRI", "0 0 L * *"]),
        st.sampled_from(["UTC", "Asia/Shanghai"]),
        st.sampled_from([None, "next", "skip", "shift"]),
        st.sampled_from([None, "first", "second", "both"]),
    ),
)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
definitions = st.builds(
    Definition,
    name=words,
    description=words,
    schedule=schedules,
    exec_type=st.sampled_from(["SYNC", "ASYNC"]),
    http_method=st.sampled_from(["GET", "POST", "PUT"]),
    target_url=st.just("http://a.example/{{run_id}}"),
    headers=st.dictionaries(st.sampled_from(["X-A", "Accept"]), words),
    body=st.none() | words,
    timeout_us=st.integers(1000, HOUR),
    retry=st.builds(
        RetryPolicy,
        st.integers(0, 9),
        spans,
        st.sampled_from(["fixed", "exponential"]),
        spans,
        spans,
    ),
    max_concurrency=st.integers(1, 3),
    concurrency_policy=st.sampled_from(["QUEUE", "SKIP", "PARALLEL"]),
    misfire_policy=st.sampled_from(["FIRE_NOW", "SKIP"]),
    catchup_limit=st.integers(0, 3),
    callback_timeout_us=spans,
    tags=st.lists(st.sampled_from(["a", "b"])).map(tuple),
    options=st.builds(
        Options,
        template=st.booleans(),
        connect_timeout_us=st.none() | spans,
        signing_secret=st.none() | words,
        secret_headers=st.just(("X-A",)),
        max_runs=st.none() | st.integers(1, 5),
        response_limit=st.none() | spans,
    ),
)


JOBS = [
    Options(type="queue", queue=QueueSpec("etl", "nightly")),
    Options(
        type="queue",
        queue=QueueSpec("etl", "x", 7, "URGENT", '{"gpu":true}', 3, "key"),
        delivery="at_most_once",
        max_runs=4,
    ),
    Options(type="node", node=NodeSpec("echo")),
    Options(type="node", node=NodeSpec("echo", (("a", "1"), ("b", "2")), 9, 0, 5 * SECOND)),
]


@pytest.mark.spec("T19", "B5")
@pytest.mark.parametrize("options", JOBS)
@pytest.mark.parametrize("dialect", ["T", "C"])
def test_a_task_that_makes_no_call_comes_back_as_it_was_written(
    options: Options, dialect: Any
) -> None:
    body = '{"day":"{{scheduled_at}}","n":[1,2.5,null]}'
    definition = Definition(
        "n", "", Once(NOW + HOUR), body=body, timeout_us=20 * 24 * HOUR, options=options
    )
    stored = read_timer(text_of(task_of(definition, dialect=dialect)), NOW)
    assert (stored.definition, stored.dialect) == (definition, dialect)


QUEUE = {"options": {"queue": {"addon_id": "etl", "job_type": "x"}}}
NO_CALL = {"url": "", "body": "{}"}


@pytest.mark.spec("T19", "B5")
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"type": "queue"}, "task.options.queue"),
        ({"type": "node", "http": NO_CALL, "task": QUEUE}, "task.options.queue"),
        ({"task": QUEUE}, "task.options.queue"),
        ({"type": "queue", "task": QUEUE}, "http"),
        ({"type": "queue", "http": {**NO_CALL, "body": "{x"}, "task": QUEUE}, "http.body"),
        ({"http": NO_CALL}, "http.url"),
    ],
)
def test_a_job_that_does_not_fit_its_type_is_refused_by_the_member(
    members: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        read_timer(job(**members), NOW)
    assert refused.value.field == field
    good = read_timer(job(type="queue", http=NO_CALL, task=QUEUE), NOW)
    assert good.definition.options.queue == QueueSpec("etl", "x")


@pytest.mark.spec("T19")
@given(definitions, st.sampled_from(["T", "C"]))
def test_every_definition_comes_back_as_it_was_written(
    definition: Definition, dialect: Any
) -> None:
    if dialect == "C":
        definition = msgspec.structs.replace(definition, name="n" + definition.name)
    task = task_of(
        definition,
        dialect=dialect,
        runs_fired=2,
        last_run_at=NOW,
        last_status="failed",
        last_error="é\n",
    )
    found = read_timer(text_of(task), NOW + HOUR)
    assert (found.definition, found.dialect) == (definition, dialect)
    assert (found.task_id, found.job_id, found.version, found.runs_fired) == (7, "j", 3, 2)
    assert (found.created_at, found.updated_at, found.last_run_at) == (NOW, NOW + 1, NOW)
    assert (found.last_status, found.last_error) == ("failed", "é\n")


@pytest.mark.spec("T19")
def test_a_job_of_the_seed_is_read_and_a_plain_timer_has_no_task_member() -> None:
    found = read_timer(job(), NOW)
    assert isinstance(found.definition.schedule, Every)
    assert (found.task_id, found.definition.headers, found.definition.timeout_us) == (
        None,
        {"X-Token": "abc"},
        10 * SECOND,
    )
    assert (found.definition.misfire_policy, found.definition.concurrency_policy) == (
        "SKIP",
        "SKIP",
    )
    assert set(SEED) <= set(write_head(task_of(found.definition))) | set(
        write_tail(None, None, "", "", None)
    )
    assert "task" not in write_head(task_of(found.definition))


@pytest.mark.spec("T0")
def test_a_job_that_says_little_gets_the_defaults() -> None:
    text = msgspec.json.encode(
        {"http": {"url": "http://a.example/"}, "schedule": {"kind": "every", "every": "1s"}}
    )
    found = read_timer(text, NOW, TimerDefaults(2 * SECOND, 1, 3 * SECOND))
    assert found.is_enabled and found.definition.http_method == "GET"
    assert (found.definition.timeout_us, found.definition.retry) == (
        2 * SECOND,
        RetryPolicy(1, 3 * SECOND),
    )


@pytest.mark.spec("T19")
@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"timout": "10s"}, "timout"),
        ({"timeout": "soon"}, "timeout"),
        ({"schedule": {"kind": "sometimes"}}, "schedule.kind"),
        ({"schedule": None}, "schedule"),
        ({"http": {"url": "ftp://a.example/"}}, "http"),
        ({"http": {"url": "http://a.example/", "method": "BREW"}}, "method"),
        ({"http": {"url": "http://a.example/", "headers": {"A": "x\r\nB: y"}}}, "control"),
        ({"id": "a b"}, "id"),
        ({"task_id": 0}, "task_id"),
        ({"enabled": "yes"}, "enabled"),
        ({"max_retries": -1}, "max_retries"),
        ({"last_run_at": "yesterday"}, "last_run_at"),
        ({"task": {"exec_type": "MAYBE"}}, "exec_type"),
        ({"task": {"colour": "red"}}, "colour"),
        ({"task": {"options": {"colour": "red"}}}, "options"),
        ({"task": {"dialect": "X"}}, "dialect"),
    ],
)
def test_a_bad_member_is_named(members: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidError, match=word):
        read_timer(job(**members), NOW)


def slot_of(text: bytes, alive_at: int, now: int) -> int | None:
    return place(read_timer(text, now), 1, "j", alive_at, now).next_slot_at


def test_the_slot_that_was_next_stays_next_even_if_it_is_past() -> None:
    cron = {"kind": "cron", "expr": "0 * * * *"}
    assert (
        slot_of(job(schedule=cron, next_run_at="2026-01-01T01:00:00Z"), NOW, NOW + 5 * HOUR)
        == NOW + HOUR
    )


def test_a_next_run_that_is_no_slot_of_an_edited_schedule_is_not_taken() -> None:
    cron = {"kind": "cron", "expr": "30 * * * *"}
    assert (
        slot_of(job(schedule=cron, next_run_at="2026-01-01T01:00:00Z"), NOW, NOW + HOUR)
        == NOW + 30 * MINUTE
    )


@pytest.mark.parametrize(
    ("members", "is_open"),
    [
        ({"next_run_at": "2026-01-01T00:00:00Z"}, True),  # still to come when the server died
        (
            {"next_run_at": "", "last_run_at": "2026-01-01T00:00:00Z", "last_status": "success"},
            False,
        ),
        ({"next_run_at": "", "last_status": "missed"}, False),
        ({"next_run_at": ""}, True),  # added by hand
        (
            {
                "next_run_at": "",
                "last_status": "success",
                "schedule": {"kind": "once", "run_at": "2027-01-01T00:00:00Z"},
            },
            True,
        ),
    ],
)
def test_a_one_time_job_is_armed_until_it_ran(members: dict[str, Any], is_open: bool) -> None:
    once = {"kind": "once", "run_at": "2026-01-01T00:00:00Z"}
    assert (
        slot_of(job(**{"schedule": once, **members}), NOW + 1, NOW + HOUR) is not None
    ) is is_open


def test_a_count_that_is_used_up_or_a_paused_job_arms_nothing() -> None:
    counted = {"kind": "cron", "expr": "0 * * * *", "max_runs": 2}
    assert slot_of(job(schedule=counted, runs_fired=2), NOW, NOW) is None
    assert slot_of(job(schedule=counted, runs_fired=1), NOW, NOW) == NOW + HOUR
    assert place(read_timer(job(enabled=False), NOW), 1, "j", NOW, NOW).fire_at is None
    assert isinstance(read_timer(job(schedule=counted), NOW).definition.schedule, Cron)
