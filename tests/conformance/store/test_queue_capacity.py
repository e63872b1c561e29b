"""The one row of capacity, on every SQL store: who is refused, and that no unit goes astray."""

import asyncio

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.engine.queue.leasing import recount
from ksana.service.queue.claims import Claim, claim_jobs
from ksana.service.queue.class_cache import JobClassCache
from ksana.service.queue.leases import LeaseDenied, LeaseRequest, find_standing_denial
from ksana.service.queue.releases import release_compactly
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.test_queue_store import LIMITS, claim, lease, new_job, submit


@pytest.mark.spec("Q9")
async def test_who_asks_again_too_soon_is_told_the_same_without_a_write(store: SqlStore) -> None:
    first, second = await submit(store, new_job(cost=60), new_job(cost=60))
    await claim(store, 2)
    granted = await lease(store, first)
    denied = await lease(store, second)
    assert isinstance(denied, LeaseDenied)
    ask = LeaseRequest(second, 30, Proof(worker_id="w"))
    before = await store.read(lambda tx: tx.events.latest_id())
    told = await store.read(find_standing_denial, ask, LIMITS)
    assert isinstance(told, LeaseDenied)
    assert (told.denial, told.position) == (denied.denial, denied.position)
    assert 0 < told.retry_after_us <= denied.retry_after_us
    assert await store.read(lambda tx: tx.events.latest_id()) == before
    assert (
        await store.read(
            find_standing_denial,
            LeaseRequest(second, 30, Proof(worker_id="another")),
            LIMITS,
        )
        is None
    )
    assert (
        await store.read(
            find_standing_denial, LeaseRequest(first, 30, Proof(worker_id="w")), LIMITS
        )
        is None
    )
    await store.transact(release_compactly, [Release(granted.lease.lease_id, "SUCCEEDED")])
    assert await store.read(find_standing_denial, ask, LIMITS) is None, (
        "there is room now: decide anew"
    )


@pytest.mark.spec("Q9")
async def test_a_claim_that_looks_twice_for_jobs_that_fit_keeps_to_the_share(
    store: SqlStore,
) -> None:
    await submit(store, *(new_job(cost=10) for _ in range(8)), is_batch=True)
    shared = Limits(100, shares=(("a", 30),))
    for count in (2, 1, 0):
        order = Claim("w", Wants(), 2, has_lease=True)
        claimed = await store.transact(claim_jobs, order, JobClassCache(), shared)
        assert len(claimed.taken) == count


@pytest.mark.spec("Q9", "Q11")
async def test_units_given_and_taken_at_once_by_two_stores_add_up(
    store: SqlStore, store_url: str
) -> None:
    await submit(store, *(new_job(cost=1 + n % 5) for n in range(200)), is_batch=True)
    other = await open_store(store_url, SystemClock())

    async def work(mine: SqlStore, name: str) -> int:
        done = 0
        while True:
            order = Claim(name, Wants(), 3, has_lease=True)
            claimed = await mine.transact(claim_jobs, order, JobClassCache(), LIMITS)
            if not claimed.leases:
                return done
            items = [Release(one.lease_id, "SUCCEEDED") for one in claimed.leases]
            outcomes = (await mine.transact(release_compactly, items)).answers
            done += sum(getattr(one, "state", "") == "DONE" for one in outcomes)

    done = await asyncio.gather(*(work((store, other)[n % 2], f"w{n}") for n in range(6)))
    assert sum(done) == 200
    assert await store.transact(recount, LIMITS.total) == (0, 0)
    room = await store.read(lambda tx: tx.capacity.read(LIMITS.total))
    assert (room.used, room.active) == (0, 0)
    await other.close()
