"""Calls on tasks that exist, dialect C: names, lists, versions, changes, triggers (C2-C4)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.api.tasks.members import Defaults
from ksana.base.instant import HOUR
from tests.api.tasks_ground import URL, Ground, open_tasks
from tests.api.test_tasks import SEED, TASKS, WHOLE


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


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
    assert (run.override_body, run.exec_type, run.callback_hash is not None) == (
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
