"""Queue jobs and leases: their rows, and the words and numbers that belong to them.

Where a job waits is its position; what callers see is its state. Which moves are legal stands in
`domain.lifecycle`, what a move consists of in `domain.queue.changes`.
"""

import hashlib
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final

import msgspec

from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain import lifecycle
from ksana.domain.queue.classes import JobClass

PRIORITIES: Final = ("URGENT", "HIGH", "NORMAL", "LOW")
URGENCY: Final[Mapping[str, int]] = {name: place for place, name in enumerate(PRIORITIES)}
"""The place of a priority in the order of claims: the least number goes first."""

FINAL_OF: Final[Mapping[str, str]] = {
    "DONE": "SUCCEEDED",
    "FAILED": "FAILED",
    "CANCELED": "CANCELED",
    "TIMEOUT": "TIMEOUT",
}
"""The final status of a job by the state it ended in."""

ENDED: Final = lifecycle.JOB.final
DEAD: Final = frozenset({"FAILED", "TIMEOUT"})
"""Ends that make a job a dead letter."""
CLAIM_HELD: Final = frozenset({"CLAIMED", "PREPARING", "LEASE_PENDING"})
"""States in which a worker holds the claim and no lease."""

CLAIM_TTL_US: Final[Micros] = 60 * SECOND
MAX_ERROR: Final = 1024


class JobPosition(IntEnum):
    """Where a job that has not ended waits; an ended one is nowhere."""

    SCHEDULED = 0
    READY = 1
    CLAIMED = 2
    PENDING = 3
    RUNNING = 4


class Job(msgspec.Struct, frozen=True, gc=False):
    """One row of `scheduler_job_runs`, in the order the statements read it. JSON members are kept
    as the text that was sent. `claim_token` and `lease_token` are for the holder's eyes. From
    `lease_id` on stands what a lease adds to its job: see `lease_of`."""

    seq: int
    job_id: str
    addon_id: str
    job_type: str
    priority: str
    cost_units: int
    constraints_json: str
    payload_json: str
    state: str
    max_attempts: int
    created_at: Instant
    updated_at: Instant
    position: int | None
    urgency: int
    class_id: int
    turn: int
    due_at: Instant
    run_at: Instant | None = None
    fairness_key: str | None = None
    client_request_id: str | None = None
    attempts: int = 0
    claims: int = 0
    claim_token: int = 0
    claimed_by: str | None = None
    claim_expires_at: Instant | None = None
    next_retry_at: Instant | None = None
    pending_at: Instant | None = None
    cancel_requested: int = 0
    cancel_reason: str | None = None
    progress: float | None = None
    note: str | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    final_status: str | None = None
    error_text: str | None = None
    result_json: str | None = None
    metrics_json: str | None = None
    lease_id: str | None = None
    lease_token: int = 0
    lease_ttl_sec: float | None = None
    heartbeat_at: Instant | None = None
    lease_expires_at: Instant | None = None
    release_status: str | None = None
    release_digest: str | None = None

    @property
    def is_ended(self) -> bool:
        """Whether it will never change again."""
        return self.state in ENDED


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to be, checked."""

    job_id: str
    priority: str
    job_class: JobClass
    constraints_json: str
    payload_json: str
    client_request_id: str | None
    max_attempts: int
    run_at: Instant | None
    fairness_key: str | None


class ReadyJob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A ready job as a claim takes it: what ready jobs do not all have in common."""

    seq: int
    job_id: str
    addon_id: str
    job_type: str
    priority: str
    cost_units: int
    constraints_json: str
    payload_json: str
    attempts: int
    max_attempts: int
    created_at: Instant
    run_at: Instant | None
    next_retry_at: Instant | None
    started_at: Instant | None
    fairness_key: str | None
    client_request_id: str | None
    error_text: str | None
    metrics_json: str | None
    urgency: int
    class_id: int
    turn: int
    due_at: Instant
    claims: int


class DueJob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A scheduled job whose time has come."""

    seq: int
    job_id: str
    urgency: int
    fairness_key: str | None


class ExpiredClaim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A job whose claim ran out, with what taking it back needs."""

    seq: int
    job_id: str
    state: str
    claimed_by: str | None
    claim_token: int
    attempts: int
    urgency: int


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to run a job, one row of `scheduler_lease_runs`. `lease_token` is for the holder's
    eyes.

    A job's last lease lies in the job's row. When the job is queued again it becomes a row of
    `past_leases`, and never changes any more. Its id carries the job's number."""

    lease_id: str
    job_id: str
    addon_id: str
    worker_id: str | None
    cost_units: int
    ttl_sec: float
    state: str
    granted_at: Instant
    last_heartbeat_at: Instant
    expires_at: Instant
    released_at: Instant | None = None
    release_status: str | None = None
    release_digest: str | None = None
    lease_token: int = 0


class LeaseWithJob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A lease, and of its job what it takes to end the attempt. `is_live`: active, and lasting by
    the store's clock."""

    lease_id: str
    job_id: str
    addon_id: str
    worker_id: str | None
    cost_units: int
    ttl_sec: float
    lease_state: str
    lease_token: int
    release_digest: str | None
    granted_at: Instant
    last_heartbeat_at: Instant
    expires_at: Instant
    is_live: int
    seq: int
    job_state: str
    attempts: int
    max_attempts: int
    cancel_requested: int
    urgency: int
    claims: int


class LeasedJob(msgspec.Struct, frozen=True, gc=False):
    """A lease and its job, whole."""

    lease: Lease
    job: Job


def lease_of(job: Job) -> Lease:
    """The lease that the job runs under, or ran under when it ended."""
    state = "ACTIVE" if job.position == JobPosition.RUNNING else "RELEASED"
    if job.is_ended and job.release_status is None:
        state = "EXPIRED"
    return Lease(
        lease_id=job.lease_id or "",
        job_id=job.job_id,
        addon_id=job.addon_id,
        worker_id=job.claimed_by,
        cost_units=job.cost_units,
        ttl_sec=job.lease_ttl_sec or 0,
        state=state,
        granted_at=job.started_at or 0,
        last_heartbeat_at=job.heartbeat_at or 0,
        expires_at=job.lease_expires_at or 0,
        released_at=job.finished_at,
        release_status=job.release_status,
        release_digest=job.release_digest,
        lease_token=job.lease_token,
    )


@lru_cache(maxsize=256)
def release_digest(
    status: str, result: str, error: str | None, metrics: str, may_retry: bool = True
) -> str:
    """Name what a release said, so that the same one sent again is known."""
    # Lengths keep one member's end from passing for another's beginning.
    lengths = f"{len(result)} {len(metrics)} {-1 if error is None else len(error)}"
    ends = "" if may_retry else " for good"
    return hashlib.blake2b(
        f"{status}{ends} {lengths} {result}{metrics}{error or ''}".encode(), digest_size=16
    ).hexdigest()
