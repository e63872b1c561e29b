"""Calls on timers that exist, dialect T: changes, pauses, runs by hand, deletes (T2-T4, T6, T7)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.base.instant import HOUR, MINUTE
from tests.api.tasks_ground import URL, Ground, open_tasks


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


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
