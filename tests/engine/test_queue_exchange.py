"""Leases that end and claims that are served in the same commit."""

import asyncio
from typing import Any

import pytest

from ksana.base.errors import KsanaError, StoreDownError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import Job, LeasedJob
from ksana.service.queue.claims import NOTHING, Claim, Claimed
from ksana.service.queue.exchange import ReleaseEntry
from ksana.service.queue.waiting import MOST_LOOKED_AT, pick_short
from tests.engine.queue_world import TOTAL, QueueWorld, by, hold_commits, release, store_away

pytestmark = pytest.mark.spec("Q9", "Q11")

LEASED = {"has_lease": True, "ttl_sec": 30}


async def fill(queue: QueueWorld, **members: Any) -> LeasedJob:
    """A job that runs and holds every unit."""
    return await queue.running(cost=TOTAL, **members)


async def begin(
    queue: QueueWorld, worker: str = "w", wants: Wants = Wants(), wait_us: int = MINUTE
) -> "asyncio.Task[Claimed]":
    """A claim with lease that has got nothing and waits."""
    claim = Claim(worker, wants, **LEASED)
    waiting = asyncio.create_task(queue.queue.claim(claim, wait_us))
    await queue.clock.settle()
    assert not waiting.done()
    return waiting


async def transactions_of(queue: QueueWorld, work: Any) -> tuple[int, Any]:
    """How many transactions this and all that it brought about took."""
    before = queue.store.health().transactions
    made = await work
    await queue.clock.settle()
    return queue.store.health().transactions - before, made


def ids(jobs: list[Job]) -> list[str]:
    return [job.job_id for job in jobs]


async def test_one_transaction_ends_a_lease_and_begins_the_next(queue: QueueWorld) -> None:
    held = await fill(queue)
    after = await queue.submit(cost=TOTAL)
    own = Claim("w", Wants(), **LEASED)
    spent, (ended, claimed) = await transactions_of(
        queue, queue.queue.release_and_claim(release(held), own)
    )
    assert spent == 1
    assert (ended.job.state, ids(claimed.jobs)) == ("DONE", [after.job_id])
    assert (await queue.job(after.job_id)).state == "RUNNING"
    assert await queue.used() == TOTAL


async def test_what_is_claimed_runs_out_like_any_other(queue: QueueWorld) -> None:
    held = await fill(queue)
    after = await queue.submit(cost=TOTAL)
    async with queue.sweeping():
        own = Claim("w", Wants(), **LEASED)
        await queue.queue.release_and_claim(release(held), own)
        await queue.clock.advance(31 * SECOND)
    assert (await queue.job(after.job_id)).state == "TIMEOUT"
    assert await queue.used() == 0


async def test_one_transaction_ends_a_lease_and_serves_a_claim_that_waits_for_its_units(
    queue: QueueWorld,
) -> None:
    held = await fill(queue)
    after = await queue.submit(cost=TOTAL)
    waiting = await begin(queue)
    spent, _ = await transactions_of(queue, queue.queue.release(release(held)))
    assert spent == 1
    assert ids(waiting.result().jobs) == [after.job_id]
    assert await queue.used() == TOTAL


async def test_a_lost_lease_claims_nothing(queue: QueueWorld) -> None:
    held = await queue.running()
    after = await queue.submit()
    own = Claim("w", Wants(), **LEASED)
    stale = release(held, proof=by(token=1))
    with pytest.raises(KsanaError, match="lease"):
        await queue.queue.release_and_claim(stale, own)
    answers, claimed = await queue.queue.release_batch_and_claim([stale], own)
    assert isinstance(answers[0], KsanaError) and claimed == NOTHING
    assert (await queue.job(after.job_id)).state == "QUEUED"
    answers, claimed = await queue.queue.release_batch_and_claim([stale, release(held)], own)
    assert ids(claimed.jobs) == [after.job_id], "one of two is enough"


async def test_who_has_left_claims_nothing_with_its_release(queue: QueueWorld) -> None:
    held = await queue.running()
    after = await queue.submit()
    own = Claim("w", Wants(), **LEASED)
    ended, claimed = await queue.queue.release_and_claim(release(held), own, lambda: True)
    assert (ended.job.state, claimed) == ("DONE", NOTHING)
    assert (await queue.job(after.job_id)).state == "QUEUED"


async def test_a_claim_without_lease_goes_with_a_release_too(queue: QueueWorld) -> None:
    held = await fill(queue)
    after = await queue.submit(cost=TOTAL)
    _, claimed = await queue.queue.release_and_claim(release(held), Claim("w", Wants()))
    assert (ids(claimed.jobs), claimed.leases) == ([after.job_id], [])
    assert (await queue.job(after.job_id)).state == "CLAIMED"
    assert await queue.used() == 0


async def test_a_job_that_is_queued_again_by_its_release_may_be_claimed_with_it(
    queue: QueueWorld,
) -> None:
    held = await queue.running(max_attempts=2)
    own = Claim("v", Wants(), **LEASED)
    item = release(held, "RETURNED")
    _, claimed = await queue.queue.release_and_claim(item, own)
    assert ids(claimed.jobs) == [held.job.job_id]
    assert claimed.leases[0].lease_id != held.lease.lease_id
    assert await queue.used() == 10


async def test_a_large_job_that_does_not_fit_into_what_is_freed_is_not_begun(
    queue: QueueWorld,
) -> None:
    small = await queue.running(cost=40)
    await queue.running("v", cost=60)
    large = await queue.submit(cost=41)
    own = Claim("w", Wants(), **LEASED)
    _, claimed = await queue.queue.release_and_claim(release(small), own)
    assert not claimed.taken
    assert (await queue.job(large.job_id)).state == "QUEUED"
    assert await queue.used() == 60


async def test_others_who_want_something_else_come_first_and_those_who_want_the_same_last(
    queue: QueueWorld,
) -> None:
    held = await fill(queue, kind="t")
    mine, other = Wants(job_types=frozenset({"t"})), Wants(job_types=frozenset({"u"}))
    of_other = await queue.submit(kind="u", cost=TOTAL)
    of_mine = await queue.submit(kind="t", cost=TOTAL)
    alike, different = await begin(queue, "x", mine), await begin(queue, "y", other)
    own = Claim("w", mine, **LEASED)
    _, claimed = await queue.queue.release_and_claim(release(held), own)
    await queue.clock.settle()
    assert not claimed.taken
    assert ids(different.result().jobs) == [of_other.job_id]
    taken = LeasedJob(different.result().leases[0], different.result().jobs[0])
    _, claimed = await queue.queue.release_and_claim(release(taken), own)
    await queue.clock.settle()
    assert ids(claimed.jobs) == [of_mine.job_id]
    assert not alike.done()
    alike.cancel()


async def test_claims_are_served_in_the_order_in_which_they_came(queue: QueueWorld) -> None:
    held = [await queue.running(cost=50) for _ in range(2)]
    jobs = [await queue.submit(cost=50) for _ in range(3)]
    waiting = [await begin(queue, f"w{number}") for number in range(3)]
    await asyncio.gather(*(queue.queue.release(release(one)) for one in held))
    await queue.clock.settle()
    assert [one.done() for one in waiting] == [True, True, False]
    assert [ids(one.result().jobs) for one in waiting[:2]] == [[job.job_id] for job in jobs[:2]]
    waiting[2].cancel()


async def test_a_claim_that_was_not_looked_at_is_woken_by_units_that_are_left(
    queue: QueueWorld,
) -> None:
    held = await fill(queue)
    await queue.submit(kind="other", cost=1)
    idle = [
        await begin(queue, f"w{number}", Wants(job_types=frozenset({"none"})))
        for number in range(MOST_LOOKED_AT)
    ]
    waiting = await begin(queue, "last")
    await queue.queue.release(release(held))
    await queue.clock.settle()
    assert len(waiting.result().jobs) == 1
    for one in idle:
        one.cancel()


async def test_who_leaves_before_the_commit_leaves_the_units_to_others(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await fill(queue)
    after = await queue.submit(cost=TOTAL)
    waiting = await begin(queue)
    go_on = hold_commits(queue.store, monkeypatch)
    releasing = asyncio.create_task(queue.queue.release(release(held)))
    await queue.clock.settle()
    waiting.cancel()
    await queue.clock.settle()
    go_on.set()
    await releasing
    assert (await queue.job(after.job_id)).state == "QUEUED"
    assert await queue.used() == 0


async def test_a_release_that_fails_lets_the_claim_wait_on(queue: QueueWorld) -> None:
    held = await fill(queue)
    after = await queue.submit(cost=TOTAL)
    waiting = await begin(queue)
    with store_away(queue.store), pytest.raises(StoreDownError):
        await queue.queue.release(release(held))
    await queue.clock.settle()
    assert not waiting.done()
    await queue.queue.release(release(held))
    await queue.clock.settle()
    assert ids(waiting.result().jobs) == [after.job_id]


async def test_a_claim_with_a_release_wakes_nobody_for_units_that_are_gone(
    queue: QueueWorld,
) -> None:
    """Those who waited would look in vain, all of them, at every release."""
    held = await fill(queue)
    jobs = [await queue.submit(cost=TOTAL) for _ in range(4)]
    waiting = [await begin(queue, f"w{number}") for number in range(3)]
    own = Claim("w", Wants(), **LEASED)
    for job in jobs:
        spent, (_, claimed) = await transactions_of(
            queue, queue.queue.release_and_claim(release(held), own)
        )
        assert spent == 1
        assert ids(claimed.jobs) == [job.job_id]
        held = LeasedJob(claimed.leases[0], claimed.jobs[0])
    for one in waiting:
        one.cancel()


async def test_a_release_serves_no_more_than_a_set_has_room_for(queue: QueueWorld) -> None:
    """Each of a thousand claims may want 500 jobs: all of them would be read to begin a few."""
    held = [await queue.running(cost=50) for _ in range(2)]
    await queue.submit(cost=50)
    claims = [Claim(f"w{number}", Wants(), 300, **LEASED) for number in range(3)]
    waiting = [asyncio.create_task(queue.queue.claim(claim, MINUTE)) for claim in claims]
    await queue.clock.settle()
    picked = pick_short(queue.queue.poll, 3, None)
    assert [one.claim.worker_id for one in picked] == ["w0"]
    entry = ReleaseEntry([release(one) for one in held], picked, claims[2])
    assert entry.weight == 2 + 300 + 300
    for one in picked:
        one.hand(NOTHING)
    for task in waiting:
        task.cancel()
