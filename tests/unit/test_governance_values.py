"""Governance jobs and objects: every change as a whole value."""

import json
from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, InvalidError
from ksana.base.instant import DAY, HOUR, SECOND, format_instant
from ksana.domain.governance import changes, jobs
from ksana.domain.governance.changes import GovernanceJobChange
from ksana.domain.governance.jobs import AttemptFailure, NewGovernanceJob
from ksana.domain.governance.records import QUEUED_POSITION, Rules, object_key
from tests.unit.governance_ground import NOW, RULES, a_job, an_object

LATER = NOW + 5 * SECOND
HELD: dict[str, Any] = {
    "status": "running",
    "position": None,
    "worker_id": "w",
    "lease_token": 8,
    "lease_expires_at": LATER,
    "attempt": 1,
    "max_attempts": 3,
}


def differences(old: Any, new: Any) -> dict[str, Any]:
    """The members that changed."""
    before, after = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    return {name: after[name] for name in after if before[name] != after[name]}


def told(change: GovernanceJobChange) -> tuple[str, str, str]:
    return change.event, change.reason, change.audit


# Into the queue


@pytest.mark.spec("G1")
@pytest.mark.parametrize(
    ("late", "is_allowed", "is_refused"),
    [(0, False, False), (SECOND, False, False), (SECOND + 1, False, True), (DAY, True, False)],
)
def test_a_time_that_is_past_is_refused_unless_it_is_allowed(
    late: int, is_allowed: bool, is_refused: bool
) -> None:
    refusal = jobs.refuse_run_at(NOW - late, NOW, is_allowed)
    assert isinstance(refusal, InvalidError) == is_refused
    assert refusal is None or refusal.field == "run_at"


@pytest.mark.spec("G1")
def test_a_job_is_queued_under_its_key() -> None:
    new = NewGovernanceJob(
        job_id="j",
        object_type="memory",
        object_id="m1",
        action="verify",
        urgency=2,
        run_at=LATER,
        max_attempts=4,
    )
    change = jobs.decide_enqueue(new, NOW)
    assert told(change) == ("GOV_JOB_ENQUEUED", "ENQUEUED", "job.enqueue")
    job = change.job
    assert (job.status, job.position, job.reason) == ("queued", QUEUED_POSITION, "ENQUEUED")
    assert (job.attempt, job.max_attempts, job.run_at) == (0, 4, LATER)
    assert (job.created_at, job.updated_at, job.urgency) == (NOW, NOW, 2)
    assert job.idempotency_key == f"m1:verify:{format_instant(LATER)}"
    assert change.data == {
        "object_type": "memory",
        "object_id": "m1",
        "action": "verify",
        "run_at": format_instant(LATER),
        "priority": job.priority,
    }
    own = jobs.decide_enqueue(msgspec.structs.replace(new, idempotency_key="mine"), NOW)
    assert own.job.idempotency_key == "mine"
    assert (job.key, object_key("memory", "m1")) == ("memory:m1", "memory:m1")


def follow(governed: Any, queued: Any = None) -> GovernanceJobChange | None:
    return jobs.decide_follow_up(
        governed, queued, job_id="job_12345678", urgency=2, max_attempts=4, now=NOW
    )


@pytest.mark.spec("G3", "G4")
def test_a_next_action_has_one_queued_job() -> None:
    planned = an_object(next_action="revalidate", next_action_at=LATER)
    made = follow(planned)
    assert made is not None
    assert told(made) == ("GOV_JOB_ENQUEUED", "FOLLOW_UP", "job.enqueue")
    assert (made.job.follow_key, made.job.is_follow_up) == ("memory:m1", 1)
    assert (made.job.reason, made.job.urgency, made.job.max_attempts) == ("FOLLOW_UP", 2, 4)
    assert made.job.idempotency_key == f"m1:revalidate:{format_instant(LATER)}:12345678"
    queued = a_job(run_at=LATER, action="revalidate")
    assert follow(planned, queued) is None, "it is as it should be"
    for old in (a_job(run_at=LATER), a_job(action="revalidate", gate_key="g", position=9)):
        moved = follow(planned, old)
        assert moved is not None
        assert told(moved) == ("GOV_JOB_MOVED", "FOLLOW_UP_MOVED", "job.move")
        assert moved.data == {"run_at": format_instant(LATER), "action": "revalidate"}
        assert moved.new is not None
        assert (moved.new.run_at, moved.new.action) == (LATER, "revalidate")
        assert (moved.new.position, moved.new.gate_key) == (QUEUED_POSITION, None)
        assert (moved.new.reason, moved.new.updated_at) == ("FOLLOW_UP_MOVED", NOW)
        assert moved.new.idempotency_key == f"m1:revalidate:{format_instant(LATER)}:00000001"


@pytest.mark.spec("G3", "G4")
@pytest.mark.parametrize("missing", ["next_action", "next_action_at"])
def test_without_a_next_action_nothing_is_queued(missing: str) -> None:
    governed = an_object(**{"next_action": "verify", "next_action_at": LATER, missing: None})
    assert follow(governed) is None
    gone = follow(governed, a_job())
    assert gone is not None
    assert (gone.new, *told(gone)) == (None, "GOV_JOB_REMOVED", "NO_NEXT_ACTION", "job.remove")
    assert gone.data == {"run_at": format_instant(NOW), "action": "verify"}
    assert gone.job.job_id == a_job().job_id


@pytest.mark.spec("G9")
def test_a_deferred_job_that_is_woken_waits_for_its_time_again() -> None:
    job = a_job(position=9, gate_key="g/", deferrals=2)
    change = jobs.wake(job, LATER)
    assert told(change) == ("GOV_JOB_WOKEN", "GATE_OPENED", "job.wake")
    assert change.data == {"gate": "g/", "deferrals": 2}
    assert differences(job, change.new) == {
        "position": QUEUED_POSITION,
        "gate_key": None,
        "reason": "GATE_OPENED",
        "updated_at": LATER,
    }


@pytest.mark.spec("G6")
@pytest.mark.parametrize(
    ("is_follow_up", "has_other", "key"),
    [(1, False, "memory:m1"), (1, True, None), (0, False, None)],
)
def test_a_dead_letter_that_is_queued_again_has_all_its_attempts(
    is_follow_up: int, has_other: bool, key: str | None
) -> None:
    job = a_job(
        status="dead_letter",
        position=None,
        attempt=3,
        run_at=1,
        finished_at=2,
        is_follow_up=is_follow_up,
    )
    change = jobs.requeue(job, LATER, has_other)
    assert told(change) == ("GOV_JOB_REQUEUED", "REQUEUED", "job.requeue")
    assert change.data == {"attempt": 3, "max_attempts": job.max_attempts}
    changed = {
        "status": "queued",
        "position": QUEUED_POSITION,
        "run_at": LATER,
        "attempt": 0,
        "reason": "REQUEUED",
        "finished_at": None,
        "updated_at": LATER,
    }
    assert differences(job, change.new) == changed | ({"follow_key": key} if key else {})


# Held by a worker


@pytest.mark.spec("G5")
@pytest.mark.parametrize(
    ("job", "token", "is_expired", "rules", "code"),
    [
        ({}, 8, False, RULES, None),
        ({}, None, False, RULES, None),
        ({}, 9, False, RULES, "LEASE_LOST"),
        ({"lease_token": 0}, 0, False, RULES, "LEASE_LOST"),
        ({"status": "queued"}, None, False, RULES, "ILLEGAL_TRANSITION"),
        ({"status": "queued"}, 9, False, RULES, "LEASE_LOST"),
        ({}, None, False, Rules(require_lease_token=True), "LEASE_LOST"),
        ({}, 8, False, Rules(require_lease_token=True), None),
        ({}, 8, True, RULES, "LEASE_LOST"),
    ],
)
def test_only_the_holder_may_end_a_job(
    job: dict[str, Any], token: int | None, is_expired: bool, rules: Rules, code: str | None
) -> None:
    held = a_job(**HELD | job)
    refusal = jobs.refuse_holder(held, token, is_expired, "succeeded", rules)
    assert (None if refusal is None else refusal.code) == code
    if code == "LEASE_LOST":
        assert isinstance(refusal, ConflictError)
        assert refusal.extra["current"] == {"status": held.status, "attempt": 1}


def fail(job: dict[str, Any], now: int = LATER, **failure: Any) -> GovernanceJobChange:
    said = AttemptFailure(job_id="j", error="e", **failure)
    return jobs.decide_failure(a_job(**HELD | job), said, now, False)


@pytest.mark.spec("G6")
@pytest.mark.parametrize(
    ("delay", "now", "run_at"),
    [
        (0, NOW, NOW),
        (0, LATER, LATER),
        (2 * SECOND, LATER, LATER + 2 * SECOND),
        (HOUR, LATER, NOW + HOUR),
        (5 * SECOND, LATER, LATER),
    ],
)
def test_a_failed_attempt_is_made_again_after_its_delay(delay: int, now: int, run_at: int) -> None:
    change = fail({"is_follow_up": 1}, now, retry_delay_us=delay)
    assert told(change) == ("GOV_JOB_RETRYING", "ATTEMPT_FAILED", "job.fail")
    assert change.data == {
        "attempt": 2,
        "max_attempts": 3,
        "error": "e",
        "worker_id": "w",
        "cause": "ATTEMPT_FAILED",
        "run_at": format_instant(run_at),
    }
    assert change.new is not None
    assert change.new == msgspec.structs.replace(
        a_job(is_follow_up=1),
        run_at=run_at,
        attempt=2,
        max_attempts=3,
        last_error="e",
        reason="ATTEMPT_FAILED",
        follow_key="memory:m1",
        updated_at=now,
    )


@pytest.mark.spec("G6")
def test_the_last_attempt_that_fails_makes_a_dead_letter() -> None:
    change = fail({"attempt": 2, "is_follow_up": 1}, retry_delay_us=HOUR)
    assert told(change) == ("GOV_JOB_DEAD_LETTER", "ATTEMPTS_USED_UP", "job.fail")
    assert change.data == {
        "attempt": 3,
        "max_attempts": 3,
        "error": "e",
        "worker_id": "w",
        "cause": "ATTEMPT_FAILED",
        "alert": True,
    }
    assert differences(a_job(**HELD | {"is_follow_up": 1}), change.new) == {
        "status": "dead_letter",
        "attempt": 3,
        "last_error": "e",
        "reason": "ATTEMPTS_USED_UP",
        "worker_id": None,
        "lease_token": 0,
        "lease_expires_at": None,
        "finished_at": LATER,
        "updated_at": LATER,
    }


@pytest.mark.spec("G5", "G6")
def test_a_lease_that_ran_out_counts_and_the_job_is_due_at_once() -> None:
    change = jobs.expire(a_job(**HELD), LATER, False)
    assert told(change) == ("GOV_JOB_RETRYING", "LEASE_EXPIRED", "job.expire")
    assert change.new is not None
    assert (change.new.run_at, change.new.attempt) == (NOW, 2)
    assert change.new.last_error == "the lease of w ran out"
    assert change.data["cause"] == "LEASE_EXPIRED"


@pytest.mark.spec("G6")
def test_a_worker_may_end_its_job_for_good() -> None:
    change = fail({"follow_key": "k"}, is_final=True)
    assert told(change) == ("GOV_JOB_FAILED", "ENDED_BY_WORKER", "job.fail")
    assert change.data == {"attempt": 1, "error": "e"}
    assert differences(a_job(**HELD | {"follow_key": "k"}), change.new) == {
        "status": "failed",
        "reason": "ENDED_BY_WORKER",
        "last_error": "e",
        "lease_token": 0,
        "lease_expires_at": None,
        "follow_key": None,
        "finished_at": LATER,
        "updated_at": LATER,
    }
    job = a_job(**HELD)
    renewed = jobs.renew(job, LATER + 1, NOW + 1)
    assert differences(job, renewed) == {"lease_expires_at": LATER + 1, "updated_at": NOW + 1}


def test_a_job_says_its_priority_by_name() -> None:
    assert [a_job(urgency=urgency).priority for urgency in range(3)] == ["high", "medium", "low"]


# What is legal, and what an audit entry shows


def change_of(old: Any, new: Any, audit: str = "job.move") -> GovernanceJobChange:
    return GovernanceJobChange(old, new, "E", "R", {}, audit)


@pytest.mark.spec("G12")
@pytest.mark.parametrize(
    ("old", "new", "is_legal"),
    [
        (None, "queued", True),
        (None, "running", False),
        ("queued", None, True),
        ("running", None, False),
        ("queued", "running", True),
        ("queued", "queued", True),
        ("succeeded", "queued", False),
        ("succeeded", "succeeded", True),
    ],
)
def test_a_job_is_moved_as_its_lifecycle_allows(
    old: str | None, new: str | None, is_legal: bool
) -> None:
    change = change_of(old and a_job(status=old), new and a_job(status=new))
    if is_legal:
        changes.check_job(change)
        return
    what = "made" if old is None else "removed" if new is None else new
    with pytest.raises(ConflictError, match=f" to {what};"):
        changes.check_job(change)


@pytest.mark.spec("G12")
def test_an_audit_entry_shows_what_a_change_made_different() -> None:
    old = a_job(**HELD)
    new = a_job(status="queued", run_at=LATER, last_error="e", gate_key="g", follow_up_id="f")
    before, after = changes.describe_job(change_of(old, new))
    assert json.loads(before or "") == {
        "status": "running",
        "attempt": 1,
        "run_at": format_instant(NOW),
        "last_error": None,
        "worker_id": "w",
        "lease_expires_at": format_instant(LATER),
        "deferred_by": None,
        "follow_up_id": None,
    }
    assert json.loads(after or "") == {
        "status": "queued",
        "attempt": 0,
        "run_at": format_instant(LATER),
        "last_error": "e",
        "worker_id": None,
        "lease_expires_at": None,
        "deferred_by": "g",
        "follow_up_id": "f",
    }
    pulled = changes.describe_job(change_of(a_job(), old, "job.pull"))
    assert set(json.loads(pulled[1] or "")) == {"status", "worker_id", "lease_expires_at"}
    acked = changes.describe_job(change_of(old, new, "job.ack"))
    assert set(json.loads(acked[1] or "")) == {"status", "follow_up_id"}
    whole = {"status": "queued", "action": "verify", "run_at": format_instant(NOW)}
    for pair, place in ((change_of(None, a_job()), 1), (change_of(a_job(), None), 0)):
        shown = changes.describe_job(pair)
        assert shown[1 - place] is None
        assert json.loads(shown[place] or "") == whole | {"priority": a_job().priority}


@pytest.mark.parametrize(
    ("error", "reason", "said"), [("e", "R", "e"), (None, "R", "R"), (None, None, "queued")]
)
def test_the_dead_letter_of_a_job_tells_the_most_that_is_known(
    error: str | None, reason: str | None, said: str
) -> None:
    letter = changes.bury(a_job(last_error=error, reason=reason))
    assert (letter.entity_id, letter.source) == (a_job().job_id, "memory")
    assert (letter.status, letter.error) == ("queued", said)
