"""What follows from changes of jobs, whatever moved them: counts, who is to be woken, and the jobs
and leases as they are once it is written, so that no row is read twice. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.changes import READY, SCHEDULED, JobChange
from ksana.domain.queue.jobs import ENDED, FINAL_OF, Job, Lease, ReadyJob

METRICS = (
    "queue.canceled",
    "queue.done",
    "queue.expired",
    "queue.failed",
    "queue.leases",
    "queue.queued",
    "queue.run",
    "queue.running",
    "queue.submitted",
    "queue.timeout",
    "queue.units",
    "queue.wait",
)
"""All that the queue counts over time."""


class ChangeCounts(msgspec.Struct):
    """How the figures of the queue change. `waited_since` and `ran_since` tell from when to count
    the wait and the run of each job that started or ended."""

    queued: int = 0
    running: int = 0
    leases: int = 0
    units: int = 0
    arrivals: int = 0
    """How often something became claimable, or units became free."""
    ended_leases: int = 0
    freed_units: int = 0
    expired: int = 0
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    waited_since: Counter[Instant] = msgspec.field(default_factory=Counter)
    ran_since: Counter[Instant] = msgspec.field(default_factory=Counter)


ChangeKind = tuple[str, str, str, str | None]
"""(move, old state, new state, how the lease ended) of a change."""


def group_changes(changes: Sequence[JobChange]) -> dict[ChangeKind, Sequence[JobChange]]:
    """Changes by their kind, in the order of the first of each. A batch is mostly of one."""
    kinds = [(change.move, change.old, change.new, change.lease_end) for change in changes]
    if kinds.count(kinds[0]) == len(kinds):
        return {kinds[0]: changes}
    groups: dict[ChangeKind, list[JobChange]] = {}
    for kind, change in zip(kinds, changes, strict=True):
        groups.setdefault(kind, []).append(change)
    return dict(groups)


def count_changes(groups: Mapping[ChangeKind, Sequence[JobChange]], now: Instant) -> ChangeCounts:
    """Add up what grouped changes do to the figures."""
    counts = ChangeCounts()
    for (_, old, new, lease_end), changes in groups.items():
        number = len(changes)
        if old == "QUEUED":
            counts.queued -= number
        elif old == "RUNNING":
            counts.running -= number
        if new == "QUEUED":
            counts.queued += number
        elif new == "RUNNING":
            counts.running += number
            counts.leases += number
            counts.units += sum([change.cost_units for change in changes])
            counts.waited_since.update([change.due_at for change in changes])
        elif new in ENDED:
            counts.ended[new] += number
        if new == "QUEUED" or lease_end is not None:
            counts.arrivals += number
        if lease_end is not None:
            counts.ended_leases += number
            counts.freed_units += sum([change.cost_units for change in changes])
            counts.expired += number if lease_end == "EXPIRED" else 0
            if new != "QUEUED":
                counts.ran_since.update([change.started_at or now for change in changes])
    counts.leases -= counts.ended_leases
    counts.units -= counts.freed_units
    return counts


class Wake(msgspec.Struct, frozen=True):
    """Whom changes concern that waits for something."""

    has_ready: bool = False
    freed_units: int = 0
    next_due: Instant | None = None
    """When the first job that was put off is due."""


def wake_after(changes: Iterable[JobChange]) -> Wake:
    """Tell what these changes are to wake."""
    has_ready, freed_units = False, 0
    next_due: Instant | None = None
    for change in changes:
        if change.lease_end is not None:
            freed_units += change.cost_units
        if change.position == READY:
            has_ready = True
        elif change.position == SCHEDULED:
            next_due = change.due_at if next_due is None else min(next_due, change.due_at)
    return Wake(has_ready, freed_units, next_due)


def claimed_job(job: ReadyJob, change: JobChange, now: Instant) -> Job:
    """The whole job once its claim is written, with or without a lease."""
    row = msgspec.structs.asdict(job)
    is_running = change.new == "RUNNING"
    row |= {
        "state": change.new,
        "updated_at": now,
        "position": change.position,
        "claims": change.claims,
        "claim_token": change.claim_token,
        "claimed_by": change.worker_id,
    }
    if is_running:
        row |= {
            "attempts": change.attempts,
            "next_retry_at": None,
            "started_at": now,
            **_leased(change, now),
        }
    else:
        row["claim_expires_at"] = change.until
    return Job(**row)


def held_job(job: Job, change: JobChange, now: Instant) -> Job:
    """The whole job once a grant, a denial or a report is written."""
    if change.move == "grant":
        return msgspec.structs.replace(
            job,
            state=change.new,
            attempts=change.attempts,
            claim_expires_at=None,
            next_retry_at=None,
            pending_at=None,
            started_at=now,
            updated_at=now,
            position=change.position,
            **_leased(change, now),
        )
    if change.move == "deny":
        return msgspec.structs.replace(
            job,
            state=change.new,
            next_retry_at=change.next_retry_at,
            claim_expires_at=change.until,
            pending_at=job.pending_at or now,
            updated_at=now,
            position=change.position,
        )
    return msgspec.structs.replace(
        job,
        state=change.new,
        progress=change.progress,
        note=change.note,
        claim_expires_at=change.until,
        updated_at=now,
        position=change.position,
    )


def _leased(change: JobChange, now: Instant) -> dict[str, Any]:
    """What a new lease adds to its job."""
    return {
        "lease_id": change.lease_id,
        "lease_token": change.lease_token,
        "lease_ttl_sec": change.ttl_sec,
        "heartbeat_at": now,
        "lease_expires_at": change.until,
    }


def canceled_job(job: Job, change: JobChange, now: Instant) -> Job:
    """The whole job once its cancel is written."""
    return msgspec.structs.replace(
        job,
        state=change.new,
        final_status=change.new,
        cancel_requested=1,
        cancel_reason=change.reason,
        claim_expires_at=None,
        next_retry_at=None,
        pending_at=None,
        finished_at=now,
        updated_at=now,
        position=None,
    )


def new_lease(change: JobChange, now: Instant) -> Lease:
    """The lease that a job starts under."""
    return Lease(
        lease_id=change.lease_id,
        job_id=change.job_id,
        addon_id=change.addon_id,
        worker_id=change.worker_id,
        cost_units=change.cost_units,
        ttl_sec=change.ttl_sec,
        state="ACTIVE",
        granted_at=now,
        last_heartbeat_at=now,
        expires_at=change.until,
        lease_token=change.lease_token,
    )


def ended_job(job: Job, change: JobChange, now: Instant) -> Job:
    """The whole job once the end of its attempt is written."""
    if change.move == "finish":
        return msgspec.structs.replace(
            job,
            state=change.new,
            final_status=FINAL_OF[change.new],
            error_text=change.error,
            result_json=change.result_json,
            metrics_json=change.metrics_json,
            finished_at=now,
            updated_at=now,
            position=None,
            release_status=change.release_status,
            release_digest=change.release_digest,
        )
    return msgspec.structs.replace(
        job,
        state=change.new,
        claimed_by=None,
        claim_token=0,
        lease_id=None,
        lease_token=0,
        lease_ttl_sec=None,
        heartbeat_at=None,
        lease_expires_at=None,
        attempts=change.attempts,
        next_retry_at=change.next_retry_at,
        due_at=change.due_at,
        error_text=change.error,
        metrics_json=change.metrics_json,
        progress=None,
        note=None,
        updated_at=now,
        position=change.position,
        turn=change.turn,
    )
