"""Claims on queue jobs, with or without leases. Those that wait together are one transaction: what
they ask is asked once for all who want the same, and the jobs are handed out in the order in which
the claims came."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from ksana.base.ids import new_numbered_uuids, new_tokens
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.queue import changes, effects
from ksana.domain.queue.admission import (
    PATIENCE,
    STARVED,
    Admission,
    Capacity,
    Limits,
    admit_ready,
    choose_ahead,
)
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.escrow import Standing, deal, draw, own_capacity, should_gather
from ksana.domain.queue.jobs import Job, Lease, ReadyJob
from ksana.engine.queue.job_writer import write_held
from ksana.engine.queue.leasing import promote_due
from ksana.ports.pages import MAX_PAGE_BYTES
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue.class_cache import JobClassCache

PROMOTE: Final = 500
"""Scheduled jobs a claim moves over before it takes; the sweep moves the rest."""


class Claim(msgspec.Struct, frozen=True):
    """What a worker asks for."""

    worker_id: str
    wants: Wants
    limit: int = 1
    has_lease: bool = False
    ttl_sec: float = 30
    can_wait: bool = False
    """Whether it comes again if it gets nothing now."""
    ahead: int = 0
    """How many of `limit` the worker begins later."""


class Claimed(msgspec.Struct, frozen=True):
    """What a claim got: the jobs as they were taken, and what was made of each."""

    taken: Sequence[ReadyJob] = ()
    changes: Sequence[JobChange] = ()
    at: Instant = 0
    until: Instant = 0
    """When the claim, or the leases, run out."""
    has_leases: bool = False
    is_short: bool = False
    """There were jobs that it got none of for lack of units."""
    may_have_more: bool = False
    """It got nothing, and others hold units that they may not need: come again in a moment."""

    @property
    def jobs(self) -> list[Job]:
        """The jobs as they are now."""
        at, pairs = self.at, zip(self.taken, self.changes, strict=True)
        return [changes.claimed_job(job, change, at) for job, change in pairs]

    @property
    def leases(self) -> list[Lease]:
        """The leases, in the order of the jobs."""
        if not self.has_leases:
            return []
        return [effects.new_lease(change, self.at) for change in self.changes]


NOTHING: Final = Claimed()
SHORT: Final = Claimed(is_short=True)
LATER: Final = Claimed(is_short=True, may_have_more=True)


def claim_jobs(tx: QueueTx, claim: Claim, cache: JobClassCache, limits: Limits) -> Claimed:
    """Hand out the next jobs, in order of priority, turn and age."""
    return claim_together(tx, [claim], cache, limits)[0]


def claim_together(
    tx: QueueTx,
    claims: Sequence[Claim],
    cache: JobClassCache,
    limits: Limits,
    *,
    may_gather: bool = True,
) -> list[Claimed]:
    """The same for claims that wait together; those who want the same are served as one, in their
    order. Without `may_gather` no lock is waited for that another instance may hold: what units
    this one has set aside must do."""
    claimed: list[Claimed] = [NOTHING] * len(claims)
    groups: dict[tuple[Wants, bool], list[int]] = {}
    for place, claim in enumerate(claims):
        groups.setdefault((claim.wants, claim.has_lease), []).append(place)
    for (wants, has_lease), places in groups.items():
        alike = [claims[place] for place in places]
        if not has_lease:
            found = _claim(tx, wants, alike, cache, limits)
        elif may_gather or not tx.capacity.is_shared:
            found = _lease(tx, wants, alike, cache, limits)
        else:
            found = _lease_from_own(tx, wants, alike, cache, limits)
        for place, one in zip(places, found, strict=True):
            claimed[place] = one
    return claimed


def _claim(
    tx: QueueTx, wants: Wants, claims: Sequence[Claim], cache: JobClassCache, limits: Limits
) -> list[Claimed]:
    limit = sum([claim.limit for claim in claims])
    jobs = _open(tx, wants, limit, cache, None).ready
    cache.note_found(wants, bool(jobs))
    if not jobs:
        return [NOTHING] * len(claims)
    until = tx.now + limits.claim_ttl_us
    handed_out: list[Claimed] = []
    shares = [jobs] if len(claims) == 1 else _share_out(claims, jobs)
    for claim, share in zip(claims, shares, strict=True):
        if not share:
            handed_out.append(LATER if _fill_an_answer(jobs) else NOTHING)
            continue
        claimed = changes.claim_jobs(share, new_tokens(len(share)), claim.worker_id, until)
        handed_out.append(Claimed(taken=share, changes=claimed, at=tx.now, until=until))
    write_held(tx, [change for one in handed_out for change in one.changes])
    return handed_out


def _share_out(claims: Sequence[Claim], jobs: Sequence[ReadyJob]) -> list[Sequence[ReadyJob]]:
    """Who gets which of the jobs, as far as they go: in the order of the claims, first what is
    begun at once, then what is begun later."""
    shares: list[Sequence[ReadyJob]] = []
    start = 0
    for claim in claims:
        until = start + claim.limit - claim.ahead
        shares.append(jobs[start:until])
        start = until
    if start < len(jobs):
        for place, claim in enumerate(claims):
            shares[place] = [*shares[place], *jobs[start : start + claim.ahead]]
            start += claim.ahead
    return shares


def _fill_an_answer(jobs: Sequence[ReadyJob]) -> bool:
    """Whether their payloads are so large that those of jobs behind them may have been left out."""
    return sum([len(job.payload_json) for job in jobs]) > MAX_PAGE_BYTES // 4


class _Opened(msgspec.Struct, frozen=True):
    """What a claim goes on with: the mark of the classes, the next jobs, held, and the capacity,
    held or as it stands. Neither: there is nothing to be had."""

    mark: int
    ready: list[ReadyJob]
    capacity: Capacity | None = None
    standing: Standing | None = None
    is_full: bool = False
    """No unit is free; whether there are jobs was not looked for."""
    patience: Micros = PATIENCE
    """A job that has waited longer keeps units if it does not fit."""


def _open(
    tx: QueueTx,
    wants: Wants,
    limit: int,
    cache: JobClassCache,
    limits: Limits | None,
    patience: Micros = PATIENCE,
) -> _Opened:
    """Find the next jobs and, with limits, the capacity: asked for at once where jobs are to be
    expected or nobody waits for us meanwhile, else only if there is something to be had, or claims
    like this have lost their patience."""
    total = None if limits is None else limits.total
    # What an addon holds of its share is known only to whoever holds the capacity.
    is_held = limits is not None and (bool(limits.shares) or not tx.capacity.is_shared)
    expected = cache.expect(wants, is_held or not tx.capacity.is_shared)
    if expected is not None and (len(expected) == 1 or len(expected) == len(cache.known.classes)):
        is_any = len(expected) == len(cache.known.classes)
        opening = tx.job_order.open_claim(None if is_any else expected[0], limit, total, is_held)
        outlook, jobs = opening.outlook, opening.ready
        class_ids = cache.choose(tx, wants, outlook.classes)
        if total is not None and outlook.used >= total:
            return _Opened(outlook.classes, [], is_full=True)
        is_any_still = is_any and len(class_ids) == len(cache.known.classes)
        if outlook.has_due or class_ids != expected or is_any != is_any_still:
            # What has come due, or is of a new class, may be before what was taken; what is of a
            # new class that the worker does not take may have been taken in place of its own.
            promote_due(tx, PROMOTE)
            jobs = _take(tx, class_ids, limit, cache)
        elif is_any:
            jobs = _accepted(jobs, class_ids)
        return _Opened(outlook.classes, jobs, opening.capacity, opening.standing)
    outlook = tx.job_order.outlook()
    if outlook.has_due:
        promote_due(tx, PROMOTE)
    class_ids = cache.choose(tx, wants, outlook.classes)
    if total is None:
        return _Opened(outlook.classes, _take(tx, class_ids, limit, cache))
    # Everybody who leases waits for the capacity's lock: do not take it to learn that there is
    # nothing to do. But where units go from lease to lease it is full whenever somebody looks.
    is_full = outlook.used >= total and patience == PATIENCE
    if is_full or not tx.job_order.has_ready(class_ids):
        return _Opened(outlook.classes, [], is_full=is_full)
    capacity = tx.capacity.lock(total) if is_held else None
    standing = None if is_held else tx.capacity.look(total)
    ready = _take(tx, class_ids, limit, cache)
    return _Opened(outlook.classes, ready, capacity, standing, patience=patience)


def _take(
    tx: QueueTx, class_ids: tuple[int, ...], limit: int, cache: JobClassCache
) -> list[ReadyJob]:
    if len(class_ids) < len(cache.known.classes):
        return list(tx.job_order.take_ready(class_ids, limit))
    return _accepted(tx.job_order.take_ready(None, limit), class_ids)


def _accepted(jobs: Sequence[ReadyJob], class_ids: tuple[int, ...]) -> list[ReadyJob]:
    """Without those of a class that was added since the classes were read: whether the worker takes
    it is unknown."""
    known = class_ids if len(class_ids) < 64 else frozenset(class_ids)
    return [job for job in jobs if job.class_id in known]


def _lease(
    tx: QueueTx, wants: Wants, claims: Sequence[Claim], cache: JobClassCache, limits: Limits
) -> list[Claimed]:
    """Claim and lease in one, as capacity allows. Jobs that do not fit stay QUEUED."""
    limit = sum([claim.limit for claim in claims])
    at_once = sum([claim.limit - claim.ahead for claim in claims])
    patience = STARVED if cache.is_starved(wants, tx.now) else PATIENCE
    opened = _open(tx, wants, limit, cache, limits, patience)
    taken = _grant_alone(tx, wants, claims, opened, cache)
    empty = SHORT if taken is None else LATER
    if taken is None:
        taken = _grant_at_home(tx, wants, at_once, opened, cache, limits)
    is_left = not {job.seq for job in opened.ready} <= {job.seq for job in taken}
    is_short = opened.is_full or (len(taken) < at_once and is_left)
    cache.note_found(wants, bool(taken), is_short, tx.now)
    if not taken:
        return [empty if is_short else NOTHING] * len(claims)
    handed_out = _start(tx, claims, taken)
    if not is_short:
        empty = LATER if _fill_an_answer(taken) else NOTHING
    return [one if one.taken else empty for one in handed_out]


def _lease_from_own(
    tx: QueueTx, wants: Wants, claims: Sequence[Claim], cache: JobClassCache, limits: Limits
) -> list[Claimed]:
    """The same within the units that are set aside for this instance, or nothing. What an addon has
    of its share is known only to whoever holds the capacity."""
    if limits.shares:
        return [NOTHING] * len(claims)
    limit = sum([claim.limit for claim in claims])
    opened = _open(tx, wants, limit, cache, limits)
    taken = _grant_alone(tx, wants, claims, opened, cache)
    if not taken:
        return [NOTHING] * len(claims)
    cache.note_found(wants, has_found=True)
    return _start(tx, claims, taken)


def _grant_alone(
    tx: QueueTx, wants: Wants, claims: Sequence[Claim], opened: _Opened, cache: JobClassCache
) -> Sequence[ReadyJob] | None:
    """Admit jobs within the units that are set aside for this instance. None: the capacity must be
    held."""
    at_once = sum([claim.limit - claim.ahead for claim in claims])
    standing, instance, now = opened.standing, tx.capacity.instance, tx.now
    if standing is None:
        return None
    own = own_capacity(standing, instance, now)
    if own is None:
        return None
    admission = _admit(tx, wants, at_once, opened, cache, Limits(own.total), own)
    jobs = admission.admitted
    is_patient = bool(jobs) and all(
        claim.can_wait or len(share) >= claim.limit - claim.ahead
        for claim, share in zip(claims, _share_out(claims, jobs), strict=True)
    )
    if admission.has_reserved or (
        admission.has_refused and should_gather(standing, instance, now, is_patient=is_patient)
    ):
        return None
    if jobs:
        units = sum([job.cost_units for job in jobs])
        drawn = draw(standing, instance, tx.capacity.shard, units)
        tx.capacity.draw(drawn, units, len(jobs))
    return jobs


def _grant_at_home(
    tx: QueueTx,
    wants: Wants,
    at_once: int,
    opened: _Opened,
    cache: JobClassCache,
    limits: Limits,
) -> Sequence[ReadyJob]:
    """Admit jobs within the whole capacity, held, and set aside what is left."""
    capacity = opened.capacity
    if capacity is None:
        if opened.standing is None:
            return ()
        capacity = tx.capacity.lock(limits.total)
    admission = _admit(tx, wants, at_once, opened, cache, limits, capacity)
    capacity = admission.capacity
    if admission.admitted or admission.has_reserved:
        dealt: dict[int, int] = {}
        if opened.standing is not None:
            place = tx.capacity
            dealt = deal(capacity, place.list_held(), place.shard, place.instance, tx.now)
        tx.capacity.write(capacity, dealt)
    return admission.admitted


def _admit(
    tx: QueueTx,
    wants: Wants,
    at_once: int,
    opened: _Opened,
    cache: JobClassCache,
    limits: Limits,
    capacity: Capacity,
) -> Admission:
    taken: list[ReadyJob] = []
    has_refused = has_reserved = False
    ready = choose_ahead(opened.ready, at_once, capacity)
    for is_last in (False, True):
        used_of_addon = partial(_sum_of_addon, tx, taken)
        admission = admit_ready(capacity, ready, tx.now, limits, used_of_addon, opened.patience)
        capacity = admission.capacity
        has_refused = has_refused or admission.has_refused
        has_reserved = has_reserved or admission.has_reserved
        taken += admission.admitted
        free = capacity.total - capacity.used
        if is_last or not admission.has_refused or len(taken) >= at_once or free <= 0:
            break
        # Behind jobs that are too large smaller ones may wait: once more, for those that fit.
        most = free if wants.max_cost_units is None else min(free, wants.max_cost_units)
        smaller = msgspec.structs.replace(wants, max_cost_units=most)
        held = {job.seq for job in taken}
        class_ids = cache.choose(tx, smaller, opened.mark)
        ready = _take(tx, _within_shares(tx, class_ids, taken, cache, limits), at_once, cache)
        ready = [job for job in ready if job.seq not in held][: at_once - len(taken)]
    return Admission(capacity, taken, has_refused, has_reserved)


def _within_shares(
    tx: QueueTx,
    class_ids: tuple[int, ...],
    taken: Sequence[ReadyJob],
    cache: JobClassCache,
    limits: Limits,
) -> tuple[int, ...]:
    """Those of the classes whose jobs fit into what is left of their addon's share."""
    left = {name: share - _sum_of_addon(tx, taken, name) for name, share in limits.shares}
    costs = [
        (one.id, one.cost_units, left.get(one.addon_id)) for one in cache.known.classes if left
    ]
    full = {class_id for class_id, units, rest in costs if rest is not None and units > rest}
    return tuple(one for one in class_ids if one not in full) if full else class_ids


def _sum_of_addon(tx: QueueTx, taken: Sequence[ReadyJob], addon_id: str) -> int:
    """Units an addon's leases hold, those included that are about to be written."""
    begun = sum([job.cost_units for job in taken if job.addon_id == addon_id])
    return tx.capacity.sum_of_addon(addon_id) + begun


def _start(tx: QueueTx, claims: Sequence[Claim], taken: Sequence[ReadyJob]) -> list[Claimed]:
    handed_out: list[Claimed] = []
    for claim, share in zip(claims, _share_out(claims, taken), strict=True):
        if not share:
            handed_out.append(NOTHING)
            continue
        until, count = tx.now + round(claim.ttl_sec * SECOND), len(share)
        started = changes.start_jobs(
            share,
            new_numbered_uuids([job.seq for job in share]),
            new_tokens(count),
            claim.worker_id,
            claim.ttl_sec,
            until,
        )
        handed_out.append(Claimed(share, started, tx.now, until, has_leases=True))
    write_held(tx, [change for one in handed_out for change in one.changes])
    return handed_out
