"""Claims on queue jobs, with or without leases: one transaction each."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.ids import new_ordered_uuids, new_tokens
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.domain.queue import changes, effects
from ksana.domain.queue.admission import Capacity, Limits, admit_ready
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import JobClass, Wants, accepts
from ksana.domain.queue.jobs import Job, Lease, ReadyJob
from ksana.engine.queue.job_writer import write_held
from ksana.engine.queue.leasing import promote_due
from ksana.ports.queue.tables import QueueTx

PROMOTE: Final = 500
"""Scheduled jobs a claim moves over before it takes; the sweep moves the rest."""

FILTERS: Final = 512
"""Filters whose classes are remembered."""

KNOWN_FOR: Final[Micros] = 10 * MINUTE
"""A worker that has not asked for so long is not counted on any more."""


class Claim(msgspec.Struct, frozen=True):
    """What a worker asks for."""

    worker_id: str
    wants: Wants
    limit: int = 1
    has_lease: bool = False
    ttl_sec: float = 30


class Claimed(msgspec.Struct, frozen=True):
    """What a claim got: the jobs as they were taken, and what was made of each."""

    taken: Sequence[ReadyJob] = ()
    changes: Sequence[JobChange] = ()
    at: Instant = 0
    until: Instant = 0
    """When the claim, or the leases, run out."""
    has_leases: bool = False
    is_busy: bool = False
    """Nothing was looked at: another transaction holds the capacity. Come again in a moment."""

    @property
    def jobs(self) -> list[Job]:
        """The jobs as they are now."""
        at, pairs = self.at, zip(self.taken, self.changes, strict=True)
        return [effects.claimed_job(job, change, at) for job, change in pairs]

    @property
    def leases(self) -> list[Lease]:
        """The leases, in the order of the jobs."""
        if not self.has_leases:
            return []
        return [effects.new_lease(change, self.at) for change in self.changes]


NOTHING: Final = Claimed()
BUSY: Final = Claimed(is_busy=True)


class _Filter:
    """The classes that a filter accepts, of which state of the classes, and when it was last asked
    with."""

    __slots__ = ("class_ids", "mark", "seen_at")

    def __init__(self, class_ids: tuple[int, ...], mark: tuple[int, int]) -> None:
        self.class_ids = class_ids
        self.mark = mark
        self.seen_at: Instant = 0


class JobClassCache:
    """Every class, remembered until one is added, and which of them a filter accepts. Shared by the
    writers of a process."""

    def __init__(self) -> None:
        self._mark: tuple[int, int] = (-1, 0)
        self.classes: tuple[JobClass, ...] = ()
        self._filters: dict[Wants, _Filter] = {}
        self.committed: set[int] = set()
        """Classes known to be in the store for good."""

    def filters_since(self, since: Instant) -> list[Wants]:
        """The filters that claims on this instance came with, up to so many."""
        return [wants for wants, one in list(self._filters.items()) if one.seen_at >= since]

    def choose(self, tx: QueueTx, wants: Wants, mark: tuple[int, int]) -> tuple[int, ...]:
        """The classes a worker takes jobs from. `mark` changes when a class is added."""
        if mark != self._mark:
            self.classes = tuple(tx.job_classes.list_classes())
            self._mark = mark
        found = self._filters.get(wants)
        if found is None or found.mark != mark:
            class_ids = tuple(kind.id for kind in self.classes if accepts(kind, wants))
            if len(self._filters) >= FILTERS:
                self._filters.clear()
            found = self._filters[wants] = _Filter(class_ids, mark)
        found.seen_at = tx.now
        return found.class_ids


def claim_jobs(
    tx: QueueTx, claim: Claim, cache: JobClassCache, limits: Limits, is_patient: bool = True
) -> Claimed:
    """Hand out the next jobs, in order of priority, turn and age. One that is not patient does not
    wait for the capacity: those who give units back wait for it too, and should not stand behind
    all who want some."""
    outlook = tx.job_order.outlook()
    if outlook.has_due:
        promote_due(tx, PROMOTE)
    class_ids = cache.choose(tx, claim.wants, outlook.classes)
    if claim.has_lease:
        # Everybody who leases or releases waits for the capacity's lock: do not take it to learn
        # that there is nothing to do.
        if outlook.used >= limits.total or not tx.job_order.has_ready(class_ids):
            return NOTHING
        lock = tx.capacity.lock if is_patient else tx.capacity.try_lock
        capacity = lock(limits.total)
        if capacity is None:
            return BUSY
        return _claim_with_leases(tx, claim, cache, outlook.classes, limits, capacity)
    jobs = _take(tx, class_ids, claim.limit, cache)
    if not jobs:
        return NOTHING
    until = tx.now + limits.claim_ttl_us
    claimed = changes.claim_jobs(jobs, new_tokens(len(jobs)), claim.worker_id, until)
    write_held(tx, claimed)
    return Claimed(taken=jobs, changes=claimed, at=tx.now, until=until)


def _take(
    tx: QueueTx, class_ids: tuple[int, ...], limit: int, cache: JobClassCache
) -> list[ReadyJob]:
    if len(class_ids) < len(cache.classes):
        return list(tx.job_order.take_ready(class_ids, limit))
    jobs = tx.job_order.take_ready(None, limit)
    # A class may have been added since the cache was read: whether the worker takes it is unknown.
    known = class_ids if len(class_ids) < 64 else frozenset(class_ids)
    return [job for job in jobs if job.class_id in known]


def _claim_with_leases(
    tx: QueueTx,
    claim: Claim,
    cache: JobClassCache,
    mark: tuple[int, int],
    limits: Limits,
    capacity: Capacity,
) -> Claimed:
    """Claim and lease in one, as capacity allows. Jobs that do not fit stay QUEUED."""
    taken: list[ReadyJob] = []
    started: list[JobChange] = []
    until = tx.now + round(claim.ttl_sec * SECOND)
    wants = claim.wants
    has_reserved = False
    for is_last in (False, True):
        if capacity.used >= capacity.total:
            break
        class_ids = cache.choose(tx, wants, mark)
        ready = _take(tx, class_ids, claim.limit - len(taken), cache)
        admission = admit_ready(capacity, ready, tx.now, limits, tx.capacity.sum_of_addon)
        capacity, admitted = admission.capacity, admission.admitted
        has_reserved = has_reserved or admission.has_reserved
        if admitted:
            begun = _start(tx, claim, admitted, until)
            taken += admitted
            started += begun
        if is_last or not admission.has_refused or len(taken) >= claim.limit:
            break
        # Behind jobs that are too large smaller ones may wait: once more, for those that fit.
        free = capacity.total - capacity.used
        most = free if wants.max_cost_units is None else min(free, wants.max_cost_units)
        wants = msgspec.structs.replace(wants, max_cost_units=most)
    if taken or has_reserved:
        tx.capacity.write(capacity)
    if not taken:
        return NOTHING
    return Claimed(taken=taken, changes=started, at=tx.now, until=until, has_leases=True)


def _start(tx: QueueTx, claim: Claim, jobs: Sequence[ReadyJob], until: Instant) -> list[JobChange]:
    count = len(jobs)
    started = changes.start_jobs(
        jobs,
        new_ordered_uuids(tx.now, count),
        new_tokens(count),
        claim.worker_id,
        claim.ttl_sec,
        until,
    )
    write_held(tx, started)
    return started
