"""Jobs and leases as they are once a change is written, for the answer. Pure, so that no row is
read twice."""

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.jobs import FINAL_OF, Job, Lease, ReadyJob


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
            "lease_id": change.lease_id,
            "next_retry_at": None,
            "started_at": now,
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
            lease_id=change.lease_id,
            attempts=change.attempts,
            claim_expires_at=None,
            next_retry_at=None,
            pending_at=None,
            started_at=now,
            updated_at=now,
            position=change.position,
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
        )
    return msgspec.structs.replace(
        job,
        state=change.new,
        claimed_by=None,
        claim_token=0,
        lease_id=None,
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
