"""Dialect T over HTTP: `/jobs` (T0-T4, T6-T9, T18)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.tasks.members import Defaults
from ksana.base.instant import HOUR, MINUTE, SECOND
from tests.api.tasks_ground import URL, Ground, open_tasks


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


SEED = {
    "id": "",
    "name": "notify-order",
    "enabled": True,
    "type": "http",
    "http": {
        "method": "POST",
        "url": "https://api.example.com/orders/notify",
        "headers": {"Content-Type": "application/json"},
        "body": '{\n  "event": "order.received",\n  "job_id": "<filled-by-service>",\n  "payload": {"order_id": 12345}\n}',
    },
    "schedule": {"kind": "every", "every": "5m"},
    "timeout": "10s",
    "max_retries": 3,
    "retry_backoff": "5s",
}


@pytest.mark.spec("T1", "X5", "X6", "X7")
async def test_the_seeds_example_is_taken_and_answered_whole(ground: Ground) -> None:
    job = await ground.ask("POST", "/jobs", SEED, status=201)
    assert len(job["id"]) == 36
    assert job["task_id"] == 1
    for name in ("name", "enabled", "type", "http", "timeout", "max_retries", "retry_backoff"):
        assert job[name] == SEED[name]
    assert job["schedule"] == {
        "kind": "every",
        "every": "5m",
        "start_at": "",
        "end_at": "",
        "jitter": "0s",
        "anchor_at": "2026-01-01T00:00:00Z",
    }
    assert job["next_run_at"] == "2026-01-01T00:05:00Z"
    assert (job["last_run_at"], job["last_status"], job["last_error"]) == ("", "", "")
    assert job == await ground.ask("GET", f"/jobs/{job['id']}", status=200)


@pytest.mark.spec("T0", "T1")
async def test_what_is_absent_gets_the_defaults_of_timers(ground: Ground) -> None:
    job = await ground.ask(
        "POST",
        "/jobs",
        {"http": {"url": URL}, "schedule": {"kind": "every", "every": 60}},
        status=201,
    )
    assert (job["enabled"], job["http"]["method"], job["timeout"]) == (True, "GET", "10s")
    assert (job["max_retries"], job["retry_backoff"], job["name"]) == (3, "5s", "")
    task = await ground.ask("GET", f"/api/v1/tasks/{job['task_id']}", status=200)
    assert (task["misfire_policy"], task["concurrency_policy"], task["max_concurrency"]) == (
        "SKIP",
        "SKIP",
        1,
    )
    assert task["retry_policy"]["strategy"] == "fixed"
    assert (task["job_id"], task["dialect"]) == (job["id"], "T")


@pytest.mark.spec("T0", "X15")
async def test_the_defaults_of_timers_can_be_set(tmp_path: Path) -> None:
    chosen = Defaults(
        timer_timeout_us=3 * SECOND,
        timer_max_retries=1,
        timer_retry_backoff_us=MINUTE,
        max_queued=7,
    )
    async with open_tasks(tmp_path, defaults=chosen) as ground:
        job = await ground.make_timer()
        assert (job["timeout"], job["max_retries"], job["retry_backoff"]) == ("3s", 1, "1m")
        assert (await ground.ask("GET", "/api/v1/tasks/1"))["max_queued"] == 7


@pytest.mark.spec("T1", "X7")
async def test_an_id_may_be_given_once(ground: Ground) -> None:
    assert (await ground.make_timer(id="my.job~1"))["id"] == "my.job~1"
    body = {"id": "my.job~1", "http": {"url": URL}, "schedule": {"kind": "every", "every": "1s"}}
    assert (await ground.ask("POST", "/jobs", body, status=409))["code"] == "ALREADY_EXISTS"
    assert (await ground.make_timer(id=None))["id"] != (await ground.make_timer(id=""))["id"]


@pytest.mark.spec("T0")
async def test_timers_may_share_a_name(ground: Ground) -> None:
    assert (await ground.make_timer(name="same"))["name"] == (await ground.make_timer(name="same"))[
        "name"
    ]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"schedule": {"kind": "weekly"}}, "schedule.kind"),
    ({"schedule": {"every": "5m"}}, "schedule.kind"),
    ({"schedule": {}}, "schedule"),
    ({"schedule": None}, "schedule"),
    ({"schedule": {"kind": "every"}}, "schedule.every"),
    ({"schedule": {"kind": "every", "every": "5 minutes"}}, "schedule.every"),
    ({"schedule": {"kind": "every", "every": "-5s"}}, "schedule.every"),
    ({"schedule": {"kind": "every", "every": "99ms"}}, "schedule.every"),
    ({"schedule": {"kind": "every", "every": True}}, "schedule.every"),
    ({"schedule": {"kind": "every", "every": "5s", "jitter": "5s"}}, "schedule.jitter"),
    ({"schedule": {"kind": "every", "every": "5s", "jitter": "soon"}}, "schedule.jitter"),
    ({"schedule": {"kind": "every", "every": "5s", "start_at": "tomorrow"}}, "schedule.start_at"),
    (
        {"schedule": {"kind": "every", "every": "5s", "run_at": "2026-02-01T00:00:00Z"}},
        "schedule.run_at",
    ),
    (
        {
            "schedule": {
                "kind": "every",
                "every": "5s",
                "start_at": "2026-02-02T00:00:00Z",
                "end_at": "2026-02-01T00:00:00Z",
            }
        },
        "schedule.end_at",
    ),
    ({"schedule": {"kind": "every", "every": "5s", "max_runs": 0}}, "schedule.max_runs"),
    ({"schedule": {"kind": "once"}}, "schedule.run_at"),
    ({"schedule": {"kind": "once", "run_at": "2026-02-30T00:00:00Z"}}, "schedule.run_at"),
    ({"schedule": {"kind": "once", "run_at": "2026-02-01T00:00:00"}}, "schedule.run_at"),
    ({"schedule": {"kind": "once", "run_at": "2026-02-01T00:00:00Z", "foo": 1}}, "schedule.foo"),
    ({"schedule": {"kind": "cron"}}, "schedule.expr"),
    ({"schedule": {"kind": "cron", "expr": "61 * * * *"}}, "schedule.expr"),
    (
        {"schedule": {"kind": "cron", "expr": "* * * * *", "timezone": "Mars/Base"}},
        "schedule.timezone",
    ),
    ({"http": {}}, "http.url"),
    ({"http": {"url": ""}}, "http.url"),
    ({"http": {"url": "target.test"}}, "http.url"),
    ({"http": {"url": "ftp://target.test/"}}, "http.url"),
    ({"http": {"url": "file:///etc/passwd"}}, "http.url"),
    ({"http": {"url": "http://me:secret@target.test/"}}, "http.url"),
    ({"http": {"url": "http://target.test/a b"}}, "http.url"),
    ({"http": {"url": "http://target.test/\r\nX: y"}}, "http.url"),
    ({"http": {"url": "http://target.test:99999/"}}, "http.url"),
    ({"http": {"url": "http://target.test/" + "x" * 2048}}, "http.url"),
    ({"http": {"url": URL, "method": "TRACE"}}, "http.method"),
    ({"http": {"url": URL, "headers": {"X-A": "b\r\nX-C: d"}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {"X A": "b"}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {"Host": "b"}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {"Content-Length": "5"}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {"transfer-encoding": "chunked"}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {"X-Ksana-Run-Id": "5"}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {"X-A": "1", "x-a": "2"}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {f"X-{at}": "1" for at in range(65)}}}, "http.headers"),
    ({"http": {"url": URL, "headers": {"Authorization": "***"}}}, "http.headers"),
    ({"http": {"url": URL, "body": {"a": 1}}}, "http.body"),
    ({"http": {"url": URL, "foo": 1}}, "http.foo"),
    ({"http": {"url": URL, "body": "a\0b"}}, "http.body"),
    ({"http": "x"}, "http"),
    ({"timeout": "0s"}, "timeout"),
    ({"timeout": "soon"}, "timeout"),
    ({"timeout": "2d"}, "timeout"),
    ({"retry_backoff": "x"}, "retry_backoff"),
    ({"max_retries": -1}, "max_retries"),
    ({"max_retries": 1.5}, "max_retries"),
    ({"enabled": "yes"}, "enabled"),
    ({"type": "queue"}, "type"),
    ({"type": "node"}, "type"),
    ({"type": "shell"}, "type"),
    ({"name": "x" * 129}, "name"),
    ({"name": "a\nb"}, "name"),
    ({"id": "a b"}, "id"),
    ({"id": "a/b"}, "id"),
    ({"id": "x" * 129}, "id"),
    ({"colour": "red"}, "colour"),
]


@pytest.mark.spec("T18", "T8", "T9", "X8", "X9", "X13", "X20")
@pytest.mark.parametrize(
    ("members", "field"), BAD, ids=[f"{field}-{at}" for at, (_, field) in enumerate(BAD)]
)
async def test_bad_input_is_refused_with_the_field_when_made_and_when_changed(
    ground: Ground, members: dict[str, Any], field: str
) -> None:
    body = {
        "name": "ping",
        "http": {"url": URL},
        "schedule": {"kind": "every", "every": "5m"},
        **members,
    }
    if members.get("schedule", 1) is None:
        await ground.ask("POST", "/jobs", body, status=400)
    else:
        answer = await ground.refused("POST", "/jobs", body, field)
        assert answer["code"] == "INVALID_ARGUMENT"
        assert answer["message"] == answer["detail"]
    assert await ground.ask("GET", "/jobs") == []
    if field in ("id", "http.url", "schedule", "schedule.kind") and not members.get("http", {}).get(
        "url"
    ):
        return  # a merge leaves the stored url and kind; an id sent back is ignored
    job = await ground.make_timer()
    if field != "schedule.every" or members["schedule"].get("every") is not None:
        await ground.refused("PATCH", f"/jobs/{job['id']}", members, field)
    assert await ground.ask("GET", f"/jobs/{job['id']}") == job


@pytest.mark.spec("T18", "X8")
async def test_an_id_that_cannot_be_one_and_one_that_is_unknown(ground: Ground) -> None:
    for method, path in (
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/run-now"),
        ("POST", "/pause"),
    ):
        body: Any = {} if method == "PATCH" else None
        assert (await ground.ask(method, f"/jobs/a%20b{path}", body, status=400))[
            "code"
        ] == "INVALID_ID"
        assert (await ground.ask(method, f"/jobs/nobody{path}", body, status=404))[
            "code"
        ] == "NOT_FOUND"


@pytest.mark.spec("T2")
async def test_the_list_is_an_array_oldest_first_in_pages(ground: Ground) -> None:
    for number in range(5):
        await ground.make_timer(id=f"job-{number}")
    await ground.make_task(exec_type="ASYNC")
    await ground.make_task(name="cron")
    jobs = await ground.ask("GET", "/jobs")
    assert [job["id"] for job in jobs][:5] == [f"job-{number}" for number in range(5)]
    assert [job["name"] for job in jobs][5:] == ["cron"]
    seen, cursor = [], ""
    while True:
        reply = await ground.http.get(f"/jobs?limit=2&cursor={cursor}")
        seen += [job["id"] for job in reply.json()]
        cursor = reply.headers.get("x-next-cursor", "")
        if not cursor:
            break
    assert seen == [job["id"] for job in jobs]
    await ground.refused("GET", "/jobs?limit=501", None, "limit")
    await ground.refused("GET", "/jobs?cursor=x", None, "cursor")


@pytest.mark.spec("T2")
async def test_all_timers_are_listed_beyond_one_page_of_the_store(ground: Ground) -> None:
    from ksana.domain.schedule import Once
    from ksana.domain.tasks.records import Definition
    from tests.ground.task_rows import a_task

    def fill(tx: Any) -> None:
        definition = Definition("n", "", Once(1), target_url=URL)
        tx.tasks.insert(
            [a_task(f"job-{number}", definition, tx.now, None, "T") for number in range(1203)]
        )

    await ground.store.transact(fill)
    jobs = await ground.ask("GET", "/jobs", status=200)
    assert [job["id"] for job in jobs] == [f"job-{number}" for number in range(1203)]


@pytest.mark.spec("T2", "X9")
async def test_a_patch_merges_and_ignores_what_is_ours(ground: Ground) -> None:
    job = await ground.make_timer(
        http={"url": URL, "method": "POST", "headers": {"X-A": "1", "X-B": "2"}, "body": "hi"}
    )
    path = f"/jobs/{job['id']}"
    changed = await ground.ask(
        "PATCH", path, {"name": "pong", "http": {"headers": {"x-a": "3", "X-B": None}}}, status=200
    )
    assert changed["name"] == "pong"
    assert changed["http"] == {"method": "POST", "url": URL, "headers": {"X-A": "3"}, "body": "hi"}
    assert changed["version"] == job["version"] + 1
    same = await ground.ask(
        "PATCH", path, {**changed, "last_status": "success", "next_run_at": "never"}, status=200
    )
    assert {**same, "version": 0} == {**changed, "version": 0}
    back = await ground.ask(
        "PATCH", path, {"timeout": None, "http": {"method": None, "body": None}}, status=200
    )
    assert (back["timeout"], back["http"]["method"], back["http"]["body"]) == ("10s", "GET", "")


@pytest.mark.spec("T2", "X8")
async def test_a_change_made_from_an_old_version_is_refused(ground: Ground) -> None:
    job = await ground.make_timer()
    await ground.ask("PATCH", f"/jobs/{job['id']}", {"name": "b"}, status=200, If_Match='"1"')
    stale = await ground.ask(
        "PATCH", f"/jobs/{job['id']}", {"name": "c"}, status=409, If_Match='"1"'
    )
    assert (stale["code"], stale["current"]) == ("VERSION_CONFLICT", {"version": 2})
    await ground.refused("PATCH", f"/jobs/{job['id']}", {"name": "c"}, "If-Match", If_Match="soon")


@pytest.mark.spec("T2", "T7")
async def test_a_changed_kind_drops_the_members_of_the_other_kind(ground: Ground) -> None:
    job = await ground.make_timer(
        schedule={"kind": "every", "every": "5m", "start_at": "2026-01-02T00:00:00Z"}
    )
    path = f"/jobs/{job['id']}"
    once = await ground.ask(
        "PATCH",
        path,
        {"schedule": {"kind": "once", "run_at": "2026-03-01T02:00:00+02:00"}},
        status=200,
    )
    assert once["schedule"] == {"kind": "once", "run_at": "2026-03-01T00:00:00Z", "jitter": "0s"}
    assert once["next_run_at"] == "2026-03-01T00:00:00Z"
    cron = await ground.ask(
        "PATCH", path, {"schedule": {"kind": "cron", "expr": "0 9 * * 1-5"}}, status=200
    )
    assert (cron["schedule"]["expr"], cron["schedule"]["timezone"]) == ("0 0 9 * * 1-5", "UTC")
    assert "run_at" not in cron["schedule"]
    await ground.refused("PATCH", path, {"schedule": {"every": "5m"}}, "schedule.every")


@pytest.mark.spec("T7", "T4")
async def test_an_interval_keeps_its_anchor_until_it_is_changed(ground: Ground) -> None:
    job = await ground.make_timer(
        schedule={"kind": "every", "every": "10m", "start_at": "", "jitter": "5s"}
    )
    path = f"/jobs/{job['id']}"
    await ground.clock.advance(4 * MINUTE)
    for patch in (
        {"name": "x"},
        {"schedule": {"kind": "every", "every": "10m"}},
        {"schedule": job["schedule"]},
    ):
        assert (await ground.ask("PATCH", path, patch, status=200))[
            "next_run_at"
        ] == "2026-01-01T00:10:00Z"
    changed = await ground.ask("PATCH", path, {"schedule": {"every": "20m"}}, status=200)
    assert changed["next_run_at"] == "2026-01-01T00:24:00Z"
    given = await ground.ask(
        "PATCH", path, {"schedule": {"start_at": "2026-01-01T00:05:00Z"}}, status=200
    )
    assert given["next_run_at"] == "2026-01-01T00:05:00Z"


@pytest.mark.spec("T6")
async def test_a_once_timer_long_past_is_missed_and_one_just_past_is_not(ground: Ground) -> None:
    late = await ground.make_timer(schedule={"kind": "once", "run_at": "2025-12-31T23:59:58Z"})
    assert (late["last_status"], late["next_run_at"]) == ("missed", "")
    just = await ground.make_timer(schedule={"kind": "once", "run_at": "2025-12-31T23:59:59.5Z"})
    assert (just["last_status"], just["next_run_at"]) == ("", "2025-12-31T23:59:59.5Z")
    again = await ground.ask(
        "PATCH", f"/jobs/{late['id']}", {"schedule": {"run_at": "2026-01-01T01:00:00Z"}}, status=200
    )
    assert again["next_run_at"] == "2026-01-01T01:00:00Z"


@pytest.mark.spec("T4")
async def test_pausing_and_resuming_answer_the_job(ground: Ground) -> None:
    job = await ground.make_timer()
    path = f"/jobs/{job['id']}"
    paused = await ground.ask("POST", f"{path}/pause", status=200)
    assert (paused["enabled"], paused["last_status"], paused["next_run_at"]) == (
        False,
        "paused",
        "",
    )
    await ground.clock.advance(HOUR)
    resumed = await ground.ask("POST", f"{path}/resume", status=200)
    assert (resumed["enabled"], resumed["next_run_at"]) == (True, "2026-01-01T01:05:00Z")
    by_patch = await ground.ask("PATCH", path, {"enabled": False}, status=200)
    assert (by_patch["enabled"], by_patch["last_status"]) == (False, "paused")
    assert (await ground.make_timer(enabled=False))["next_run_at"] == ""


@pytest.mark.spec("T3", "X22")
async def test_run_now_answers_both_ids_of_the_run_and_leaves_the_schedule(ground: Ground) -> None:
    job = await ground.make_timer(enabled=False)
    trace = "0af7651916cd43dd8448eb211c80319c"
    started = await ground.ask(
        "POST",
        f"/jobs/{job['id']}/run-now",
        status=202,
        traceparent=f"00-{trace}-b7ad6b7169203331-01",
    )
    assert len(started["run_id"]) == 32
    run = await ground.ask("GET", f"/api/v1/runs/{started['run_id']}", status=200)
    assert (run["id"], run["trigger"], run["trace_id"]) == (started["id"], "manual", trace)
    beside = await ground.ask("POST", f"/jobs/{job['id']}/run-now", status=202)
    assert beside["id"] != started["id"]
    assert (await ground.ask("GET", f"/jobs/{job['id']}"))["next_run_at"] == job["next_run_at"]


@pytest.mark.spec("X21")
async def test_run_now_with_a_key_runs_once(ground: Ground) -> None:
    job = await ground.make_timer()
    path = f"/jobs/{job['id']}/run-now"
    first = await ground.http.post(path, headers={"Idempotency-Key": "k1"})
    again = await ground.http.post(path, headers={"Idempotency-Key": "k1"})
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert (await ground.ask("GET", "/api/v1/runs"))["total"] == 1


@pytest.mark.spec("T2", "T17")
async def test_a_deleted_job_is_gone(ground: Ground) -> None:
    job = await ground.make_timer()
    reply = await ground.http.delete(f"/jobs/{job['id']}")
    assert (reply.status_code, reply.content) == (204, b"")
    await ground.ask("GET", f"/jobs/{job['id']}", status=404)
    await ground.ask("DELETE", f"/jobs/{job['id']}", status=404)


@pytest.mark.spec("X16")
async def test_secrets_are_masked_and_sent_back_they_stay(ground: Ground) -> None:
    job = await ground.make_timer(
        http={"url": URL, "headers": {"Authorization": "Bearer s3cret", "X-Token": "abc"}}
    )
    assert job["http"]["headers"] == {"Authorization": "***", "X-Token": "abc"}
    path = f"/jobs/{job['id']}"
    await ground.ask(
        "PATCH",
        path,
        {"http": {**job["http"], "headers": {"authorization": "***", "X-Token": "d"}}},
        status=200,
    )
    stored = await ground.store.read(lambda tx: tx.tasks.find(1))
    assert stored is not None
    assert stored.definition.headers == {"Authorization": "Bearer s3cret", "X-Token": "d"}


@pytest.mark.spec("T0", "T10")
async def test_a_record_keeps_the_rules_of_its_dialect_and_what_t_cannot_express(
    ground: Ground,
) -> None:
    timer = await ground.make_timer(http={"url": URL, "method": "POST", "body": "{{anything}}"})
    task_path = f"/api/v1/tasks/{timer['task_id']}"
    changed = await ground.ask(
        "PATCH",
        task_path,
        {
            "tags": ["a"],
            "max_concurrency": 4,
            "retry_policy": {"strategy": "exponential"},
            "secret_headers": ["X-Key"],
        },
        status=200,
    )
    assert changed["body_template"] == "{{anything}}"
    await ground.ask(
        "PATCH",
        f"/jobs/{timer['id']}",
        {"name": "", "max_retries": 9, "retry_backoff": "1s"},
        status=200,
    )
    task = await ground.ask("GET", task_path)
    assert (task["tags"], task["max_concurrency"], task["secret_headers"]) == (["a"], 4, ["X-Key"])
    assert task["retry_policy"]["strategy"] == "exponential"
    assert (task["retry_policy"]["max_retries"], task["retry_policy"]["initial_delay"]) == (9, 1)
    made_by_c = await ground.make_task(name="c")
    await ground.refused(
        "PATCH", f"/jobs/{made_by_c['job_id']}", {"http": {"body": "{{anything}}"}}, "http.body"
    )
