"""The one writer of governance: whatever changes a job or an object is a Change, and is written
here, with its event, its audit entry and its count, in one transaction."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ksana.domain.governance.acks import MADE_BY_ACK
from ksana.domain.governance.audit import AuditEntry
from ksana.domain.governance.changes import (
    DEAD,
    GovernanceJobChange,
    ObjectChange,
    bury,
    check_job,
    check_object,
    describe_job,
    describe_object,
)
from ksana.domain.governance.records import GovernanceJob, GovernedObject, Who
from ksana.ports.governance.tables import GovernanceTx, JobWrite

SURFACE: Final = "governance"
"""Under which name its dead letters are kept."""

_COUNTED: Final = {
    "GOV_JOB_ENQUEUED": "enqueued",
    "GOV_JOB_PULLED": "pulled",
    "GOV_JOB_SUCCEEDED": "succeeded",
    "GOV_JOB_RETRYING": "retried",
    "GOV_JOB_FAILED": "failed",
    "GOV_JOB_DEAD_LETTER": "dead",
}

_encode = msgspec.json.Encoder().encode

EventText = tuple[str, str, str, str]


class LostRaceError(Exception):
    """Another transaction changed the same object first: nothing was written, decide again."""


def write_changes(
    tx: GovernanceTx,
    who: Who,
    jobs: Sequence[GovernanceJobChange],
    objects: Sequence[ObjectChange] = (),
) -> None:
    """Write decisions over rows that this transaction holds, in the order they were made. Raise
    ILLEGAL_TRANSITION for a move that the lifecycle does not have, LostRaceError if an object was
    made meanwhile."""
    for change in jobs:
        check_job(change)
    for governed in objects:
        check_object(governed)
    if objects:
        _write_objects(tx, objects)
    tx.governance.write(_net_jobs(jobs))
    _keep_letters(tx, jobs)
    record_changes(tx, who, jobs, objects)


def record_changes(
    tx: GovernanceTx,
    who: Who,
    jobs: Sequence[GovernanceJobChange],
    objects: Sequence[ObjectChange] = (),
) -> None:
    """The events, audit entries and counts of changes that are written."""
    events: list[EventText] = []
    for governed in objects:
        events += _record_object(tx, who, governed)
    for change in jobs:
        events += _record_job(tx, who, change)
    tx.events.append_texts(events)
    for name, number in Counter(_counted(jobs)).items():
        tx.governance_figures.count(name, number)


def _keep_letters(tx: GovernanceTx, jobs: Sequence[GovernanceJobChange]) -> None:
    """A job that is given up becomes a dead letter; one that is queued again is none any more."""
    dead = [bury(change.new) for change in jobs if change.new and change.new.status == DEAD]
    if dead:
        tx.dead_letters.add(SURFACE, dead)
    back = [change.old.job_id for change in jobs if change.old and change.old.status == DEAD]
    if back:
        tx.dead_letters.settle(SURFACE, back)


def _counted(jobs: Iterable[GovernanceJobChange]) -> Iterable[str]:
    return (_COUNTED[change.event] for change in jobs if change.event in _COUNTED)


def _write_objects(tx: GovernanceTx, objects: Sequence[ObjectChange]) -> None:
    """Several changes of one object are written as one."""
    net: dict[str, tuple[GovernedObject | None, GovernedObject]] = {}
    for change in objects:
        first = net.get(change.new.key, (change.old, change.new))
        net[change.new.key] = (first[0], change.new)
    made = [new for old, new in net.values() if old is None]
    changed = [(old, new) for old, new in net.values() if old is not None]
    if made and tx.objects.insert_if_new(made) != len(made):
        raise LostRaceError
    if changed and tx.objects.update_if_unchanged(changed) != len(changed):
        raise LostRaceError


def _net_jobs(jobs: Sequence[GovernanceJobChange]) -> list[JobWrite]:
    """Several changes of one job as one: a follow-up may be made and moved in the same call."""
    net: dict[str, JobWrite] = {}
    for change in jobs:
        key = change.job.job_id
        known = net.get(key)
        net[key] = (change.old if known is None else known[0], change.new)
    return [write for write in net.values() if write != (None, None)]


def _record_job(tx: GovernanceTx, who: Who, change: GovernanceJobChange) -> list[EventText]:
    job = change.job
    before, after = describe_job(change)
    tx.audit.append(
        AuditEntry(
            change.audit,
            who.actor,
            job.object_type,
            job.object_id,
            before,
            after,
            change.reason,
            change.evidence_refs,
            job.job_id,
            who.correlation_id,
            who.decision_trace_id,
        )
    )
    events = [_job_event(job, change.event, change.reason, change.data)]
    if change.alert is not None:
        name, data = change.alert
        events.append(_job_event(job, name, change.reason, {**data, "alert": True}))
    return events


def _job_event(job: GovernanceJob, name: str, reason: str, data: dict[str, Any]) -> EventText:
    return ("GOV_JOB", job.job_id, name, _encode({"reason": reason, **data}).decode())


def _record_object(tx: GovernanceTx, who: Who, change: ObjectChange) -> list[EventText]:
    if change.event is None:
        return []
    new = change.new
    if change.reason != MADE_BY_ACK:  # its ack is an entry already
        _audit_object(tx, who, change)
    data: dict[str, Any] = {"reason": change.reason, "status": new.status}
    if change.is_move and change.old is not None:
        data["from"] = change.old.status
    if change.job_id is not None:
        data["job_id"] = change.job_id
    return [("OBJECT", new.key, change.event, _encode(data).decode())]


def _audit_object(tx: GovernanceTx, who: Who, change: ObjectChange) -> None:
    new = change.new
    audit = (
        "object.register"
        if change.old is None
        else "object.move"
        if change.is_move
        else "object.change"
    )
    tx.audit.append(
        AuditEntry(
            event_type=audit,
            actor=who.actor,
            object_type=new.object_type,
            object_id=new.object_id,
            before=describe_object(change.old),
            after=describe_object(new),
            reason=change.reason,
            evidence_refs=change.evidence_refs,
            job_id=change.job_id,
            correlation_id=who.correlation_id,
            decision_trace_id=who.decision_trace_id,
        )
    )
