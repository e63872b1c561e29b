"""A null in a change sets a member back to its default, in both dialects, in `schedule` too."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.tasks.task_bodies import TaskBody
from tests.api.tasks_ground import URL, Ground, open_tasks

pytestmark = pytest.mark.spec("T2", "C3")

TASKS = "/api/v1/tasks"
NEEDED = {"name": "report", "target_url": URL, "cron_expr": "0 0 9 * * *"}
SCHEDULE = {
    "timezone": "Asia/Shanghai",
    "start_at": "2030-01-01T00:00:00Z",
    "end_at": "2031-01-01T00:00:00Z",
    "jitter": "30s",
    "max_runs": 7,
}
OTHERS = {
    "description": "daily",
    "dst_gap": "skip",
    "dst_overlap": "both",
    "exec_type": "ASYNC",
    "http_method": "POST",
    "headers": {"x-a": "b"},
    "body_template": "{}",
    "template": False,
    "timeout_seconds": 3,
    "connect_timeout": "1s",
    "retry_policy": {
        "max_retries": 2,
        "initial_delay": 9,
        "strategy": "exponential",
        "max_delay": 99,
        "jitter": 1,
    },
    "max_concurrency": 4,
    "concurrency_policy": "PARALLEL",
    "max_queued": 5,
    "misfire_policy": "SKIP",
    "misfire_grace": "5s",
    "catchup_limit": 3,
    "callback_method": "PUT",
    "callback_timeout_sec": 60,
    "retry_on_callback_failure": True,
    "on_orphan": "fail",
    "delivery": "at_most_once",
    "follow_redirects": 2,
    "signing_secret": "whsec_" + "QUFB" * 11,
    "secret_headers": ["x-a"],
    "secret_body": True,
    "tags": ["a", "b"],
    "history_limit": 11,
    "response_limit": 12,
    "status": "DISABLED",
}
SENT_AGAIN = {"secret_headers": {"headers": {"x-a": "b"}}, "secret_body": {"body_template": "{}"}}
"""What stops being secret only with its value."""
FULL = {**NEEDED, **SCHEDULE, **OTHERS}
SHOWN = (set(FULL) | {"schedule", "type"}) - {"start_at", "end_at", "jitter", "max_runs"}
"""Members a task shows; the rest of the schedule's are shown inside it."""


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


def settable(task: dict[str, Any]) -> dict[str, Any]:
    return {name: task[name] for name in SHOWN}


async def expect(ground: Ground, absent: str) -> dict[str, Any]:
    """What a task made without the member looks like."""
    body = {name: value for name, value in FULL.items() if name != absent}
    made = await ground.ask("POST", TASKS, {**body, "name": "without"}, status=201)
    return {**settable(made), "name": "report"}


def test_every_member_with_a_default_is_tried_here() -> None:
    needed = {"name", "target_url", "cron_expr", "schedule", "version", "type", "queue", "node"}
    assert set(TaskBody.__struct_fields__) == {*SCHEDULE, *OTHERS, *needed}


@pytest.mark.parametrize("member", [*SCHEDULE, *OTHERS])
async def test_a_null_in_a_merged_task_is_the_default(ground: Ground, member: str) -> None:
    made = await ground.ask("POST", TASKS, FULL, status=201)
    path = f"{TASKS}/{made['id']}"
    wanted = await expect(ground, member)
    assert settable(made) != wanted
    patch = {member: None, **SENT_AGAIN.get(member, {})}
    changed = await ground.ask("PATCH", path, patch, status=200)
    assert changed["updated"] is True
    assert settable(changed) == wanted
    assert settable(await ground.ask("GET", path)) == wanted


@pytest.mark.parametrize("member", SCHEDULE)
async def test_a_null_inside_a_merged_schedule_is_the_default(ground: Ground, member: str) -> None:
    made = await ground.ask("POST", TASKS, FULL, status=201)
    wanted = await expect(ground, member)
    path = f"{TASKS}/{made['id']}"
    changed = await ground.ask("PATCH", path, {"schedule": {member: None}}, status=200)
    assert settable(changed) == wanted


@pytest.mark.parametrize("member", SCHEDULE)
@pytest.mark.parametrize("place", ["beside", "inside"])
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_null_in_a_task_sent_back_whole_is_the_default(
    ground: Ground, member: str, place: str, method: str
) -> None:
    made = await ground.ask("POST", TASKS, FULL, status=201)
    wanted = await expect(ground, member)
    path = f"{TASKS}/{made['id']}"
    whole = await ground.ask("GET", path, status=200)
    if place == "inside":
        whole["schedule"][member] = None
    else:
        whole[member] = None
    changed = await ground.ask(method, path, whole, status=200)
    assert settable(changed) == wanted


@pytest.mark.parametrize("member", OTHERS)
async def test_a_null_in_a_replaced_task_is_the_default(ground: Ground, member: str) -> None:
    made = await ground.ask("POST", TASKS, FULL, status=201)
    wanted = await expect(ground, member)
    path = f"{TASKS}/{made['id']}"
    changed = await ground.ask("PUT", path, {**FULL, member: None}, status=200)
    assert settable(changed) == wanted


@pytest.mark.parametrize("member", ["max_retries", "initial_delay", "strategy", "max_delay"])
async def test_a_null_inside_a_retry_policy_is_the_default(ground: Ground, member: str) -> None:
    made = await ground.ask("POST", TASKS, FULL, status=201)
    path = f"{TASKS}/{made['id']}"
    defaults = {"max_retries": 0, "initial_delay": 5, "strategy": "fixed", "max_delay": 3600}
    changed = await ground.ask("PATCH", path, {"retry_policy": {member: None}}, status=200)
    assert changed["retry_policy"] == {**made["retry_policy"], member: defaults[member]}


@pytest.mark.parametrize("member", ["name", "target_url", "cron_expr", "schedule"])
async def test_a_null_for_what_has_no_default_is_refused(ground: Ground, member: str) -> None:
    made = await ground.ask("POST", TASKS, FULL, status=201)
    for body in ({member: None}, {member: None, "description": "x"}):
        refused = await ground.ask("PATCH", f"{TASKS}/{made['id']}", body, status=400)
        assert refused["field"] in (member, "cron_expr")


async def test_a_null_beside_a_new_value_in_the_schedule_says_nothing(ground: Ground) -> None:
    made = await ground.ask("POST", TASKS, FULL, status=201)
    changed = await ground.ask(
        "PATCH",
        f"{TASKS}/{made['id']}",
        {"timezone": None, "schedule": {"timezone": "Asia/Tokyo"}},
        status=200,
    )
    assert (changed["timezone"], changed["schedule"]["timezone"]) == ("Asia/Tokyo", "Asia/Tokyo")


TIMER = {
    "name": "ping",
    "http": {"url": URL, "method": "POST", "headers": {"x-a": "b"}, "body": "hello"},
    "schedule": {"kind": "cron", "expr": "0 0 9 * * *", **SCHEDULE},
    "timeout": "3s",
    "max_retries": 1,
    "retry_backoff": "9s",
    "enabled": False,
}
NULLS: list[tuple[str, ...]] = [
    ("name",),
    ("timeout",),
    ("max_retries",),
    ("retry_backoff",),
    ("enabled",),
    *(("http", name) for name in ("method", "headers", "body")),
    *(("schedule", name) for name in SCHEDULE),
]
TIMER_SHOWN = ("name", "http", "schedule", "timeout", "max_retries", "retry_backoff", "enabled")


@pytest.mark.parametrize("path", NULLS, ids=".".join)
@pytest.mark.parametrize("has_whole", [False, True], ids=["alone", "sent back whole"])
async def test_a_null_in_a_changed_timer_is_the_default(
    ground: Ground, path: tuple[str, ...], has_whole: bool
) -> None:
    def without(body: dict[str, Any], replacement: dict[str, Any]) -> dict[str, Any]:
        if len(path) == 1:
            kept = {name: value for name, value in body.items() if name != path[0]}
            return {**kept, **replacement}
        kept = {name: value for name, value in body[path[0]].items() if name != path[1]}
        return {**body, path[0]: {**kept, **replacement}}

    made = await ground.ask("POST", "/jobs", TIMER, status=201)
    wanted = await ground.ask("POST", "/jobs", without(TIMER, {}), status=201)
    null = {path[-1]: None}
    patch = without(made, null) if has_whole else (null if len(path) == 1 else {path[0]: null})
    changed = await ground.ask("PATCH", f"/jobs/{made['id']}", patch, status=200)
    shown = {name: changed[name] for name in TIMER_SHOWN}
    assert shown == {name: wanted[name] for name in TIMER_SHOWN}
    assert shown != {name: made[name] for name in TIMER_SHOWN}
