"""What follows from changes of jobs, whatever moved them: who is to be woken, and the jobs and
leases as they are once it is written, so that no row is read twice. Pure."""

from collections.abc import Iterable

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.changes import READY, SCHEDULED, JobChange, lease_members
from ksana.domain.queue.jobs import FINAL_OF, Job, Lease

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
            **lease_members(change, now),
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
