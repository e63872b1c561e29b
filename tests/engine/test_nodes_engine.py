"""The nodes surface of one instance put together: its loops, cancelling, draining, closing."""

import asyncio

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.nodes.messages import Cancel, Withdraw
from ksana.domain.nodes.records import JobError, JobOutcome
from ksana.engine.nodes.engine import NodesEngine
from tests.engine.nodes_desk import Desk, finished, told
from tests.engine.nodes_world import Instance, a_request, step
from tests.ground.logs import capture_logs

LOOPS = [
    "node-events",
    "node-presence",
    "node-view",
    "node-silence",
    "node-deadlines",
    "node-line",
    "node-progress",
    "node-inbox-chores",
    "node-adoption",
    "node-inbox",
]


def test_the_loops_are_known_by_their_names(one: Instance) -> None:
    assert [loop.name for loop in one.engine.loops()] == LOOPS
    assert one.engine.is_closing is False


def test_without_settings_the_usual_numbers_hold(one: Instance, clock: VirtualClock) -> None:
    engine = NodesEngine(one.fabric, one.store, clock, one.engine.upkeep._info)  # type: ignore[arg-type]
    assert engine.settings == one.engine.settings


def canceled(message: str, desk: Desk) -> JobOutcome:
    error = JobError(code="CANCELED", message=message)
    return JobOutcome(success=False, error=error, finished_at=desk.clock.now())


@pytest.mark.parametrize(
    ("reason", "message"), [("enough", "enough"), ("", "the job was canceled")]
)
async def test_a_job_of_ours_that_is_canceled_ends_with_the_reason(
    desk: Desk, reason: str, message: str
) -> None:
    await desk.job()
    assert await desk.one.engine.cancel_here("j", reason) is True
    assert desk.session.frames == [told(outcome=canceled(message, desk))]
    assert (await desk.record()).outcome == canceled(message, desk)
    await desk.clock.settle()
    assert await desk.two.take_messages() == [
        Withdraw(node_id="n", job_id="j", attempt=1, reason="canceled")
    ]


async def test_a_job_that_is_not_here_or_has_ended_is_not_canceled(desk: Desk) -> None:
    assert await desk.one.engine.cancel_here("j", "enough") is False
    await desk.job()
    await desk.endings.finished([finished()])
    assert await desk.one.engine.cancel_here("j", "enough") is False
    assert desk.session.frames == [told()]


async def test_a_job_is_canceled_by_a_message_too(desk: Desk) -> None:
    await desk.job()
    await desk.one.hear(Cancel(job_id="j", reason="enough"))
    assert desk.session.frames == [told(outcome=canceled("enough", desk))]


# ---- the end of an instance ----


async def test_draining_waits_for_the_jobs_in_our_charge(desk: Desk, clock: VirtualClock) -> None:
    await desk.job()
    draining = asyncio.create_task(desk.one.engine.drain())
    await clock.advance(SECOND)
    assert (draining.done(), desk.one.engine.is_closing) == (False, True)
    await desk.endings.finished([finished()])
    await clock.advance(50 * MILLISECOND - 1)
    assert not draining.done()  # it looked a moment ago
    await clock.advance(1)
    assert draining.done()


async def test_draining_waits_for_the_attempts_of_our_nodes(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    node = await one.node("n")
    await one.refresh()
    await two.refresh()
    await two.submit(a_request())
    await one.read()
    assert list(node.hosted.assigned) == ["j"]
    draining = asyncio.create_task(one.engine.drain())
    await clock.advance(SECOND)
    assert not draining.done()
    node.hosted.assigned.clear()
    await clock.advance(50 * MILLISECOND)
    assert draining.done()


async def test_an_instance_without_work_is_drained_at_once(one: Instance) -> None:
    await one.node("n")
    await one.engine.drain()
    assert one.engine.is_closing


@pytest.mark.spec("N1")
async def test_an_instance_that_closes_leaves_nothing_behind(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    node, session = await one.node("n"), await one.session("s")
    await one.refresh()
    await one.engine.close()
    assert one.engine.is_closing
    assert (node.closed, session.closed) == ((1001, "GOING_DOWN"), (1001, "GOING_DOWN"))
    assert (one.hosting.nodes, one.engine.sessions.local) == ({}, {})
    assert await two.fabric.owners.find("node", "n") is None
    assert await two.fabric.owners.find("session", "s") is None
    assert (await two.fabric.snapshots.read_changes(0)).nodes == {"n": None}
    assert await two.fabric.sessions.read(["one"], "", 10) == []
    assert await two.fabric.presence.list_dead() == ["one"]
    assert [row[2] for row in one.store.events.rows][:1] == ["NODE_CONNECTED"]
    assert len(one.engine.background) == 0


async def test_an_instance_closes_its_sockets_although_the_fabric_is_away(
    one: Instance,
) -> None:
    node = await one.node("n")
    sessions = [await one.session("a"), await one.session("b")]
    one.fabric.is_away = True
    with capture_logs() as logs:
        await one.engine.close()
    assert node.closed == (1001, "GOING_DOWN")
    assert [session.closed for session in sessions] == [(1001, "GOING_DOWN")] * 2
    assert [line["err"] for line in logs if line["log_level"] == "warning"] == (
        ["the fabric is away"] * 4  # two sessions, the owner of the node, and the instance itself
    )


async def test_the_presence_of_an_instance_counts_its_nodes_and_sessions(one: Instance) -> None:
    await one.node("n")
    await one.session("s")
    await one.session("t")
    await step(one.engine.upkeep.life)
    (info,) = await one.fabric.presence.list_living()
    assert (info.instance_id, info.nodes, info.sessions) == ("one", 1, 2)
