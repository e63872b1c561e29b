"""Admission: whether a job may run now within the capacity, and why not; and what a claimed job
becomes that is granted a lease or denied one. Pure: rows and `now` in, a decision out.

Three rules, in this order. The sum of what runs never passes the total. An addon with a share never
passes it. A refused request of the highest waiting priority keeps its units for a while, so that
small jobs do not starve a large one; only a more urgent request may pass it.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.queue import events
from ksana.domain.queue.changes import PENDING, RUNNING, JobChange
from ksana.domain.queue.classes import MOST_CLASSES
from ksana.domain.queue.jobs import CLAIM_TTL_US, Job, ReadyJob

RETRY_LEAST: Final[Micros] = SECOND
RETRY_MOST: Final[Micros] = 10 * SECOND
RESERVE_GRACE: Final[Micros] = 5 * SECOND
"""How long after its next try a refused request still keeps its units."""

PATIENCE: Final[Micros] = 30 * SECOND
"""A ready job that has waited longer and still does not fit keeps its units too, when claims ask
for leases at once."""

STARVED: Final[Micros] = SECOND
"""The same where claims have got nothing for so long, because whenever they looked others had all
units and passed them on among themselves."""

AHEAD_BYTES: Final = 1 << 20
"""Payloads of the jobs that one set of claims hands out to be begun later, together."""


class Limits(msgspec.Struct, frozen=True):
    """The settings that admission and claims go by."""

    total: int = 100
    shares: tuple[tuple[str, int], ...] = ()
    claim_ttl_us: Micros = CLAIM_TTL_US
    classes: int = MOST_CLASSES
    """How many classes of jobs there may be at a time."""

    def share_of(self, addon_id: str) -> int | None:
        """The most units an addon may hold, if it has a share."""
        return dict(self.shares).get(addon_id) if self.shares else None


class Capacity(msgspec.Struct, frozen=True):
    """The capacity: what there is, what is used, and what is kept for whom."""

    total: int
    used: int
    active: int
    reserved_units: int
    reserved_for: str | None
    reserved_urgency: int
    reserved_until: Instant

    def reserved(self, now: Instant) -> int:
        """Units kept for a refused request, while that lasts."""
        return (
            self.reserved_units
            if self.reserved_for is not None and self.reserved_until > now
            else 0
        )

    def with_grant(self, cost_units: int, job_id: str) -> "Capacity":
        """The capacity after a grant; a reservation of the same job is used up by it."""
        kept = self.reserved_for != job_id
        return msgspec.structs.replace(
            self,
            used=self.used + cost_units,
            active=self.active + 1,
            reserved_units=self.reserved_units if kept else 0,
            reserved_for=self.reserved_for if kept else None,
        )

    def with_all(self, cost_units: int, count: int) -> "Capacity | None":
        """The capacity after so many grants of so many units together, when nothing stands in the
        way of any: nothing is kept for anybody and all of them fit. None: each is to be looked at
        on its own."""
        if self.reserved_for is not None or self.used + cost_units > self.total:
            return None
        return msgspec.structs.replace(
            self, used=self.used + cost_units, active=self.active + count, reserved_units=0
        )

    def with_reserve(self, request: "AdmissionRequest", until: Instant) -> "Capacity":
        """The capacity with units kept for a refused request."""
        return msgspec.structs.replace(
            self,
            reserved_units=request.cost_units,
            reserved_for=request.job_id,
            reserved_urgency=request.urgency,
            reserved_until=until,
        )


class AdmissionRequest(msgspec.Struct, frozen=True, gc=False):
    """One request to run."""

    job_id: str
    addon_id: str
    cost_units: int
    urgency: int


class Denial(msgspec.Struct, frozen=True, gc=False):
    """Why not now."""

    code: str
    reason: str


def find_denial(
    capacity: Capacity,
    request: AdmissionRequest,
    now: Instant,
    share: int | None = None,
    addon_used: int = 0,
) -> Denial | None:
    """Decide: None admits."""
    if capacity.used + request.cost_units > capacity.total:
        asked = f"requested={request.cost_units}"
        return Denial(
            "CAPACITY_EXCEEDED",
            f"Capacity exceeded: used={capacity.used}, {asked}, capacity={capacity.total}",
        )
    if share is not None and addon_used + request.cost_units > share:
        asked = f"requested={request.cost_units}"
        return Denial(
            "SHARE_EXCEEDED",
            f"Share of {request.addon_id} exceeded: used={addon_used}, {asked}, capacity={share}",
        )
    kept = capacity.reserved(now)
    is_behind = (
        capacity.reserved_for != request.job_id and request.urgency >= capacity.reserved_urgency
    )
    if kept and is_behind and capacity.used + kept + request.cost_units > capacity.total:
        return Denial(
            "CAPACITY_RESERVED",
            f"Capacity exceeded: used={capacity.used}, requested={request.cost_units}, "
            f"capacity={capacity.total}, reserved={kept} for a job ahead",
        )
    return None


def may_reserve(
    capacity: Capacity, request: AdmissionRequest, now: Instant, best_pending_urgency: int | None
) -> bool:
    """Tell whether a refused request now keeps its units: nobody as urgent is before it."""
    if best_pending_urgency is not None and best_pending_urgency < request.urgency:
        return False
    if not capacity.reserved(now) or capacity.reserved_for == request.job_id:
        return True
    return request.urgency < capacity.reserved_urgency


def retry_after_us(now: Instant, soonest_expiry: Instant | None) -> Micros:
    """When to ask again: when the first lease may run out, within bounds, in whole seconds."""
    wait = RETRY_MOST if soonest_expiry is None else soonest_expiry - now
    return min(max(-(-wait // SECOND) * SECOND, RETRY_LEAST), RETRY_MOST)


def request_of(job: Job | ReadyJob) -> AdmissionRequest:
    """What a job asks for."""
    return AdmissionRequest(job.job_id, job.addon_id, job.cost_units, job.urgency)


def choose_ahead(jobs: Sequence[ReadyJob], at_once: int, capacity: Capacity) -> Sequence[ReadyJob]:
    """The next jobs, of those behind the first `at_once` only what may be handed out to be begun
    later. A worker that is killed has used up an attempt of every job it held, so such a job must
    have one to spare. It leaves others half of the units that are free, and large payloads wait."""
    if len(jobs) <= at_once:
        return jobs
    chosen = list(jobs[:at_once])
    units = (capacity.total - capacity.used) // 2 - sum([job.cost_units for job in chosen])
    size = AHEAD_BYTES
    for job in jobs[at_once:]:
        units -= job.cost_units
        size -= len(job.payload_json)
        if units < 0 or size < 0 or job.attempts + 1 >= job.max_attempts:
            break
        chosen.append(job)
    return chosen


class Admission(msgspec.Struct, frozen=True):
    """Which of some ready jobs may run at once, and the capacity with them. `has_refused`: some do
    not fit. `has_reserved`: units are newly kept for one of those."""

    capacity: Capacity
    admitted: Sequence[ReadyJob]
    has_refused: bool = False
    has_reserved: bool = False


def admit_ready(
    capacity: Capacity,
    jobs: Sequence[ReadyJob],
    now: Instant,
    limits: Limits,
    used_of_addon: Callable[[str], int],
    patience: Micros = PATIENCE,
) -> Admission:
    """Admit ready jobs in their order, as many as fit. One that has waited longer than `patience`
    and does not keeps its units, so that nothing behind it of its own priority is admitted
    first."""
    if not limits.shares:
        # Where the capacity alone decides and all fit, all are admitted.
        units = sum([job.cost_units for job in jobs])
        with_all = capacity.with_all(units, len(jobs))
        if with_all is not None:
            return Admission(with_all, jobs)
    admitted: list[ReadyJob] = []
    has_refused = has_reserved = False
    used: dict[str, int] = {}
    for job in jobs:
        request, share = request_of(job), limits.share_of(job.addon_id)
        if share is not None and job.addon_id not in used:
            used[job.addon_id] = used_of_addon(job.addon_id)
        denial = find_denial(capacity, request, now, share, used.get(job.addon_id, 0))
        if denial is None:
            capacity = capacity.with_grant(job.cost_units, job.job_id)
            if share is not None:
                used[job.addon_id] += job.cost_units
            admitted.append(job)
            continue
        has_refused = True
        has_waited = now - job.due_at > patience
        is_full = denial.code == "CAPACITY_EXCEEDED"
        if has_waited and is_full and may_reserve(capacity, request, now, None):
            capacity = capacity.with_reserve(request, now + RETRY_MOST + RESERVE_GRACE)
            has_reserved = True
    return Admission(capacity, admitted, has_refused, has_reserved)


def grant_lease(job: Job, lease_id: str, token: int, ttl_sec: float, until: Instant) -> JobChange:
    """A claimed job runs."""
    worker_json = events.encode(job.claimed_by)
    return JobChange(
        move="grant",
        seq=job.seq,
        job_id=job.job_id,
        old=job.state,
        new="RUNNING",
        events=events.granted(lease_id, job.job_id, worker_json, job.cost_units, job.attempts + 1),
        position=RUNNING,
        due_at=job.due_at,
        claim_token=job.claim_token,
        old_attempts=job.attempts,
        attempts=job.attempts + 1,
        addon_id=job.addon_id,
        cost_units=job.cost_units,
        worker_id=job.claimed_by,
        until=until,
        lease_id=lease_id,
        lease_token=token,
        ttl_sec=ttl_sec,
    )


def deny_lease(
    job: Job, next_retry_at: Instant, until: Instant, denial: dict[str, object]
) -> JobChange:
    """A claimed job waits for capacity; its claim is kept."""
    is_new = job.state != "LEASE_PENDING"
    return JobChange(
        move="deny",
        seq=job.seq,
        job_id=job.job_id,
        old=job.state,
        new="LEASE_PENDING",
        events=events.pending(job.claimed_by, denial) if is_new else events.denied(denial),
        position=PENDING,
        next_retry_at=next_retry_at,
        claim_token=job.claim_token,
        until=until,
    )
