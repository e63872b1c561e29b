"""Dialect C over HTTP: `/api/v1/tasks` (C1-C4, C7, C8, C13)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.tasks.members import Defaults
from ksana.base.instant import HOUR, MINUTE
from tests.api.tasks_ground import URL, Ground, open_tasks

TASKS = "/api/v1/tasks"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


SEED = {
    "name": "sync_stats",
    "description": "统计同步",
    "cron_expr": "0 */5 * * *",
    "exec_type": "SYNC",
    "http_method": "POST",
    "target_url": "http://svc.internal/api/sync",
    "headers": {"Content-Type": "application/json"},
    "body_template": '{"run_id": "{{run_id}}"}',
    "timeout_seconds": 10,
    "retry_policy": {
        "max_retries": 3,
        "initial_delay": 5,
        "strategy": "exponential",
        "max_delay": 60,
    },
    "max_concurrency": 1,
    "concurrency_policy": "QUEUE",
    "misfire_policy": "FIRE_NOW",
    "catchup_limit": 5,
}

WHOLE = {
    "name": "whole",
    "description": "all there is",
    "type": "http",
    "schedule": {
        "kind": "cron",
        "expr": "0 30 2 * * *",
        "timezone": "Europe/Berlin",
        "start_at": "2026-01-02T00:00:00Z",
        "end_at": "2027-01-01T00:00:00Z",
        "jitter": "10s",
        "max_runs": 7,
    },
    "dst_gap": "skip",
    "dst_overlap": "both",
    "exec_type": "ASYNC",
    "http_method": "PUT",
    "target_url": "https://target.test/{{job_id}}?at={{scheduled_at}}",
    "headers": {"X-Run": "{{run_uid}}"},
    "body_template": '{"url": "{{callback_url}}"}',
    "template": True,
    "timeout_seconds": 2.5,
    "connect_timeout": "1.5s",
    "retry_policy": {
        "max_retries": 4,
        "initial_delay": 0.5,
        "strategy": "exponential",
        "max_delay": 60,
        "jitter": 2,
    },
    "max_concurrency": 3,
    "concurrency_policy": "SKIP",
    "max_queued": 5,
    "misfire_policy": "CATCH_UP_LIMITED",
    "misfire_grace": "30s",
    "catchup_limit": 10,
    "callback_method": "PATCH",
    "callback_timeout_sec": 60,
    "retry_on_callback_failure": True,
    "on_orphan": "fail",
    "delivery": "at_most_once",
    "follow_redirects": 3,
    "signing_secret": SECRET,
    "secret_headers": ["X-Key"],
    "tags": ["nightly", "报表"],
    "history_limit": 50,
    "response_limit": 0,
    "status": "DISABLED",
}


@pytest.mark.spec("C1", "C7")
async def test_the_seeds_example_is_taken_and_answered_whole(ground: Ground) -> None:
    task = await ground.ask("POST", TASKS, SEED, status=201)
    assert (task["id"], task["name"], task["version"], task["status"]) == (
        1,
        "sync_stats",
        1,
        "ENABLED",
    )
    assert task["cron_expr"] == "0 0 */5 * * *"
    assert task["retry_policy"] == {**SEED["retry_policy"], "jitter": 0}  # type: ignore[dict-item]
    for name in SEED.keys() - {"cron_expr", "retry_policy"}:
        assert task[name] == SEED[name], name
    assert task["next_run_at"] == "2026-01-01T05:00:00Z"


@pytest.mark.spec("C1")
async def test_absent_members_get_the_defaults_of_the_contract(ground: Ground) -> None:
    task = await ground.ask(
        "POST", TASKS, {"name": "t", "cron_expr": "* * * * *", "target_url": URL}, status=201
    )
    expected = {
        "timezone": "UTC",
        "exec_type": "SYNC",
        "http_method": "GET",
        "timeout_seconds": 10,
        "max_concurrency": 1,
        "concurrency_policy": "QUEUE",
        "misfire_policy": "FIRE_NOW",
        "catchup_limit": 0,
        "callback_method": "POST",
        "callback_timeout_sec": 300,
        "status": "ENABLED",
        "version": 1,
        "type": "http",
        "template": True,
        "max_queued": 100,
        "misfire_grace": "1m",
        "on_orphan": "retry",
        "delivery": "at_least_once",
        "follow_redirects": 0,
        "tags": [],
        "history_limit": 1000,
        "response_limit": 65536,
        "signing_secret": None,
        "body_template": None,
        "dst_gap": None,
        "dst_overlap": None,
        "connect_timeout": None,
        "retry_on_callback_failure": False,
        "headers": {},
    }
    assert {name: task[name] for name in expected} == expected
    assert task["retry_policy"]["max_retries"] == 0
    assert len(task["job_id"]) == 36


@pytest.mark.spec("C1", "C8", "X16")
async def test_every_member_can_be_given_and_comes_back(ground: Ground) -> None:
    task = await ground.ask("POST", TASKS, WHOLE, status=201)
    assert {name: task[name] for name in WHOLE} == {**WHOLE, "signing_secret": "***"}
    assert (task["timezone"], task["next_run_at"]) == ("Europe/Berlin", None)
    stored = await ground.store.read(lambda tx: tx.tasks.find(1))
    assert stored is not None
    assert stored.definition.options.signing_secret == SECRET
    assert stored.definition.options.response_limit is None


@pytest.mark.spec("C3", "X16", "X9")
async def test_a_task_that_is_read_and_put_back_is_the_same(ground: Ground) -> None:
    made = [
        await ground.ask(
            "POST", TASKS, {**WHOLE, "headers": {"X-Key": "k", "Cookie": "c"}}, status=201
        ),
        await ground.make_task(),
        await ground.make_task(name="every", schedule={"kind": "every", "every": "90s"}),
        await ground.make_task(
            name="once", schedule={"kind": "once", "run_at": "2026-06-01T00:00:00Z"}
        ),
    ]
    await ground.clock.advance(MINUTE)
    ours = ("version", "updated_at", "updated", "last_run")
    for before in made:
        path = f"{TASKS}/{before['id']}"
        for method in ("PUT", "PATCH"):
            read = await ground.ask("GET", path)
            put = await ground.ask(method, path, read, status=200)
            assert {k: v for k, v in put.items() if k not in ours} == {
                k: v for k, v in before.items() if k not in ours
            }
    stored = await ground.store.read(lambda tx: tx.tasks.find(1))
    assert stored is not None
    assert stored.definition.headers == {"X-Key": "k", "Cookie": "c"}
    assert stored.definition.options.signing_secret == SECRET


@pytest.mark.spec("C8", "T7")
async def test_every_kind_of_schedule_works_and_short_members_may_stand_beside_it(
    ground: Ground,
) -> None:
    every = await ground.make_task(
        name="a", schedule={"kind": "every", "every": 30}, jitter="2s", max_runs=3
    )
    assert (every["schedule"]["jitter"], every["schedule"]["max_runs"]) == ("2s", 3)
    assert (every["cron_expr"], every["next_run_at"]) == (None, "2026-01-01T00:00:30Z")
    once = await ground.make_task(
        name="b", schedule={"kind": "once", "run_at": "2026-01-01T08:00:00+08:00"}
    )
    assert once["schedule"]["run_at"] == "2026-01-01T00:00:00Z"
    cron = await ground.make_task(
        name="c", cron_expr="0 9 * * *", timezone="+08:00", start_at="2026-02-01T00:00:00Z"
    )
    assert cron["next_run_at"] == "2026-02-01T01:00:00Z"
    both = await ground.make_task(
        name="d", schedule={"kind": "cron", "expr": "0 9 * * *"}, timezone="Asia/Shanghai"
    )
    assert (both["timezone"], both["next_run_at"]) == ("Asia/Shanghai", "2026-01-01T01:00:00Z")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": "   "}, "name"),
    ({"name": "x" * 129}, "name"),
    ({"name": "a\tb"}, "name"),
    ({"name": 5}, "name"),
    ({"description": "x" * 513}, "description"),
    ({"target_url": ""}, "target_url"),
    ({"target_url": "gopher://x/"}, "target_url"),
    ({"target_url": "http://[::1"}, "target_url"),
    ({"target_url": "http://t/{{nobody}}"}, "target_url"),
    ({"cron_expr": ""}, "cron_expr"),
    ({"cron_expr": "* * *"}, "cron_expr"),
    ({"cron_expr": "* * * * * * *"}, "cron_expr"),
    ({"cron_expr": "60 * * * *"}, "cron_expr"),
    ({"cron_expr": "* 24 * * *"}, "cron_expr"),
    ({"cron_expr": "* * 0 * *"}, "cron_expr"),
    ({"cron_expr": "* * 32 * *"}, "cron_expr"),
    ({"cron_expr": "* * * 13 *"}, "cron_expr"),
    ({"cron_expr": "* * * * 8"}, "cron_expr"),
    ({"cron_expr": "* * * FOO *"}, "cron_expr"),
    ({"cron_expr": "*/0 * * * *"}, "cron_expr"),
    ({"cron_expr": "10-5 * * * *"}, "cron_expr"),
    ({"cron_expr": "* * L-3 * *"}, "cron_expr"),
    ({"cron_expr": "* * L,15 * *"}, "cron_expr"),
    ({"cron_expr": "* * 15W,3 * *"}, "cron_expr"),
    ({"cron_expr": "* * * * 1#6"}, "cron_expr"),
    ({"cron_expr": "0 0 30 2 *"}, "cron_expr"),
    ({"cron_expr": "@never"}, "cron_expr"),
    ({"cron_expr": "* " * 200}, "cron_expr"),
    ({"timezone": "Europe/Berlln"}, "timezone"),
    ({"start_at": "2026-01-01 00:00:00"}, "start_at"),
    ({"end_at": "x"}, "end_at"),
    ({"jitter": "x"}, "jitter"),
    ({"max_runs": 0}, "max_runs"),
    ({"dst_gap": "never"}, "dst_gap"),
    ({"dst_overlap": "none"}, "dst_overlap"),
    ({"exec_type": "LATER"}, "exec_type"),
    ({"type": "queue"}, "type"),
    ({"type": "node"}, "type"),
    ({"http_method": "get"}, "http_method"),
    ({"http_method": "CONNECT"}, "http_method"),
    ({"headers": {"X-A": "a\nb"}}, "headers"),
    ({"headers": {"Connection": "close"}}, "headers"),
    ({"headers": {"X-Ksana-Attempt": "1"}}, "headers"),
    ({"headers": {"X-A": "{{who}}"}}, "headers"),
    ({"headers": {"Cookie": "***"}}, "headers"),
    ({"headers": ["a"]}, "headers"),
    ({"body_template": "{{ no_such }}"}, "body_template"),
    ({"body_template": {"a": 1}}, "body_template"),
    ({"template": "no"}, "template"),
    ({"timeout_seconds": 0}, "timeout_seconds"),
    ({"timeout_seconds": -1}, "timeout_seconds"),
    ({"timeout_seconds": "x"}, "timeout_seconds"),
    ({"timeout_seconds": 86401}, "timeout_seconds"),
    ({"connect_timeout": "0s"}, "connect_timeout"),
    ({"retry_policy": {"max_retries": -1}}, "retry_policy.max_retries"),
    ({"retry_policy": {"initial_delay": "x"}}, "retry_policy.initial_delay"),
    ({"retry_policy": {"strategy": "linear"}}, "retry_policy.strategy"),
    ({"retry_policy": {"max_delay": -5}}, "retry_policy.max_delay"),
    ({"retry_policy": {"foo": 1}}, "retry_policy.foo"),
    ({"max_concurrency": 0}, "max_concurrency"),
    ({"concurrency_policy": "REPLACE"}, "concurrency_policy"),
    ({"max_queued": -1}, "max_queued"),
    ({"misfire_policy": "IGNORE"}, "misfire_policy"),
    ({"misfire_policy": "CATCH_UP_LIMITED", "catchup_limit": 0}, "catchup_limit"),
    ({"misfire_policy": "CATCH_UP_LIMITED"}, "catchup_limit"),
    ({"catchup_limit": 1001}, "catchup_limit"),
    ({"misfire_grace": "x"}, "misfire_grace"),
    ({"callback_method": "DELETE"}, "callback_method"),
    ({"callback_timeout_sec": 0}, "callback_timeout_sec"),
    ({"on_orphan": "ask"}, "on_orphan"),
    ({"delivery": "exactly_once"}, "delivery"),
    ({"follow_redirects": 6}, "follow_redirects"),
    ({"signing_secret": "not base64!"}, "signing_secret"),
    ({"signing_secret": "***"}, "signing_secret"),
    ({"secret_headers": ["a b"]}, "secret_headers"),
    ({"tags": ["a,b"]}, "tags[0]"),
    ({"tags": [""]}, "tags[0]"),
    ({"tags": ["x" * 64 for _ in range(33)]}, "tags"),
    ({"tags": [f"{at:064d}" for at in range(20)]}, "tags"),
    ({"history_limit": 0}, "history_limit"),
    ({"response_limit": -1}, "response_limit"),
    ({"status": "PAUSED"}, "status"),
    ({"colour": "red"}, "colour"),
    ({"schedule": {"kind": "every", "every": "5m"}}, "cron_expr"),
    ({"schedule": {"kind": "cron", "expr": "0 1 * * *"}}, "cron_expr"),
    ({"schedule": {"kind": "cron", "expr": "0 2 * * *", "colour": 1}}, "schedule.colour"),
    (
        {
            "schedule": {"kind": "cron", "expr": "0 0 2 * * *", "timezone": "+01:00"},
            "timezone": "+02:00",
        },
        "timezone",
    ),
]


@pytest.mark.spec("C1", "C7", "C13", "C10", "X8", "X9", "X13", "X20", "T18")
@pytest.mark.parametrize(
    ("members", "field"), BAD, ids=[f"{field}-{at}" for at, (_, field) in enumerate(BAD)]
)
async def test_bad_input_is_refused_with_the_field(
    ground: Ground, members: dict[str, Any], field: str
) -> None:
    body = {"name": "t", "target_url": URL, "cron_expr": "0 2 * * *", **members}
    answer = await ground.refused("POST", TASKS, body, field)
    assert answer["code"] == "INVALID_ARGUMENT"
    assert (await ground.ask("GET", TASKS))["total"] == 0
    task = await ground.make_task()
    if "schedule" not in members:  # there a merge would be a change of kind or of the expression
        await ground.refused("PATCH", f"{TASKS}/{task['id']}", members, field)
    await ground.refused("PUT", f"{TASKS}/{task['id']}", body, field)
    assert await ground.ask("GET", f"{TASKS}/{task['id']}") == {**task, "last_run": None}


@pytest.mark.spec("C1", "C7", "C8")
async def test_what_is_needed_and_what_does_not_go_together(ground: Ground) -> None:
    await ground.refused("POST", TASKS, {"cron_expr": "* * * * *", "target_url": URL}, "name")
    await ground.refused("POST", TASKS, {"name": "t", "cron_expr": "* * * * *"}, "target_url")
    await ground.refused("POST", TASKS, {"name": "t", "target_url": URL}, "cron_expr")
    every = {"name": "t", "target_url": URL, "schedule": {"kind": "every", "every": "5s"}}
    await ground.refused("POST", TASKS, {**every, "jitter": "5s"}, "jitter")
    await ground.refused("POST", TASKS, {**every, "dst_gap": "skip"}, "dst_gap")
    await ground.refused("POST", TASKS, {**every, "timezone": "Mars"}, "timezone")
    once = {
        "name": "t",
        "target_url": URL,
        "schedule": {"kind": "once", "run_at": "2026-02-01T00:00:00Z"},
    }
    await ground.refused("POST", TASKS, {**once, "start_at": "2026-02-01T00:00:00Z"}, "start_at")
    message = (
        await ground.refused("POST", TASKS, {**SEED, "cron_expr": "0 25 * * *"}, "cron_expr")
    )["message"]
    assert "hour" in message
    assert "23" in message


@pytest.mark.spec("C13")
async def test_template_false_sends_verbatim(ground: Ground) -> None:
    task = await ground.make_task(template=False, body_template="{{whatever}}")
    assert task["body_template"] == "{{whatever}}"
    await ground.refused("PATCH", f"{TASKS}/1", {"template": True}, "body_template")


@pytest.mark.spec("C1", "C3")
async def test_a_living_name_is_taken_and_free_after_its_delete(ground: Ground) -> None:
    await ground.make_task()
    other = await ground.make_task(name="other")
    body = {"name": "report", "target_url": URL, "cron_expr": "* * * * *"}
    assert (await ground.ask("POST", TASKS, body, status=409))["code"] == "ALREADY_EXISTS"
    assert (await ground.ask("PATCH", f"{TASKS}/{other['id']}", {"name": "report"}, status=409))[
        "code"
    ] == "ALREADY_EXISTS"
    assert await ground.ask("DELETE", f"{TASKS}/1", status=200) == {"deleted": True}
    await ground.ask("GET", f"{TASKS}/1", status=404)
    await ground.ask("POST", TASKS, body, status=201)


@pytest.mark.spec("C2", "X13")
async def test_the_list_pages_and_filters(ground: Ground) -> None:
    for number in range(7):
        await ground.make_task(
            name=f"job {number}",
            tags=["even" if number % 2 == 0 else "odd"],
            status="ENABLED" if number < 5 else "DISABLED",
        )
    page = await ground.ask("GET", f"{TASKS}?page=2&page_size=3", status=200)
    assert (
        [task["name"] for task in page["items"]],
        page["total"],
        page["page"],
        page["page_size"],
    ) == (
        ["job 3", "job 4", "job 5"],
        7,
        2,
        3,
    )
    assert (await ground.ask("GET", f"{TASKS}?status=DISABLED"))["total"] == 2
    assert (await ground.ask("GET", f"{TASKS}?tag=odd"))["total"] == 3
    assert (await ground.ask("GET", f"{TASKS}?name=b 6"))["total"] == 1
    assert (await ground.ask("GET", TASKS))["page_size"] == 20
    await ground.refused("GET", f"{TASKS}?page_size=501", None, "page_size")
    await ground.refused("GET", f"{TASKS}?page=0", None, "page")
    await ground.refused("GET", f"{TASKS}?status=ON", None, "status")


@pytest.mark.spec("C3", "X8")
async def test_ids_that_cannot_be_ones_and_unknown_ones(ground: Ground) -> None:
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("PATCH", "/enable"),
        ("POST", "/trigger"),
        ("GET", "/runs"),
    ):
        for bad in ("abc", "0", "-1", "1.5", "9007199254740992"):
            assert (await ground.ask(method, f"{TASKS}/{bad}{path}", status=400))[
                "code"
            ] == "INVALID_ID"
        assert (await ground.ask(method, f"{TASKS}/42{path}", status=404))["code"] == "NOT_FOUND"
    assert (await ground.ask("PATCH", f"{TASKS}/abc", {}, status=400))["code"] == "INVALID_ID"
    assert (await ground.ask("PATCH", f"{TASKS}/42", {}, status=404))["code"] == "NOT_FOUND"


@pytest.mark.spec("C3", "X4")
async def test_versions_guard_changes(ground: Ground) -> None:
    task = await ground.make_task()
    path = f"{TASKS}/{task['id']}"
    reply = await ground.http.get(path)
    assert reply.headers["etag"] == '"1"'
    changed = await ground.ask("PATCH", path, {"description": "new", "version": 1}, status=200)
    assert (changed["version"], changed["updated"], changed["description"]) == (2, True, "new")
    stale = await ground.ask("PATCH", path, {"description": "x", "version": 1}, status=409)
    assert (stale["code"], stale["current"]) == ("VERSION_CONFLICT", {"version": 2})
    await ground.ask("PUT", path, {**SEED, "version": 1}, status=409)
    await ground.ask("PUT", path, SEED, status=409, If_Match='"1"')
    await ground.ask("PUT", path, SEED, status=200, If_Match='W/"2"')
    await ground.ask("PATCH", path, {}, status=200, If_Match="*")
    await ground.refused("PATCH", path, {"version": 4}, "version", If_Match="3")


@pytest.mark.spec("C3")
async def test_put_replaces_and_patch_merges(ground: Ground) -> None:
    task = await ground.ask(
        "POST", TASKS, {**WHOLE, "headers": {"X-A": "1", "X-B": "2"}}, status=201
    )
    path = f"{TASKS}/{task['id']}"
    merged = await ground.ask(
        "PATCH",
        path,
        {"retry_policy": {"max_retries": 9}, "headers": {"X-B": None}, "tags": None},
        status=200,
    )
    assert merged["retry_policy"] == {**WHOLE["retry_policy"], "max_retries": 9}  # type: ignore[dict-item]
    assert (merged["headers"], merged["tags"]) == ({"X-A": "1"}, [])
    put = await ground.ask(
        "PUT", path, {"name": "new", "target_url": URL, "cron_expr": "* * * * *"}, status=200
    )
    assert (put["headers"], put["signing_secret"], put["concurrency_policy"]) == ({}, None, "QUEUE")
    assert (put["status"], put["schedule"]["max_runs"], put["exec_type"]) == (
        "ENABLED",
        None,
        "SYNC",
    )
    await ground.refused("PUT", path, {"target_url": URL, "cron_expr": "* * * * *"}, "name")


@pytest.mark.spec("C3", "C8")
async def test_a_schedule_can_be_changed_by_either_spelling(ground: Ground) -> None:
    task = await ground.make_task(timezone="Asia/Shanghai", dst_gap="skip")
    path = f"{TASKS}/{task['id']}"
    changed = await ground.ask("PATCH", path, {"cron_expr": "15 3 * * *"}, status=200)
    assert (changed["cron_expr"], changed["timezone"], changed["dst_gap"]) == (
        "0 15 3 * * *",
        "Asia/Shanghai",
        "skip",
    )
    changed = await ground.ask("PATCH", path, {"schedule": {"expr": "30 3 * * *"}}, status=200)
    assert (changed["cron_expr"], changed["timezone"]) == ("0 30 3 * * *", "Asia/Shanghai")
    changed = await ground.ask("PATCH", path, {"timezone": "UTC"}, status=200)
    assert changed["next_run_at"] == "2026-01-01T03:30:00Z"
    changed = await ground.ask(
        "PATCH", path, {"schedule": {"kind": "every", "every": "1m"}}, status=200
    )
    assert (changed["cron_expr"], changed["dst_gap"]) == (None, None)
    changed = await ground.ask("PATCH", path, {"cron_expr": "0 4 * * *"}, status=200)
    assert (changed["schedule"]["kind"], changed["schedule"]["expr"]) == ("cron", "0 0 4 * * *")
    await ground.refused("PATCH", path, {"cron_expr": None}, "cron_expr")
    await ground.refused("PATCH", path, {"schedule": None}, "cron_expr")
    # Read, edited in one of the two places, and put back.
    put = await ground.ask("PUT", path, {**changed, "cron_expr": "0 5 * * *"}, status=200)
    assert put["schedule"]["expr"] == "0 0 5 * * *"
    put = await ground.ask(
        "PUT", path, {**put, "schedule": {**put["schedule"], "expr": "0 6 * * *"}}, status=200
    )
    assert put["cron_expr"] == "0 0 6 * * *"


@pytest.mark.spec("C3")
async def test_enabling_and_disabling(ground: Ground) -> None:
    task = await ground.make_task(schedule={"kind": "every", "every": "1h"})
    path = f"{TASKS}/{task['id']}"
    assert await ground.ask("PATCH", f"{path}/disable", status=200) == {"status": "DISABLED"}
    assert (await ground.ask("GET", path))["next_run_at"] is None
    await ground.clock.advance(3 * HOUR)
    assert await ground.ask("PATCH", f"{path}/enable", status=200) == {"status": "ENABLED"}
    assert (await ground.ask("GET", path))["next_run_at"] == "2026-01-01T04:00:00Z"
    off = await ground.ask("PATCH", path, {"status": "DISABLED"}, status=200)
    assert (off["status"], off["last_status"]) == ("DISABLED", "paused")


@pytest.mark.spec("C4", "C11", "X22")
async def test_a_trigger_runs_within_the_limit_of_its_policy(ground: Ground) -> None:
    skip = await ground.make_task(name="skip", concurrency_policy="SKIP", status="DISABLED")
    trace = "0af7651916cd43dd8448eb211c80319c"
    first = await ground.ask(
        "POST",
        f"{TASKS}/{skip['id']}/trigger",
        status=202,
        traceparent=f"00-{trace}-b7ad6b7169203331-01",
    )
    run = await ground.ask("GET", f"/api/v1/runs/{first['run_id']}")
    assert (run["uid"], run["trace_id"], run["trigger"], run["status"]) == (
        first["uid"],
        trace,
        "manual",
        "SCHEDULED",
    )
    full = await ground.ask("POST", f"{TASKS}/{skip['id']}/trigger", {}, status=409)
    assert (full["code"], full["current"]["active"]) == ("CONCURRENCY_LIMIT", 1)
    assert (await ground.ask("GET", "/api/v1/runs"))["total"] == 1
    queue = await ground.make_task(name="queue", max_queued=1)
    for _ in range(2):
        await ground.ask("POST", f"{TASKS}/{queue['id']}/trigger", status=202)
    assert (await ground.ask("POST", f"{TASKS}/{queue['id']}/trigger", status=409))[
        "code"
    ] == "QUEUE_FULL"
    parallel = await ground.make_task(name="parallel", concurrency_policy="PARALLEL")
    for _ in range(3):
        await ground.ask("POST", f"{TASKS}/{parallel['id']}/trigger", status=202)
    got = await ground.ask("GET", f"{TASKS}/{parallel['id']}", status=200)
    assert got["last_run"]["status"] == "SCHEDULED"


@pytest.mark.spec("C4", "C13")
async def test_a_trigger_takes_a_body_and_may_wait_for_a_callback(ground: Ground) -> None:
    task = await ground.make_task(concurrency_policy="PARALLEL")
    path = f"{TASKS}/{task['id']}/trigger"
    made = await ground.ask(
        "POST", path, {"override_body": '{"id": {{run_id}}}', "force_async": True}, status=202
    )
    run = await ground.find_run(made["run_id"])
    assert (run.override_body, run.exec_type, run.callback_token is not None) == (
        '{"id": {{run_id}}}',
        "ASYNC",
        True,
    )
    await ground.refused("POST", path, {"override_body": "{{nobody}}"}, "override_body")
    await ground.refused("POST", path, {"body": "x"}, "body")
    await ground.refused("POST", path, {"force_async": 1}, "force_async")
    timer = await ground.make_timer()
    await ground.ask(
        "POST", f"{TASKS}/{timer['task_id']}/trigger", {"override_body": "{{nobody}}"}, status=202
    )


@pytest.mark.spec("X15")
async def test_settings_are_the_defaults_of_the_members_of_their_names(tmp_path: Path) -> None:
    chosen = Defaults(
        request_timeout_us=2_000_000,
        max_retries=2,
        misfire_grace_us=5_000_000,
        history_limit=9,
        response_limit=None,
        follow_redirects=1,
        on_orphan="fail",
        delivery="at_most_once",
        dst_gap="shift",
        dst_overlap="second",
        retry_on_callback_failure=True,
    )
    async with open_tasks(tmp_path, defaults=chosen) as ground:
        task = await ground.make_task()
        expected = {
            "timeout_seconds": 2,
            "misfire_grace": "5s",
            "history_limit": 9,
            "response_limit": 0,
            "follow_redirects": 1,
            "on_orphan": "fail",
            "delivery": "at_most_once",
            "dst_gap": "shift",
            "dst_overlap": "second",
            "retry_on_callback_failure": True,
        }
        assert {name: task[name] for name in expected} == expected
        assert task["retry_policy"]["max_retries"] == 2


@pytest.mark.spec("X19")
async def test_reading_and_writing_need_their_scopes_once_keys_exist(ground: Ground) -> None:
    task = await ground.make_task()
    reader = (await ground.core.keys.create_key("reader", ["tasks:read"])).text
    await ground.ask("GET", TASKS, status=401)
    await ground.ask("GET", TASKS, status=200, X_API_Key=reader)
    for method, path in (
        ("POST", f"{TASKS}/{task['id']}/trigger"),
        ("DELETE", f"/jobs/{task['job_id']}"),
    ):
        await ground.ask(method, path, status=403, X_API_Key=reader)
