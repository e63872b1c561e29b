"""What the queue's endpoints take and answer. Bodies people write are strict; what workers report
may carry more."""

from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ksana.base.instant import Instant, format_instant
from ksana.domain.queue.jobs import Job, Lease, ReadyJob, Settled
from ksana.service.queue.jobs import Claimed
from ksana.service.queue.leases import Held

Name = Annotated[str, Meta(min_length=1, max_length=128)]
RequestId = Annotated[str, Meta(min_length=1, max_length=255)]
Id = Annotated[str, Meta(min_length=36, max_length=36)]
Cost = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Ttl = Annotated[float, Meta(ge=1, le=86_400)]
Text = Annotated[str, Meta(max_length=1024)]
Priority = Literal["LOW", "NORMAL", "HIGH", "URGENT"]
State = Literal[
    "QUEUED",
    "CLAIMED",
    "PREPARING",
    "LEASE_PENDING",
    "RUNNING",
    "DONE",
    "FAILED",
    "CANCELED",
    "TIMEOUT",
]
Final = Literal["SUCCEEDED", "FAILED", "CANCELED", "TIMEOUT"]


class ServerOwned(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Members the server sets: sent back with a job, they are passed over."""

    job_id: Any = None
    state: Any = None
    created_at: Any = None
    updated_at: Any = None
    claimed_by: Any = None
    claim_expires_at: Any = None
    lease_id: Any = None
    attempts: Any = None
    next_retry_at: Any = None
    cancel_requested: Any = None
    cancel_reason: Any = None
    progress: Any = None
    note: Any = None
    started_at: Any = None
    finished_at: Any = None


class SubmitJob(ServerOwned, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A job to submit."""

    addon_id: Name
    job_type: Name
    cost_units: Cost
    priority: Priority = "NORMAL"
    constraints: dict[str, Any] | None = None
    payload: Raw | UnsetType = UNSET
    client_request_id: RequestId | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 1
    run_at: str | None = None
    fairness_key: Name | None = None


class SubmitBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to 1,000 jobs, all or none."""

    jobs: Annotated[list[SubmitJob], Meta(min_length=1, max_length=1000)]


class ClaimBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker takes."""

    worker_id: Name
    addon_id: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 1
    accept_job_types: Annotated[list[Name], Meta(max_length=500)] | None = None
    max_cost_units: Annotated[int, Meta(ge=1)] | None = None
    constraints_capabilities: dict[str, Any] | None = None
    wait_sec: Annotated[float, Meta(ge=0, le=30)] = 0
    lease: bool = False
    ttl_sec: Ttl = 30
    brief: bool = False
    """Leave out of each job what is null or as usual, and the leases besides their ids."""


class StatusBody(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's word on its job."""

    state: State | None = None
    note: Text | None = None
    progress: Share | None = None
    worker_id: Name | None = None


class CancelBody(msgspec.Struct, frozen=True, kw_only=True):
    """Why."""

    reason: Text | None = None


class LeaseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to run a claimed job; what it repeats of the job must be the same."""

    job_id: Id
    addon_id: str | UnsetType = UNSET
    job_type: str | UnsetType = UNSET
    cost_units: int | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    constraints: dict[str, Any] | UnsetType = UNSET
    ttl_sec: Ttl = 30
    worker_id: Name | None = None


class BeatBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sign of life."""

    job_id: str | None = None
    worker_id: Name | None = None
    progress: Share | None = None
    message: Text | None = None
    ttl_sec: Ttl | None = None


class BeatItem(BeatBody, frozen=True, kw_only=True, gc=False):
    """One of many."""

    lease_id: Id


class BeatBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 500 heartbeats."""

    items: Annotated[list[BeatItem], Meta(max_length=500)]


class ReleaseBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's last word on its attempt."""

    status: Final
    job_id: str | None = None
    worker_id: Name | None = None
    result_data: Raw | UnsetType = UNSET
    error: str | None = None
    metrics: Raw | UnsetType = UNSET


class ReleaseItem(ReleaseBody, frozen=True, kw_only=True, gc=False):
    """One of many."""

    lease_id: Id


class ReleaseBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 500 releases."""

    items: Annotated[list[ReleaseItem], Meta(max_length=500)]
    brief: bool = False
    """Answer only what became of each, not the whole lease and job."""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to list."""

    state: State | None = None
    addon_id: str | None = None
    job_type: str | None = None
    created_after: str | None = None
    created_before: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class SeriesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which figures."""

    metric: str
    bucket: str = "5m"
    range: str = "24h"


class JobView(msgspec.Struct, frozen=True, gc=False):
    """A job as answered."""

    job_id: str
    addon_id: str
    job_type: str
    priority: str
    cost_units: int
    constraints: Raw
    payload: Raw
    state: str
    created_at: str
    updated_at: str
    claimed_by: str | None
    claim_expires_at: str | None
    lease_id: str | None
    attempts: int
    next_retry_at: str | None
    max_attempts: int
    run_at: str | None
    fairness_key: str | None
    client_request_id: str | None
    cancel_requested: bool
    cancel_reason: str | None
    progress: float | None
    note: str | None
    started_at: str | None
    finished_at: str | None


_USUAL = "NORMAL"


class BriefJob(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job as a worker is told of it: what is null or as usual is left out."""

    job_id: str
    addon_id: str
    job_type: str
    cost_units: int
    payload: Raw
    state: str
    created_at: str
    updated_at: str
    attempts: int
    lease_id: str | None = None
    claimed_by: str | None = None
    claim_expires_at: str | None = None
    priority: str = _USUAL  # left out when it is this very object
    max_attempts: int = 1
    constraints: Raw | None = None
    run_at: str | None = None
    fairness_key: str | None = None
    client_request_id: str | None = None
    next_retry_at: str | None = None


class BriefClaim(msgspec.Struct, frozen=True):
    """Claimed jobs, in a few words."""

    jobs: list[BriefJob]


class LeaseView(msgspec.Struct, frozen=True, gc=False):
    """A lease as answered."""

    lease_id: str
    job_id: str
    addon_id: str
    cost_units: int
    ttl_sec: float
    state: str
    granted_at: str
    last_heartbeat_at: str
    expires_at: str
    released_at: str | None
    release_status: str | None
    worker_id: str | None


class ResultView(msgspec.Struct, frozen=True, gc=False):
    """How a job ended."""

    job_id: str
    status: str
    result_data: Raw
    error: str | None
    started_at: str | None
    finished_at: str | None
    attempts: int
    metrics: Raw


shown_at = lru_cache(maxsize=8192)(format_instant)
"""An instant as answered, remembered: the rows of one batch share most of theirs."""


def shown(at: Instant | None) -> str | None:
    """The same for an instant that may be missing."""
    return None if at is None else shown_at(at)


class PointView(msgspec.Struct, frozen=True, gc=False):
    """A value of a series."""

    ts: str
    value: float | int | None


class JobAnswer(msgspec.Struct, frozen=True):
    """One job."""

    job: JobView


class Released(msgspec.Struct, frozen=True, gc=False):
    """A release, answered."""

    lease: LeaseView
    job: JobView
    result: ResultView | None


class Brief(msgspec.Struct, frozen=True, gc=False):
    """A release, answered in a few words."""

    lease_id: str
    job_id: str
    job_state: str


class Beaten(msgspec.Struct, frozen=True, gc=False):
    """A heartbeat, answered."""

    lease: LeaseView
    job: JobView


def show_job(job: Job) -> JobView:
    """Render a job."""
    return JobView(
        job.job_id,
        job.addon_id,
        job.job_type,
        job.priority,
        job.cost_units,
        Raw(job.constraints_json.encode()),
        Raw(job.payload_json.encode()),
        job.state,
        shown_at(job.created_at),
        shown_at(job.updated_at),
        job.claimed_by,
        shown(job.claim_expires_at),
        job.lease_id,
        job.attempts,
        shown(job.next_retry_at),
        job.max_attempts,
        shown(job.run_at),
        job.fairness_key,
        job.client_request_id,
        bool(job.cancel_requested),
        job.cancel_reason,
        job.progress,
        job.note,
        shown(job.started_at),
        shown(job.finished_at),
    )


def show_claim(claimed: Claimed) -> BriefClaim:
    """Render the jobs a worker has just claimed."""
    worker_id, at = claimed.worker_id, shown_at(claimed.at)
    if not claimed.lease_ids:
        until = shown_at(claimed.until)
        return BriefClaim(
            [
                _brief_job(job, "CLAIMED", job.attempts, at, worker_id, None, until)
                for job in claimed.taken
            ]
        )
    return BriefClaim(
        [
            _brief_job(job, "RUNNING", job.attempts + 1, at, worker_id, lease_id, None)
            for job, lease_id in zip(claimed.taken, claimed.lease_ids, strict=True)
        ]
    )


def _brief_job(
    job: ReadyJob,
    state: str,
    attempts: int,
    at: str,
    worker_id: str,
    lease_id: str | None,
    until: str | None,
) -> BriefJob:
    constraints, run_at = job.constraints_json, job.run_at
    retry_at = None if lease_id is not None else job.next_retry_at
    return BriefJob(
        job.job_id,
        job.addon_id,
        job.job_type,
        job.cost_units,
        Raw(job.payload_json.encode()),
        state,
        shown_at(job.created_at),
        at,
        attempts,
        lease_id,
        worker_id,
        until,
        _USUAL if job.priority == _USUAL else job.priority,
        job.max_attempts,
        None if constraints == "{}" else Raw(constraints.encode()),
        None if run_at is None else shown_at(run_at),
        job.fairness_key,
        job.client_request_id,
        None if retry_at is None else shown_at(retry_at),
    )


def show_lease(lease: Lease) -> LeaseView:
    """Render a lease."""
    ttl = lease.ttl_sec
    return LeaseView(
        lease.lease_id,
        lease.job_id,
        lease.addon_id,
        lease.cost_units,
        int(ttl) if ttl == int(ttl) else ttl,
        lease.state,
        shown_at(lease.granted_at),
        shown_at(lease.last_heartbeat_at),
        shown_at(lease.expires_at),
        shown(lease.released_at),
        lease.release_status,
        lease.worker_id,
    )


_NULL = Raw(b"null")


def show_result(job: Job) -> ResultView | None:
    """Render how a job ended; None while it has not."""
    if job.final_status is None:
        return None
    return ResultView(
        job.job_id,
        job.final_status,
        _NULL if job.result_json is None else Raw(job.result_json.encode()),
        job.error_text,
        shown(job.started_at),
        shown(job.finished_at),
        job.attempts,
        _NULL if job.metrics_json is None else Raw(job.metrics_json.encode()),
    )


def show_beat(held: Held) -> Beaten:
    """Render a heartbeat."""
    return Beaten(show_lease(held.lease), show_job(held.job))


def show_release(held: Held) -> Released:
    """Render a release."""
    return Released(show_lease(held.lease), show_job(held.job), show_result(held.job))


def show_briefly(settled: Settled) -> Brief:
    """Render a release in a few words."""
    return Brief(settled.lease_id, settled.job_id, settled.state)
