"""Leases that end and claims that are served in the same transaction, on every store: a unit goes
from one lease to the next, and the counts of the capacity follow."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import SECOND
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import STARVED, Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import LeasedJob
from ksana.engine.queue.leasing import recount
from ksana.service.queue.claims import Claim, Claimed, claim_together
from ksana.service.queue.class_cache import JobClassCache
from ksana.service.queue.exchange import (
    Exchanged,
    ReleaseEntry,
    ReleaseSets,
    expect_claims,
    release_and_claim,
)
from ksana.service.queue.releases import Released, release_together, release_wholes
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore
from tests.conformance.store.test_queue_escrow import (
    give_back,
    grab,
    other,
    pool_held,
    rest_of,
    stands,
)
from tests.conformance.store.test_queue_store import LIMITS, new_job, submit
from tests.conformance.store.test_round_trips import trips_of

__all__ = ["other"]

TOTAL = LIMITS.total

pytestmark = pytest.mark.spec("Q9", "Q11", "Q16")


async def exchange(
    store: SqlStore,
    ended: Claimed,
    limit: int,
    cache: JobClassCache | None = None,
    limits: Limits = LIMITS,
) -> Exchanged[Released]:
    """End leases and claim as their holder does."""
    items = [Release(one.lease_id, "SUCCEEDED") for one in ended.leases]
    own = Claim("w", Wants(), limit, has_lease=True)
    made = await exchange_items(store, items, own, cache or JobClassCache(), limits)
    assert {getattr(one, "state", one) for one in made.released.answers} == {"DONE"}
    return made


async def exchange_items(
    store: SqlStore,
    items: Sequence[Release],
    own: Claim,
    cache: JobClassCache,
    limits: Limits = LIMITS,
    release: ReleaseSets[Any] = release_together,
) -> Exchanged[Any]:
    """The same, however the attempts end."""
    serve = partial(claim_together, cache=cache, limits=limits, may_gather=False)
    expect = partial(expect_claims, cache=cache, limits=limits)
    [made] = await store.transact(
        release_and_claim, [ReleaseEntry(items, own=own)], release, serve, expect
    )
    return made


async def held_units(store: SqlStore) -> tuple[int, int]:
    """(units, leases) in use; the counter agrees with the leases, and so does a recount."""

    def look(tx: Any) -> tuple[int, int]:
        read, (leases, units) = tx.capacity.read(TOTAL), tx.capacity.sum_active()
        assert (read.used, read.active) == (units, leases)
        return units, leases

    found = await store.read(look)
    if not store.sole:
        await stands(store)
    assert await store.transact(recount, TOTAL) == (0, 0)
    return found


@pytest.mark.parametrize(
    ("costs", "after", "limit", "units"),
    [
        ([TOTAL], [TOTAL], 1, TOTAL),
        ([50, 50], [100], 2, 100),
        ([100], [50, 50], 2, 100),
        ([100], [30, 20, 10], 2, 50),
        ([40, 60], [10] * 20, 20, 100),
        ([100], [], 5, 0),
    ],
)
async def test_units_go_from_leases_that_end_to_those_that_begin(
    store: SqlStore, costs: list[int], after: list[int], limit: int, units: int
) -> None:
    await submit(store, *(new_job(cost=cost) for cost in costs), is_batch=True)
    held = await grab(store, len(costs))
    assert await held_units(store) == (sum(costs), len(costs))
    if after:
        await submit(store, *(new_job(cost=cost) for cost in after), is_batch=True)
    made = await exchange(store, held, limit)
    assert sum(job.cost_units for job in made.own.taken) == units
    assert await held_units(store) == (units, len(made.own.taken))
    if made.own.taken:
        await give_back(store, made.own)
    assert await held_units(store) == (0, 0)


async def test_a_part_of_the_leases_ends_and_what_is_set_aside_is_used_with_it(
    store: SqlStore,
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(20)), is_batch=True)
    held = await grab(store, 6)
    first = Claimed(held.taken[:2], held.changes[:2], held.at, held.until, has_leases=True)
    made = await exchange(store, first, 5)
    assert len(made.own.taken) == 5, "two units of ten freed, three more of what is free"
    assert await held_units(store) == (90, 9)
    await give_back(store, rest_of(held, 2))
    await give_back(store, made.own)
    assert await held_units(store) == (0, 0)


async def test_it_costs_few_round_trips(store: SqlStore) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    cache = JobClassCache()
    await submit(store, *(new_job() for _ in range(60)), is_batch=True)
    held = await grab(store, 1, cache=cache)
    trips: list[int] = []
    for _ in range(12):  # over all writers: each asks for the clock and for types now and then
        spent, made = await trips_of(store, lambda held=held: exchange(store, held, 1, cache))
        trips.append(spent)
        held = made.own
        assert len(held.taken) == 1
    assert min(trips) == 2


@pytest.mark.parametrize("release", [release_together, release_wholes])
@pytest.mark.parametrize("status", ["RETURNED", "FAILED", "SUCCEEDED"])
async def test_a_claim_sees_what_the_release_with_it_has_done(
    store: SqlStore, release: ReleaseSets[Any], status: Any
) -> None:
    """What a claim asks travels with the leases that end, before they do: a job that comes back is
    found all the same."""
    cache = JobClassCache()
    jobs = await submit(store, *(new_job(max_attempts=3) for _ in range(4)), is_batch=True)
    own = Claim("w", Wants(), 1, has_lease=True)
    held = await grab(store, 1, cache=cache)
    for _ in range(2):
        [lease] = held.leases
        ended = Release(lease.lease_id, status, proof=Proof(worker_id="w"))
        made = await exchange_items(store, [ended], own, cache, release=release)
        before, held = held, made.own
        comes_back = status == "RETURNED"
        assert (held.taken[0].job_id == before.taken[0].job_id) == comes_back
    wanted = 0 if status == "RETURNED" else 2
    assert held.taken[0].job_id == jobs[wanted]
    assert await held_units(store) == (held.taken[0].cost_units, 1)


async def test_a_claim_that_is_not_served_after_all_holds_nothing(store: SqlStore) -> None:
    cache = JobClassCache()
    await submit(store, *(new_job() for _ in range(3)), is_batch=True)
    held = await grab(store, 1, cache=cache)
    await give_back(store, held)
    lost = [Release(held.leases[0].lease_id, "FAILED")]
    own = Claim("w", Wants(), 1, has_lease=True)
    made = await exchange_items(store, lost, own, cache)
    assert not made.own.taken
    left = await grab(store, 5, cache=cache)
    assert len(left.taken) == 2
    await give_back(store, left)
    assert await held_units(store) == (0, 0)


async def test_what_was_asked_ahead_is_for_the_claim_that_was_expected(store: SqlStore) -> None:
    cache = JobClassCache()
    jobs = await submit(store, *(new_job(kind=kind) for kind in "xyxy"), is_batch=True)
    held = await grab(store, 1, cache=cache)
    items = [Release(held.leases[0].lease_id, "SUCCEEDED")]
    entries = [
        ReleaseEntry(items, own=Claim("w", Wants(job_types=frozenset("y")), 1, has_lease=True))
    ]
    for wants in (Wants(job_types=frozenset("y")), Wants(job_types=frozenset("x"))):
        await store.transact(claim_together, [Claim("w", wants, 1)], cache=cache, limits=LIMITS)

    def end_and_claim(tx: Any) -> Any:
        expect_claims(tx, [Claim("w", Wants(job_types=frozenset("x")), 1, True)], cache, LIMITS)
        serve = partial(claim_together, cache=cache, limits=LIMITS, may_gather=False)
        return release_and_claim(tx, entries, release_together, serve)

    [made] = await store.transact(end_and_claim)
    assert [job.job_id for job in made.own.taken] == [jobs[3]]


async def test_a_release_that_claims_waits_for_nobody_who_holds_the_pool(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=TOTAL) for _ in range(3)), is_batch=True)
    held = await grab(store, 1)
    async with pool_held(other), asyncio.timeout(4):  # who needed it would wait for five seconds
        made = await exchange(store, held, 1)
    assert len(made.own.taken) == 1
    assert await stands(store) == (TOTAL, 0, TOTAL)


async def test_while_units_are_kept_for_a_job_a_release_grants_nothing_past_it(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=50) for _ in range(2)), is_batch=True)
    held = await grab(store, 2)
    await submit(store, *(new_job(cost=50) for _ in range(2)), is_batch=True)

    def keep(tx: Any) -> None:
        capacity = tx.capacity.lock(TOTAL)
        kept = msgspec.structs.replace(
            capacity, reserved_units=80, reserved_for="a job", reserved_until=tx.now + 60 * SECOND
        )
        tx.capacity.write(kept)

    await other.transact(keep)
    one = Claimed(held.taken[:1], held.changes[:1], held.at, held.until, has_leases=True)
    made = await exchange(store, one, 1)
    assert not made.own.taken
    assert (await stands(store))[2] == 50


async def test_with_shares_of_addons_a_release_leaves_the_claim_to_a_commit_of_its_own(
    store: SqlStore, other: SqlStore
) -> None:
    limits = Limits(TOTAL, shares=(("a", 50),))
    await submit(store, *(new_job(cost=50) for _ in range(2)), is_batch=True)
    held = await grab(store, 1, limits)
    assert not (await exchange(store, held, 1, limits=limits)).own.taken
    assert len((await grab(store, 1, limits)).taken) == 1


async def keep_busy(service: QueueService, first: Claimed, until: asyncio.Event) -> int:
    """One worker that goes on with its own kind of jobs as long as it gets some."""
    count, held = 0, first
    while held.taken and not until.is_set():
        taken = LeasedJob(held.leases[0], held.jobs[0])
        own = Claim("busy", Wants(job_types=frozenset({"mine"})), has_lease=True)
        _, held = await service.release_and_claim(Release(taken.lease.lease_id, "SUCCEEDED"), own)
        count += 1
    return count


async def test_a_claim_of_another_instance_is_not_starved_by_units_that_go_from_lease_to_lease(
    store: SqlStore, other: SqlStore
) -> None:
    jobs: Sequence[Any] = [new_job(kind="mine", cost=TOTAL) for _ in range(6000)]
    await submit(store, *jobs, is_batch=True)
    here, there = (QueueService(one, SystemClock(), LIMITS) for one in (store, other))
    mine = Claim("busy", Wants(job_types=frozenset({"mine"})), has_lease=True)
    first, over = await here.claim(mine), asyncio.Event()
    assert len(first.taken) == 1
    await submit(other, new_job(kind="theirs", cost=TOTAL), is_batch=True)
    theirs = Claim("patient", Wants(job_types=frozenset({"theirs"})), has_lease=True)
    assert not (await there.claim(theirs)).taken

    async def wait_for_it() -> Claimed:
        while True:  # as a worker of the other instance does, whose long poll ended
            got = await there.claim(theirs, STARVED // 4)
            if got.taken:
                over.set()
                return got

    async with asyncio.timeout(20):
        busy = asyncio.create_task(keep_busy(here, first, over))
        got = await wait_for_it()
        count = await busy
    assert [job.job_type for job in got.jobs] == ["theirs"]
    assert 1 <= count < len(jobs), "there was work left"
