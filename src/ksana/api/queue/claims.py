"""Claims: the endpoint, how one is read, and how what was claimed is shown: a job and its lease.

Tokens are shown to the holder alone: in the answer to a claim and to a request for a lease, and
nowhere else. Anybody else sees the same job without it; `views` has the answers made of them.
"""

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from ksana.api.core.routing import Answer, Call
from ksana.api.queue.shapes import ClaimBody
from ksana.base.errors import InvalidError
from ksana.base.ids import show_token
from ksana.base.instant import SECOND, Instant, format_instant
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import Job, Lease, ReadyJob
from ksana.service.queue.claims import Claim, Claimed
from ksana.service.queue.service import QueueService


class JobView(msgspec.Struct, frozen=True, gc=False):
    """A job as anybody sees it."""

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


class ClaimedJobView(JobView, frozen=True, gc=False):
    """A job as its holder sees it."""

    claim_token: str


_USUAL = "NORMAL"


class CompactJob(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
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
    claim_token: str
    lease_id: str | None = None
    lease_token: str | None = None
    claimed_by: str | None = None
    claim_expires_at: str | None = None
    priority: str = _USUAL  # left out when it is this very object
    max_attempts: int = 1
    constraints: Raw | None = None
    run_at: str | None = None
    fairness_key: str | None = None
    client_request_id: str | None = None
    next_retry_at: str | None = None


class CompactClaim(msgspec.Struct, frozen=True):
    """Claimed jobs, compact."""

    jobs: list[CompactJob]


class LeaseView(msgspec.Struct, frozen=True, gc=False):
    """A lease as anybody sees it."""

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


class HeldLeaseView(LeaseView, frozen=True, gc=False):
    """A lease as its holder sees it."""

    lease_token: str


class ClaimEndpoints:
    """The handlers."""

    def __init__(self, service: QueueService) -> None:
        self._service = service

    async def claim(self, call: Call, body: ClaimBody) -> Answer:
        """Hand out the next jobs."""
        wait_us = round(body.wait_sec * SECOND)
        claimed = await self._service.claim(read_claim(body), wait_us, call.is_gone)
        answer = show_claimed(body, claimed)
        return Answer(204) if answer is None else Answer(200, answer)


def read_claim(body: ClaimBody, inside: str = "") -> Claim:
    """What a worker takes; `inside` stands before the names of its members."""
    if body.ahead and not (body.lease and body.ahead <= body.limit):
        raise InvalidError(
            f"'{inside}ahead': {body.ahead} of {body.limit} jobs cannot be begun later; "
            "allowed: 0 to 'limit', with 'lease': true",
            field=f"{inside}ahead",
        )
    capabilities = body.constraints_capabilities or {}
    wants = Wants(
        addon_id=body.addon_id,
        job_types=frozenset(body.accept_job_types or ()),
        max_cost_units=body.max_cost_units,
        capabilities=tuple(sorted((name, bool(value)) for name, value in capabilities.items())),
    )
    return Claim(
        worker_id=body.worker_id,
        wants=wants,
        limit=body.limit,
        has_lease=body.lease,
        ttl_sec=float(body.ttl_sec),
        ahead=body.ahead,
    )


def read_next(body: ClaimBody) -> Claim:
    """The claim that comes with a release: the release is answered at once, so it cannot wait."""
    if body.wait_sec:
        raise InvalidError(
            "'next.wait_sec': a claim with a release does not wait; allowed: 0",
            field="next.wait_sec",
        )
    return read_claim(body, "next.")


def show_claimed(body: ClaimBody, claimed: Claimed) -> Any:
    """What a claim got; None: nothing."""
    if not claimed.taken:
        return None
    if body.brief:
        return show_claim(claimed)
    jobs = [show_claimed_job(job) for job in claimed.jobs]
    answer: dict[str, Any] = {"job": jobs[0]}
    if body.limit > 1:
        answer["jobs"] = jobs
    if body.lease:
        leases = [show_held_lease(lease) for lease in claimed.leases]
        answer["lease"] = leases[0]
        answer["leases"] = leases
    return answer


shown_at = lru_cache(maxsize=8192)(format_instant)
"""An instant as answered, remembered: the rows of one batch share most of theirs."""


@lru_cache(maxsize=8192)
def shown(at: Instant | None) -> str | None:
    """The same for an instant that may be missing."""
    return None if at is None else shown_at(at)


def show_job(job: Job) -> JobView:
    """Render a job for anybody."""
    return JobView(*_members_of(job))  # type: ignore[arg-type]


def show_claimed_job(job: Job) -> ClaimedJobView:
    """Render a job for who has just claimed it."""
    return ClaimedJobView(*_members_of(job), show_token(job.claim_token))  # type: ignore[arg-type, call-arg]


def _members_of(job: Job) -> tuple[object, ...]:
    """A job's values in the order of its view."""
    return (
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


def show_claim(claimed: Claimed) -> CompactClaim:
    """Render the jobs a worker has just claimed."""
    at = shown_at(claimed.at)
    until = None if claimed.has_leases else shown_at(claimed.until)
    pairs = zip(claimed.taken, claimed.changes, strict=True)
    return CompactClaim([_compact_job(job, change, at, until) for job, change in pairs])


def _compact_job(job: ReadyJob, change: JobChange, at: str, until: str | None) -> CompactJob:
    constraints, run_at = job.constraints_json, job.run_at
    token = show_token(change.claim_token)
    is_running = until is None
    retry_at = None if is_running else job.next_retry_at
    return CompactJob(
        job.job_id,
        job.addon_id,
        job.job_type,
        job.cost_units,
        Raw(job.payload_json.encode()),
        change.new,
        shown_at(job.created_at),
        at,
        change.attempts if is_running else job.attempts,
        token,
        change.lease_id if is_running else None,
        token if is_running else None,
        change.worker_id,
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
    """Render a lease for anybody."""
    return LeaseView(*_members_of_lease(lease))  # type: ignore[arg-type]


def show_held_lease(lease: Lease) -> HeldLeaseView:
    """Render a lease for who holds it."""
    return HeldLeaseView(*_members_of_lease(lease), show_token(lease.lease_token))  # type: ignore[arg-type, call-arg]


def _members_of_lease(lease: Lease) -> tuple[object, ...]:
    """A lease's values in the order of its view."""
    ttl = lease.ttl_sec
    return (
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
