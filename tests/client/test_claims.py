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

    def __init__(self, server: FakeQueue, slots: int = 1_000, **options: Any) -> None:
        server.capacity = 10 * DEEP
        self.worker: Worker = make_worker(server, concurrency=slots, **options)
        self.most_claims = self.most_asked = self.most_running = 0
        self._under_way: list[int] = []
        self._claim = self.worker.client.claim
        self.worker.client.claim = self.claim  # type: ignore[method-assign]
        self.worker.add_job("work", self.work)
        self.ran: list[str] = []

    async def work(self, ctx: JobContext) -> None:
        self.ran.append(ctx.job.job_id)
        self.most_running = max(self.most_running, self.worker.running)
        await asyncio.sleep(0)

    async def claim(self, *args: Any, limit: int = 1, **options: Any) -> Any:
        self._under_way.append(limit)
        self.most_claims = max(self.most_claims, len(self._under_way))
        held = self.worker.running + len(self.worker.jobs.waiting)
        self.most_asked = max(self.most_asked, sum(self._under_way) + held)
        try:
            return await self._claim(*args, limit=limit, **options)
        finally:
            self._under_way.remove(limit)


@pytest.mark.spec("Q16")
@pytest.mark.parametrize(("slots", "claims"), [(1_000, 2), (50, 2), (49, 1), (10, 1)])
async def test_while_jobs_abound_two_claims_are_under_way_within_the_slots(
    server: FakeQueue, slots: int, claims: int
) -> None:
    """Where half of the slots is worth a claim."""
    watched = Watched(server, slots, ahead=0)
    made = server.add(count=DEEP)
    await watched.worker.run(burst=True)
    await watched.worker.client.close()
    assert sorted(server.accepted) == sorted(watched.ran) == sorted(made)
    assert watched.most_claims == claims
    assert watched.most_asked <= slots


@pytest.mark.spec("Q16")
async def test_short_jobs_with_an_attempt_to_spare_are_taken_ahead(server: FakeQueue) -> None:
    watched = Watched(server, 4)
    made = server.add(count=DEEP, max_attempts=2)
    await watched.worker.run(burst=True)
    await watched.worker.client.close()
    assert sorted(server.accepted) == sorted(watched.ran) == sorted(made)
    claims = [body for path, body in server.calls if path.endswith("/claim")]
    assert max(body.get("ahead", 0) for body in claims) > 4
    assert {
        body["wait_sec"] for body in claims if body.get("ahead") and "wait_sec" in body
    } == set()
    assert {job["attempts"] for job in server.jobs.values()} == {1}
    assert watched.most_running <= 4


@pytest.mark.spec("Q16")
async def test_a_worker_that_takes_none_ahead_holds_no_more_than_its_slots(
    server: FakeQueue,
) -> None:
    watched = Watched(server, 4, ahead=0)
    made = server.add(count=300, max_attempts=2)
    await watched.worker.run(burst=True)
    await watched.worker.client.close()
    assert sorted(server.accepted) == sorted(made)
    assert watched.most_asked <= 4
    assert not any("ahead" in body for _, body in server.calls)


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
    made = server.add(count=DEEP, max_attempts=2)
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
