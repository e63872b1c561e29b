"""The hand-out decision: may this job be given to a worker now (G2, G9–G11)? Pure.

Asked in this order, and the first "no" counts:

1. Gates, for an object of high risk. Closed: the job is deferred, without an attempt.
2. The limit of an `ontic_unknowable` object. Reached: the job fails, for good.
3. The budget of an `uncertain` object. Spent: the job fails, for good, and the object goes where it
   waits for people: memory to stale_uncertain, experience to needs_review, cognition to stale.

A verification is counted, and its budget taken, when it is handed out, whatever comes of it.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.governance.changes import GovernanceJobChange, ObjectChange, can_move, show_at
from ksana.domain.governance.gates import (
    ALL_OPEN,
    LONG_DEFERRED,
    GateVerdict,
    is_gated,
    read_gates,
)
from ksana.domain.governance.objects import bump, forget_next_action
from ksana.domain.governance.records import (
    DEFERRED_POSITION,
    VERIFYING,
    Gate,
    GovernanceJob,
    GovernedObject,
    Rules,
)

DUE: Final = "DUE"
GATE_CLOSED: Final = "GATE_CLOSED"
VERIFY_LIMIT: Final = "VERIFY_LIMIT"
BUDGET_SPENT: Final = "BUDGET_SPENT"

OUT_OF_BUDGET: Final = {
    "memory": "stale_uncertain",
    "experience": "needs_review",
    "cognition": "stale",
}
"""Where an uncertain object goes when its budget is spent (G10)."""


class GovernanceLease(msgspec.Struct, frozen=True, gc=False):
    """What a worker gets a job with."""

    worker_id: str
    token: int
    expires_at: Instant


class HandOut(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a job that somebody would take."""

    job: GovernanceJobChange
    governed: ObjectChange | None = None
    gates: dict[str, str] | None = None
    """The gates' states, where one is degraded: shown to the worker."""

    @property
    def is_handed_out(self) -> bool:
        """Whether the worker gets it."""
        return self.job.job.status == "running"


def has_reached_limit(governed: GovernedObject | None, action: str, rules: Rules) -> bool:
    """Whether no further verification of an unknowable object is allowed, ever (G11)."""
    return (
        governed is not None
        and governed.unknown_type == "ontic_unknowable"
        and action in VERIFYING
        and governed.verify_count >= rules.verify_limit
    )


def has_spent_budget(governed: GovernedObject | None, action: str) -> bool:
    """Whether an uncertain object may not be verified any more (G10)."""
    return (
        governed is not None
        and governed.epistemic_state == "uncertain"
        and action in VERIFYING
        and governed.auto_verify_budget <= 0
    )


def decide_hand_out(
    job: GovernanceJob,
    governed: GovernedObject | None,
    gates: Sequence[Gate],
    rules: Rules,
    lease: GovernanceLease,
    now: Instant,
) -> HandOut:
    """Hand a due job out, defer it, or end it."""
    verdict = ALL_OPEN
    if is_gated(governed):
        verdict = read_gates(gates, job.object_type, job.action)
        if verdict.closed_by is not None:
            return HandOut(job=_defer(job, verdict.closed_by, now))
    if governed is not None and job.action in VERIFYING:
        if has_reached_limit(governed, job.action, rules):
            return HandOut(
                job=_end(job, VERIFY_LIMIT, governed, rules, now),
                governed=_after_end(job, governed, governed.status, VERIFY_LIMIT, now),
            )
        if has_spent_budget(governed, job.action):
            return HandOut(
                job=_end(job, BUDGET_SPENT, governed, rules, now),
                governed=_after_end(job, governed, _out_of_budget(governed), BUDGET_SPENT, now),
            )
        counted = _count_verification(job, governed, now)
    else:
        counted = None
    return HandOut(
        job=_lease(job, lease, counted, now),
        governed=counted,
        gates=_shown(verdict),
    )


def _shown(verdict: GateVerdict) -> dict[str, str] | None:
    return verdict.states if verdict.is_degraded else None


def _lease(
    job: GovernanceJob, lease: GovernanceLease, counted: ObjectChange | None, now: Instant
) -> GovernanceJobChange:
    held = msgspec.structs.replace(
        job,
        status="running",
        position=None,
        reason=DUE,
        worker_id=lease.worker_id,
        lease_token=lease.token,
        lease_expires_at=lease.expires_at,
        gate_key=None,
        follow_key=None,
        updated_at=now,
    )
    data: dict[str, Any] = {
        "worker_id": lease.worker_id,
        "attempt": job.attempt,
        "lease_expires_at": show_at(lease.expires_at),
    }
    if counted is not None:
        data["verify_count"] = counted.new.verify_count
        data["budget_left"] = counted.new.auto_verify_budget
    return GovernanceJobChange(
        old=job, new=held, event="GOV_JOB_PULLED", reason=DUE, data=data, audit="job.pull"
    )


def _count_verification(job: GovernanceJob, old: GovernedObject, now: Instant) -> ObjectChange:
    taken = 1 if old.epistemic_state == "uncertain" else 0
    new = msgspec.structs.replace(
        old,
        verify_count=old.verify_count + 1,
        auto_verify_budget=old.auto_verify_budget - taken,
    )
    return ObjectChange(
        old=old, new=bump(old, new, now), event=None, reason="VERIFIED", job_id=job.job_id
    )


def _defer(job: GovernanceJob, setting: Gate, now: Instant) -> GovernanceJobChange:
    deferrals = job.deferrals + 1
    kept = msgspec.structs.replace(
        job,
        position=DEFERRED_POSITION,
        deferrals=deferrals,
        gate_key=setting.key,
        reason=GATE_CLOSED,
        updated_at=now,
    )
    data = {"gate": setting.gate, "scope": setting.scope or None, "deferrals": deferrals}
    return GovernanceJobChange(
        old=job,
        new=kept,
        event="GOV_JOB_DEFERRED",
        reason=GATE_CLOSED,
        data=data,
        audit="job.defer",
        alert=("GATE_DEFERRED_LONG", data) if deferrals == LONG_DEFERRED else None,
    )


def _end(
    job: GovernanceJob, reason: str, governed: GovernedObject, rules: Rules, now: Instant
) -> GovernanceJobChange:
    if reason == VERIFY_LIMIT:
        error = (
            f"the object is ontic_unknowable and was verified {governed.verify_count} times;"
            f" the limit is {rules.verify_limit}"
        )
    else:
        error = "the object is uncertain and its auto_verify_budget is spent"
    ended = msgspec.structs.replace(
        job,
        status="failed",
        position=None,
        reason=reason,
        last_error=error,
        gate_key=None,
        follow_key=None,
        finished_at=now,
        updated_at=now,
    )
    data = {"attempt": job.attempt, "error": error}
    return GovernanceJobChange(
        old=job, new=ended, event="GOV_JOB_FAILED", reason=reason, data=data, audit="job.fail"
    )


def _out_of_budget(governed: GovernedObject) -> str:
    """Where that move is not legal only the job fails."""
    status = OUT_OF_BUDGET[governed.object_type]
    return status if can_move(governed, status) else governed.status


def _after_end(
    job: GovernanceJob, old: GovernedObject, status: str, reason: str, now: Instant
) -> ObjectChange | None:
    """The object after a job that a rule ended. If that was its follow-up nothing comes next."""
    next_at = old.next_action_at if job.follow_key is None else None
    if status == old.status:
        is_over = next_at != old.next_action_at
        return forget_next_action(old, job.job_id, reason, now) if is_over else None
    new = msgspec.structs.replace(old, status=status, next_action_at=next_at)
    return ObjectChange(
        old=old,
        new=bump(old, new, now),
        event="OBJECT_MOVED",
        reason=reason,
        job_id=job.job_id,
    )
