"""How a node comes in: one live socket for each id, over all instances."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.nodes.frames import NodeRegister, Ping
from ksana.domain.nodes.messages import Drain, Failed, Probe, ProbeAnswer
from ksana.domain.nodes.records import NodeRecord
from ksana.engine.nodes.peers import Peer
from tests.engine.nodes_world import Instance, NodesWorld, Socket, a_node, a_request

PROBE = Ping(id="probe")


def coming(instance: Instance, name: str = "n") -> "asyncio.Task[Socket]":
    """A node that registers while the test goes on."""
    return asyncio.create_task(instance.node(name))


async def conflict(task: "asyncio.Task[Socket]") -> ConflictError:
    with pytest.raises(ConflictError) as caught:
        await task
    return caught.value


# ---- the first of its id ----


@pytest.mark.spec("N3")
async def test_a_node_is_known_with_all_that_it_said(one: Instance, clock: VirtualClock) -> None:
    await clock.advance(5)
    node = await one.node(
        "n",
        3,
        *("a", "b", "a"),
        labels={"zone": "x"},
        version="2",
        platform="linux",
    )
    assert node.hosted.record == NodeRecord(
        node_id="n",
        instance_id="one",
        slots=3,
        models=("a", "b"),
        labels={"zone": "x"},
        version="2",
        platform="linux",
        connected_at=clock.now(),
        seen_at=clock.now(),
    )
    assert (one.hosting.nodes, one.hosting.changed) == ({"n": node.hosted}, {"n"})
    assert one.engine.view.get("n") is node.hosted.record
    assert await one.fabric.owners.find("node", "n") == "one"
    assert one.hosting.coming == set()
    assert await one.take_events() == [
        ("n", "NODE_CONNECTED", {"instance": "one", "slots": 3, "models": ["a", "b"]})
    ]
    await clock.advance(45 * SECOND)
    assert await one.fabric.owners.find("node", "n") is None  # unless it is renewed


async def test_a_node_without_an_id_is_given_one(one: Instance) -> None:
    frame = NodeRegister(slots=1)
    socket = Socket(lambda frame: frame)
    names = []
    for _ in range(2):
        hosted = await one.engine.registration.register(frame, Peer(socket, 0))
        names.append(hosted.record.node_id)
    assert names[0] != names[1]
    assert all(name.startswith("node-") and len(name) == 5 + 16 for name in names)


async def test_a_node_that_comes_back_is_still_draining_and_without_its_model(
    one: Instance, clock: VirtualClock
) -> None:
    await one.fabric.marks.mark_away("n", "echo", one.engine.settings.storm)
    await one.fabric.marks.set_draining("n", True, MINUTE)
    await clock.advance(SECOND)
    node = await one.node("n")
    assert node.hosted.record.is_draining
    assert node.hosted.record.away == {"echo": clock.now() + 59 * SECOND}


async def test_the_end_of_a_socket_is_noted_with_its_reason(
    one: Instance, clock: VirtualClock
) -> None:
    node = await one.node("n")
    await one.take_events()
    await one.engine.registration.leave(node.hosted, "x" * 300)
    data = {"instance": "one", "reason": "x" * 200}
    assert await one.take_events() == [("n", "NODE_DISCONNECTED", data)]
    assert one.hosting.nodes == {}


# ---- the second of its id, here ----


@pytest.mark.spec("N3")
async def test_a_second_node_of_an_id_whose_first_answers_is_refused(
    one: Instance, clock: VirtualClock
) -> None:
    first = await one.node("n")
    await one.take_events()
    second = coming(one)
    await clock.settle()
    assert first.frames == [PROBE]
    first.peer.hear(clock.monotonic())
    error = await conflict(second)
    assert error.code == "NODE_ID_CONFLICT"
    assert error.extra == {"current": {"node_id": "n", "instance_id": "one"}}
    assert await one.take_events() == [
        ("n", "NODE_ID_CONFLICT", {"instance": "one", "holder": "one"})
    ]
    assert (first.closed, one.hosting.nodes, one.hosting.coming) == (
        None,
        {"n": first.hosted},
        set(),
    )


@pytest.mark.spec("N3")
async def test_a_node_that_does_not_answer_within_two_seconds_is_replaced(
    one: Instance, clock: VirtualClock
) -> None:
    first = await one.node("n")
    await one.take_events()
    second = coming(one)
    await clock.advance(2 * SECOND - 1)
    assert (second.done(), first.closed) == (False, None)
    await clock.advance(1)
    node = await second
    assert (first.closed, node.closed) == ((4009, "NODE_REPLACED"), None)
    assert one.hosting.nodes == {"n": node.hosted}
    data = {"instance": "one", "slots": 1, "models": ["echo"], "replaced": True}
    assert await one.take_events() == [("n", "NODE_CONNECTED", data)]
    await clock.settle()
    assert await one.fabric.owners.find("node", "n") == "one"


async def test_a_node_whose_socket_takes_nothing_is_replaced_at_once(one: Instance) -> None:
    first = await one.node("n")
    first.is_stuck = True
    second = await one.node("n")
    assert first.closed == (4009, "NODE_REPLACED")
    assert one.hosting.nodes == {"n": second.hosted}


async def test_the_jobs_of_a_node_that_was_replaced_are_for_others(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    first = await one.node("n")
    await one.refresh()
    await two.refresh()
    await two.submit(a_request(wait_us=MINUTE))
    await one.read()
    assert list(first.hosted.assigned) == ["j"]
    first.is_stuck = True
    await one.node("n")
    await clock.settle()
    assert await two.take_messages() == [
        Failed(job_id="j", attempt=1, node_id="n", reason="NODE_GONE")
    ]


async def test_of_two_nodes_that_come_at_once_the_second_is_refused(
    one: Instance, clock: VirtualClock
) -> None:
    await one.node("n")
    first, second = coming(one), coming(one)
    await clock.settle()
    error = await conflict(second)
    assert error.extra == {"current": {"node_id": "n", "instance_id": "one"}}
    assert not first.done()
    await clock.advance(2 * SECOND)
    await first
    assert one.hosting.coming == set()


# ---- the second of its id, elsewhere ----


@pytest.mark.spec("N3")
async def test_a_node_that_lives_elsewhere_is_asked_there_and_the_second_refused(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    first = await one.node("n")
    second = coming(two)
    await clock.settle()
    (probe,) = await one.take_messages()
    assert isinstance(probe, Probe)
    assert (probe.owner_kind, probe.id, probe.reply_to) == ("node", "n", "two")
    await one.hear(probe)
    assert first.frames == [PROBE]
    first.peer.hear(clock.monotonic())
    await clock.settle()
    await two.read()
    error = await conflict(second)
    assert error.extra == {"current": {"node_id": "n", "instance_id": "one"}}
    assert await two.take_events() == [
        ("n", "NODE_ID_CONFLICT", {"instance": "two", "holder": "one"})
    ]
    assert (first.closed, two.hosting.nodes) == (None, {})


@pytest.mark.spec("N3")
async def test_a_node_that_is_dead_elsewhere_is_replaced_from_here(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    first = await one.node("n")
    second = coming(two)
    await clock.settle()
    await one.read()
    await clock.advance(2 * SECOND)
    assert first.closed == (4011, "NODE_SILENT")
    assert one.hosting.nodes == {}
    await two.read()
    node = await second
    assert two.hosting.nodes == {"n": node.hosted}
    assert await one.fabric.owners.find("node", "n") == "two"
    ((_, name, data),) = await two.take_events()
    assert (name, data["replaced"]) == ("NODE_CONNECTED", True)


async def test_an_instance_that_does_not_answer_is_as_dead_as_its_node(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    await one.node("n")
    second = coming(two)
    await clock.advance(4 * SECOND - 1)
    assert not second.done()
    await clock.advance(1)
    await second
    assert await one.fabric.owners.find("node", "n") == "two"
    await two.hear(ProbeAnswer(token="late", is_alive=True))  # nobody asks any more
    assert (two.engine.registration._alive, two.engine.registration._asked) == ({}, {})


async def test_a_node_of_an_instance_that_has_no_inbox_is_replaced_at_once(
    two: Instance, cluster: NodesWorld
) -> None:
    cluster.hub.owners.put("node:n", "dead", MINUTE)
    await two.node("n")
    assert await two.fabric.owners.find("node", "n") == "two"


async def test_a_node_that_another_instance_took_meanwhile_is_a_conflict(
    two: Instance, cluster: NodesWorld
) -> None:
    cluster.hub.owners.put("node:n", "dead", MINUTE)
    two.fabric.answer("owners.replace_if", False)
    error = await conflict(coming(two))
    assert error.extra == {"current": {"node_id": "n", "instance_id": "another instance"}}
    assert two.fabric.last("owners.replace_if") == ("node", "n", "dead", 45 * SECOND)


async def test_a_node_that_is_not_here_is_answered_for_as_dead(
    one: Instance, two: Instance
) -> None:
    await one.hear(Probe(owner_kind="node", id="nobody", token="t", reply_to="two"))
    assert await two.take_messages() == [ProbeAnswer(token="t", is_alive=False)]


async def test_a_node_here_whose_socket_takes_nothing_is_answered_for_as_dead(
    one: Instance, two: Instance
) -> None:
    node = await one.node("n")
    node.is_stuck = True
    await one.hear(Probe(owner_kind="node", id="n", token="t", reply_to="two"))
    assert await two.take_messages() == [ProbeAnswer(token="t", is_alive=False)]
    assert node.closed == (4011, "NODE_SILENT")


# ---- draining ----


async def drained(instance: Instance, is_draining: bool) -> list[Any]:
    await instance.engine.registration.set_draining("n", is_draining, "one")
    return await instance.take_events()


@pytest.mark.spec("N14")
async def test_a_node_is_drained_and_undrained_from_any_instance(
    one: Instance, two: Instance
) -> None:
    node = await one.node("n")
    assert await drained(two, True) == [("n", "NODE_DRAINING", {})]
    assert two.fabric.last("marks.set_draining") == ("n", True, 600 * SECOND)
    await one.read()
    assert (node.hosted.record.is_draining, one.hosting.changed) == (True, {"n"})
    assert await drained(two, False) == [("n", "NODE_UNDRAINED", {})]
    assert await one.take_messages() == [Drain(node_id="n")]
    await one.hear(Drain(node_id="n"))
    assert not node.hosted.record.is_draining


async def test_the_mark_of_a_node_that_is_not_here_is_not_looked_at(one: Instance) -> None:
    one.engine.view.put(a_node("n"))
    await one.hear(Drain(node_id="n"))
    assert one.fabric.count("marks.is_draining") == 0
