"""What wakes a claim that waits: a job that it takes; free units only if it got none for lack of
them."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ksana.base.clock import Clock, SystemClock, VirtualClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.engine.core.long_poll import LongPoll
from ksana.engine.queue.claims import FREE_UNITS, LOOK_AGAIN, ClaimWaiter
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue.claims import Claim, Claimed, claim_jobs
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.test_round_trips import CLASS, new_jobs

CLAIM = Claim("w", Wants(CLASS.addon_id), 1, True, 30.0)


class StillClock(SystemClock):
    """Nobody has looked long ago."""

    def monotonic(self) -> int:
        return 0


class Watched(QueueService):
    """A queue that counts the claims it tries."""

    def __init__(self, store: SqlStore, clock: Clock, limits: Limits) -> None:
        super().__init__(store, clock, limits)
        self.tried = 0
        claim, self._claims.enter = self._claims.enter, self._claim_and_count
        self._claim_uncounted = claim

    def _claim_and_count(self, tx: QueueTx, claims: Sequence[Claim]) -> list[Claimed]:
        self.tried += len(claims)
        return self._claim_uncounted(tx, claims)


async def run_one(store: SqlStore, total: int) -> tuple[Watched, Release]:
    """A queue of which one job runs, and what ends that."""
    service = Watched(store, StillClock(), Limits(total))
    await service.submit_batch(new_jobs(1))
    claimed = await service.claim(CLAIM)
    return service, Release(claimed.leases[0].lease_id, "SUCCEEDED")


async def begin_to_wait(service: Watched) -> "asyncio.Task[Claimed]":
    tried = service.tried
    waiting = asyncio.create_task(service.claim(CLAIM, 20 * SECOND))
    await until(lambda: service.tried > tried)
    return waiting


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.spec("Q2")
async def test_a_claim_that_found_no_job_is_not_woken_by_units_but_by_a_job(
    store: SqlStore,
) -> None:
    service, release = await run_one(store, 10)
    waiting = await begin_to_wait(service)
    tried = service.tried
    await service.release(release)
    for _ in range(3):  # each goes behind whatever was woken before it
        assert not (await service.claim(CLAIM)).taken
    assert service.tried == tried + 3
    assert not waiting.done()
    await service.submit_batch(new_jobs(1))
    async with asyncio.timeout(5):
        assert (await waiting).taken


@pytest.mark.spec("Q2", "Q9")
async def test_a_claim_that_lacked_units_is_woken_when_some_are_free(store: SqlStore) -> None:
    service, release = await run_one(store, 1)
    await service.submit_batch(new_jobs(1))
    waiting = await begin_to_wait(service)
    await service.release(release)
    async with asyncio.timeout(5):
        assert (await waiting).taken


@pytest.mark.spec("Q2")
async def test_units_that_become_free_while_a_claim_tries_are_not_missed() -> None:
    clock = VirtualClock()

    async def read_mark() -> int:
        return 0

    poll: Any = LongPoll(clock, read_mark, lambda: False)
    with ClaimWaiter(poll, Wants(), clock) as waiter:
        assert isinstance(waiter, ClaimWaiter)
        poll.notify((FREE_UNITS,))
        waiter.end_try(is_short=False)
        assert not waiter.came.is_set()
        waiter.begin_try()
        poll.notify((FREE_UNITS,))
        assert not waiter.came.is_set()
        waiter.end_try(is_short=True)
        assert waiter.came.is_set()
        waiter.came.clear()
        poll.notify((FREE_UNITS,))
        assert waiter.came.is_set()
        waiter.came.clear()
        waiter.begin_try()
        waiter.end_try(is_short=False)
        await clock.advance(LOOK_AGAIN - MILLISECOND)
        poll.notify((FREE_UNITS,))
        assert not waiter.came.is_set()
        await clock.advance(MILLISECOND)
        poll.notify((FREE_UNITS,))
        assert waiter.came.is_set()


@pytest.mark.spec("Q2", "Q9")
async def test_a_claim_that_is_short_of_units_does_not_hide_jobs_from_others(
    store: SqlStore,
) -> None:
    service, release = await run_one(store, 1)
    await service.submit_batch(new_jobs(1))
    for _ in range(2):
        claimed = await service.claim(CLAIM)
        assert not claimed.taken and claimed.is_short
    held: list[int] = []

    def try_once(tx: Any) -> None:
        take = tx.job_order.take_ready

        def count(*args: Any) -> Any:
            held.append(1)
            return take(*args)

        tx.job_order.take_ready = count
        tx.job_order.open_claim = count
        assert claim_jobs(tx, CLAIM, service.classes, service.limits).is_short

    await store.transact(try_once)
    assert not held, "no job was held while no unit is free"
    await service.release(release)
    assert (await service.claim(CLAIM)).taken


@pytest.mark.spec("Q2")
async def test_a_job_is_entered_and_handed_to_a_claim_that_waits_in_one_commit(
    store: SqlStore,
) -> None:
    service, _ = await run_one(store, 10)
    waiting = await begin_to_wait(service)
    await until(lambda: any(getattr(one, "is_idle", False) for one in service.poll.waiters))
    [new] = new_jobs(1)
    before = store.health()
    job = await service.submit(new)
    async with asyncio.timeout(5):
        claimed = await waiting
    after = store.health()
    assert [one.job_id for one in claimed.taken] == [job.job_id]
    assert (after.commits - before.commits, after.transactions - before.transactions) == (1, 1)
    assert [event.type for event in await service.list_events(job.job_id)] == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
    ]


@pytest.mark.spec("Q2")
async def test_the_worker_that_a_job_is_handed_to_is_answered_before_who_submitted_it(
    store: SqlStore,
) -> None:
    service, _ = await run_one(store, 10)
    waiting = await begin_to_wait(service)
    await until(lambda: any(getattr(one, "is_idle", False) for one in service.poll.waiters))
    order: list[str] = []
    waiting.add_done_callback(lambda _: order.append("worker"))
    submitting = asyncio.ensure_future(service.submit(new_jobs(1)[0]))
    submitting.add_done_callback(lambda _: order.append("caller"))
    async with asyncio.timeout(5):
        await asyncio.gather(waiting, submitting)
    assert order == ["worker", "caller"]


@pytest.mark.spec("Q2", "Q9")
async def test_many_jobs_and_claims_that_wait_come_together_one_for_one(store: SqlStore) -> None:
    """Submits and claims at random, two of each at a time at least: no job goes to two, none to
    nobody while one waits, and what is used is what is held."""
    service = Watched(store, SystemClock(), Limits(1_000))
    await service.submit_batch(new_jobs(1))
    await service.claim(CLAIM)
    jobs, taken = new_jobs(60), []

    async def work() -> None:
        while len(taken) < len(jobs):
            taken.extend((await service.claim(CLAIM, SECOND // 4)).taken)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(work())
        for start in range(0, len(jobs), 5):
            await asyncio.gather(*(service.submit(job) for job in jobs[start : start + 5]))
    assert sorted(job.job_id for job in taken) == sorted(job.job_id for job in jobs)
    capacity = await store.read(lambda tx: tx.capacity.read(1_000))
    assert (capacity.used, capacity.active) == (len(jobs) + 1, len(jobs) + 1)


@pytest.mark.spec("Q2", "Q9")
@pytest.mark.parametrize("limits", [Limits(10), Limits(10, shares=((CLASS.addon_id, 5),))])
async def test_a_submit_does_not_wait_for_a_capacity_that_another_instance_holds(
    store: SqlStore, store_url: str, limits: Limits
) -> None:
    if store.sole:
        pytest.skip("this store admits one server only")
    service = Watched(store, StillClock(), limits)
    await service.submit_batch(new_jobs(1))
    assert (await service.claim(Claim("w", Wants()))).taken  # the class is known, no units are ours
    waiting = await begin_to_wait(service)
    await until(lambda: any(getattr(one, "is_idle", False) for one in service.poll.waiters))
    frozen = await open_store(store_url, SystemClock())
    is_held, go_on = threading.Event(), threading.Event()

    def hold(tx: QueueTx) -> None:
        tx.capacity.lock(limits.total)
        is_held.set()
        go_on.wait(20)

    holding = asyncio.ensure_future(frozen.transact(hold))
    try:
        assert await asyncio.to_thread(is_held.wait, 10)
        async with asyncio.timeout(4):  # less than a statement waits for a lock
            job = await service.submit(new_jobs(1)[0])
        assert (await service.get_job(job.job_id)).state == "QUEUED"
        assert not waiting.done()
    finally:
        go_on.set()
        await holding
        await frozen.close()
    async with asyncio.timeout(15):
        assert [one.job_id for one in (await waiting).taken] == [job.job_id]
