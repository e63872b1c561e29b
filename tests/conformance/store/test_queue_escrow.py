"""Units set aside for the connections of an instance, on every store that instances share: granted
without the pool's lock, moved to who needs them, and never more than the total."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.escrow import Draw
from ksana.engine.queue.leasing import recount
from ksana.service.queue.claims import Claim, Claimed, claim_jobs
from ksana.service.queue.class_cache import JobClassCache
from ksana.service.queue.leases import LeaseDenied
from ksana.service.queue.releases import release_compactly
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.conformance.store.test_queue_store import LIMITS, claim, lease, new_job, submit

TOTAL = LIMITS.total


@pytest.fixture
async def other(store: SqlStore, store_url: str) -> AsyncIterator[SqlStore]:
    if store.sole:
        pytest.skip("an embedded store has one process: nothing is set aside")
    opened = await open_store(store_url, SystemClock())
    yield opened
    await opened.close()


@asynccontextmanager
async def pool_held(store: SqlStore) -> AsyncIterator[None]:
    """Another transaction holds the pool meanwhile."""
    is_held, may_end = threading.Event(), threading.Event()

    def hold(tx: Any) -> None:
        tx._session.one("queue.lock_capacity")
        is_held.set()
        assert may_end.wait(20)

    holding = asyncio.ensure_future(store.transact(hold))
    await asyncio.to_thread(is_held.wait, 20)
    try:
        yield
    finally:
        may_end.set()
        await holding


async def grab(
    store: SqlStore, limit: int, limits: Limits = LIMITS, cache: JobClassCache | None = None
) -> Claimed:
    order = Claim("w", Wants(), limit, has_lease=True)
    return await store.transact(claim_jobs, order, cache or JobClassCache(), limits)


async def give_back(store: SqlStore, claimed: Claimed, count: int | None = None) -> None:
    leases = claimed.leases[:count]
    items = [Release(one.lease_id, "SUCCEEDED") for one in leases]
    answers = (await store.transact(release_compactly, items)).answers
    assert [getattr(answer, "state", answer) for answer in answers] == ["DONE"] * len(items)


def rest_of(claimed: Claimed, count: int) -> Claimed:
    """All but the first."""
    return Claimed(
        claimed.taken[count:], claimed.changes[count:], claimed.at, claimed.until, has_leases=True
    )


async def stands(store: SqlStore, total: int = TOTAL) -> tuple[int, int, int]:
    """(units out of the pool, units set aside, units of active leases), and the counter agrees."""

    def look(tx: Any) -> tuple[int, int, int]:
        standing, (leases, units) = tx.capacity.look(total), tx.capacity.sum_active()
        read = tx.capacity.read(total)
        assert (read.used, read.active) == (units, leases)
        return standing.pool.used, sum(one.units for one in standing.allotments), units

    out, aside, held = await store.read(look)
    assert out == aside + held
    return out, aside, held


@pytest.mark.spec("Q9")
async def test_a_lone_instance_holds_all_and_its_claims_leave_the_pool_alone(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(12)), is_batch=True)
    assert len((await grab(store, 2)).taken) == 2
    assert await stands(store) == (TOTAL, TOTAL - 20, 20)
    async with pool_held(other), asyncio.timeout(4):  # who needed it would wait for five seconds
        claimed = await grab(store, 3)
        await give_back(store, claimed)
    assert len(claimed.taken) == 3
    assert await stands(store) == (TOTAL, TOTAL - 20, 20)


@pytest.mark.spec("Q9")
async def test_units_are_moved_to_who_is_refused_while_another_has_some_to_spare(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(30)), is_batch=True)
    first = await grab(store, 2)
    assert len((await grab(other, 4)).taken) == 4
    assert (await stands(store))[2] == 60
    assert len((await grab(store, 9)).taken) == 4, "what is left, wherever it was set aside"
    assert await stands(store) == (TOTAL, 0, TOTAL)
    assert not (await grab(other, 1)).taken
    await give_back(other, first)  # granted by one, ended by the other
    assert await stands(store) == (TOTAL, 20, TOTAL - 20)
    assert len((await grab(store, 5)).taken) == 2
    assert await store.transact(recount, TOTAL) == (0, 0)


@pytest.mark.spec("Q9", "X4")
async def test_units_of_an_instance_that_is_gone_are_granted_by_the_others(
    store: SqlStore, other: SqlStore, store_url: str
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(30)), is_batch=True)
    gone = await open_store(store_url, SystemClock())
    held = await grab(gone, 1)
    assert await stands(store) == (TOTAL, TOTAL - 10, 10)
    await gone.close()
    assert len((await grab(store, 20)).taken) == 9
    await give_back(other, held)
    assert len((await grab(store, 20)).taken) == 1


@pytest.mark.spec("Q9")
async def test_a_claim_whose_units_were_brought_home_before_its_commit_is_decided_anew(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(30)), is_batch=True)
    await grab(store, 1)
    looked, may_go, runs = threading.Event(), threading.Event(), []

    def claim_slowly(tx: Any) -> Claimed:
        claimed = claim_jobs(tx, Claim("slow", Wants(), 6, has_lease=True), JobClassCache(), LIMITS)
        runs.append(len(claimed.taken))
        if len(runs) == 1:
            looked.set()
            assert may_go.wait(20)
        return claimed

    slow = asyncio.ensure_future(store.transact(claim_slowly))
    await asyncio.to_thread(looked.wait, 20)
    taken = len((await grab(other, 7)).taken)
    may_go.set()
    claimed = await slow
    assert runs[0] == 6 and len(runs) > 1, "it was decided by units that are gone"
    assert (taken, len(claimed.taken)) == (7, 2)
    assert await stands(store) == (TOTAL, 0, TOTAL)


@pytest.mark.spec("Q9")
@pytest.mark.parametrize(("shard", "era", "units"), [(0, 0, 1), (0, 1, 0), (1, 0, 0)])
async def test_units_are_drawn_only_as_they_were_seen(
    store: SqlStore,
    other: SqlStore,
    shard: int,
    era: int,
    units: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(30)), is_batch=True)
    await grab(store, 1)
    runs: list[int] = []
    pauses: list[float] = []

    def pause(_: float, most: float) -> float:
        pauses.append(most)
        return 0.0

    monkeypatch.setattr("ksana.store.sql.core.commit_queue.random.uniform", pause)

    def draw(tx: Any) -> None:
        runs.append(1)
        one = tx.capacity.look(TOTAL).allotments[0]
        if len(runs) == 1:
            wrong = Draw(one.shard + shard, one.era + era, one.units + units)
            tx.capacity.draw([wrong], wrong.units, 1)

    before = await stands(store)
    await store.transact(draw)
    assert len(runs) == 2, "the first run came to nothing"
    assert max(pauses) < 0.001, "who was faster has committed: there is nothing to wait for"
    assert await stands(store) == before


@pytest.mark.spec("Q2", "Q9")
async def test_who_waits_leaves_others_the_units_they_use_and_gets_those_they_do_not(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(30)), is_batch=True)
    await grab(store, 1)
    await grab(other, 1)
    assert await stands(store) == (TOTAL, TOTAL - 20, 20)
    service = QueueService(store, SystemClock(), LIMITS)
    claims = [Claim(f"w{n}", Wants(), 1, has_lease=True) for n in range(7)]
    async with asyncio.timeout(10):
        got = await asyncio.gather(*(service.claim(one, 5 * SECOND) for one in claims))
    assert [len(one.taken) for one in got] == [1] * 7
    assert (await stands(store))[2] == 90


@pytest.mark.spec("Q9")
async def test_while_units_are_kept_for_a_refused_request_nothing_is_set_aside_or_passes_it(
    store: SqlStore, other: SqlStore
) -> None:
    large, *_ = await submit(
        store, new_job(cost=90), *(new_job(cost=10) for _ in range(9)), is_batch=True
    )
    assert [job.job_id for job in await claim(store, 1)] == [large]
    held = await grab(other, 2)
    refused = await lease(store, large)
    assert isinstance(refused, LeaseDenied)
    assert refused.denial.reason == f"Capacity exceeded: used=20, requested=90, capacity={TOTAL}"
    await give_back(other, held, 1)
    for who in (store, other):
        assert not (await grab(who, 1)).taken, "the units that came free are kept"
    await give_back(other, rest_of(held, 1))
    granted = await lease(store, large)
    assert not isinstance(granted, LeaseDenied)
    assert await stands(store) == (90, 0, 90)


@pytest.mark.spec("Q9")
async def test_with_a_lower_total_nothing_is_granted_until_there_is_room_by_it(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(30)), is_batch=True)
    held = await grab(store, 6)
    lower = Limits(50)
    assert not (await grab(other, 5, lower)).taken
    await give_back(other, held, 1)
    assert not (await grab(other, 5, lower)).taken, "50 of 50 are held"
    await give_back(other, rest_of(held, 1), 2)
    assert len((await grab(other, 5, lower)).taken) == 2
    assert (await stands(store, 50))[2] == 50


@pytest.mark.spec("Q9")
async def test_an_addon_never_passes_its_share_whoever_grants(
    store: SqlStore, other: SqlStore
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(30)), is_batch=True)
    addon = (await store.read(lambda tx: tx.job_classes.list_classes()))[0].addon_id
    shared = Limits(TOTAL, shares=((addon, 30),))
    got = await asyncio.gather(*(grab((store, other)[n % 2], 2, shared) for n in range(6)))
    assert sum(len(one.taken) for one in got) == 3
    assert (await stands(store))[2] == 30


@pytest.mark.spec("Q9")
async def test_units_set_aside_elsewhere_and_copied_to_an_embedded_store_are_counted_home(
    store: SqlStore, database: Database
) -> None:
    await submit(store, new_job(cost=10))
    database.ask("UPDATE queue_capacity SET used = 30, active = 0")
    database.ask("INSERT INTO queue_allotments VALUES (5, 1, 30, 0, 1, 1)")
    await store.transact(recount, TOTAL)
    assert (await store.read(lambda tx: tx.capacity.read(TOTAL))).used == 0
    assert len((await grab(store, 1)).taken) == 1
    assert (await store.read(lambda tx: tx.capacity.read(TOTAL))).used == 10
    assert await store.transact(recount, TOTAL) == (0, 0)
