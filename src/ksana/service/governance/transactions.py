"""Transactions that only callers ask for: enqueue, requeue, objects, gates."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from ksana.base.errors import ConflictError, KsanaError, NotFoundError
from ksana.domain.governance.audit import AuditEntry
from ksana.domain.governance.changes import GovernanceJobChange, ObjectChange
from ksana.domain.governance.jobs import (
    NewGovernanceJob,
    decide_enqueue,
    decide_follow_up,
    refuse_limit,
    refuse_run_at,
    requeue,
)
from ksana.domain.governance.objects import ObjectFields, change_object, register_object
from ksana.domain.governance.records import (
    DEFAULT_MAX_ATTEMPTS,
    URGENCY,
    Gate,
    GovernanceJob,
    GovernedObject,
    Rules,
    Who,
    object_key,
)
from ksana.domain.lifecycle import GOV_JOB
from ksana.engine.governance.ending import new_job_ids, not_found
from ksana.engine.governance.sweep import wake_deferred
from ksana.engine.governance.writer import record_changes, write_changes
from ksana.ports.governance.tables import GovernanceJobFilter, GovernanceTx

WAKE_AT_ONCE = 1000
"""Deferred jobs that setting a gate wakes itself; the sweep wakes the rest."""

_encode = msgspec.json.Encoder().encode


class Enqueued(msgspec.Struct, frozen=True):
    """A job that is in the queue, and whether it was before."""

    job: GovernanceJob
    is_duplicate: bool


def enqueue_job(
    tx: GovernanceTx, new: NewGovernanceJob, rules: Rules, who: Who
) -> Enqueued | KsanaError:
    """Put a job in the queue unless one has its idempotency key. A refusal by the object's limit is
    recorded, so it is answered and not raised."""
    change = decide_enqueue(new, tx.now)
    existing = tx.governance.find_by_key(new.object_type, change.job.idempotency_key)
    if existing is not None:
        return Enqueued(job=existing, is_duplicate=True)
    refusal = refuse_run_at(new.run_at, tx.now, new.is_past_allowed)
    if refusal is not None:
        raise refusal
    governed = tx.objects.find(object_key(new.object_type, new.object_id))
    limit = refuse_limit(governed, new.action, rules)
    if limit is not None:
        _record_refusal(tx, new, limit)
        return limit
    if not tx.governance.insert_once(change.job):
        existing = tx.governance.find_by_key(new.object_type, change.job.idempotency_key)
        assert existing is not None, "a key that is taken has a job"
        return Enqueued(job=existing, is_duplicate=True)
    record_changes(tx, who, [change])
    return Enqueued(job=change.job, is_duplicate=False)


def _record_refusal(tx: GovernanceTx, new: NewGovernanceJob, limit: ConflictError) -> None:
    current: dict[str, Any] = limit.extra["current"]
    tx.events.append(
        "OBJECT",
        object_key(new.object_type, new.object_id),
        "ENQUEUE_REFUSED",
        {
            "reason": current["reason"],
            "action": new.action,
            "verify_count": current["verify_count"],
            "verify_limit": current["verify_limit"],
        },
    )


def requeue_job(tx: GovernanceTx, job_id: str, who: Who) -> GovernanceJob:
    """Queue one dead letter again."""
    job = tx.governance.lock([job_id]).get(job_id)
    if job is None:
        raise not_found(job_id)
    if job.status != "dead_letter":
        raise GOV_JOB.refuse(job.status, "queued")
    return requeue_dead(tx, [job], who)[0]


def requeue_matching(
    tx: GovernanceTx, wanted: GovernanceJobFilter, before: int | None, limit: int, who: Who
) -> tuple[int, int | None]:
    """Queue dead letters again that match, newest first; answer how many, and where to go on."""
    found = tx.governance.list_jobs(wanted, before, limit)
    locked = tx.governance.lock([job.job_id for job in found])
    dead = [job for job in locked.values() if job.status == "dead_letter"]
    requeue_dead(tx, dead, who)
    return len(dead), found[-1].seq if len(found) == limit else None


def requeue_dead(tx: GovernanceTx, jobs: Sequence[GovernanceJob], who: Who) -> list[GovernanceJob]:
    """Queue dead letters again that this transaction holds."""
    if not jobs:
        return []
    taken = set(tx.governance.lock_follow_ups([job.key for job in jobs]))
    changes: list[GovernanceJobChange] = []
    for job in jobs:
        change = requeue(job, tx.now, job.key in taken)
        if change.job.follow_key is not None:
            taken.add(change.job.follow_key)
        changes.append(change)
    write_changes(tx, who, changes)
    return [change.job for change in changes]


def put_object(
    tx: GovernanceTx,
    object_type: str,
    object_id: str,
    fields: ObjectFields,
    rules: Rules,
    who: Who,
    *,
    is_replaced: bool,
) -> tuple[GovernedObject, bool]:
    """Register an object, or change it, and bring its follow-up in line. Answer it and whether it
    is new. Without `is_replaced` it must exist."""
    key = object_key(object_type, object_id)
    old = tx.objects.lock([key]).get(key)
    if old is None:
        if not is_replaced:
            raise object_not_found(object_type, object_id)
        change = register_object(object_type, object_id, fields, rules, tx.now)
    else:
        change = change_object(old, fields, rules, tx.now, is_replaced=is_replaced)
    is_named = is_replaced or fields.next_action_at is not UNSET
    jobs = _follow(tx, change, rules) if is_named or _is_replanned(change) else []
    write_changes(tx, who, jobs, [change])
    return change.new, old is None


def _is_replanned(change: ObjectChange) -> bool:
    old, new = change.old, change.new
    return old is None or (old.next_action_at, old.next_action) != (
        new.next_action_at,
        new.next_action,
    )


def _follow(tx: GovernanceTx, change: ObjectChange, rules: Rules) -> list[GovernanceJobChange]:
    """The change of the queued follow-up, where the next action changed, or is none: a follow-up
    that failed may be queued again after its object was told that nothing comes next."""
    new = change.new
    if new.next_action_at is not None and not _is_replanned(change):
        return []  # the same again is no news: its follow-up may be in a worker's hands
    queued = tx.governance.lock_follow_ups([new.key]).get(new.key)
    if new.next_action_at is not None and new.next_action is not None:
        limit = refuse_limit(new, new.next_action, rules)
        if limit is not None:
            raise limit
    follow_up = decide_follow_up(
        new,
        queued,
        job_id=new_job_ids(tx.now, 1)[0],
        urgency=URGENCY["medium"],
        max_attempts=DEFAULT_MAX_ATTEMPTS,
        now=tx.now,
    )
    return [] if follow_up is None else [follow_up]


def object_not_found(object_type: str, object_id: str) -> NotFoundError:
    """The error for an object that nobody registered."""
    return NotFoundError(f"there is no {object_type} {object_id[:64]}: register it with PUT")


def set_gate(
    tx: GovernanceTx, gate: str, scope: str, state: str, reason: str | None, who: Who
) -> tuple[Gate, int]:
    """Set a gate; answer the setting, and how many jobs were woken by it. Hand-outs that have read
    the gate before are committed first, later ones read the new state."""
    known = {(one.gate, one.scope): one for one in tx.gates.lock_gates()}
    before = known.get((gate, scope))
    setting = Gate(
        gate=gate,
        scope=scope,
        state=state,
        reason=reason,
        updated_at=tx.now,
        updated_by=who.actor,
    )
    tx.gates.set_gate(setting)
    old = "open" if before is None else before.state
    data = {"gate": gate, "scope": scope or None, "from": old, "state": state, "reason": reason}
    tx.events.append("GATE", setting.key, "GATE_CHANGED", data)
    tx.audit.append(
        AuditEntry(
            event_type="gate.change",
            actor=who.actor,
            before=_encode({"gate": gate, "scope": scope or None, "state": old}).decode(),
            after=_encode({"gate": gate, "scope": scope or None, "state": state}).decode(),
            reason=reason,
            correlation_id=who.correlation_id,
            decision_trace_id=who.decision_trace_id,
        )
    )
    woken = 0 if state == "closed" else wake_deferred(tx, WAKE_AT_ONCE, who)
    return setting, woken
