"""Workers that ask for a lease again too soon, on the virtual clock: they are answered by reading
alone, as long as nothing has changed."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, InvalidError
from ksana.base.instant import SECOND
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.jobs import Job, Lease, LeasedJob
from ksana.service.queue.jobs import Report
from ksana.service.queue.leases import LeaseDenied, LeaseRequest, find_standing_denial
from tests.engine.queue_world import QueueWorld, by

W = by("w")


async def ask(queue: QueueWorld, job_id: str, proof: Proof = W, ttl_sec: float = 30) -> Any:
    return await queue.queue.request_lease(job_id, ttl_sec, proof)


async def granted(queue: QueueWorld, **members: Any) -> LeasedJob:
    answer = await ask(queue, (await queue.claimed(**members)).job_id)
    assert isinstance(answer, LeasedJob)
    return answer


async def denied(queue: QueueWorld, **members: Any) -> LeaseDenied:
    answer = await ask(queue, (await queue.claimed(**members)).job_id)
    assert isinstance(answer, LeaseDenied)
    return answer


async def give_back(queue: QueueWorld, lease: Lease, status: str = "SUCCEEDED") -> None:
    await queue.queue.release(Release(lease.lease_id, status, proof=by(token=lease.lease_token)))


def request_of(denial: LeaseDenied, **members: Any) -> LeaseRequest:
    given = {"job_id": denial.job.job_id, "ttl_sec": 30, "proof": W}
    return LeaseRequest(**given | members)


async def look(queue: QueueWorld, request: LeaseRequest) -> LeaseDenied | None:
    return await queue.store.read(find_standing_denial, request, queue.queue.limits)


@pytest.mark.spec("Q9")
async def test_who_asks_again_too_soon_is_answered_the_same_by_reading_alone(
    queue: QueueWorld,
) -> None:
    await granted(queue, cost=100)
    await denied(queue, cost=5)
    before = await denied(queue, cost=6)
    await queue.clock.advance(3 * SECOND)
    rest = before.retry_after_us - 3 * SECOND
    expected = msgspec.structs.replace(before, retry_after_us=rest)
    assert expected.position == 2
    assert await look(queue, request_of(before)) == expected
    queue.store.sole = False
    commits = queue.store.health().commits
    assert await ask(queue, before.job.job_id) == expected
    assert queue.store.health().commits == commits
    queue.store.sole = True
    assert (await ask(queue, before.job.job_id)).retry_after_us == before.retry_after_us
    assert queue.store.health().commits == commits + 1


async def test_a_request_that_contradicts_the_job_is_refused_by_reading_too(
    queue: QueueWorld,
) -> None:
    await granted(queue, cost=100)
    before = await denied(queue)
    with pytest.raises(InvalidError):
        await look(queue, request_of(before, repeated=(("cost_units", 9),)))


async def its_time_has_come(queue: QueueWorld, before: LeaseDenied) -> None:
    await queue.clock.advance(before.retry_after_us)


async def units_are_free(queue: QueueWorld, before: LeaseDenied) -> None:
    await give_back(queue, before.holders[0])


async def it_is_cancelled(queue: QueueWorld, before: LeaseDenied) -> None:
    await queue.queue.cancel(before.job.job_id, None)


async def the_first_holder_ran_out(queue: QueueWorld, before: LeaseDenied) -> None:
    # Its time is a second off as a whole second: the lease ends a moment before.
    assert before.holders[0].expires_at < (before.job.next_retry_at or 0)
    await queue.clock.advance(before.holders[0].expires_at - queue.clock.now())


@pytest.mark.spec("Q9")
@pytest.mark.parametrize(
    "change", [its_time_has_come, units_are_free, it_is_cancelled, the_first_holder_ran_out]
)
async def test_what_has_changed_is_decided_anew(queue: QueueWorld, change: Any) -> None:
    await granted(queue, cost=100)
    job = await queue.claimed()
    await queue.clock.advance(25 * SECOND + SECOND // 2)
    before = await ask(queue, job.job_id)
    assert await look(queue, request_of(before)) is not None
    await change(queue, before)
    assert await look(queue, request_of(before)) is None


async def test_who_cannot_prove_that_it_waits_is_decided_anew(queue: QueueWorld) -> None:
    await granted(queue, cost=100)
    before = await denied(queue)
    assert await look(queue, request_of(before, proof=by("x"))) is None
    assert await look(queue, request_of(before, job_id="none")) is None
    other = await queue.claimed()
    assert await look(queue, request_of(before, job_id=other.job_id)) is None


async def test_a_job_that_reported_itself_pending_has_no_refusal_to_be_told_again(
    queue: QueueWorld,
) -> None:
    await granted(queue, cost=100)
    job: Job = await queue.claimed()
    await queue.queue.report(Report(job.job_id, "LEASE_PENDING", proof=W))
    request = LeaseRequest(job.job_id, 30, W)
    assert await look(queue, request) is None
    with pytest.raises(ConflictError):
        await ask(queue, job.job_id, by("x"))


@pytest.mark.spec("Q9")
async def test_when_its_time_has_come_it_is_decided_anew_though_nobody_has_left(
    queue: QueueWorld,
) -> None:
    await queue.running(cost=100, ttl_sec=600)
    before = await denied(queue)
    await queue.clock.advance(before.retry_after_us - 1)
    assert await look(queue, request_of(before)) is not None
    await queue.clock.advance(1)
    assert await look(queue, request_of(before)) is None


@pytest.mark.spec("Q9", "Q12")
async def test_when_its_claim_has_run_out_it_is_decided_anew(queue: QueueWorld) -> None:
    queue.queue.limits = Limits(100, claim_ttl_us=2 * SECOND)
    await queue.running(cost=100, ttl_sec=600)
    before = await denied(queue)
    await queue.queue.report(Report(before.job.job_id, note="still here", proof=W))
    await queue.clock.advance(2 * SECOND - 1)
    assert await look(queue, request_of(before)) is not None
    await queue.clock.advance(1)
    assert await look(queue, request_of(before)) is None


@pytest.mark.spec("Q9")
async def test_the_first_holder_to_run_out_says_when_to_ask_again(queue: QueueWorld) -> None:
    await queue.running(cost=50, ttl_sec=600)
    await queue.running(cost=30, ttl_sec=3.5)
    before = await denied(queue, cost=60)
    assert before.retry_after_us == 4 * SECOND
    await queue.clock.advance(3 * SECOND + SECOND // 2 - 1)
    assert await look(queue, request_of(before)) is not None
    await queue.clock.advance(1)
    assert await look(queue, request_of(before)) is None
