"""Dialect C over HTTP: `/api/v1/tasks` (C1-C4, C7, C8, C13)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.instant import MINUTE
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
    ({"type": "shell"}, "type"),
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
