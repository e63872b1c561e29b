"""A job that comes while a claim waits goes to it in the commit that enters the job."""

import asyncio
from typing import Any

import pytest

from ksana.base.errors import StoreDownError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import NewJob
from ksana.service.queue.claims import NOTHING, Claim, Claimed
from ksana.service.queue.jobs import submit_jobs
from ksana.service.queue.waiting import MOST_LOOKED_AT
from tests.engine.queue_world import QueueWorld, by, hold_commits, store_away

pytestmark = pytest.mark.spec("Q3")


@pytest.fixture(autouse=True)
async def known_class(queue: QueueWorld) -> None:
    """Jobs of this class were there before."""
    await queue.submit()
    assert (await queue.queue.claim(Claim("v", Wants()))).jobs


async def begin(
    queue: QueueWorld, wait_us: int = MINUTE, wants: Wants = Wants(), **members: Any
) -> "asyncio.Task[Claimed]":
    """A claim that has found nothing and waits."""
    claim = Claim(members.pop("worker_id", "w"), wants, **members)
    waiting = asyncio.create_task(queue.queue.claim(claim, wait_us))
    await queue.clock.settle()
    assert not waiting.done()
    return waiting


async def transactions_of(queue: QueueWorld, *jobs: NewJob) -> int:
    """How many transactions entering these, together, and all that it brought about took."""
    before = queue.store.health().transactions
    await asyncio.gather(*(queue.queue.submit(job) for job in jobs))
    await queue.clock.settle()
    return queue.store.health().transactions - before


@pytest.mark.parametrize("has_lease", [False, True])
async def test_one_transaction_enters_a_job_and_hands_it_out(
    queue: QueueWorld, has_lease: bool
) -> None:
    waiting = await begin(queue, has_lease=has_lease)
    job = queue.new_job()
    assert await transactions_of(queue, job) == 1
    assert [one.job_id for one in waiting.result().jobs] == [job.job_id]
    assert (await queue.job(job.job_id)).state == ("RUNNING" if has_lease else "CLAIMED")
    assert not queue.queue.poll.waiters


async def test_a_job_of_a_new_class_is_handed_out_a_commit_later(queue: QueueWorld) -> None:
    """Which classes there are is read as of the last commit."""
    waiting = await begin(queue)
    job = queue.new_job(kind="new")
    assert await transactions_of(queue, job) == 2
    assert [one.job_id for one in waiting.result().jobs] == [job.job_id]


async def test_the_events_of_both_stand_in_their_order(queue: QueueWorld) -> None:
    await begin(queue, has_lease=True)
    job = queue.new_job()
    await queue.queue.submit(job)
    assert [event.type for event in await queue.queue.list_events(job.job_id)] == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
    ]


async def test_jobs_that_come_together_go_to_as_many_claims(queue: QueueWorld) -> None:
    waiting = [await begin(queue, worker_id=f"w{number}") for number in range(3)]
    jobs = [queue.new_job() for _ in range(2)]
    assert await transactions_of(queue, *jobs) == 1
    got = [one.result().jobs for one in waiting if one.done()]
    assert sorted(job.job_id for [job] in got) == sorted(job.job_id for job in jobs)
    await queue.clock.advance(MINUTE)
    assert sorted(len(one.result().jobs) for one in waiting) == [0, 1, 1]


async def test_a_claim_that_was_handed_nothing_waits_on(queue: QueueWorld) -> None:
    greedy = await begin(queue, worker_id="greedy", limit=2)
    other = await begin(queue, worker_id="other", limit=2)
    jobs = [queue.new_job() for _ in range(2)]
    await transactions_of(queue, *jobs)  # each submit picks a claim, and the first takes both
    [done] = [one for one in (greedy, other) if one.done()]
    [left] = [one for one in (greedy, other) if not one.done()]
    assert len(done.result().jobs) == 2
    third = queue.new_job()
    assert await transactions_of(queue, third) == 1
    assert [one.job_id for one in left.result().jobs] == [third.job_id]


async def test_a_claim_that_would_not_take_the_job_is_left_alone(queue: QueueWorld) -> None:
    waiting = await begin(queue, SECOND, Wants(max_cost_units=1))
    job = queue.new_job(cost=2)
    assert await transactions_of(queue, job) == 1
    await queue.clock.advance(SECOND)
    assert waiting.result() == NOTHING
    assert (await queue.job(job.job_id)).state == "QUEUED"


async def test_a_job_for_later_is_handed_to_nobody(queue: QueueWorld) -> None:
    waiting = await begin(queue, SECOND)
    job = queue.new_job(run_at=queue.clock.now() + MINUTE)
    assert await transactions_of(queue, job) == 1
    await queue.clock.advance(SECOND)
    assert waiting.result() == NOTHING


async def test_the_most_urgent_job_is_handed_out_not_the_newest(queue: QueueWorld) -> None:
    """An older job may have become ready without anybody being told."""
    waiting = await begin(queue)
    urgent = queue.new_job(priority="HIGH")
    await queue.store.transact(submit_jobs, [urgent], [urgent.job_class], False)
    late = queue.new_job()
    await queue.queue.submit(late)
    await queue.clock.settle()
    assert [one.job_id for one in waiting.result().jobs] == [urgent.job_id]
    # Nobody was told of the later one's fate by mistake: it is there for the next.
    assert [one.job_id for one in (await queue.queue.claim(Claim("v", Wants()))).jobs] == [
        late.job_id
    ]


async def test_without_units_the_job_is_entered_and_the_claim_waits_on(queue: QueueWorld) -> None:
    total = queue.queue.limits.total
    await queue.submit(cost=total)
    [held] = (await queue.queue.claim(Claim("v", Wants(), 1, True))).leases
    waiting = await begin(queue, has_lease=True)
    job = await queue.submit()
    await queue.clock.settle()
    assert not waiting.done()
    assert (await queue.job(job.job_id)).state == "QUEUED"
    proof = by(token=held.lease_token)
    await queue.queue.release(Release(held.lease_id, "SUCCEEDED", proof=proof))
    await queue.clock.settle()
    assert [one.job_id for one in waiting.result().jobs] == [job.job_id]


async def test_a_submit_that_fails_lets_the_claim_wait_on(queue: QueueWorld) -> None:
    waiting = await begin(queue)
    with store_away(queue.store), pytest.raises(StoreDownError):
        await queue.queue.submit(queue.new_job())
    await queue.clock.settle()
    assert not waiting.done()
    job = queue.new_job()
    await queue.queue.submit(job)
    await queue.clock.settle()
    assert [one.job_id for one in waiting.result().jobs] == [job.job_id]


async def test_a_duplicate_hands_out_nothing_and_the_claim_waits_on(queue: QueueWorld) -> None:
    first = await queue.submit(client_request_id="r")
    assert len((await queue.queue.claim(Claim("v", Wants()))).jobs) == 1
    waiting = await begin(queue, SECOND)
    with pytest.raises(Exception, match="has submitted client_request_id"):
        await queue.submit(client_request_id="r")
    await queue.clock.advance(SECOND)
    assert waiting.result() == NOTHING
    assert (await queue.job(first.job_id)).claims == 1


async def test_a_claim_whose_time_ends_while_it_is_served_takes_the_job(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the job would be lost to everybody until the claim ran out."""
    waiting = await begin(queue, SECOND)
    go_on = hold_commits(queue.store, monkeypatch)
    job = queue.new_job()
    submitting = asyncio.create_task(queue.queue.submit(job))
    await queue.clock.advance(2 * SECOND)
    assert not waiting.done()
    go_on.set()
    await submitting
    await queue.clock.settle()
    assert [one.job_id for one in waiting.result().jobs] == [job.job_id]


async def test_who_leaves_before_the_commit_is_handed_nothing(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = await begin(queue)
    go_on = hold_commits(queue.store, monkeypatch)
    job = queue.new_job()
    submitting = asyncio.create_task(queue.queue.submit(job))
    await queue.clock.settle()
    waiting.cancel()
    await queue.clock.settle()
    go_on.set()
    await submitting
    assert (await queue.job(job.job_id)).state == "QUEUED"


async def test_a_claim_that_was_not_looked_at_is_woken(queue: QueueWorld) -> None:
    choosy = [
        await begin(queue, wants=Wants(max_cost_units=1), worker_id=f"w{n}")
        for n in range(MOST_LOOKED_AT + 5)
    ]
    eager = await begin(queue)
    job = queue.new_job(cost=2)
    await queue.queue.submit(job)
    await queue.clock.settle()
    assert [one.job_id for one in eager.result().jobs] == [job.job_id]
    for one in choosy:
        one.cancel()
