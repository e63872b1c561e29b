"""What a decision leads to: the old and the new value, the event and the audit entry. One function
writes these (`engine/governance/writer`); nothing else changes a job or an object."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from ksana.base.instant import format_instant
from ksana.domain.dead_letters import NewLetter
from ksana.domain.governance.records import GovernanceJob, GovernedObject
from ksana.domain.lifecycle import COGNITION, EXPERIENCE, GOV_JOB, MEMORY, Lifecycle

OBJECT_LIFECYCLES: Final[Mapping[str, Lifecycle]] = {
    "memory": MEMORY,
    "experience": EXPERIENCE,
    "cognition": COGNITION,
}

DEAD: Final = "dead_letter"

_encode = msgspec.json.Encoder().encode


class GovernanceJobChange(msgspec.Struct, frozen=True, gc=False):
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


def check_job(change: GovernanceJobChange) -> None:
    """Raise ILLEGAL_TRANSITION for a change that the lifecycle does not have. A job that stays what
    it is may change in everything else."""
    old, new = change.old, change.new
    if old is not None and new is not None and old.status != new.status:
        GOV_JOB.require(old.status, new.status)
    elif (old or new) is not None and (old is None or new is None):
        status = (old or new).status  # type: ignore[union-attr]
        if status not in GOV_JOB.initial:
            raise GOV_JOB.refuse(status, "removed" if new is None else "made")


def bury(job: GovernanceJob) -> NewLetter:
    """The dead letter of a job that is given up."""
    return NewLetter(
        entity_id=job.job_id,
        source=job.object_type,
        status=job.status,
        error=job.last_error or job.reason or job.status,
    )


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


_SHOWN: Final = (
    ("status", "status", False),
    ("attempt", "attempt", False),
    ("action", "action", False),
    ("run_at", "run_at", True),
    ("last_error", "last_error", False),
    ("worker_id", "worker_id", False),
    ("lease_expires_at", "lease_expires_at", True),
    ("gate_key", "deferred_by", False),
    ("audit_event_id", "audit_event_id", False),
    ("follow_up_id", "follow_up_id", False),
)
"""Of a job in an audit entry: the member, its name there, and whether it is an instant."""
_SHOWN_OF: Final = {
    "job.pull": tuple(
        row for row in _SHOWN if row[0] in ("status", "worker_id", "lease_expires_at")
    ),
    "job.ack": tuple(
        row for row in _SHOWN if row[0] in ("status", "audit_event_id", "follow_up_id")
    ),
}
"""The same where a change can change little else, for there is one of each for every job."""

show_at = lru_cache(maxsize=4096)(format_instant)
"""An instant as text; those of one batch are mostly the same."""


def describe_job(change: GovernanceJobChange) -> tuple[str | None, str | None]:
    """A job before and after a change, in an audit entry: what the change made different."""
    old, new = change.old, change.new
    if old is None or new is None:
        return _describe_whole(old), _describe_whole(new)
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for member, name, is_instant in _SHOWN_OF.get(change.audit, _SHOWN):
        was, now = getattr(old, member), getattr(new, member)
        if was != now:
            before[name] = show_at(was) if is_instant and was is not None else was
            after[name] = show_at(now) if is_instant and now is not None else now
    return _encode(before).decode(), _encode(after).decode()


def _describe_whole(job: GovernanceJob | None) -> str | None:
    if job is None:
        return None
    return _encode(
        {
            "status": job.status,
            "action": job.action,
            "run_at": show_at(job.run_at),
            "priority": job.priority,
        }
    ).decode()


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
            None if governed.next_action_at is None else show_at(governed.next_action_at)
        ),
        "version": governed.version,
    }
    return _encode(shown).decode()
