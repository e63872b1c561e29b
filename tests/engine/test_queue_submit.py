"""Jobs as they are submitted through the service, on the virtual clock: what is entered, what is
refused and how, and who is woken."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from ksana.base.errors import ConflictError, InvalidError, NotFoundError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import Job, JobPosition, NewJob
from ksana.ports.queue.tables import JobFilter
from ksana.service.core.idempotency import IdempotentRequest, ReplayedAnswer, identify
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from tests.engine.queue_world import TOTAL, QueueWorld

pytestmark = pytest.mark.spec("Q1")

Submit = Callable[[QueueService, NewJob], Awaitable[Job]]


def once_request(key: str = "k") -> IdempotentRequest:
    return identify("queue.submit", None, key, b"{}", lambda job: job.job_id.encode())


async def submit_alone(queue: QueueService, job: NewJob) -> Job:
    return await queue.submit(job)


async def submit_once(queue: QueueService, job: NewJob) -> Job:
    return await queue.submit_once(job, once_request())


async def submit_batch(queue: QueueService, job: NewJob) -> Job:
    [made] = await queue.submit_batch([job])
    return made


WAYS = pytest.mark.parametrize("submit", [submit_alone, submit_once, submit_batch])


@WAYS
async def test_a_job_is_entered_as_it_was_sent_and_answered_as_it_is(
    queue: QueueWorld, submit: Submit
) -> None:
    now = queue.clock.now()
    new = queue.new_job(
        "addon",
        "kind",
        7,
        constraints={"gpu_required": True},
        priority="HIGH",
        payload_json="[1]",
        client_request_id="r",
        max_attempts=3,
        fairness_key="f",
    )
    made = await submit(queue.queue, new)
    assert made == Job(
        seq=made.seq,
        job_id=new.job_id,
        addon_id="addon",
        job_type="kind",
        priority="HIGH",
        cost_units=7,
        constraints_json='{"gpu_required":true}',
        payload_json="[1]",
        state="QUEUED",
        max_attempts=3,
        created_at=now,
        updated_at=now,
        position=JobPosition.READY,
        urgency=1,
        class_id=new.job_class.id,
        turn=0,
        due_at=now,
        fairness_key="f",
        client_request_id="r",
    )
    stored = await queue.job(new.job_id)
    assert stored == msgspec.structs.replace(made, seq=stored.seq)
    submitted = ("JOB_SUBMITTED", {"priority": "HIGH", "cost_units": 7})
    assert await queue.events(new.job_id) == [submitted]


@WAYS
async def test_a_job_that_costs_more_than_the_capacity_is_refused(
    queue: QueueWorld, submit: Submit
) -> None:
    with pytest.raises(InvalidError) as refused:
        await submit(queue.queue, queue.new_job(cost=TOTAL + 1))
    assert refused.value.message == (
        "'cost_units': 101 is more than the capacity; allowed: 1 to 100"
    )
    assert refused.value.extra == {"field": "cost_units"}
    assert (await submit(queue.queue, queue.new_job(cost=TOTAL))).cost_units == TOTAL


async def test_of_a_batch_the_job_that_costs_too_much_is_named(queue: QueueWorld) -> None:
    with pytest.raises(InvalidError) as refused:
        await queue.queue.submit_batch([queue.new_job(), queue.new_job(cost=101)])
    assert refused.value.message.startswith("'jobs[1].cost_units': 101 is more than")
    assert refused.value.extra == {"field": "jobs[1].cost_units"}
    assert (await queue.queue.list_jobs(JobFilter(), None, 9)).jobs == []


@WAYS
async def test_what_its_addon_has_submitted_before_is_refused_with_the_job_there_is(
    queue: QueueWorld, submit: Submit
) -> None:
    await queue.submit(client_request_id="r")
    first = (await queue.queue.list_jobs(JobFilter(), None, 9)).jobs[0]
    with pytest.raises(ConflictError) as refused:
        await submit(queue.queue, queue.new_job(client_request_id="r"))
    assert refused.value.code == "DUPLICATE_REQUEST"
    assert refused.value.message == "'a' has submitted client_request_id 'r' before"
    assert refused.value.extra == {"job": first, "index": 0, "current": {"state": "QUEUED"}}
    await submit(queue.queue, queue.new_job("other", client_request_id="r"))
    assert len((await queue.queue.list_jobs(JobFilter(), None, 9)).jobs) == 2


async def test_of_those_who_submit_together_each_is_refused_by_itself(queue: QueueWorld) -> None:
    """One transaction, and what was entered beside a duplicate stays."""
    await queue.submit(client_request_id="old")
    jobs = [
        queue.new_job(client_request_id="old"),
        queue.new_job(client_request_id="new"),
        queue.new_job(client_request_id="new"),
        queue.new_job("other", client_request_id="new"),
        queue.new_job(),
    ]
    before = queue.store.health().commits
    done = await asyncio.gather(*map(queue.queue.submit, jobs), return_exceptions=True)
    assert queue.store.health().commits == before + 1
    assert [isinstance(one, Job) for one in done] == [False, True, False, True, True]
    assert [one.extra["index"] for one in done if isinstance(one, ConflictError)] == [0, 0]
    assert isinstance(done[2], ConflictError) and done[2].extra["job"] == done[1]
    for job, one in zip(jobs, done, strict=True):
        if isinstance(one, Job):
            assert (await queue.job(job.job_id)).state == "QUEUED"
            continue
        with pytest.raises(NotFoundError, match=rf"^there is no job {job.job_id}$"):
            await queue.job(job.job_id)


async def test_only_what_was_entered_is_counted_and_known(queue: QueueWorld) -> None:
    await queue.submit(kind="old", client_request_id="r")
    refused, entered = queue.new_job(kind="x", client_request_id="r"), queue.new_job(kind="y")
    await asyncio.gather(
        queue.queue.submit(refused), queue.queue.submit(entered), return_exceptions=True
    )
    kinds = await queue.store.read(lambda tx: tx.job_classes.list_classes())
    assert {kind.job_type for kind in kinds} == {"old", "y"}
    assert (await queue.store.read(lambda tx: tx.gauges.read())).queued == 2


async def test_a_batch_that_repeats_itself_is_refused_whole(queue: QueueWorld) -> None:
    jobs = [
        queue.new_job(client_request_id=None),
        queue.new_job(client_request_id="r"),
        queue.new_job("other", client_request_id="r"),
        queue.new_job(client_request_id=None),
        queue.new_job(client_request_id="r"),
    ]
    with pytest.raises(ConflictError) as refused:
        await queue.queue.submit_batch(jobs)
    assert refused.value.code == "DUPLICATE_REQUEST"
    assert refused.value.message == "jobs[4] has the client_request_id of jobs[1]"
    assert refused.value.extra == {"index": 4}
    made = await queue.queue.submit_batch(jobs[:4])
    assert [job.job_id for job in made] == [job.job_id for job in jobs[:4]]


async def test_a_batch_with_a_job_that_was_there_names_it_and_enters_none(
    queue: QueueWorld,
) -> None:
    first = await queue.submit(client_request_id="r")
    jobs = [queue.new_job(), queue.new_job(client_request_id="r")]
    with pytest.raises(ConflictError) as refused:
        await queue.queue.submit_batch(jobs)
    assert refused.value.extra["index"] == 1
    assert refused.value.extra["job"].job_id == first.job_id
    assert len((await queue.queue.list_jobs(JobFilter(), None, 9)).jobs) == 1


@pytest.mark.spec("X21")
async def test_a_repeat_under_a_key_is_answered_and_enters_nothing(queue: QueueWorld) -> None:
    job = queue.new_job()
    await queue.queue.submit_once(job, once_request())
    with pytest.raises(ReplayedAnswer) as replayed:
        await queue.queue.submit_once(queue.new_job(), once_request())
    assert replayed.value.answer == job.job_id.encode()
    assert len((await queue.queue.list_jobs(JobFilter(), None, 9)).jobs) == 1


@WAYS
@pytest.mark.spec("Q3")
async def test_a_job_wakes_the_claim_that_takes_it_and_no_other(
    queue: QueueWorld, submit: Submit
) -> None:
    waiting = {
        kind: asyncio.create_task(
            queue.queue.claim(Claim(kind, Wants(job_types=frozenset({kind}))), MINUTE)
        )
        for kind in ("x", "y")
    }
    await queue.clock.settle()
    began = queue.store.health().commits
    new = queue.new_job(kind="x")
    await submit(queue.queue, new)
    await queue.clock.settle()
    assert [job.job_id for job in waiting["x"].result().jobs] == [new.job_id]
    assert not waiting["y"].done()
    assert queue.store.health().commits == began + 2, "the job and one claim: nobody else looked"
    waiting["y"].cancel()


@WAYS
@pytest.mark.spec("Q2", "Q3")
async def test_a_job_with_a_time_is_handed_out_at_that_very_time(
    queue: QueueWorld, submit: Submit
) -> None:
    async with queue.sweeping():
        run_at = queue.clock.now() + 3 * SECOND
        made = await submit(queue.queue, queue.new_job(run_at=run_at))
        assert (made.position, made.due_at) == (JobPosition.SCHEDULED, run_at)
        waiting = asyncio.create_task(queue.queue.claim(Claim("w", Wants()), 5 * MINUTE))
        await queue.clock.advance(3 * SECOND - 1)
        assert not waiting.done()
        await queue.clock.advance(1)
        assert [job.job_id for job in waiting.result().jobs] == [made.job_id]


async def test_of_jobs_with_times_the_first_to_come_is_waited_for(queue: QueueWorld) -> None:
    async with queue.sweeping():
        now = queue.clock.now()
        await queue.submit(run_at=now + 5 * SECOND)
        await queue.clock.settle()  # the sweep knows of this one
        times = [now + 8 * SECOND, now + 3 * SECOND, None]
        jobs = [queue.new_job(run_at=at) for at in times]
        await queue.queue.submit_batch(jobs)
        await queue.clock.advance(3 * SECOND)
        ready = await queue.store.read(lambda tx: tx.job_order.count_ready(9))
        assert ready == 2


async def test_classes_are_told_to_the_store_until_they_are_known_to_be_there(
    queue: QueueWorld,
) -> None:
    x, y = queue.new_job(kind="x"), queue.new_job(kind="y")
    assert queue.queue.new_classes([x, y, x]) == [x.job_class, y.job_class]
    await queue.queue.submit(x)
    assert queue.queue.new_classes([x, y]) == [y.job_class]
    with pytest.raises(InvalidError):
        await queue.queue.submit_batch([y, queue.new_job(cost=101)])
    assert queue.queue.new_classes([y]) == [y.job_class], "nothing of it was committed"


async def test_ids_are_unlike_and_in_the_order_of_time(queue: QueueWorld) -> None:
    first = queue.queue.new_ids(3)
    await queue.clock.advance(SECOND)
    ids = [*first, queue.queue.new_id()]
    assert len(set(ids)) == 4
    assert max(first) < ids[-1]
