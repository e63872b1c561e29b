"""Claiming while jobs abound: a second claim beside the first, within the slots, and nothing lost
or doubled by it."""

import asyncio
from typing import Any

import pytest

from ksana.client import JobContext, Worker
from tests.client.fake_queue import FakeQueue
from tests.client.test_worker import make_worker

DEEP = 3_000


class Watched:
    """A worker of many slots, and how many claims and handlers it had under way at once."""

    def __init__(self, server: FakeQueue, slots: int = 1_000) -> None:
        server.capacity = 10 * DEEP
        self.worker: Worker = make_worker(server, concurrency=slots)
        self.most_claims = self.most_asked = 0
        self._under_way: list[int] = []
        self._claim = self.worker.client.claim
        self.worker.client.claim = self.claim  # type: ignore[method-assign]
        self.worker.add_job("work", self.work)
        self.ran: list[str] = []

    async def work(self, ctx: JobContext) -> None:
        self.ran.append(ctx.job.job_id)
        await asyncio.sleep(0)

    async def claim(self, *args: Any, limit: int = 1, **options: Any) -> Any:
        self._under_way.append(limit)
        self.most_claims = max(self.most_claims, len(self._under_way))
        self.most_asked = max(self.most_asked, sum(self._under_way) + self.worker.running)
        try:
            return await self._claim(*args, limit=limit, **options)
        finally:
            self._under_way.remove(limit)


@pytest.mark.spec("Q16")
@pytest.mark.parametrize(("slots", "claims"), [(1_000, 2), (400, 2), (399, 1), (10, 1)])
async def test_while_jobs_abound_two_claims_are_under_way_within_the_slots(
    server: FakeQueue, slots: int, claims: int
) -> None:
    """Where half of the slots is worth a claim."""
    watched = Watched(server, slots)
    made = server.add(count=DEEP)
    await watched.worker.run(burst=True)
    await watched.worker.client.close()
    assert sorted(server.accepted) == sorted(watched.ran) == sorted(made)
    assert watched.most_claims == claims
    assert watched.most_asked <= slots


async def test_few_jobs_are_claimed_by_one_claim_at_a_time(server: FakeQueue) -> None:
    watched = Watched(server)
    made = server.add(count=400)
    await watched.worker.run(burst=True)
    await watched.worker.client.close()
    assert sorted(server.accepted) == sorted(made)
    assert watched.most_claims == 1


@pytest.mark.parametrize("nth", [2, 3, 4])
async def test_an_answer_lost_while_two_claims_are_under_way_loses_and_doubles_nothing(
    server: FakeQueue, nth: int
) -> None:
    watched = Watched(server)
    made = server.add(count=DEEP)
    claim, calls = watched.worker.client.claim, 0

    async def lose_the_nth(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            server.fail("claim", "lost")
        return await claim(*args, **options)

    watched.worker.client.claim = lose_the_nth  # type: ignore[method-assign]
    await watched.worker.run(burst=True)
    await watched.worker.client.close()
    assert sorted(server.accepted) == sorted(made)
    assert sorted(watched.ran) == sorted(made), "each job ran once"
    assert watched.worker.stats.adopted > 0
    assert watched.worker.stats.lost == 0


async def test_a_stop_while_two_claims_are_under_way_finishes_what_they_bring(
    server: FakeQueue,
) -> None:
    watched = Watched(server)
    server.add(count=DEEP)
    running = asyncio.create_task(watched.worker.run())
    async with asyncio.timeout(20):
        while watched.most_claims < 2:
            await asyncio.sleep(0.001)
        watched.worker.stop()
        stats = await running
    await watched.worker.client.close()
    assert stats.claimed == stats.succeeded == len(watched.ran)
    assert server.states().get("RUNNING", 0) == 0, "nothing claimed was left behind"
