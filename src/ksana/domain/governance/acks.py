"""What an ack does, as one: the job ends, the object is written, its follow-up is queued (G3).

Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET

from ksana.base.errors import KsanaError
from ksana.base.instant import Instant
from ksana.domain.governance.changes import (
    OBJECT_LIFECYCLES,
    GovernanceJobChange,
    ObjectChange,
    can_move,
)
from ksana.domain.governance.hand_out import VERIFY_LIMIT
from ksana.domain.governance.jobs import (
    Ack,
    decide_follow_up,
    fail_by_rule,
    refuse_limit,
    remove_follow_up,
)
from ksana.domain.governance.objects import (
    NO_FIELDS,
    bump,
    change_object,
    check_status,
    forget_next_action,
    new_object,
)
from ksana.domain.governance.records import (
    VERIFYING,
    GovernanceJob,
    GovernedObject,
    Rules,
)

ENDS_BY_RULE: Final = frozenset({"archive", "reinstate-check"})
"""Actions whose illegal move ends the job: asked again it would be as illegal."""

ILLEGAL_MOVE: Final = "ILLEGAL_MOVE"
MADE_BY_ACK: Final = "MADE_BY_ACK"
"""Why an object was registered that nobody registered."""


class Acked(msgspec.Struct, frozen=True, gc=False):
    """All that one ack changes."""

    job: GovernanceJobChange
    governed: ObjectChange | None
    follow_up: GovernanceJobChange | None


def is_over(job: GovernanceJob, queued: GovernanceJob | None) -> bool:
    """Whether a held job that ends was what its object waited for: nothing else is queued for the
    object's next action."""
    return bool(job.is_follow_up) and queued is None


def is_same_ack(job: GovernanceJob, ack: Ack) -> bool:
    """Whether this ack ended the job already."""
    return job.status in ("succeeded", "failed") and job.ack_digest == ack.digest


def decide_ack(
    job: GovernanceJob,
    governed: GovernedObject | None,
    queued: GovernanceJob | None,
    ack: Ack,
    rules: Rules,
    now: Instant,
    *,
    follow_up_id: str,
) -> Acked | KsanaError:
    """End a held job. `queued` is the object's queued follow-up, if it has one."""
    status = _wanted_status(job, ack)
    if status is not None:
        try:  # a status that does not exist is a mistake, whatever the action
            check_status(job.object_type, status, "object.status")
        except KsanaError as error:
            return error
    if governed is not None and status is not None and not can_move(governed, status):
        refusal = OBJECT_LIFECYCLES[governed.object_type].refuse(governed.status, status)
        if job.action not in ENDS_BY_RULE:
            return refusal
        ended = fail_by_rule(job, ILLEGAL_MOVE, refusal.message, now)
        over = None
        if is_over(job, queued):
            over = forget_next_action(governed, job.job_id, ILLEGAL_MOVE, now)
        return Acked(job=_signed(ended, ack), governed=over, follow_up=None)
    try:
        change = _write_object(job, governed, status, ack, rules, now)
    except KsanaError as error:
        return error
    new = change.new
    is_refused = new.next_action is not None and (
        ack.next_action_at not in (UNSET, None)
        and refuse_limit(new, new.next_action, rules) is not None
    )
    if is_refused or (ack.next_action_at is UNSET and is_over(job, queued)):
        # Nothing comes after this: what the object says of its next action is over.
        change = _without_next_action(change)
    follow_up = _follow(job, change.new, queued, ack, now, follow_up_id)
    return Acked(
        job=_succeed(job, ack, follow_up, VERIFY_LIMIT if is_refused else None, now),
        governed=None if change.new == change.old else change,
        follow_up=follow_up,
    )


def _wanted_status(job: GovernanceJob, ack: Ack) -> str | None:
    given = ack.fields.status
    if isinstance(given, str):
        return given
    return "archived" if job.action == "archive" else None


def _write_object(
    job: GovernanceJob,
    governed: GovernedObject | None,
    status: str | None,
    ack: Ack,
    rules: Rules,
    now: Instant,
) -> ObjectChange:
    """The object with what the ack says of it. One that nobody registered is made here."""
    if governed is None:
        base = new_object(job.object_type, job.object_id, rules, now)
        if job.action in VERIFYING:  # each of its hand-outs was one
            base = msgspec.structs.replace(base, verify_count=job.attempt + 1)
    else:
        base = governed
    fields = ack.fields
    if status is not None:
        fields = msgspec.structs.replace(fields, status=status)
    if ack.next_action_at is not UNSET:
        fields = msgspec.structs.replace(
            fields, next_action_at=ack.next_action_at, next_action=ack.next_action or job.action
        )
    if fields is NO_FIELDS:
        if governed is not None:
            return ObjectChange(old=governed, new=governed, event=None, reason="ACKED")
        return _made(base, job, ack)
    if governed is None:
        free = msgspec.structs.replace(base, status=status or base.status)
        new = change_object(free, fields, rules, now, reason="ACKED").new
        return _made(msgspec.structs.replace(new, version=1), job, ack)
    change = change_object(base, fields, rules, now, reason="ACKED")
    # A next action alone is told by the follow-up's own event.
    event = change.event if change.is_move or ack.fields is not NO_FIELDS else None
    return msgspec.structs.replace(
        change, event=event, evidence_refs=ack.evidence_refs, job_id=job.job_id
    )


def _made(governed: GovernedObject, job: GovernanceJob, ack: Ack) -> ObjectChange:
    return ObjectChange(
        old=None,
        new=governed,
        event="OBJECT_REGISTERED",
        reason=MADE_BY_ACK,
        evidence_refs=ack.evidence_refs,
        job_id=job.job_id,
    )


def _without_next_action(change: ObjectChange) -> ObjectChange:
    new = change.new
    if new.next_action_at is None:
        return change
    cleared = msgspec.structs.replace(new, next_action_at=None)
    if change.old is not None and change.old.version == new.version:
        cleared = bump(change.old, cleared, new.updated_at)
    return msgspec.structs.replace(change, new=cleared)


def _follow(
    job: GovernanceJob,
    governed: GovernedObject,
    queued: GovernanceJob | None,
    ack: Ack,
    now: Instant,
    follow_up_id: str,
) -> GovernanceJobChange | None:
    if ack.next_action_at is UNSET:
        return None
    if governed.next_action_at is None:
        return None if queued is None else remove_follow_up(queued)
    return decide_follow_up(
        governed,
        queued,
        job_id=follow_up_id,
        urgency=job.urgency,
        max_attempts=job.max_attempts,
        now=now,
    )


def _succeed(
    job: GovernanceJob,
    ack: Ack,
    follow_up: GovernanceJobChange | None,
    refused: str | None,
    now: Instant,
) -> GovernanceJobChange:
    done = msgspec.structs.replace(
        job,
        status="succeeded",
        position=None,
        reason="ACKED",
        last_error=None,
        lease_token=0,
        lease_expires_at=None,
        finished_at=now,
        updated_at=now,
        next_action_at=None if ack.next_action_at is UNSET else ack.next_action_at,
        follow_up_id=(
            follow_up.new.job_id if follow_up is not None and follow_up.new is not None else None
        ),
        ack_digest=ack.digest,
        audit_event_id=ack.audit_event_id,
    )
    data: dict[str, Any] = {"attempt": job.attempt, "worker_id": job.worker_id}
    if done.follow_up_id is not None:
        data["follow_up_id"] = done.follow_up_id
    if refused is not None:
        data["follow_up_refused"] = refused
    return GovernanceJobChange(
        old=job,
        new=done,
        event="GOV_JOB_SUCCEEDED",
        reason="ACKED",
        data=data,
        audit="job.ack",
        evidence_refs=ack.evidence_refs,
    )


def _signed(change: GovernanceJobChange, ack: Ack) -> GovernanceJobChange:
    """With what tells the same ack again, and the audit event it names."""
    job = msgspec.structs.replace(
        change.job, ack_digest=ack.digest, audit_event_id=ack.audit_event_id
    )
    return msgspec.structs.replace(change, new=job, evidence_refs=ack.evidence_refs)
