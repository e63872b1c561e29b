"""What the Queue surface sends and answers, as typed frozen structs. Members the server adds later
are passed over."""

from datetime import datetime
from typing import Any

import msgspec

from ksana.client.errors import ApiError

PRIORITIES = ("LOW", "NORMAL", "HIGH", "URGENT")
TERMINAL_STATES = frozenset({"DONE", "FAILED", "CANCELED", "TIMEOUT"})
"""States a job does not leave."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The root of all answers: unknown members are ignored. Trees from JSON hold no cycles, so the
    collector may pass over."""


class Job(Answer, frozen=True, kw_only=True, gc=False):
    """A job as the server sees it."""

    job_id: str
    addon_id: str
    job_type: str
    state: str
    priority: str = "NORMAL"
    cost_units: int = 1
    constraints: dict[str, Any] = {}
    payload: Any = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    run_at: datetime | None = None
    claimed_by: str | None = None
    claim_expires_at: datetime | None = None
    claim_token: str | None = None
    """Proves the claim; only in the answer to the claim that took the job."""
    lease_id: str | None = None
    lease_token: str | None = None
    """Proves the lease; only in the answer to a claim that came with the lease."""
    attempts: int = 0
    max_attempts: int = 1
    next_retry_at: datetime | None = None
    fairness_key: str | None = None
    client_request_id: str | None = None
    cancel_requested: bool = False
    progress: float | None = None
    note: str | None = None

    @property
    def is_finished(self) -> bool:
        """Tell whether the job has reached a state it does not leave."""
        return self.state in TERMINAL_STATES


class Lease(Answer, frozen=True, kw_only=True, gc=False):
    """The right to run a job and the units of capacity it holds."""

    lease_id: str
    job_id: str
    state: str
    lease_token: str | None = None
    """Proves the lease; only in the answer that granted it."""
    addon_id: str | None = None
    cost_units: int = 1
    ttl_sec: float = 30
    granted_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    expires_at: datetime | None = None


class JobResult(Answer, frozen=True, kw_only=True, gc=False):
    """How a job ended."""

    job_id: str
    status: str
    result_data: Any = None
    error: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0


class JobStatus(Answer, frozen=True, kw_only=True, gc=False):
    """A job and, once it has ended, its result."""

    job: Job
    result: JobResult | None = None


class JobPage(Answer, frozen=True, kw_only=True, gc=False):
    """One page of a listing."""

    jobs: list[Job]
    next_cursor: str | None = None


class LeaseDecision(Answer, frozen=True, kw_only=True, gc=False):
    """The answer to a request for a lease: the lease, or why not and when to ask again."""

    approved: bool
    lease: Lease | None = None
    lease_token: str | None = None
    retry_after_sec: float | None = None
    reason: str | None = None
    position: int | None = None
    holders: list[Any] = []


class Beat(Answer, frozen=True, kw_only=True, gc=False):
    """The answer to a heartbeat."""

    lease: Lease
    job: Job


class Release(Answer, frozen=True, kw_only=True, gc=False):
    """The answer to a release."""

    lease: Lease
    job: Job
    result: JobResult | None = None


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to releases that claim."""

    refused: list[ApiError | None]
    """Why a release was refused, or None, in the order of the items."""
    jobs: list[Job] = []
    is_claim_lost: bool = False
    """The answer was lost. The releases are done; jobs may have been handed out unseen."""


class Event(Answer, frozen=True, kw_only=True, gc=False):
    """One fact in a job's life."""

    ts: datetime
    type: str
    data: Any = None
    id: int | None = None


class Capacity(Answer, frozen=True, kw_only=True, gc=False):
    """Units: all, held by leases, kept for the next in line."""

    total: int
    used: int
    reserved: int = 0


class Snapshot(Answer, frozen=True, kw_only=True, gc=False):
    """The state of the queue at one moment."""

    capacity: Capacity
    jobs: dict[str, Any]
    leases: dict[str, Any]


class Point(Answer, frozen=True, kw_only=True, gc=False):
    """One value of a time series."""

    ts: datetime
    value: float | None


class Timeseries(Answer, frozen=True, kw_only=True, gc=False):
    """A metric over time."""

    metric: str
    bucket: str
    points: list[Point]


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit. What is left out takes the server's default."""

    addon_id: str
    job_type: str
    cost_units: int = 1
    payload: Any = msgspec.UNSET
    priority: str | msgspec.UnsetType = msgspec.UNSET
    constraints: dict[str, bool] | msgspec.UnsetType = msgspec.UNSET
    client_request_id: str | msgspec.UnsetType = msgspec.UNSET
    max_attempts: int | msgspec.UnsetType = msgspec.UNSET
    run_at: datetime | msgspec.UnsetType = msgspec.UNSET
    fairness_key: str | msgspec.UnsetType = msgspec.UNSET


class BeatItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A heartbeat of a batch."""

    lease_id: str
    job_id: str
    worker_id: str
    lease_token: str | None = None
    progress: float | None = None
    message: str | None = None


class ReleaseItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A release of a batch."""

    lease_id: str
    job_id: str
    worker_id: str
    status: str
    lease_token: str | None = None
    result_data: Any = None
    error: str | None = None
    metrics: dict[str, Any] | None = None
    retry: bool = True
    """False: FAILED for good, whatever attempts are left."""
