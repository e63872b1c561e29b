"""Every move of a run as a whole value: what it was, what it becomes, who is told."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ksana.base.instant import HOUR, SECOND, format_instant
from ksana.domain.tasks import changes, rescue
from ksana.domain.tasks.changes import MAX_ERROR, RunChange
from ksana.domain.tasks.outcome import MAX_ATTEMPTS_KEPT, append_attempt
from ksana.domain.tasks.records import NODE_PLACE, RetryPolicy, Run
from tests.unit.task_ground import NOW, a_run, a_task

LATER = NOW + 5 * SECOND
TRIES = RetryPolicy(max_retries=3, initial_delay_us=2 * SECOND)


def moved(run: Run, new: str, data: dict[str, Any], **members: Any) -> RunChange:
    """A move without the holder: nobody holds it then, all else stays."""
    given: dict[str, Any] = {
        "run_id": 60,
        "task_id": 7,
        "old": run.status,
        "token": 5,
        "new": new,
        "new_token": 9,
        "attempt": 2,
        "reason": data["reason"],
        "error": data.get("error"),
        "start_time": NOW + 1,
        "end_time": None,
        "ready_host": None,
        "wake_at": None,
        "held_by": None,
        "next_retry_time": None,
        "callback_deadline": None,
        "callback_data": "said before",
        "attempts": '[{"attempt":1}]',
        "event": f"RUN_{new}",
        "data": msgspec.json.encode({"task_id": 7, "from": run.status, **data}).decode(),
    }
    return RunChange(**given | members)


def at(instant: int) -> str:
    return format_instant(instant)


@pytest.mark.spec("C7")
@pytest.mark.parametrize("is_counted", [True, False])
def test_a_run_that_is_cancelled_ends_and_gives_its_place_free(is_counted: bool) -> None:
    run = a_run(is_counted=is_counted)
    assert changes.cancel(run, "BY_CALLER", LATER, 9) == moved(
        run,
        "CANCELED",
        {"reason": "BY_CALLER"},
        error="before",
        end_time=LATER,
        metric="runs_canceled",
        frees_slot=is_counted,
    )


@pytest.mark.parametrize(
    ("status", "started", "attempt", "start_time"),
    [
        ("SCHEDULED", None, 2, LATER),
        ("SCHEDULED", 0, 2, 0),
        ("RETRYING", NOW, 3, NOW),
    ],
)
def test_a_ready_run_is_started_and_a_retry_is_another_attempt(
    status: str, started: int | None, attempt: int, start_time: int
) -> None:
    run = a_run(status=status, start_time=started, held_by=None, callback_deadline=HOUR)
    change = changes.start(run, "two", LATER, 9)
    assert (change.old, change.new, change.token, change.new_token) == (status, "RUNNING", 5, 9)
    assert (change.attempt, change.start_time, change.held_by) == (attempt, start_time, "two")
    assert (change.end_time, change.wake_at, change.ready_host) == (None, None, None)
    assert (change.callback_deadline, change.callback_data) == (HOUR, "said before")
    assert (change.event, msgspec.json.decode(change.data)) == (
        "RUN_STARTED",
        {"task_id": 7, "attempt": attempt, "reason": "PLACE_FREE"},
    )


@pytest.mark.parametrize(
    ("make", "members"),
    [
        (
            lambda: changes.make_ready(a_run(status="RETRYING", next_retry_time=LATER)),
            {"ready_host": "target", "next_retry_time": LATER},
        ),
        (
            lambda: changes.promote(a_run(status="SCHEDULED")),
            {
                "ready_host": "target",
                "event": "RUN_PROMOTED",
                "data": '{"task_id":7,"reason":"TURN_CAME"}',
            },
        ),
        (
            lambda: changes.extend_deadline(a_run(status="CALLBACK_PENDING"), LATER),
            {"wake_at": LATER, "callback_deadline": LATER},
        ),
    ],
)
def test_a_step_leaves_state_and_token_alone(
    make: Callable[[], RunChange], members: dict[str, Any]
) -> None:
    change = make()
    usual = {
        "ready_host": None,
        "wake_at": None,
        "next_retry_time": None,
        "callback_deadline": None,
        "event": "",
        "data": "{}",
    }
    assert {name: getattr(change, name) for name in usual} == usual | members
    assert (change.new, change.new_token) == (change.old, change.token)
    assert (change.attempt, change.held_by, change.error) == (2, "one", "before")


def test_a_deadline_that_nobody_extends_stays() -> None:
    assert changes.promote(a_run(callback_deadline=HOUR)).callback_deadline == HOUR


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [("it broke", "WHY", "it broke"), (None, "WHY", "WHY"), (None, None, "FAILED")],
)
def test_a_dead_letter_tells_the_most_that_is_known(
    error: str | None, reason: str | None, said: str
) -> None:
    ended = moved(a_run(), "FAILED", {"reason": "WHY"}, error=error)
    letter = changes.bury(msgspec.structs.replace(ended, reason=reason))
    assert (letter.entity_id, letter.source, letter.status) == ("60", "7", "FAILED")
    assert letter.error == said


def test_of_many_attempts_the_newest_are_kept() -> None:
    kept = "[]"
    for number in range(MAX_ATTEMPTS_KEPT + 5):
        kept = append_attempt(kept, b'{"attempt":%d}' % number)
        count = min(number + 1, MAX_ATTEMPTS_KEPT)
        decoded = [one["attempt"] for one in msgspec.json.decode(kept)]
        assert decoded == list(range(number + 1 - count, number + 1))


# Callbacks


@pytest.mark.spec("C6")
@pytest.mark.parametrize("status", ["RUNNING", "CALLBACK_PENDING", "RETRYING"])
def test_a_callback_that_says_success_ends_the_run_in_any_state(status: str) -> None:
    run = a_run(status=status)
    got = changes.end_by_callback(run, a_task(), "SUCCESS", "data", "ignored", LATER, 9)
    assert got == moved(
        run,
        "CALLBACK_SUCCESS",
        {"reason": "CALLBACK_SAID_SUCCESS"},
        end_time=LATER,
        callback_data="data",
        metric="runs_callback_success",
        last_status="success",
        frees_slot=True,
    )


@pytest.mark.spec("C6")
@pytest.mark.parametrize("said", ["SUCCESS", "FAILED"])
def test_a_callback_frees_the_slot_of_a_run_that_was_counted_in_a_queue(said: str) -> None:
    for is_counted, policy, frees in (
        (True, "QUEUE", True),
        (True, "SKIP", False),
        (False, "QUEUE", False),
        (False, "PARALLEL", False),
    ):
        run, task = a_run(is_counted=is_counted), a_task(concurrency_policy=policy)
        got = changes.end_by_callback(run, task, said, None, None, LATER, 9)
        assert got.frees_slot is frees


@pytest.mark.spec("C6")
@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize(
    ("said", "error"), [(None, "the callback said FAILED"), ("x" * 2000, "x" * MAX_ERROR)]
)
def test_a_callback_that_says_failed_ends_the_run_with_an_alert(
    said: str | None, error: str, is_counted: bool
) -> None:
    run = a_run(status="CALLBACK_PENDING", is_counted=is_counted)
    got = changes.end_by_callback(run, a_task(), "FAILED", None, said, LATER, 9)
    assert got == moved(
        run,
        "FAILED",
        {"reason": "CALLBACK_SAID_FAILED", "error": error, "alert": True},
        end_time=LATER,
        callback_data=None,
        metric="runs_failed",
        last_status="failed",
        frees_slot=is_counted,
    )


@pytest.mark.spec("C6", "C8")
def test_a_failed_or_missing_callback_is_tried_again_where_the_task_says_so() -> None:
    task = a_task(retry=TRIES, retry_on_callback_failure=True)
    run = a_run(status="CALLBACK_PENDING")
    again = LATER + 2 * SECOND
    members: dict[str, Any] = {"next_retry_time": again, "wake_at": again}
    said = {"reason": "CALLBACK_FAILED_RETRY_LEFT", "error": "e", "next_retry_time": at(again)}
    assert changes.end_by_callback(run, task, "FAILED", "d", "e", LATER, 9) == moved(
        run, "RETRYING", said, callback_data="d", **members
    )
    missing = {
        "reason": "NO_CALLBACK_RETRY_LEFT",
        "error": changes.NO_CALLBACK,
        "next_retry_time": at(again),
    }
    assert changes.expire_callback(run, task, LATER, 9) == moved(
        run, "RETRYING", missing, **members
    )


@pytest.mark.spec("C6", "C8")
@pytest.mark.parametrize(
    ("run", "task"),
    [
        ({"status": "RUNNING"}, {}),
        ({}, {"is_deleted": True}),
        ({}, {"retry_on_callback_failure": False}),
        ({"attempt": 4}, {}),
        ({}, None),
    ],
)
def test_no_callback_is_the_end_where_nothing_is_left_to_try(
    run: dict[str, Any], task: dict[str, Any] | None
) -> None:
    held = a_run(**{"status": "CALLBACK_PENDING", **run})
    usual: dict[str, Any] = {"retry": TRIES, "retry_on_callback_failure": True}
    whose = None if task is None else a_task(**usual | task)
    got = changes.expire_callback(held, whose, LATER, 9)
    said = {"reason": "NO_CALLBACK", "error": changes.NO_CALLBACK, "alert": True}
    assert got == moved(
        held,
        "FAILED_TIMEOUT",
        said,
        attempt=held.attempt,
        end_time=LATER,
        metric="runs_failed_timeout",
        last_status="timeout",
        frees_slot=True,
    )
    not_counted = msgspec.structs.replace(held, is_counted=False)
    assert not changes.expire_callback(not_counted, whose, LATER, 9).frees_slot


def test_the_last_try_after_a_callback_is_the_one_the_policy_allows() -> None:
    task = a_task(retry=TRIES, retry_on_callback_failure=True)
    last = a_run(status="CALLBACK_PENDING", attempt=3)
    assert changes.expire_callback(last, task, LATER, 9).new == "RETRYING"


# Runs without a living holder


def lost(task: Any = None, run: Run | None = None, **members: Any) -> RunChange:
    given = {"task": a_task(retry=TRIES), "watermark": 60} | members
    given["task"] = given["task"] if task is None else task
    return rescue.rescue_orphan(run or a_run(), now=LATER, new_token=9, **given)  # type: ignore[arg-type]


@pytest.mark.spec("C12", "X1")
def test_a_run_that_may_have_been_sent_is_an_attempt_whose_end_nobody_knows() -> None:
    error = "instance one died while it held the run: what came of attempt 2 is not known"
    entry = {
        "attempt": 2,
        "started_at": at(NOW + 1),
        "ended_at": at(LATER),
        "status": "LOST",
        "response_code": None,
        "error": error,
        "instance": "one",
    }
    said = {
        "reason": "ORPHANED_RETRY_LEFT",
        "error": error,
        "instance": "one",
        "next_retry_time": at(LATER),
    }
    attempts = msgspec.json.encode([{"attempt": 1}, entry]).decode()
    assert lost() == moved(
        a_run(),
        "RETRYING",
        said,
        wake_at=LATER,
        next_retry_time=LATER,
        attempts=attempts,
    )
    never_begun = lost(run=a_run(start_time=None))
    assert msgspec.json.decode(never_begun.attempts)[-1]["started_at"] is None
    # The same for one that its living holder does not know.
    told = rescue.rescue_forgotten(a_run(), a_task(retry=TRIES), LATER, 9).error
    assert told == (
        "instance one never learned that it holds the run: what came of attempt 2 is not known"
    )


@pytest.mark.spec("C12", "X1")
@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize(
    ("task", "attempt", "reason"),
    [
        (a_task(retry=TRIES, is_deleted=True), 2, "ORPHANED_TASK_DELETED"),
        (a_task(retry=TRIES, delivery="at_most_once"), 2, "OUTCOME_UNKNOWN_AT_MOST_ONCE"),
        (a_task(retry=TRIES, on_orphan="fail"), 2, "ORPHANED_ON_ORPHAN_FAIL"),
        (a_task(retry=TRIES), 4, "ORPHANED_NO_RETRY_LEFT"),
    ],
)
def test_an_orphan_that_may_not_be_tried_again_fails_with_an_alert(
    task: Any, attempt: int, reason: str, is_counted: bool
) -> None:
    change = lost(task, a_run(attempt=attempt, is_counted=is_counted))
    assert (change.new, change.reason, change.end_time) == ("FAILED", reason, LATER)
    assert msgspec.json.decode(change.data)["alert"] is True
    assert change.frees_slot == is_counted
    assert (change.next_retry_time, change.last_status) == (None, "failed")


def test_an_orphan_within_its_tries_keeps_its_place() -> None:
    assert lost(run=a_run(attempt=3)).new == "RETRYING"
    assert not lost().frees_slot
    gone = rescue.rescue_orphan(a_run(), None, 59, LATER, 9)
    assert gone.reason == "ORPHANED_TASK_DELETED"


@pytest.mark.spec("C12", "X1")
def test_a_run_that_was_never_sent_is_given_back_and_was_no_attempt() -> None:
    error = "instance one died before it began the run"
    said = {
        "reason": "HELD_NEVER_BEGUN",
        "error": error,
        "instance": "one",
        "next_retry_time": at(LATER),
    }
    back: dict[str, Any] = {"wake_at": LATER, "next_retry_time": LATER, "attempt": 1}
    assert lost(a_task(), watermark=59) == moved(a_run(), "RETRYING", said, **back)
    error = "the lease of instance one ran out before it began the run"
    assert rescue.give_back(a_run(), LATER, 9) == moved(
        a_run(), "RETRYING", said | {"error": error}, **back
    )
    assert lost(a_task(is_deleted=True), watermark=59).new == "FAILED"
    assert lost(watermark=None).reason == "ORPHANED_RETRY_LEFT"


@pytest.mark.spec("C12")
def test_a_node_job_that_outlives_its_instance_is_taken_up_in_the_same_attempt() -> None:
    run = a_run(host=NODE_PLACE)
    error = "instance one died while it waited for the job"
    said = {
        "reason": "NODE_JOB_TAKEN_UP",
        "error": error,
        "instance": "one",
        "next_retry_time": at(LATER),
    }
    back: dict[str, Any] = {"wake_at": LATER, "next_retry_time": LATER, "attempt": 1}
    assert lost(run=run, keeps_jobs=True, watermark=None) == moved(run, "RETRYING", said, **back)
    for task in (a_task(is_deleted=True), a_task(on_orphan="fail")):
        assert lost(task, run, keeps_jobs=True, watermark=59).new == "FAILED"
    assert lost(run=run, watermark=59).reason == "ORPHANED_RETRY_LEFT", "its job is gone with it"
    assert rescue.rescue_orphan(run, None, 1, LATER, 9, keeps_jobs=True).new == "FAILED"
    assert lost(keeps_jobs=True).reason == "ORPHANED_RETRY_LEFT", "no node job"
