"""Nodes connected here: jobs handed to them, taken from them, and what they answer."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MINUTE, SECOND, format_instant
from ksana.domain.nodes.frames import (
    JobAssign,
    JobPartial,
    NodeHeartbeat,
    NodeJobCancel,
    NodeJobResult,
    SessionPartial,
)
from ksana.domain.nodes.messages import Assign, Failed, Finished, Push, Rehome, Withdraw
from ksana.domain.nodes.records import JobError, JobOutcome
from tests.engine.nodes_world import Instance, Socket, a_request

DEADLINE_AT = 1_767_225_660_000_000


def assign(job_id: str = "j", attempt: int = 1, home: str = "two", **changes: Any) -> Assign:
    return Assign(
        node_id="n",
        attempt=attempt,
        home=home,
        deadline_at=DEADLINE_AT,
        request=a_request(job_id, **changes),
    )


def gone(job_id: str = "j", attempt: int = 1) -> Failed:
    return Failed(job_id=job_id, attempt=attempt, node_id="n", reason="NODE_GONE")


def result(job_id: str = "j", attempt: int = 1, error: JobError | None = None) -> NodeJobResult:
    return NodeJobResult(
        job_id=job_id,
        attempt_id=attempt,
        success=error is None,
        data=msgspec.Raw(b"7"),
        error=error,
    )


@pytest.fixture
async def node(one: Instance, two: Instance) -> Socket:
    """A node with two slots, whose snapshot is written."""
    node = await one.node("n", 2)
    await one.refresh()
    return node


# ---- jobs for a node ----


@pytest.mark.spec("N3")
async def test_a_job_is_handed_to_its_node_with_all_that_it_needs(
    one: Instance, node: Socket
) -> None:
    await one.hear(assign())
    assert node.frames == [
        JobAssign(
            job_id="j",
            attempt_id=1,
            model="echo",
            deadline=format_instant(DEADLINE_AT),
            session_id="s",
            trace_id="t",
            payload=msgspec.Raw(b'{"a":1}'),
        )
    ]
    assignment = node.hosted.assigned["j"]
    assert (assignment.home, assignment.attempt, assignment.request) == ("two", 1, a_request())
    assert (one.held("n"), one.hosting.changed) == (1, {"n"})


async def test_the_slot_of_a_job_of_our_own_is_counted_by_its_home_only(
    one: Instance, node: Socket
) -> None:
    await one.hear(assign(home="one"))
    assert (list(node.hosted.assigned), one.held("n")) == (["j"], 0)


async def test_an_assignment_that_comes_twice_is_handed_over_once(
    one: Instance, node: Socket
) -> None:
    for attempt in (2, 2, 1):
        await one.hear(assign(attempt=attempt))
    assert [frame.attempt_id for frame in node.take()] == [2]
    await one.hear(assign(attempt=3))
    assert [frame.attempt_id for frame in node.take()] == [3]
    assert node.hosted.assigned["j"].attempt == 3


@pytest.mark.parametrize("is_stuck", [True, False])
async def test_a_job_for_a_node_that_is_not_here_or_does_not_read_has_failed(
    one: Instance, two: Instance, node: Socket, is_stuck: bool
) -> None:
    node.is_stuck = is_stuck
    if not is_stuck:
        await one.hosting.leave(node.hosted)
    await one.hear(assign())
    assert await two.take_messages() == [gone()]
    assert node.hosted.assigned == {}


async def test_a_job_that_comes_before_a_slot_is_free_waits_for_it(
    one: Instance, two: Instance, node: Socket
) -> None:
    for job_id in ("a", "b", "c", "d"):
        await one.hear(assign(job_id))
    assert [frame.job_id for frame in node.take()] == ["a", "b"]
    await one.hear(Withdraw(node_id="n", job_id="c", attempt=2))  # of another attempt
    await one.hosting.on_result(node.hosted, result("a"))
    await one.clock.settle()
    assert [frame.job_id for frame in node.take()] == ["c"]
    await one.hear(Withdraw(node_id="n", job_id="d", attempt=1))
    await one.hosting.on_result(node.hosted, result("b"))
    await one.clock.settle()
    assert (node.take(), list(node.hosted.assigned), node.hosted.parked) == ([], ["c"], {})


async def test_a_new_attempt_of_a_job_that_a_full_node_has_takes_its_place(
    one: Instance, node: Socket
) -> None:
    for job_id in ("a", "b"):
        await one.hear(assign(job_id))
    await one.hear(assign("a", attempt=2))
    assert (node.hosted.assigned["a"].attempt, node.hosted.parked) == (2, {})


@pytest.mark.spec("N12")
async def test_an_attempt_that_is_withdrawn_is_canceled_at_its_node(
    one: Instance, node: Socket
) -> None:
    await one.hear(assign())
    node.take()
    one.hosting.changed.clear()
    for job_id, attempt in (("other", 1), ("j", 2)):
        await one.hear(Withdraw(node_id="n", job_id=job_id, attempt=attempt, reason="NO_ACK"))
    await one.hear(Withdraw(node_id="nobody", job_id="j", attempt=1))
    assert (node.frames, list(node.hosted.assigned), one.held("n")) == ([], ["j"], 1)
    await one.hear(Withdraw(node_id="n", job_id="j", attempt=1, reason="NO_ACK"))
    assert node.frames == [NodeJobCancel(job_id="j", attempt_id=1, reason="NO_ACK")]
    assert (node.hosted.assigned, one.held("n"), one.hosting.changed) == ({}, 0, {"n"})


async def test_an_attempt_whose_home_died_answers_to_the_heir(one: Instance, node: Socket) -> None:
    await one.hear(assign())
    homes = []
    for node_id, job_id, attempt in (
        ("nobody", "j", 1),
        ("n", "other", 1),
        ("n", "j", 2),
        ("n", "j", 1),
    ):
        await one.hear(Rehome(node_id=node_id, job_id=job_id, attempt=attempt, home="three"))
        homes.append(node.hosted.assigned["j"].home)
    assert homes == ["two", "two", "two", "three"]


# ---- results ----


@pytest.mark.spec("N7")
async def test_a_result_is_told_to_the_home_and_the_slot_is_free(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await one.hear(assign("other"))
    await one.hear(assign())
    one.hosting.changed.clear()
    await one.hosting.on_result(node.hosted, result())
    (message,) = await two.take_messages()
    assert isinstance(message, Finished)
    assert (message.node_id, message.attempt) == ("n", 1)
    assert message.outcome == JobOutcome(
        success=True, data=msgspec.Raw(b"7"), error=None, finished_at=clock.now()
    )
    assert (list(node.hosted.assigned), one.held("n")) == (["other"], 1)
    assert one.hosting.changed == {"n"}


async def test_a_failure_is_told_with_its_error_and_a_success_without(
    one: Instance, two: Instance, node: Socket
) -> None:
    error = JobError(code="BROKEN", message="no")
    for job_id, success in (("a", False), ("b", True)):
        await one.hear(assign(job_id))
        frame = NodeJobResult(job_id=job_id, attempt_id=1, success=success, error=error)
        await one.hosting.on_result(node.hosted, frame)
    told = [one for one in await two.take_messages() if isinstance(one, Finished)]
    assert [(one.outcome.success, one.outcome.error) for one in told] == [
        (False, error),
        (True, None),
    ]


async def test_frames_about_an_attempt_that_is_not_the_nodes_are_counted_and_dropped(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hear(assign())
    for job_id, attempt in (("other", 1), ("j", 2)):
        await one.hosting.on_result(node.hosted, result(job_id, attempt))
    assert (one.hosting.stale, await two.take_messages()) == (2, [])
    await one.hosting.on_result(node.hosted, result())
    await one.hosting.on_result(node.hosted, result())
    assert (one.hosting.stale, len(await two.take_messages())) == (3, 1)


async def test_while_a_result_is_told_neither_a_second_answer_nor_the_end_of_the_node_counts(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hear(assign())

    async def send(instance_id: str, body: bytes) -> str:
        await one.hosting.on_result(node.hosted, result())
        await one.hosting.leave(node.hosted)
        return await two.fabric.inbox.send(instance_id, body)

    one.fabric.answer("inbox.send", send)
    await one.hosting.on_result(node.hosted, result())
    await one.clock.settle()
    assert [type(one) for one in await two.take_messages()] == [Finished]


async def test_a_new_attempt_that_came_while_a_result_was_told_stays(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hear(assign())
    await one.hear(assign("other"))

    async def send(instance_id: str, body: bytes) -> str:
        await one.hosting._on_assign(assign(attempt=2))
        return "sent"

    one.fabric.answer("inbox.send", send)
    await one.hosting.on_result(node.hosted, result())
    assert node.hosted.assigned["j"].attempt == 2
    await two.take_messages()


# ---- a model that is not available ----

AWAY = JobError(code="MODEL_NOT_AVAILABLE", message="loading")


@pytest.mark.spec("N11")
async def test_a_node_without_the_model_is_not_asked_for_a_while_and_the_job_is_for_others(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await one.hear(assign())
    one.hosting.changed.clear()
    await one.take_events()
    await one.hosting.on_result(node.hosted, result(error=AWAY))
    assert await two.take_messages() == [
        Failed(job_id="j", attempt=1, node_id="n", reason="MODEL_NOT_AVAILABLE", error=AWAY)
    ]
    until = clock.now() + MINUTE
    seen = one.engine.view.get("n")
    assert seen is node.hosted.record
    assert (seen.away, seen.running, node.hosted.assigned) == ({"echo": until}, 0, {})
    assert one.hosting.changed == {"n"}
    data = {"model": "echo", "until": format_instant(until)}
    assert await one.take_events() == [("n", "NODE_MODEL_AWAY", data)]


async def test_a_success_is_a_success_whatever_its_error_says(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hear(assign())
    frame = NodeJobResult(job_id="j", attempt_id=1, success=True, error=AWAY)
    await one.hosting.on_result(node.hosted, frame)
    assert [type(one) for one in await two.take_messages()] == [Finished]
    assert node.hosted.record.away == {}


async def test_a_failure_without_an_error_is_a_failure(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hear(assign())
    frame = NodeJobResult(job_id="j", attempt_id=1, success=False)
    await one.hosting.on_result(node.hosted, frame)
    assert [type(one) for one in await two.take_messages()] == [Finished]


@pytest.mark.parametrize("fault", ["marked already", "the fabric is away"])
async def test_a_mark_that_is_not_made_is_not_noted_but_the_job_is_for_others(
    one: Instance, two: Instance, node: Socket, fault: str
) -> None:
    await one.hear(assign())
    await one.take_events()
    if fault == "marked already":
        await one.fabric.marks.mark_away("n", "echo", one.engine.settings.storm)
    else:
        one.fabric.broken.add("marks.list_away")
    await one.hosting.on_result(node.hosted, result(error=AWAY))
    assert [type(one) for one in await two.take_messages()] == [Failed]
    assert (await one.take_events(), node.hosted.record.away) == ([], {})


async def test_a_node_that_was_replaced_meanwhile_does_not_come_back_into_the_view(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hear(assign())
    del one.hosting.nodes["n"]
    one.engine.view.remove("n")
    one.hosting.changed.clear()
    await one.hosting._mark_away(node.hosted, "echo")
    assert (one.engine.view.get("n"), one.hosting.changed) == (None, set())


# ---- partials ----


def partial(data: bytes = b'"a"') -> JobPartial:
    return JobPartial(job_id="j", attempt_id=1, data=msgspec.Raw(data))


async def test_a_partial_goes_to_the_session_by_way_of_the_home_and_counts_as_a_start(
    one: Instance, two: Instance, node: Socket, clock: VirtualClock
) -> None:
    await one.hear(assign())
    await one.hosting.on_partial(node.hosted, partial())
    told = SessionPartial(job_id="j", attempt_id=1, request_id="r-j", data=msgspec.Raw(b'"a"'))
    assert await two.take_messages() == [
        Push(session_id="s", frame=msgspec.Raw(msgspec.json.encode(told)))
    ]
    assert node.hosted.assigned["j"].started_at == clock.now()
    assert one.hosting.partials_lost == 0


@pytest.mark.parametrize("fault", ["gone", "away"])
async def test_a_partial_that_cannot_be_told_is_lost_and_counted(
    one: Instance, node: Socket, fault: str
) -> None:
    await one.hear(assign(home="dead" if fault == "gone" else "two"))
    one.fabric.is_away = fault == "away"
    await one.hosting.on_partial(node.hosted, partial())
    assert one.hosting.partials_lost == 1


async def test_a_partial_without_a_session_or_of_another_attempt_goes_nowhere(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hosting.on_partial(node.hosted, partial())
    await one.hear(assign(session_id=""))
    await one.hosting.on_partial(node.hosted, partial())
    assert (await two.take_messages(), one.hosting.stale) == ([], 1)
    assert (node.hosted.assigned["j"].started_at > 0, one.hosting.partials_lost) == (True, 0)


# ---- how a node fares ----


async def test_a_heartbeat_is_taken_over_into_the_view(
    one: Instance, node: Socket, clock: VirtualClock
) -> None:
    one.hosting.changed.clear()
    await clock.advance(SECOND)
    one.hosting.heartbeat(node.hosted, NodeHeartbeat(load=0.5, models=["a", "b", "a"]))
    record = one.engine.view.get("n")
    assert record is node.hosted.record
    assert (record.load, record.models, record.seen_at) == (0.5, ("a", "b"), clock.now())
    assert one.hosting.changed == {"n"}
    one.hosting.heartbeat(node.hosted, NodeHeartbeat(load=0.25))
    assert (node.hosted.record.load, node.hosted.record.models) == (0.25, ("a", "b"))


async def test_a_heartbeat_of_a_socket_that_was_replaced_is_not_the_nodes(
    one: Instance, node: Socket
) -> None:
    del one.hosting.nodes["n"]
    one.engine.view.remove("n")
    one.hosting.changed.clear()
    one.hosting.heartbeat(node.hosted, NodeHeartbeat(load=0.5))
    assert (one.engine.view.get("n"), one.hosting.changed) == (None, set())


def test_a_node_of_ours_is_marked_as_draining(one: Instance, node: Socket) -> None:
    one.hosting.changed.clear()
    one.hosting.set_draining("nobody", True)
    assert one.hosting.changed == set()
    one.hosting.set_draining("n", True)
    assert (node.hosted.record.is_draining, one.hosting.changed) == (True, {"n"})
    one.hosting.set_draining("n", False)
    assert not node.hosted.record.is_draining
