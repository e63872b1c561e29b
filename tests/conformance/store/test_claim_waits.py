"""What wakes a claim that waits: a job that it takes; free units only if it got none for lack of
them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ksana.base.clock import SystemClock, VirtualClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.engine.core.long_poll import LongPoll
from ksana.engine.queue.claims import FREE_UNITS, LOOK_AGAIN, ClaimWaiter
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue.claims import Claim, Claimed, claim_jobs
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore
from tests.conformance.store.test_round_trips import CLASS, new_jobs

CLAIM = Claim("w", Wants(CLASS.addon_id), 1, True, 30.0)


class StillClock(SystemClock):
    """Nobody has looked long ago."""

    def monotonic(self) -> int:
        return 0


class Watched(QueueService):
    """A queue that counts the claims it tries."""

    tried = 0

    def _claim_together(self, tx: QueueTx, claims: Sequence[Claim]) -> list[Claimed]:
        self.tried += len(claims)
        return super()._claim_together(tx, claims)


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
