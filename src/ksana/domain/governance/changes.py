"""What a decision leads to: the old and the new value, the event and the audit entry. One function
writes these (`engine/governance/writer`); nothing else changes a job or an object."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ksana.base.instant import format_instant
from ksana.domain.governance.records import GovernanceJob, GovernedObject
from ksana.domain.lifecycle import COGNITION, EXPERIENCE, GOV_JOB, MEMORY, Lifecycle

OBJECT_LIFECYCLES: Final[Mapping[str, Lifecycle]] = {
    "memory": MEMORY,
    "experience": EXPERIENCE,
    "cognition": COGNITION,
}

_encode = msgspec.json.Encoder().encode


class JobChange(msgspec.Struct, frozen=True, gc=False):
    """A job that is made (old is None), changed, or removed (new is None)."""

    old: GovernanceJob | None
    new: GovernanceJob | None
    event: str
    reason: str
    data: dict[str, Any]
    """Members of the event besides its reason."""
    audit: str
    """The type of the audit entry."""
    evidence_refs: str | None = None
    alert: tuple[str, dict[str, Any]] | None = None
    """A second event, for people: its type and members."""

    @property
    def job(self) -> GovernanceJob:
        """The job it is about."""
        job = self.new or self.old
        assert job is not None
        return job


class ObjectChange(msgspec.Struct, frozen=True, gc=False):
    """An object that is registered (old is None) or changed."""

    old: GovernedObject | None
    new: GovernedObject
    event: str | None
    """None where another event tells it, such as a budget taken by a hand-out."""
    reason: str
    evidence_refs: str | None = None
    job_id: str | None = None

    @property
    def is_move(self) -> bool:
        """Whether its status changes."""
        return self.old is not None and self.old.status != self.new.status


def check_job(change: JobChange) -> None:
    """Raise ILLEGAL_TRANSITION for a change that the lifecycle does not have. A job that stays what
    it is may change in everything else."""
    old, new = change.old, change.new
    if old is not None and new is not None and old.status != new.status:
        GOV_JOB.require(old.status, new.status)
    elif (old or new) is not None and (old is None or new is None):
        status = (old or new).status  # type: ignore[union-attr]
        if status not in GOV_JOB.initial:
            raise GOV_JOB.refuse(status, "removed" if new is None else "made")


def check_object(change: ObjectChange) -> None:
    """Raise ILLEGAL_TRANSITION for a move that the object's lifecycle does not have. A new object
    may be in any state that exists."""
    old, new = change.old, change.new
    if old is not None and old.status != new.status:
        OBJECT_LIFECYCLES[new.object_type].require(old.status, new.status)


def can_move(governed: GovernedObject, status: str) -> bool:
    """Whether an object may be in a status next; staying what it is is no move."""
    lifecycle = OBJECT_LIFECYCLES[governed.object_type]
    return governed.status == status or lifecycle.allows(governed.status, status)


def describe_job(job: GovernanceJob | None) -> str | None:
    """A job in an audit entry: what a change can change."""
    if job is None:
        return None
    shown: dict[str, Any] = {
        "status": job.status,
        "attempt": job.attempt,
        "run_at": format_instant(job.run_at),
    }
    if job.lease_expires_at is not None:
        shown["lease_expires_at"] = format_instant(job.lease_expires_at)
    if job.last_error is not None:
        shown["last_error"] = job.last_error
    if job.gate_key is not None:
        shown["deferred_by"] = job.gate_key
    if job.audit_event_id is not None:
        shown["audit_event_id"] = job.audit_event_id
    if job.follow_up_id is not None:
        shown["follow_up_id"] = job.follow_up_id
    return _encode(shown).decode()


def describe_object(governed: GovernedObject | None) -> str | None:
    """An object in an audit entry: all but its free data."""
    if governed is None:
        return None
    shown: dict[str, Any] = {
        "status": governed.status,
        "epistemic_state": governed.epistemic_state,
        "unknown_type": governed.unknown_type,
        "risk_tier": governed.risk_tier,
        "impact_tier": governed.impact_tier,
        "auto_verify_budget": governed.auto_verify_budget,
        "verify_count": governed.verify_count,
        "weight": governed.weight,
        "next_action": governed.next_action,
        "next_action_at": (
            None if governed.next_action_at is None else format_instant(governed.next_action_at)
        ),
        "version": governed.version,
    }
    return _encode(shown).decode()
