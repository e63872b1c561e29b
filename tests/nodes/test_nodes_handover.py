"""Node jobs that runs wait for, on every fabric: made once, their end told where they are in
charge of, found by anybody else."""

import asyncio

import pytest

from ksana.base.errors import ConflictError
from ksana.base.ids import new_run_uid
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.handover import HandedEnd, job_id_of, request_id_of
from ksana.domain.nodes.frames import JobAssign
from ksana.domain.nodes.records import JobError
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.handover import NodeOrder
from ksana.service.nodes.handover import NodeHandover
from tests.nodes.world import Instance, World, until

pytestmark = pytest.mark.spec("B5")

SLOW = NodeParameters(refresh_us=100 * MILLISECOND, progress_us=10 * MILLISECOND)
NOW = 1_800_000_000_000_000


class Waiter:
    """A hand-over of one instance, and what it heard."""

    def __init__(self, instance: Instance) -> None:
        self.jobs = NodeHandover(instance.service, instance.engine)
        self.heard: dict[str, list[HandedEnd]] = {}
        self.jobs.subscribe(lambda job_id, end: self.heard.setdefault(job_id, []).append(end))

    async def hears(self, job_id: str) -> HandedEnd:
        await until(lambda: job_id in self.heard, f"{job_id} has ended")
        (end,) = self.heard[job_id]
        return end


def order_of(payload: str = '{"a":1}', wait_us: int = 0, model: str = "echo") -> NodeOrder:
    uid = new_run_uid(NOW)
    return NodeOrder(
        job_id=job_id_of(uid, 1),
        request_id=request_id_of(uid, 1),
        model=model,
        labels=(),
        priority=5,
        payload_json=payload,
        wait_us=wait_us,
        timeout_us=None,
        trace_id="0" * 32,
    )


async def test_the_end_of_a_job_is_told_to_who_is_in_charge_of_it(world: World) -> None:
    one = await world.start("one", SLOW)
    await one.node("n")
    waiter, order = Waiter(one), order_of()
    await waiter.jobs.submit(order)
    assert await waiter.hears(order.job_id) == HandedEnd("done", result='{"a":1}')
    assert waiter.jobs.is_durable is one.fabric.durable
    assert not waiter.jobs.is_here(order.job_id)
    found = await waiter.jobs.find_job(order.job_id)
    assert found is not None
    assert (found.request_id, found.end) == (order.request_id, HandedEnd("done", result='{"a":1}'))


async def test_the_same_attempt_is_one_job_however_often_and_wherever_it_is_submitted(
    world: World,
) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n", slots=8)
    node.mode = "hold"
    for instance in (one, two):
        await instance.sees("n")
    first, second, order = Waiter(one), Waiter(two), order_of()
    await first.jobs.submit(order)
    await asyncio.gather(*(who.jobs.submit(order) for who in (first, second, first, second)))
    (assigned,) = await node.wait(JobAssign)
    assert await one.fabric.reservations.count("n") == 1
    assert first.jobs.is_here(order.job_id)
    assert not second.jobs.is_here(order.job_id)
    running = await second.jobs.find_job(order.job_id)
    assert running is not None
    assert running.end is None
    node.finish(assigned)
    assert (await first.hears(order.job_id)).kind == "done"
    found = await second.jobs.find_job(order.job_id)
    assert found is not None
    assert found.end is not None
    assert second.heard == {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (JobError(code="OUT_OF_MEMORY", message="no room"), "failed"),
        (JobError(code="CANCELED"), "canceled"),
    ],
)
async def test_a_failure_is_told_in_the_words_of_the_node(
    world: World, error: JobError, kind: str
) -> None:
    one = await world.start("one", SLOW)
    node = await one.node("n")
    node.mode = "hold"
    waiter, order = Waiter(one), order_of("null")
    await waiter.jobs.submit(order)
    (assigned,) = await node.wait(JobAssign)
    node.finish(assigned, error)
    end = await waiter.hears(order.job_id)
    words = f"{error.code}: {error.message}" if error.message else error.code
    assert (end.kind, end.error, end.result) == (kind, words, None)


async def test_a_job_is_cancelled_from_any_instance(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n")
    node.mode = "hold"
    first, second, order = Waiter(one), Waiter(two), order_of()
    await first.jobs.submit(order)
    await node.wait(JobAssign)
    await second.jobs.cancel(order.job_id, "not today")
    end = await first.hears(order.job_id)
    assert (end.kind, end.error) == ("canceled", "CANCELED: not today")
    await second.jobs.cancel(order.job_id, "again")
    await second.jobs.cancel(job_id_of(new_run_uid(NOW), 1), "never made")


async def test_without_a_node_a_job_is_refused_or_waits(world: World) -> None:
    one = await world.start("one", SLOW)
    waiter = Waiter(one)
    with pytest.raises(ConflictError) as refused:
        await waiter.jobs.submit(order_of())
    assert refused.value.code == "NO_AVAILABLE_NODE"
    order = order_of(wait_us=20 * SECOND)
    await waiter.jobs.submit(order)
    await one.node("n")
    assert (await waiter.hears(order.job_id)).kind == "done"


async def test_jobs_of_others_are_nobodys_to_hear(world: World) -> None:
    one = await world.start("one", SLOW)
    await one.node("n")
    waiter = Waiter(one)
    session = await one.session("s")
    await session.ask(b"1")
    order = order_of(wait_us=20 * SECOND)
    await waiter.jobs.submit(order)
    await waiter.hears(order.job_id)
    assert list(waiter.heard) == [order.job_id]
