"""What becomes of a governance job after it was handed out, and how it gets into the queue. Pure:
each function answers a Change, or a refusal as an error that is not raised where many are decided
together."""

import hashlib
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ksana.base.errors import ConflictError, InvalidError, KsanaError
from ksana.base.ids import NO_TOKEN
from ksana.base.instant import SECOND, Instant, Micros, format_instant
from ksana.domain.governance.changes import GovernanceJobChange
from ksana.domain.governance.hand_out import VERIFY_LIMIT, has_reached_limit
from ksana.domain.governance.objects import NO_FIELDS, ObjectFields
from ksana.domain.governance.records import (
    DEFAULT_MAX_ATTEMPTS,
    QUEUED_POSITION,
    GovernanceJob,
    GovernedObject,
    Rules,
    default_idempotency_key,
    object_key,
)
from ksana.domain.lifecycle import GOV_JOB

PAST_GRACE: Final[Micros] = SECOND
"""How far in the past `run_at` may lie without `allow_past` (G1)."""
AHEAD_GRACE: Final[Micros] = 5 * SECOND
"""How far a pull's `now` may be ahead of ours (G2)."""


class NewGovernanceJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to enqueue, checked as far as it can be without the store."""

    job_id: str
    object_type: str
    object_id: str
    action: str
    urgency: int
    run_at: Instant
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    idempotency_key: str | None = None
    is_past_allowed: bool = False


class Ack(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's word that its job is done."""

    job_id: str
    token: int | None = None
    audit_event_id: str | None = None
    next_action_at: Instant | UnsetType | None = UNSET
    next_action: str | None = None
    evidence_refs: str | None = None
    fields: ObjectFields = NO_FIELDS
    """What changes of the object with it."""
    digest: str = ""
    """Tells the same ack sent again from another one."""


class AttemptFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's word that its attempt came to nothing."""

    job_id: str
    error: str
    token: int | None = None
    retry_delay_us: Micros = 0
    is_final: bool = False
    """End it by a rule: no retry, no dead letter."""


class Renewal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's sign of life for a job it holds."""

    job_id: str
    token: int | None = None


def digest_of(*parts: object) -> str:
    """A short digest of what an ack says."""
    text = "\x1f".join(map(str, parts)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


# Into the queue


def refuse_run_at(run_at: Instant, now: Instant, is_past_allowed: bool) -> InvalidError | None:
    """Why a job cannot be queued for that time, if it cannot."""
    if is_past_allowed or run_at >= now - PAST_GRACE:
        return None
    return InvalidError(
        f"'run_at': {format_instant(run_at)} is past; allowed: from now ({format_instant(now)}) on,"
        ' or any time with "allow_past":true',
        field="run_at",
    )


def refuse_limit(
    governed: GovernedObject | None, action: str, rules: Rules
) -> ConflictError | None:
    """Why an object may not be verified any more, if so (G11)."""
    if not has_reached_limit(governed, action, rules):
        return None
    assert governed is not None
    return ConflictError(
        f"{governed.key} is ontic_unknowable and was verified {governed.verify_count} times;"
        f" at most {rules.verify_limit} are allowed, ever",
        current={
            "reason": VERIFY_LIMIT,
            "verify_count": governed.verify_count,
            "verify_limit": rules.verify_limit,
        },
    )


def decide_enqueue(new: NewGovernanceJob, now: Instant) -> GovernanceJobChange:
    """Put a job in the queue."""
    key = new.idempotency_key or default_idempotency_key(new.object_id, new.action, new.run_at)
    job = GovernanceJob(
        seq=0,
        job_id=new.job_id,
        object_type=new.object_type,
        object_id=new.object_id,
        action=new.action,
        urgency=new.urgency,
        run_at=new.run_at,
        attempt=0,
        max_attempts=new.max_attempts,
        idempotency_key=key,
        status="queued",
        last_error=None,
        position=QUEUED_POSITION,
        reason="ENQUEUED",
        created_at=now,
        updated_at=now,
    )
    return GovernanceJobChange(
        old=None,
        new=job,
        event="GOV_JOB_ENQUEUED",
        reason="ENQUEUED",
        data=_enqueued(job),
        audit="job.enqueue",
    )


def _enqueued(job: GovernanceJob) -> dict[str, Any]:
    return {
        "object_type": job.object_type,
        "object_id": job.object_id,
        "action": job.action,
        "run_at": format_instant(job.run_at),
        "priority": job.priority,
    }


def decide_follow_up(
    governed: GovernedObject,
    queued: GovernanceJob | None,
    *,
    job_id: str,
    urgency: int,
    max_attempts: int,
    now: Instant,
) -> GovernanceJobChange | None:
    """Bring the object's queued follow-up in line with its `next_action_at`: queue one, move the
    one that waits, or remove it. None if it is as it should be."""
    at, action = governed.next_action_at, governed.next_action
    if at is None or action is None:
        return None if queued is None else remove_follow_up(queued)
    if queued is None:
        new = NewGovernanceJob(
            job_id=job_id,
            object_type=governed.object_type,
            object_id=governed.object_id,
            action=action,
            urgency=urgency,
            run_at=at,
            max_attempts=max_attempts,
            idempotency_key=_follow_up_key(governed.object_id, action, at, job_id),
        )
        change = decide_enqueue(new, now)
        job = msgspec.structs.replace(
            change.job, follow_key=governed.key, is_follow_up=1, reason="FOLLOW_UP"
        )
        return msgspec.structs.replace(change, new=job, reason="FOLLOW_UP")
    if queued.run_at == at and queued.action == action:
        return None
    moved = msgspec.structs.replace(
        queued,
        run_at=at,
        action=action,
        idempotency_key=_follow_up_key(governed.object_id, action, at, queued.job_id),
        position=QUEUED_POSITION,
        gate_key=None,
        reason="FOLLOW_UP_MOVED",
        updated_at=now,
    )
    return GovernanceJobChange(
        old=queued,
        new=moved,
        event="GOV_JOB_MOVED",
        reason="FOLLOW_UP_MOVED",
        data={"run_at": format_instant(at), "action": action},
        audit="job.move",
    )


def remove_follow_up(queued: GovernanceJob) -> GovernanceJobChange:
    """Take a queued follow-up out: its object has no next action any more."""
    return GovernanceJobChange(
        old=queued,
        new=None,
        event="GOV_JOB_REMOVED",
        reason="NO_NEXT_ACTION",
        data={"run_at": format_instant(queued.run_at), "action": queued.action},
        audit="job.remove",
    )


def _follow_up_key(object_id: str, action: str, at: Instant, job_id: str) -> str:
    """Never the key of a job that a caller enqueued: a follow-up for a time that was already worked
    off must not pass for a repeat."""
    return f"{default_idempotency_key(object_id, action, at)}:{job_id[-8:]}"


def wake(job: GovernanceJob, now: Instant) -> GovernanceJobChange:
    """A deferred job waits for its time again: the setting that kept it is not closed any more."""
    woken = msgspec.structs.replace(
        job, position=QUEUED_POSITION, gate_key=None, reason="GATE_OPENED", updated_at=now
    )
    return GovernanceJobChange(
        old=job,
        new=woken,
        event="GOV_JOB_WOKEN",
        reason="GATE_OPENED",
        data={"gate": job.gate_key, "deferrals": job.deferrals},
        audit="job.wake",
    )


def requeue(job: GovernanceJob, now: Instant, has_follow_up: bool) -> GovernanceJobChange:
    """A dead letter gets all its attempts again, at once."""
    again = msgspec.structs.replace(
        job,
        status="queued",
        position=QUEUED_POSITION,
        run_at=now,
        attempt=0,
        reason="REQUEUED",
        follow_key=_follow_key(job, has_follow_up),
        finished_at=None,
        updated_at=now,
    )
    return GovernanceJobChange(
        old=job,
        new=again,
        event="GOV_JOB_REQUEUED",
        reason="REQUEUED",
        data={"attempt": job.attempt, "max_attempts": job.max_attempts},
        audit="job.requeue",
    )


def _follow_key(job: GovernanceJob, has_follow_up: bool) -> str | None:
    """A follow-up that is queued again is the object's follow-up again, unless there is one by
    now."""
    is_again = job.is_follow_up and not has_follow_up
    return object_key(job.object_type, job.object_id) if is_again else None


# Held by a worker


def refuse_holder(
    job: GovernanceJob, token: int | None, is_expired: bool, wanted: str, rules: Rules
) -> KsanaError | None:
    """Why a worker may not lead this job to the wanted status, if it may not."""
    if token is not None and (token != job.lease_token or token == NO_TOKEN):
        return _lost(job, "another token holds it, or nobody does")
    if job.status != "running":
        return GOV_JOB.refuse(job.status, wanted)
    if token is None and rules.require_lease_token:
        return _lost(job, "lease_token is required")
    if is_expired:
        return _lost(job, "the lease has run out")
    return None


def _lost(job: GovernanceJob, why: str) -> ConflictError:
    return ConflictError(
        f"{job.job_id} is not held by this call: {why}",
        code="LEASE_LOST",
        current={"status": job.status, "attempt": job.attempt},
    )


def decide_failure(
    job: GovernanceJob, failure: AttemptFailure, now: Instant, has_follow_up: bool
) -> GovernanceJobChange:
    """An attempt failed: queue the job again, or give it up."""
    if failure.is_final:
        return fail_by_rule(job, "ENDED_BY_WORKER", failure.error, now)
    run_at = job.run_at + failure.retry_delay_us
    if run_at < now:
        run_at = now + failure.retry_delay_us
    return _end_attempt(job, failure.error, "ATTEMPT_FAILED", run_at, now, has_follow_up)


def expire(job: GovernanceJob, now: Instant, has_follow_up: bool) -> GovernanceJobChange:
    """A lease ran out: the attempt counts, and the job is due at once."""
    error = f"the lease of {job.worker_id} ran out"
    return _end_attempt(job, error, "LEASE_EXPIRED", job.run_at, now, has_follow_up)


def _end_attempt(
    job: GovernanceJob,
    error: str,
    why: str,
    run_at: Instant,
    now: Instant,
    has_follow_up: bool,
) -> GovernanceJobChange:
    attempt = job.attempt + 1
    is_dead = attempt >= job.max_attempts
    ended = msgspec.structs.replace(
        job,
        status="dead_letter" if is_dead else "queued",
        position=None if is_dead else QUEUED_POSITION,
        run_at=job.run_at if is_dead else run_at,
        attempt=attempt,
        last_error=error,
        reason="ATTEMPTS_USED_UP" if is_dead else why,
        worker_id=None,
        lease_token=0,
        lease_expires_at=None,
        follow_key=None if is_dead else _follow_key(job, has_follow_up),
        finished_at=now if is_dead else None,
        updated_at=now,
    )
    data: dict[str, Any] = {
        "attempt": attempt,
        "max_attempts": job.max_attempts,
        "error": error,
        "worker_id": job.worker_id,
        "cause": why,
    }
    if is_dead:
        data["alert"] = True
        event, reason = "GOV_JOB_DEAD_LETTER", "ATTEMPTS_USED_UP"
    else:
        data["run_at"] = format_instant(run_at)
        event, reason = "GOV_JOB_RETRYING", why
    audit = "job.expire" if why == "LEASE_EXPIRED" else "job.fail"
    return GovernanceJobChange(
        old=job, new=ended, event=event, reason=reason, data=data, audit=audit
    )


def fail_by_rule(job: GovernanceJob, reason: str, error: str, now: Instant) -> GovernanceJobChange:
    """End a job for good: no retry would help."""
    ended = msgspec.structs.replace(
        job,
        status="failed",
        position=None,
        reason=reason,
        last_error=error,
        lease_token=0,
        lease_expires_at=None,
        follow_key=None,
        finished_at=now,
        updated_at=now,
    )
    return GovernanceJobChange(
        old=job,
        new=ended,
        event="GOV_JOB_FAILED",
        reason=reason,
        data={"attempt": job.attempt, "error": error},
        audit="job.fail",
    )


def renew(job: GovernanceJob, expires_at: Instant, now: Instant) -> GovernanceJob:
    """Hold it longer. A sign of life is no event."""
    return msgspec.structs.replace(job, lease_expires_at=expires_at, updated_at=now)
