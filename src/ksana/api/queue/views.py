"""What the queue's endpoints answer besides jobs and leases, which `claims` shows: results,
releases, heartbeats, holders. No token is shown here."""

import msgspec
from msgspec import Raw

from ksana.api.queue.claims import JobView, LeaseView, show_job, show_lease, shown
from ksana.domain.queue.jobs import Job, Lease, LeasedJob
from ksana.service.queue.releases import Released


class HolderView(msgspec.Struct, frozen=True, gc=False):
    """Who holds units, as shown to one who waits for some."""

    lease_id: str
    job_id: str
    addon_id: str
    worker_id: str | None
    cost_units: int
    expires_at: str | None


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


class PointView(msgspec.Struct, frozen=True, gc=False):
    """A value of a series."""

    ts: str
    value: float | int | None


class JobAnswer(msgspec.Struct, frozen=True):
    """One job."""

    job: JobView


class ReleaseAnswer(msgspec.Struct, frozen=True, gc=False):
    """A release, answered."""

    lease: LeaseView
    job: JobView
    result: ResultView | None


class CompactRelease(msgspec.Struct, frozen=True, gc=False):
    """A release, answered in short."""

    lease_id: str
    job_id: str
    job_state: str


class HeartbeatAnswer(msgspec.Struct, frozen=True, gc=False):
    """A heartbeat, answered."""

    lease: LeaseView
    job: JobView


def show_holder(lease: Lease) -> HolderView:
    """Render who holds units."""
    return HolderView(
        lease_id=lease.lease_id,
        job_id=lease.job_id,
        addon_id=lease.addon_id,
        worker_id=lease.worker_id,
        cost_units=lease.cost_units,
        expires_at=shown(lease.expires_at),
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


def show_heartbeat(leased: LeasedJob) -> HeartbeatAnswer:
    """Render a heartbeat."""
    return HeartbeatAnswer(show_lease(leased.lease), show_job(leased.job))


def show_release(leased: LeasedJob) -> ReleaseAnswer:
    """Render a release."""
    return ReleaseAnswer(show_lease(leased.lease), show_job(leased.job), show_result(leased.job))


def show_compactly(released: Released) -> CompactRelease:
    """Render a release in short."""
    return CompactRelease(released.lease_id, released.job_id, released.state)
