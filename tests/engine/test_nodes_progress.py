"""Nodes connected here: how far their attempts are is told, and what is left when one goes."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import HOUR, MILLISECOND, MINUTE, SECOND
from ksana.domain.nodes.frames import JobAck
from ksana.domain.nodes.messages import Assign, Failed, Progressed
from ksana.domain.nodes.moves import NodeJobChange
from tests.engine.nodes_world import Instance, Socket, a_request, is_signalled, step

SOON = 50 * MILLISECOND


def assign(job_id: str = "j", home: str = "two", **changes: Any) -> Assign:
    request = a_request(job_id, **changes)
    return Assign(node_id="n", attempt=1, home=home, deadline_at=0, request=request)


@pytest.fixture
async def node(one: Instance, two: Instance) -> Socket:
    node = await one.node("n", 100)
    await one.refresh()
    await one.take_events()
    return node


async def dispatch(one: Instance, job_id: str = "j", home: str = "two", **changes: Any) -> None:
    """An attempt that is recorded, and with the node."""
    change = NodeJobChange(name="dispatch", attempt=1, keep_us=HOUR, node_id="n")
    await one.fabric.jobs.create(a_request(job_id, **changes), home, HOUR, change)
    await one.hear(assign(job_id, home, **changes))


def ack(one: Instance, node: Socket, job_id: str = "j") -> None:
    one.hosting.on_ack(node.hosted, JobAck(job_id=job_id, attempt_id=1))


def progressed(state: str, at: int, job_id: str = "j") -> Progressed:
    return Progressed(job_id=job_id, attempt=1, node_id="n", state=state, at=at)


async def state_of(one: Instance, job_id: str = "j") -> str:
    record = await one.fabric.jobs.find(job_id)
    assert record is not None
    return record.state


# ---- progress ----


@pytest.mark.spec("N7")
async def test_an_acknowledgement_is_recorded_and_told_a_moment_later(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await dispatch(one)
    ack(one, node)
    acked_at = clock.now()
    assert is_signalled(one.hosting.progress)
    assert await step(one.hosting.progress) == acked_at + SOON
    await clock.advance(SOON - 1)
    await step(one.hosting.progress)
    assert await two.take_messages() == []
    await clock.advance(1)
    assert await step(one.hosting.progress) is None
    assert await two.take_messages() == [progressed("ACCEPTED", acked_at)]
    assert await state_of(one) == "ACCEPTED"
    assert await one.take_events() == [("j", "NODE_JOB_ACCEPTED", {"attempt": 1, "node_id": "n"})]
    assert one.fabric.last("jobs.move_and_post")[1] == NodeJobChange(
        name="ack", attempt=1, keep_us=MINUTE + HOUR, node_id="n"
    )


async def test_a_start_within_the_moment_is_told_alone(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await dispatch(one, timeout_us=SECOND)
    ack(one, node)
    await clock.advance(5)
    one.hosting.on_started(node.hosted, "j", 1)
    started_at = clock.now()
    await clock.advance(SOON - 5)  # from the acknowledgement on
    await step(one.hosting.progress)
    assert await two.take_messages() == [progressed("RUNNING", started_at)]
    assert (await state_of(one), one.fabric.last("jobs.move_and_post")[1].keep_us) == (
        "RUNNING",
        SECOND + HOUR,
    )
    assert await one.take_events() == [("j", "NODE_JOB_RUNNING", {"attempt": 1, "node_id": "n"})]


async def test_a_start_after_an_acknowledgement_that_was_told_is_told_too(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await dispatch(one)
    ack(one, node)
    await clock.advance(SOON)
    await step(one.hosting.progress)
    one.hosting.on_started(node.hosted, "j", 1)
    assert is_signalled(one.hosting.progress)
    await clock.advance(SOON)
    await step(one.hosting.progress)
    assert [one.state for one in await two.take_messages()] == ["ACCEPTED", "RUNNING"]


async def test_what_is_said_again_is_not_told_again(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await dispatch(one)
    first_at = clock.now()
    ack(one, node)
    assert one.hosting.on_started(node.hosted, "j", 1) is node.hosted.assigned["j"]
    await clock.advance(SOON)
    await step(one.hosting.progress)
    await two.take_messages()
    ack(one, node)
    one.hosting.on_started(node.hosted, "j", 1)
    await clock.advance(SOON)
    assert await step(one.hosting.progress) is None
    assignment = node.hosted.assigned["j"]
    assert (assignment.acked_at, assignment.started_at) == (first_at, first_at)
    assert await two.take_messages() == []


async def test_frames_about_another_attempt_are_no_progress(one: Instance, node: Socket) -> None:
    await dispatch(one)
    is_signalled(one.hosting.progress)
    one.hosting.on_ack(node.hosted, JobAck(job_id="j", attempt_id=2))
    assert one.hosting.on_started(node.hosted, "other", 1) is None
    assert (one.hosting.stale, is_signalled(one.hosting.progress)) == (2, False)


@pytest.mark.parametrize("case", ["ending", "withdrawn", "node gone", "told already"])
async def test_the_progress_of_an_attempt_that_is_over_by_then_is_not_told(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock, case: str
) -> None:
    await dispatch(one)
    ack(one, node)
    if case == "ending":
        node.hosted.assigned["j"].is_ending = True
    elif case == "withdrawn":
        node.hosted.assigned.clear()
    elif case == "node gone":
        one.hosting.nodes.clear()
    else:
        node.hosted.assigned["j"].told = "ACCEPTED"
    await clock.advance(SOON)
    assert await step(one.hosting.progress) is None
    assert (await two.take_messages(), await one.take_events()) == ([], [])


async def test_the_progress_of_a_job_of_our_own_is_recorded_and_heard_here(
    one: Instance, node: Socket, clock: VirtualClock
) -> None:
    await one.submit(a_request())
    session = await one.session("s")
    ack(one, node)
    await clock.advance(SOON)
    await step(one.hosting.progress)
    assert [frame.state for frame in session.frames] == ["ACCEPTED"]
    assert (await state_of(one), one.engine.courier.sent) == ("ACCEPTED", 0)
    assert "NODE_JOB_ACCEPTED" in [name for _, name, _ in await one.take_events()]


async def test_progress_that_the_record_had_already_is_not_noted_again(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await dispatch(one)
    start = NodeJobChange(name="start", attempt=1, keep_us=HOUR, node_id="n")
    await two.fabric.jobs.move("j", start)
    ack(one, node)
    await clock.advance(SOON)
    await step(one.hosting.progress)
    assert await one.take_events() == []
    assert len(await two.take_messages()) == 1


async def test_the_progress_of_many_is_told_in_portions_and_of_those_that_are_due(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    for number in range(70):
        await dispatch(one, str(number))
    for number in range(66):
        ack(one, node, str(number))
    await clock.advance(1)
    for number in range(66, 70):
        ack(one, node, str(number))
    await clock.advance(SOON - 1)
    assert await step(one.hosting.progress) == clock.now() + 1
    assert len(await two.take_messages()) == 66
    await clock.advance(1)
    assert await step(one.hosting.progress) is None
    assert len(await two.take_messages()) == 4


async def test_while_the_fabric_is_away_progress_is_told_a_second_later(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await dispatch(one)
    ack(one, node)
    await clock.advance(SOON)
    one.fabric.is_away = True
    with pytest.raises(DependencyDownError):
        await step(one.hosting.progress)
    one.fabric.is_away = False
    assert await step(one.hosting.progress) == clock.now() + SECOND
    await clock.advance(SECOND)
    assert await step(one.hosting.progress) is None
    assert [one.state for one in await two.take_messages()] == ["ACCEPTED"]


async def test_what_has_to_wait_for_the_fabric_does_not_hold_up_what_is_due_sooner(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    for job_id in ("a", "b"):
        await dispatch(one, job_id)
    ack(one, node, "a")
    await clock.advance(SOON - 5)
    ack(one, node, "b")
    await clock.advance(5)
    one.fabric.is_away = True
    with pytest.raises(DependencyDownError):
        await step(one.hosting.progress)
    one.fabric.is_away = False
    assert await step(one.hosting.progress) == clock.now() + SOON - 5


# ---- a node goes ----


@pytest.mark.spec("N12")
async def test_what_a_node_that_went_had_is_told_as_failed_once(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    node = await one.node("n", 2)
    for job_id in ("a", "b", "parked"):
        await one.hear(assign(job_id))
    node.hosted.assigned["a"].is_ending = True
    await one.hosting.leave(node.hosted)
    await clock.settle()
    assert await two.take_messages() == [
        Failed(job_id="b", attempt=1, node_id="n", reason="NODE_GONE"),
        Failed(job_id="parked", attempt=1, node_id="n", reason="NODE_GONE"),
    ]
    assert (node.peer.is_open, node.hosted.assigned, node.hosted.parked) == (False, {}, {})
    await one.hosting.leave(node.hosted)
    await clock.settle()
    assert await two.take_messages() == []


async def test_a_node_that_went_is_seen_by_nobody_any_more(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    one.hosting.changed.add("n")
    await one.hosting.leave(node.hosted)
    assert (one.hosting.nodes, one.engine.view.get("n"), one.hosting.changed) == ({}, None, set())
    await clock.settle()
    assert await two.fabric.owners.find("node", "n") is None
    assert (await two.fabric.snapshots.read_changes(0)).nodes == {"n": None}


async def test_the_end_of_a_socket_that_was_replaced_leaves_the_node_where_it_is(
    one: Instance, node: Socket, clock: VirtualClock
) -> None:
    old = node.hosted
    new = one.hosting.enter(old.record, node.peer)
    await one.hosting.leave(old)
    await clock.settle()
    assert (one.hosting.nodes, one.engine.view.get("n")) == ({"n": new}, old.record)
    assert await one.fabric.owners.find("node", "n") == "one"
    assert one.fabric.count("snapshots.withdraw") == 0


@pytest.mark.parametrize("is_coming", [True, False])
async def test_the_id_of_a_node_that_is_back_already_is_not_given_up(
    one: Instance, node: Socket, clock: VirtualClock, is_coming: bool
) -> None:
    await one.hosting.leave(node.hosted)
    if is_coming:
        one.hosting.coming.add("n")
    else:
        one.hosting.nodes["n"] = node.hosted
    one.fabric.calls.clear()
    await clock.settle()
    assert one.fabric.calls == []


@pytest.mark.parametrize("case", ["coming", "back", "gone"])
async def test_a_node_that_comes_back_while_its_id_is_given_up_is_written_again(
    one: Instance, node: Socket, clock: VirtualClock, case: str
) -> None:
    async def drop(kind: str, owned_id: str) -> bool:
        if case == "coming":
            one.hosting.coming.add("n")
        elif case == "back":
            one.hosting.nodes["n"] = node.hosted
        return True

    one.fabric.answer("owners.drop_if_ours", drop)
    await one.hosting.leave(node.hosted)
    await clock.settle()
    assert one.fabric.last("owners.drop_if_ours") == ("node", "n")
    assert one.fabric.count("snapshots.withdraw") == (1 if case == "gone" else 0)
    assert one.hosting.changed == ({"n"} if case == "back" else set())


async def test_the_loop_tells_progress_as_soon_as_it_is_due(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await dispatch(one)
    running = asyncio.create_task(one.hosting.progress.run())
    await clock.advance(SECOND)
    ack(one, node)
    await clock.advance(SOON)
    assert len(await two.take_messages()) == 1
    running.cancel()
