"""The end of an attempt, of a call or of a job: what it means for its run, and how it is kept."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import HOUR, SECOND, format_instant
from ksana.domain.handover import HandedEnd, HandedJob
from ksana.domain.retry import Backoff, delay_after
from ksana.domain.tasks import changes, job_runs
from ksana.domain.tasks.changes import AttemptRecord, RunChange
from ksana.domain.tasks.outcome import (
    UNKNOWN,
    Outcome,
    Verdict,
    decide_attempt,
    decide_outcome,
    end_attempt,
)
from ksana.domain.tasks.records import NodeSpec, QueueSpec, RetryPolicy
from tests.unit.task_ground import NOW, a_claimed_run, a_definition, a_run, a_task

LATER = NOW + 5 * SECOND
TRIES = RetryPolicy(max_retries=3, initial_delay_us=2 * SECOND)


def outcome(verdict: Verdict, attempt: int = 1, policy: RetryPolicy = TRIES) -> Outcome:
    return decide_outcome(
        verdict, policy, attempt, "u", NOW, is_async=False, callback_timeout_us=HOUR
    )


@pytest.mark.spec("C8")
@pytest.mark.parametrize(
    ("verdict", "attempt", "most", "wanted"),
    [
        ("success", 1, 3, Outcome("SUCCESS", "ANSWERED_2XX")),
        ("fail", 1, 3, Outcome("FAILED", "NOT_RETRYABLE")),
        ("retry", 3, 3, Outcome("RETRYING", "RETRY_LEFT", next_retry_time=NOW + 2 * SECOND)),
        ("retry", 4, 3, Outcome("FAILED", "RETRIES_USED_UP")),
        ("retry", 1, 0, Outcome("FAILED", "NO_RETRIES")),
        ("timeout-retry", 1, 3, Outcome("RETRYING", "RETRY_LEFT", NOW + 2 * SECOND)),
        ("timeout-retry", 4, 3, Outcome("TIMEOUT", "RETRIES_USED_UP")),
        ("timeout-retry", 1, 0, Outcome("TIMEOUT", "NO_RETRIES")),
    ],
)
def test_what_an_attempt_means_for_its_run(
    verdict: Any, attempt: int, most: int, wanted: Outcome
) -> None:
    policy = RetryPolicy(max_retries=most, initial_delay_us=2 * SECOND)
    assert outcome(Verdict(verdict), attempt, policy) == wanted


@pytest.mark.spec("C6")
def test_an_accepted_call_waits_for_its_callback() -> None:
    waiting = decide_outcome(
        Verdict("success"), TRIES, 1, "u", NOW, is_async=True, callback_timeout_us=HOUR
    )
    assert waiting == Outcome("CALLBACK_PENDING", "ACCEPTED", callback_deadline=NOW + HOUR)


@pytest.mark.spec("C8")
@pytest.mark.parametrize(
    ("asked", "pause"),
    [(None, 2), (1, 2), (2, 2), (3, 3), (3600, 3600), (3601, 3600)],
)
def test_a_target_may_put_us_off_longer_than_our_pause_but_not_for_ever(
    asked: int | None, pause: int
) -> None:
    after = None if asked is None else asked * SECOND
    got = outcome(Verdict("retry", retry_after_us=after))
    assert got.next_retry_time == NOW + pause * SECOND
    no_pause = RetryPolicy(max_retries=1, initial_delay_us=0)
    assert outcome(Verdict("retry"), 1, no_pause).next_retry_time == NOW


@pytest.mark.spec("C8")
def test_the_pause_follows_the_policy() -> None:
    policy = RetryPolicy(9, SECOND, "exponential", 5 * SECOND, SECOND)
    backoff = Backoff(SECOND, "exponential", 5 * SECOND, SECOND)
    for attempt in (1, 2, 3, 4):
        assert changes.retry_delay(policy, attempt, "u") == delay_after(backoff, attempt, "u")


@pytest.mark.spec("C12", "X1")
@pytest.mark.parametrize(
    ("delivery", "kind", "sends", "verdict", "reason"),
    [
        ("at_most_once", "timeout", 1, "timeout-retry", "OUTCOME_UNKNOWN_AT_MOST_ONCE"),
        ("at_most_once", "unreachable", 2, "retry", "OUTCOME_UNKNOWN_AT_MOST_ONCE"),
        ("at_most_once", "unreachable", 0, "retry", "RETRY_LEFT"),  # nobody can have got it
        ("at_most_once", "answered", 1, "retry", "RETRY_LEFT"),  # its target said no
        ("at_least_once", "timeout", 1, "timeout-retry", "RETRY_LEFT"),
        ("at_most_once", "answered", 1, "success", "ANSWERED_2XX"),
        ("at_most_once", "timeout", 1, "fail", "NOT_RETRYABLE"),
    ],
)
def test_at_most_once_is_not_sent_again_unless_it_surely_did_not_arrive(
    delivery: str, kind: Any, sends: int, verdict: Any, reason: str
) -> None:
    run = a_claimed_run(a_task(retry=TRIES, delivery=delivery), attempt=1)
    assert decide_attempt(run, Verdict(verdict), kind, sends, NOW).reason == reason
    waits = a_claimed_run(a_task(retry=TRIES, callback_timeout_us=9), exec_type="ASYNC")
    assert decide_attempt(waits, Verdict("success"), "answered", 1, NOW).callback_deadline == (
        NOW + 9
    )


RECORD = AttemptRecord("h", "b", 503, "r", False, None)


def ended(decided: Outcome, error: str | None = None, **run: Any) -> RunChange:
    held = a_claimed_run(run.pop("task", None), attempts='[{"attempt":1}]', **run)
    return end_attempt(held, decided, error, RECORD, b'{"attempt":2}', NOW, LATER)


@pytest.mark.spec("C5", "C8")
def test_an_attempt_is_recorded_with_all_that_follows_from_it() -> None:
    change = ended(Outcome("RETRYING", "RETRY_LEFT", next_retry_time=HOUR), 'no "luck"')
    data = (
        '{"task_id":7,"attempt":2,"reason":"RETRY_LEFT","response_code":503,'
        f'"error":"no \\"luck\\"","next_retry_time":"{format_instant(HOUR)}"}}'
    )
    assert change == RunChange(
        run_id=60,
        task_id=7,
        old="RUNNING",
        token=5,
        new="RETRYING",
        new_token=5,
        attempt=2,
        reason="RETRY_LEFT",
        error='no "luck"',
        start_time=NOW,
        end_time=None,
        ready_host=None,
        wake_at=HOUR,
        held_by=None,
        next_retry_time=HOUR,
        callback_deadline=None,
        callback_data=None,
        attempts='[{"attempt":1},{"attempt":2}]',
        event="RUN_RETRYING",
        data=data,
        metric="runs_retrying",
        duration_us=5 * SECOND,
        last_status=None,
        frees_slot=False,
        record=RECORD,
    )


@pytest.mark.spec("C5")
@pytest.mark.parametrize(
    ("status", "is_final", "is_alert"),
    [
        ("SUCCESS", True, False),
        ("FAILED", True, True),
        ("TIMEOUT", True, True),
        ("CANCELED", True, False),
        ("RETRYING", False, False),
        ("CALLBACK_PENDING", False, False),
    ],
)
def test_an_end_is_timed_alerts_and_gives_its_place_free(
    status: Any, is_final: bool, is_alert: bool
) -> None:
    change = ended(Outcome(status, "WHY"))
    assert change.end_time == (LATER if is_final else None)
    assert msgspec.json.decode(change.data).get("alert", False) is is_alert
    assert change.frees_slot is is_final
    assert not ended(Outcome(status, "WHY"), is_counted=False).frees_slot
    task = a_task(concurrency_policy="SKIP")
    assert not ended(Outcome(status, "WHY"), task=task).frees_slot, "nobody waits there"


def test_an_attempt_without_an_answer_has_no_code_and_one_that_waits_is_looked_at() -> None:
    record = AttemptRecord(None, None, None, None, False, None)
    decided = Outcome("CALLBACK_PENDING", "ACCEPTED", callback_deadline=HOUR)
    change = end_attempt(a_claimed_run(), decided, None, record, b"{}", NOW, LATER)
    assert msgspec.json.decode(change.data) == {"task_id": 7, "attempt": 2, "reason": "ACCEPTED"}
    assert (change.wake_at, change.callback_deadline, change.next_retry_time) == (HOUR, HOUR, None)


# Runs that are done by a job


JOB = HandedJob("job", "run:u:2", "SUCCEEDED", "{}", NOW, has_begun=True)


@pytest.mark.spec("B5")
@pytest.mark.parametrize(
    ("kind", "has_begun", "delivery", "wanted"),
    [
        ("done", True, "at_least_once", ("SUCCESS", "JOB_DONE")),
        ("canceled", True, "at_least_once", ("CANCELED", "JOB_CANCELED")),
        ("failed", True, "at_most_once", ("RETRYING", "RETRY_LEFT")),
        ("gave_up", True, "at_least_once", ("FAILED", "NOT_RETRYABLE")),
        ("timeout", True, "at_least_once", ("RETRYING", "RETRY_LEFT")),
        ("timeout", True, "at_most_once", (UNKNOWN.status, UNKNOWN.reason)),
        ("lost", True, "at_most_once", (UNKNOWN.status, UNKNOWN.reason)),
        ("lost", False, "at_most_once", ("RETRYING", "RETRY_LEFT")),
        ("lost", True, "at_least_once", ("RETRYING", "RETRY_LEFT")),
    ],
)
def test_the_end_of_a_job_is_the_end_of_the_attempt(
    kind: Any, has_begun: bool, delivery: str, wanted: tuple[str, str]
) -> None:
    run = a_claimed_run(a_task(retry=TRIES, delivery=delivery))
    decided = job_runs.decide_job_end(run, HandedEnd(kind), has_begun, NOW)
    assert (decided.status, decided.reason) == wanted


@pytest.mark.spec("B5")
@pytest.mark.parametrize(
    ("kind", "said", "error"),
    [
        ("done", "ignored", None),
        ("failed", "it broke", "it broke"),
        ("failed", None, "the job failed"),
        ("gave_up", None, "the job failed for good"),
        ("timeout", None, "the job timed out"),
        ("canceled", None, "the job was cancelled"),
        ("lost", None, job_runs.GONE),
    ],
)
def test_a_job_that_ends_is_recorded_as_an_attempt(
    kind: Any, said: str | None, error: str | None
) -> None:
    change = job_runs.end_by_job(
        a_claimed_run(), JOB, HandedEnd(kind, error=said, result="res"), LATER, LATER
    )
    [entry] = msgspec.json.decode(change.attempts)
    assert entry == {
        "attempt": 2,
        "started_at": format_instant(NOW),
        "ended_at": format_instant(LATER),
        "status": change.new,
        "response_code": None,
        "error": error,
        "instance": "one",
        "job_id": "job",
        "timing": {
            "total_ms": 5000.0,
            "dns_ms": 0.0,
            "connect_ms": 0.0,
            "tls_ms": 0.0,
            "first_byte_ms": 0.0,
        },
    }
    assert msgspec.json.decode(change.data)["job_id"] == "job"
    assert change.record == AttemptRecord(None, "{}", None, "res", False, None)
    assert (change.error, change.duration_us) == (error, 5 * SECOND)


def test_a_job_that_ended_before_it_was_made_took_no_time() -> None:
    change = job_runs.end_by_job(a_claimed_run(), JOB, HandedEnd("done"), NOW - SECOND, NOW)
    [entry] = msgspec.json.decode(change.attempts)
    assert entry["timing"]["total_ms"] == 0
    assert entry["started_at"] == entry["ended_at"]


@pytest.mark.parametrize(
    ("limit", "kept", "is_cut"),
    [(None, "héllo", False), (6, "héllo", False), (5, "héll", True), (2, "h", True), (0, "", True)],
)
def test_a_result_is_kept_up_to_a_number_of_bytes_and_never_half_a_character(
    limit: int | None, kept: str, is_cut: bool
) -> None:
    run = a_claimed_run(a_task(response_limit=limit))
    record = job_runs.end_by_job(run, JOB, HandedEnd("done", result="héllo"), LATER, LATER).record
    assert record is not None
    assert (record.response_body, record.response_truncated) == (kept, is_cut)
    nothing = job_runs.end_by_job(run, JOB, HandedEnd("done"), LATER, LATER).record
    assert nothing is not None
    assert (nothing.response_body, nothing.response_truncated) == (None, False)


@pytest.mark.spec("B5")
def test_a_run_that_is_handed_over_is_held_by_nobody_and_looked_at_in_time() -> None:
    run = a_run(status="RETRYING", held_by=None)
    change = job_runs.hand_over(run, "job", HOUR, LATER, 9)
    assert (change.new, change.new_token, change.attempt) == ("RUNNING", 9, 3)
    assert (change.held_by, change.wake_at, change.reason) == (None, HOUR, "JOB_SUBMITTED")
    assert msgspec.json.decode(change.data) == {
        "task_id": 7,
        "attempt": 3,
        "reason": "JOB_SUBMITTED",
        "job_id": "job",
    }
    assert job_runs.is_waiting_for_job(a_run(held_by=None))
    assert not job_runs.is_waiting_for_job(a_run())
    assert not job_runs.is_waiting_for_job(run)


@pytest.mark.spec("B5")
@pytest.mark.parametrize("is_counted", [True, False])
def test_a_run_whose_job_cannot_be_fails_without_an_attempt(is_counted: bool) -> None:
    run = a_run(status="SCHEDULED", is_counted=is_counted)
    change = job_runs.refuse_job(run, "no  such\ntype", LATER, 9)
    assert (change.new, change.error, change.attempts) == ("FAILED", "no such type", run.attempts)
    assert (change.reason, change.frees_slot) == ("JOB_REFUSED", is_counted)
    assert msgspec.json.decode(change.data) == {
        "task_id": 7,
        "from": "SCHEDULED",
        "reason": "JOB_REFUSED",
        "error": "no such type",
        "alert": True,
    }


QUEUE, NODE = QueueSpec("a", "t"), NodeSpec("m")


@pytest.mark.spec("B5")
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({}, None),
        ({"type": "queue", "queue": QUEUE}, None),
        ({"type": "node", "node": NODE, "body": "[1]"}, None),
        ({"type": "queue"}, "task.options.queue"),
        ({"type": "node"}, "task.options.node"),
        ({"queue": QUEUE}, "task.options.queue"),
        ({"type": "queue", "queue": QUEUE, "node": NODE}, "task.options.node"),
        ({"type": "queue", "queue": QUEUE, "target_url": "http://x"}, "http"),
        ({"type": "queue", "queue": QUEUE, "headers": {"a": "b"}}, "http"),
        ({"type": "queue", "queue": QUEUE, "exec_type": "ASYNC"}, "http"),
        ({"type": "queue", "queue": QUEUE, "body": "{"}, "http.body"),
        ({"body": "{", "target_url": "http://x"}, None),
    ],
)
def test_a_task_has_the_job_of_its_type_and_nothing_of_another(
    members: dict[str, Any], field: str | None
) -> None:
    definition = a_definition(**members)
    if field is None:
        job_runs.check_job(definition)
        return
    with pytest.raises(InvalidError) as caught:
        job_runs.check_job(definition)
    assert caught.value.field == field
