"""Dialect T over HTTP: `/jobs` (T0-T4, T6-T9, T18)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.tasks.members import Defaults
from ksana.base.instant import MINUTE, SECOND
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
        "body": '{\n  "event": "order.received",\n  "job_id": "<filled-by-service>",\n  '
        '"payload": {"order_id": 12345}\n}',
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


@pytest.mark.spec("T2", "X13")
async def test_a_list_without_a_limit_is_a_page_and_says_where_to_go_on(ground: Ground) -> None:
    from ksana.domain.schedule import Once
    from ksana.domain.tasks.records import Definition
    from tests.ground.task_rows import a_task

    def fill(tx: Any) -> None:
        definition = Definition("n", "", Once(1), target_url=URL)
        tx.tasks.insert(
            [a_task(f"job-{number}", definition, tx.now, None, "T") for number in range(1203)]
        )

    await ground.store.transact(fill)
    seen: list[str] = []
    sizes: list[int] = []
    cursor: str | None = "0"
    while cursor is not None:
        answer = await ground.http.get(f"/jobs?cursor={cursor}")
        assert answer.status_code == 200
        jobs = answer.json()
        seen += [job["id"] for job in jobs]
        sizes.append(len(jobs))
        cursor = answer.headers.get("x-next-cursor")
    assert seen == [f"job-{number}" for number in range(1203)]
    assert sizes == [500, 500, 203]
