"""Jobs that runs wait for and dead jobs that are replayed, through the queue's service on the
virtual clock."""

import asyncio
from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.dead_letters import LetterFilter
from ksana.domain.handover import HandedEnd, HandedJob, job_id_of, request_id_of
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import Job
from ksana.ports.handover import QueueOrder
from ksana.ports.queue.tables import JobFilter
from ksana.service.core.dead_letters import DeadLetterService, Operator, ReplayedLetter
from ksana.service.queue.claims import Claim
from ksana.service.queue.dead_letters import make_section, repeat_job, replay_jobs
from ksana.service.queue.handover import QueueHandover
from tests.engine.queue_world import QueueWorld, by

UID = "0123456789abcdef" * 2
WHO = Operator("ops", "request")
GPU = Wants(capabilities=(("gpu_available", True),))


def an_order(attempt: int = 1, **members: Any) -> QueueOrder:
    given: dict[str, Any] = {
        "job_id": job_id_of(UID, attempt),
        "request_id": request_id_of(UID, attempt),
        "addon_id": "etl",
        "job_type": "nightly",
        "cost_units": 7,
        "priority": "HIGH",
        "constraints_json": '{"gpu_required":true}',
        "payload_json": "[1]",
        "max_attempts": 3,
        "fairness_key": "f",
    }
    return QueueOrder(**given | members)


async def hand_over(queue: QueueWorld, *orders: QueueOrder) -> QueueHandover:
    handover = QueueHandover(queue.queue)
    await queue.store.transact(handover.submit, orders)
    handover.submitted(orders)
    return handover


async def find(queue: QueueWorld, handover: QueueHandover, job_id: str) -> HandedJob | None:
    found: dict[str, HandedJob] = await queue.store.read(handover.find_jobs, [job_id, "none"])
    return found.get(job_id)


# Jobs for runs


@pytest.mark.parametrize(
    ("cost", "fault"),
    [(100, None), (101, "101 units are more than the capacity; allowed: 1 to 100")],
)
def test_a_job_that_could_never_run_is_known_before(
    cost: int, fault: str | None, queue: QueueWorld
) -> None:
    assert QueueHandover(queue.queue).find_fault("etl", cost) == fault


async def test_an_order_becomes_a_job_that_wakes_who_takes_it(queue: QueueWorld) -> None:
    waiting = asyncio.create_task(queue.queue.claim(Claim("w", GPU), MINUTE))
    await queue.clock.settle()
    order = an_order()
    await hand_over(queue, order)
    await queue.clock.settle()
    [job] = waiting.result().jobs
    assert (job.job_id, job.client_request_id) == (order.job_id, order.request_id)
    assert (job.addon_id, job.job_type, job.cost_units) == ("etl", "nightly", 7)
    assert (job.priority, job.constraints_json, job.payload_json) == (
        "HIGH",
        '{"gpu_required":true}',
        "[1]",
    )
    assert (job.max_attempts, job.fairness_key, job.run_at) == (3, "f", None)


async def test_an_order_that_was_there_is_known_and_refused_with_all_beside_it(
    queue: QueueWorld,
) -> None:
    handover = await hand_over(queue, an_order())
    taken = await queue.store.read(handover.find_conflict, an_order(), [])
    assert taken is not None and "has a job with the client_request_id" in taken
    for order in (an_order(2), an_order(addon_id="other")):
        assert await queue.store.read(handover.find_conflict, order, []) is None
    orders = [an_order(2), an_order(job_id=job_id_of(UID, 9))]
    with pytest.raises(ConflictError) as refused:
        await queue.store.transact(handover.submit, orders)
    assert refused.value.code == "DUPLICATE_REQUEST"
    assert len((await queue.queue.list_jobs(JobFilter(), None, 9)).jobs) == 1


async def test_an_order_of_one_class_too_many_is_told_from_those_beside_it(
    queue: QueueWorld,
) -> None:
    handover = await hand_over(queue, an_order())
    queue.queue.limits = Limits(100, classes=2)
    known, new, more = (an_order(2 + n, cost_units=7 + n) for n in range(3))

    async def conflict(order: QueueOrder, *beside: QueueOrder) -> str | None:
        found: str | None = await queue.store.read(handover.find_conflict, order, beside)
        return found

    assert await conflict(new, known) is None
    assert "2 classes" in (await conflict(more, known, new) or "")
    assert await conflict(known, new) is None
    with pytest.raises(ConflictError) as refused:
        await queue.store.transact(handover.submit, [known, new, more])
    assert refused.value.code == "QUEUE_FULL"


async def test_a_run_sees_its_job_as_it_goes_on(queue: QueueWorld) -> None:
    order, now = an_order(), queue.clock.now()
    handover = await hand_over(queue, order)
    waiting = HandedJob(order.job_id, order.request_id, "QUEUED", "[1]", now)
    assert await find(queue, handover, order.job_id) == waiting
    await queue.claim(wants=GPU, has_lease=True)
    assert await find(queue, handover, order.job_id) == msgspec.structs.replace(
        waiting, state="RUNNING", has_begun=True
    )


async def end(queue: QueueWorld, status: str, **said: Any) -> None:
    taken = await queue.claim(wants=GPU, has_lease=True)
    proof = by(token=taken.leases[0].lease_token)
    await queue.queue.release(Release(taken.leases[0].lease_id, status, proof=proof, **said))


SAID = {"error": "x", "result_json": "[2]"}
ENDS = [
    ("SUCCEEDED", 3, SAID, HandedEnd("done", None, "[2]")),
    ("FAILED", 1, SAID, HandedEnd("failed", "x", "[2]")),
    ("FAILED", 3, SAID | {"may_retry": False}, HandedEnd("gave_up", "x", "[2]")),
    ("TIMEOUT", 3, SAID, HandedEnd("timeout", "x", "[2]")),
    ("CANCELED", 3, SAID, HandedEnd("canceled", None, "[2]")),
]


@pytest.mark.parametrize(("status", "attempts", "said", "ended"), ENDS)
async def test_a_run_is_told_how_its_job_ended(
    queue: QueueWorld, status: str, attempts: int, said: dict[str, Any], ended: HandedEnd
) -> None:
    order = an_order(max_attempts=attempts)
    handover = await hand_over(queue, order)
    await queue.clock.advance(SECOND)
    await end(queue, status, **said)
    job = await find(queue, handover, order.job_id)
    assert job is not None
    assert (job.end, job.ended_at, job.has_begun) == (ended, queue.clock.now(), True)


async def test_a_run_may_cancel_its_job_and_is_told_as_it_was(queue: QueueWorld) -> None:
    heard: list[str] = []
    order = an_order()
    handover = await hand_over(queue, order)
    handover.subscribe(lambda: heard.append("ended"))
    before = await find(queue, handover, order.job_id)
    assert await queue.store.transact(handover.cancel, order.job_id, "not needed") == before
    gone = await find(queue, handover, order.job_id)
    assert gone is not None and gone.end == HandedEnd("canceled", "not needed", None)
    assert await queue.store.transact(handover.cancel, order.job_id, "again") == gone
    assert await queue.store.transact(handover.cancel, "none", "x") is None
    assert heard == [], "who cancels knows"


async def test_the_worker_of_a_running_job_is_asked_to_stop(queue: QueueWorld) -> None:
    heard: list[str] = []
    order = an_order()
    handover = await hand_over(queue, order)
    handover.subscribe(lambda: heard.append("ended"))
    taken = await queue.claim(wants=GPU, has_lease=True)
    was = await queue.store.transact(handover.cancel, order.job_id, "not needed")
    assert was.state == "RUNNING" and was.end is None
    job = await queue.job(order.job_id)
    assert (job.cancel_requested, job.cancel_reason) == (1, "not needed")
    proof = by(token=taken.leases[0].lease_token)
    await queue.queue.release(Release(taken.leases[0].lease_id, "FAILED", proof=proof))
    assert heard == ["ended"]


async def test_a_job_without_a_request_is_nobodys(queue: QueueWorld) -> None:
    job = await queue.submit()
    found = await find(queue, QueueHandover(queue.queue), job.job_id)
    assert found is not None and found.request_id == ""


# Dead jobs


async def dead_job(queue: QueueWorld, **members: Any) -> Job:
    taken = await queue.running(**members)
    proof = by(token=taken.lease.lease_token)
    await queue.queue.release(Release(taken.lease.lease_id, "FAILED", proof=proof, error="broken"))
    return await queue.job(taken.job.job_id)


async def letters_of(queue: QueueWorld) -> list[Any]:
    found: list[Any] = await queue.store.read(
        lambda tx: list(tx.dead_letters.list_letters("queue", LetterFilter(), None, 9))
    )
    return found


async def replay(queue: QueueWorld, letters: list[Any], capacity: int = 100) -> list[Any]:
    done: list[Any] = await queue.store.transact(replay_jobs, letters, WHO, Limits(capacity))
    return done


async def test_a_dead_job_is_submitted_again_like_the_old_one_and_due_at_once(
    queue: QueueWorld,
) -> None:
    old = await dead_job(
        queue,
        addon="b",
        kind="u",
        cost=7,
        constraints={"x": False},
        priority="LOW",
        payload_json="[3]",
        client_request_id="r",
        run_at=queue.clock.now(),
        fairness_key="f",
    )
    await queue.clock.advance(SECOND)
    [outcome] = await replay(queue, await letters_of(queue))
    assert isinstance(outcome, ReplayedLetter) and outcome.entity_id is not None
    new = await queue.job(outcome.entity_id)
    assert new == msgspec.structs.replace(
        old,
        seq=new.seq,
        job_id=new.job_id,
        state="QUEUED",
        created_at=queue.clock.now(),
        updated_at=queue.clock.now(),
        due_at=queue.clock.now(),
        position=new.position,
        run_at=None,
        client_request_id=None,
        attempts=0,
        claims=0,
        claim_token=0,
        claimed_by=None,
        lease_id=None,
        lease_token=0,
        lease_ttl_sec=None,
        heartbeat_at=None,
        lease_expires_at=None,
        release_status=None,
        release_digest=None,
        started_at=None,
        finished_at=None,
        final_status=None,
        error_text=None,
    )
    assert outcome.wakes.id == new.class_id
    assert await queue.job(old.job_id) == old
    told = {"as": new.job_id, "actor": "ops"}
    assert (await queue.events(old.job_id))[-1] == ("JOB_REPLAYED", told)
    assert ("JOB_REPLAYS", {"of": old.job_id, "actor": "ops"}) in await queue.events(new.job_id)


async def test_each_letter_is_replayed_or_refused_on_its_own(queue: QueueWorld) -> None:
    small, large = await dead_job(queue, cost=10), await dead_job(queue, cost=11)
    letters = {one.entity_id: one for one in await letters_of(queue)}
    ghost = msgspec.structs.replace(letters[small.job_id], entity_id="ghost")
    order = [letters[large.job_id], ghost, letters[small.job_id]]
    refused, missing, done = await replay(queue, order, capacity=10)
    assert isinstance(refused, ConflictError)
    assert refused.message == "the job costs 11 units, and the capacity is 10 now"
    assert refused.extra == {"current": {"cost_units": 11, "capacity": 10}}
    assert isinstance(missing, NotFoundError) and missing.message == "there is no job ghost"
    assert done.entity_id not in (None, small.job_id)
    jobs = (await queue.queue.list_jobs(JobFilter(state="QUEUED"), None, 9)).jobs
    assert [job.job_id for job in jobs] == [done.entity_id]


async def test_a_letter_of_one_class_too_many_is_refused_on_its_own(queue: QueueWorld) -> None:
    made = [await dead_job(queue, cost=cost) for cost in (1, 2)]
    await queue.store.transact(lambda tx: tx.job_classes.remove([made[1].class_id], tx.now + HOUR))
    letters = {one.entity_id: one for one in await letters_of(queue)}
    limits = Limits(100, classes=1)
    refused, done = await queue.store.transact(
        replay_jobs, [letters[made[1].job_id], letters[made[0].job_id]], WHO, limits
    )
    assert isinstance(refused, ConflictError) and refused.code == "QUEUE_FULL"
    assert isinstance(done, ReplayedLetter)


async def test_where_all_are_refused_nothing_is_entered(queue: QueueWorld) -> None:
    old = await dead_job(queue)
    await replay(queue, await letters_of(queue), capacity=9)
    assert (await queue.event_types(old.job_id))[-1] == "JOB_FAILED"


def test_the_needs_of_a_job_are_those_that_bind(queue: QueueWorld) -> None:
    new = queue.new_job(constraints={"gpu_required": True, "ssd_required": False})
    job = Job(
        1,
        "j",
        "a",
        "t",
        "HIGH",
        10,
        new.constraints_json,
        "{}",
        "FAILED",
        1,
        0,
        0,
        None,
        1,
        0,
        0,
        0,
    )
    assert repeat_job(job, "k").job_class == new.job_class


async def test_the_queues_section_replays_wakes_and_dismisses(queue: QueueWorld) -> None:
    letters = DeadLetterService(queue.store)
    letters.add(make_section(queue.queue))
    old, other = await dead_job(queue), await dead_job(queue, kind="other")
    waiting = asyncio.create_task(queue.queue.claim(Claim("late", Wants()), MINUTE))
    await queue.clock.settle()
    ids = {one.entity_id: one.id for one in await letters_of(queue)}
    [settled] = await letters.settle_some(["queue"], [ids[old.job_id]], WHO, replays=True)
    await queue.clock.settle()
    assert [job.job_id for job in waiting.result().jobs] == [settled.replayed_as]
    await letters.settle_some(["queue"], [ids[other.job_id]], WHO, replays=False)
    dismissed = {"reason": "DISMISSED_BY_CALLER", "actor": "ops"}
    assert (await queue.events(other.job_id))[-1] == ("JOB_DISMISSED", dismissed)
    assert await letters_of(queue) == []


async def test_a_section_refuses_what_the_capacity_does_not_hold_any_more(
    queue: QueueWorld,
) -> None:
    await dead_job(queue, cost=60)
    queue.queue.limits = Limits(50)
    letters = DeadLetterService(queue.store)
    letters.add(make_section(queue.queue))
    [letter] = await letters_of(queue)
    [settled] = await letters.settle_some(["queue"], [letter.id], WHO, replays=True)
    assert isinstance(settled.error, ConflictError)
    assert await letters_of(queue) == [letter]
