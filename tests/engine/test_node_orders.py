"""Node jobs that runs wait for: an order becomes one job, and its end is told in the words of
runs."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, DependencyDownError
from ksana.base.instant import HOUR, SECOND
from ksana.domain.handover import HandedEnd, HandedJob
from ksana.domain.nodes.records import JobError, JobOutcome, JobRequest, NodeJob
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.handover import NodeOrder
from ksana.service.nodes.handover import NodeHandover
from tests.nodes.world import Instance, World


@pytest.fixture
async def one(clock: VirtualClock) -> AsyncIterator[Instance]:
    """An instance without a node."""
    await clock.advance(HOUR)
    world = World(clock=clock)
    yield await world.start("one")
    await world.close()


async def settle(instance: Instance) -> None:
    clock: Any = instance.clock
    await clock.advance(SECOND)


ORDER = NodeOrder(
    job_id="0190a1b2-c3d4-8001-8899-aabbccddeeff",
    request_id="run:1:1",
    model="echo",
    labels=(("zone", "a"),),
    priority=7,
    payload_json='{"a":1}',
    wait_us=5 * SECOND,
    timeout_us=9 * SECOND,
    trace_id="trace-1",
)


@pytest.mark.spec("B5")
async def test_an_order_becomes_one_job_with_all_that_it_says(one: Instance) -> None:
    handover = NodeHandover(one.service, one.engine)
    assert (handover.is_durable, handover.is_here(ORDER.job_id)) == (False, False)
    await handover.submit(ORDER)
    await settle(one)
    await handover.submit(ORDER)
    job = await one.service.get_job(ORDER.job_id)
    assert job.request == JobRequest(
        job_id=ORDER.job_id,
        model="echo",
        request_id="run:1:1",
        labels={"zone": "a"},
        priority=7,
        payload=job.request.payload,
        wait_us=5 * SECOND,
        timeout_us=9 * SECOND,
        trace_id="trace-1",
        created_at=one.clock.now() - SECOND,
    )
    assert handover.is_here(ORDER.job_id)
    assert await handover.find_job(ORDER.job_id) == HandedJob(
        job_id=ORDER.job_id,
        request_id="run:1:1",
        state="CREATED",
        payload='{"a":1}',
        created_at=job.request.created_at,
        has_begun=True,
    )
    assert await handover.find_job("nobody") is None


@pytest.mark.spec("B5")
async def test_an_order_that_another_instance_has_is_not_made_again(one: Instance) -> None:
    await one.fabric.jobs.create(JobRequest(ORDER.job_id, "echo"), "two", HOUR)
    handover = NodeHandover(one.service, one.engine)
    await handover.submit(ORDER)
    assert (handover.is_here(ORDER.job_id), len(one.engine.home.jobs)) == (False, 0)


@pytest.mark.spec("B5")
async def test_an_order_that_cannot_be_taken_is_refused(clock: VirtualClock) -> None:
    world = World(clock=clock)
    full = await world.start("full", NodeParameters(max_job_bytes=6))
    handover = NodeHandover(full.service, full.engine)
    with pytest.raises(ConflictError) as raised:
        await handover.submit(ORDER)
    assert raised.value.code == "QUEUE_FULL"
    full.engine.is_closing = True
    with pytest.raises(DependencyDownError):
        await handover.submit(ORDER)
    await world.close()


@pytest.mark.spec("B5")
async def test_a_cancel_that_cannot_be_is_passed_over(one: Instance) -> None:
    handover = NodeHandover(one.service, one.engine)
    heard: list[tuple[str, HandedEnd]] = []
    handover.subscribe(lambda job_id, end: heard.append((job_id, end)))
    await handover.cancel("nobody", "enough")
    await handover.submit(ORDER)
    for _ in range(2):
        await handover.cancel(ORDER.job_id, "enough")
        await settle(one)
    assert heard == [(ORDER.job_id, HandedEnd("canceled", "CANCELED: enough"))]


@pytest.mark.spec("B5")
@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (JobOutcome(True, msgspec.Raw(b"7")), HandedEnd("done", result="7")),
        (JobOutcome(True), HandedEnd("done", result="null")),
        (
            JobOutcome(True, msgspec.Raw(b'"\xff"')),
            HandedEnd("done", result='"\N{REPLACEMENT CHARACTER}"'),
        ),
        (JobOutcome(False), HandedEnd("failed")),
        (JobOutcome(False, msgspec.Raw(b"7")), HandedEnd("failed", result="7")),
        (JobOutcome(False, error=JobError("OOM")), HandedEnd("failed", "OOM")),
        (
            JobOutcome(False, msgspec.Raw(b"7"), JobError("OOM", "too big")),
            HandedEnd("failed", "OOM: too big", "7"),
        ),
        (JobOutcome(False, error=JobError("CANCELED")), HandedEnd("canceled", "CANCELED")),
        (JobOutcome(False, error=JobError("JOB_LOST")), HandedEnd("lost", "JOB_LOST")),
        (JobOutcome(False, error=JobError("NO_RESULT")), HandedEnd("timeout", "NO_RESULT")),
        (JobOutcome(False, error=JobError("NO_START")), HandedEnd("timeout", "NO_START")),
        (JobOutcome(False, error=JobError("NO_ACK")), HandedEnd("timeout", "NO_ACK")),
    ],
)
async def test_how_a_node_job_ended_is_told_in_the_words_of_runs(
    one: Instance, monkeypatch: pytest.MonkeyPatch, outcome: JobOutcome, end: HandedEnd
) -> None:
    ended = msgspec.structs.replace(outcome, finished_at=9)
    request = JobRequest("j", "echo", "r", payload=msgspec.Raw(b'"\xff"'))
    record = NodeJob(request, "FINISHED", 1, "n", "one", outcome=ended)

    async def find(_: str) -> NodeJob:
        return record

    monkeypatch.setattr(one.fabric.jobs, "find", find)
    handover = NodeHandover(one.service, one.engine)
    assert await handover.find_job("j") == HandedJob(
        job_id="j",
        request_id="r",
        state="FINISHED",
        payload='"\N{REPLACEMENT CHARACTER}"',
        created_at=0,
        ended_at=9,
        end=end,
        has_begun=True,
    )
    heard: list[tuple[str, HandedEnd]] = []
    handover.subscribe(lambda job_id, told: heard.append((job_id, told)))
    one.engine.home.endings.on_handed_over(record.request, ended)
    assert heard == [("j", end)]
