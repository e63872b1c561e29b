"""Ends and starts of the real process: SIGTERM while calls are under way, a name kept over
restarts, repeated requests."""

import signal
import time
from pathlib import Path

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Hold, Target
from tests.ground.tasks import get_run, list_events, list_runs, make_task, trigger, wait_for_run


@pytest.mark.spec("X14", "T17")
def test_sigterm_lets_a_call_in_flight_finish_and_be_recorded(
    program: Program, target: Target
) -> None:
    held = Hold()
    target.on("/held", held)
    program.start()
    task = make_task(program, "t", target.url("/held"), timeout_seconds=60)
    pulse = make_task(program, "pulse", target.url("/pulse"), "100ms")
    run_id = trigger(program, task)
    target.wait_for(1, "/held")
    target.wait_for(5, "/pulse")
    program.send(signal.SIGTERM)
    program.wait_for_log('"msg":"stopping"')
    held.release()
    assert program.wait_for_end() == 0
    assert target.open_calls == 0
    called = {request.headers["x-ksana-run-id"] for request in target.requests("/pulse")}
    program.start()
    run = get_run(program, run_id)
    assert (run["status"], run["attempt"]) == ("SUCCESS", 1)
    assert [one["status"] for one in run["attempts"]] == ["SUCCESS"]
    ended = [
        run["attempts"] for run in list_runs(program, task_id=pulse["id"]) if run["uid"] in called
    ]
    assert len(ended) == len(called)
    assert {(len(attempts), attempts[-1]["status"]) for attempts in ended} == {(1, "SUCCESS")}, (
        "no call was left unrecorded"
    )


@pytest.mark.spec("X14", "C19")
def test_calls_that_outlast_the_grace_go_to_the_orphan_rule(tmp_path: Path, target: Target) -> None:
    held = Hold()
    target.on("/held", held)
    with Program(tmp_path, env={"KSANA_GRACEFUL_TIMEOUT": "500ms"}) as program:
        program.start()
        policy = {"max_retries": 1, "initial_delay": 0}
        again = trigger(
            program,
            make_task(
                program, "again", target.url("/held"), timeout_seconds=60, retry_policy=policy
            ),
        )
        no_more = trigger(
            program, make_task(program, "no more", target.url("/held"), timeout_seconds=60)
        )
        target.wait_for(2, "/held")
        began = time.monotonic()
        assert program.terminate() == 0
        assert time.monotonic() - began < 5
        wait_for(lambda: target.open_calls == 0, "the calls are dropped")
        held.release()
        program.start()
        ended, failed = wait_for_run(program, again), wait_for_run(program, no_more)
    assert [one["status"] for one in ended["attempts"]] == ["LOST", "SUCCESS"]
    assert [one["status"] for one in failed["attempts"]] == ["LOST"]
    assert (failed["status"], failed["reason"]) == ("FAILED", "ORPHANED_NO_RETRY_LEFT")
    assert "died while it held the run" in failed["error_message"]
    assert len(target.requests("/held")) == 3


@pytest.mark.spec("C23")
def test_a_call_of_unknown_outcome_is_not_sent_again_if_the_task_says_at_most_once(
    program: Program, target: Target
) -> None:
    target.on("/held", Hold())
    program.start()
    policy = {"max_retries": 5, "initial_delay": 0}
    task = make_task(
        program,
        "t",
        target.url("/held"),
        timeout_seconds=60,
        delivery="at_most_once",
        retry_policy=policy,
    )
    run_id = trigger(program, task)
    target.wait_for(1, "/held")
    program.kill9()
    program.start()
    run = wait_for_run(program, run_id)
    assert (run["status"], run["reason"]) == ("FAILED", "OUTCOME_UNKNOWN_AT_MOST_ONCE")
    assert len(target.requests("/held")) == 1


@pytest.mark.fault("F09")
@pytest.mark.spec("X14", "C19", "X4")
def test_an_instance_that_keeps_its_name_finds_its_own_orphans_after_a_kill(
    tmp_path: Path, target: Target
) -> None:
    held = Hold()
    target.on("/held", held)
    with Program(tmp_path, env={"KSANA_INSTANCE_ID": "the-one"}) as program:
        program.start()
        task = make_task(
            program, "t", target.url("/held"), timeout_seconds=60, retry_policy={"max_retries": 1}
        )
        run_id = trigger(program, task)
        target.wait_for(1, "/held")
        program.kill9()
        held.release()
        program.start()
        run = wait_for_run(program, run_id)
        assert [one["status"] for one in run["attempts"]] == ["LOST", "SUCCESS"]
        assert program.terminate() == 0
        program.start()
        assert program.get("/readyz").status_code == 200


@pytest.mark.spec("X21", "X10")
def test_a_repeated_idempotency_key_is_answered_the_same_after_kill_9(
    program: Program, target: Target
) -> None:
    program.start()
    body = {"name": "once", "target_url": target.url("/t"), "cron_expr": "0 0 1 1 *"}
    made = program.post("/api/v1/tasks", body, headers={"Idempotency-Key": "make-1"})
    assert made.status_code == 201
    path = f"/api/v1/tasks/{made.json()['id']}/trigger"
    started = program.post(path, headers={"Idempotency-Key": "go-1"})
    assert started.status_code == 202
    timer = program.post(
        "/jobs", {"http": {"url": target.url("/j")}, "schedule": {"kind": "every", "every": "24h"}}
    ).json()
    now = program.post(f"/jobs/{timer['id']}/run-now", headers={"Idempotency-Key": "now-1"})
    assert now.status_code == 202
    program.kill9()
    program.start()
    again = program.post("/api/v1/tasks", body, headers={"Idempotency-Key": "make-1"})
    assert (again.status_code, again.json()) == (201, made.json())
    again = program.post(path, headers={"Idempotency-Key": "go-1"})
    assert (again.status_code, again.json()) == (202, started.json())
    again = program.post(f"/jobs/{timer['id']}/run-now", headers={"Idempotency-Key": "now-1"})
    assert (again.status_code, again.json()) == (202, now.json())
    other = program.post(
        "/api/v1/tasks", {**body, "name": "other"}, headers={"Idempotency-Key": "make-1"}
    )
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_MISMATCH")
    wait_for_run(program, started.json()["run_id"])
    wait_for_run(program, now.json()["id"])
    assert len(list_runs(program)) == 2
    assert len(list_events(program, "TASK_CREATED")) == 2
