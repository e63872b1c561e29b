"""Messages between instances: sending, handling in order and together, what fails, the chores."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.nodes.messages import Cancel, Drain, Message, encode_message
from ksana.engine.core.pump import AGAIN
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.inbox import InboxEntry, InboxSettings, InboxState, Post
from tests.engine.nodes_world import FaultyFabric, Instance, NodesWorld, step
from tests.ground.logs import capture_logs

SMALL = NodeParameters(
    stream_count=2,
    inbox=InboxSettings(
        dlq_max_deliveries=2, dlq_min_idle_us=10 * SECOND, dlq_scan_count=2, maxlen=100
    ),
)


class Desk:
    """A courier that handles `Drain` one by one and `Cancel` together, and notes what it was given.
    `spoiled` names what cannot be handled, `away_turns` how often the fabric is away."""

    def __init__(self, fabric: FaultyFabric, clock: VirtualClock) -> None:
        self.courier = Courier(fabric, clock, SMALL)
        self.fabric = fabric
        self.clock = clock
        self.given: list[list[str]] = []
        self.given_at: list[int] = []
        self.spoiled: set[str] = set()
        self.away_turns = 0
        self.courier.on(Drain, self._take_one)
        self.courier.on_many(Cancel, self._take)

    async def _take_one(self, message: Drain) -> None:
        await self._take([message])

    async def _take(self, messages: Sequence[Any]) -> None:
        names = [one.node_id if isinstance(one, Drain) else one.job_id for one in messages]
        self.given.append(names)
        self.given_at.append(self.clock.monotonic())
        if self.away_turns:
            self.away_turns -= 1
            raise DependencyDownError("away")
        if self.spoiled & set(names):
            raise ValueError("spoiled")

    async def handle(self, *messages: Message) -> list[str]:
        entries = [
            InboxEntry(id=f"#{number}", body=encode_message(message))
            for number, message in enumerate(messages)
        ]
        return await self.courier.handle(entries)


def cancel(name: str) -> Cancel:
    return Cancel(job_id=name)


def drain(name: str) -> Drain:
    return Drain(node_id=name)


@pytest.fixture
async def desk(cluster: NodesWorld, clock: VirtualClock) -> Desk:
    instance = await cluster.start("one", SMALL)
    return Desk(instance.fabric, clock)


def test_nothing_was_counted_before_anything_came(desk: Desk) -> None:
    courier = desk.courier
    assert (courier.sent, courier.received, courier.failed, courier.buried) == (0, 0, 0, 0)
    assert courier.state == InboxState(length=0, pending=0, dead_letters=0)
    assert courier.chores.name == "node-inbox-chores"


async def test_a_message_to_ourselves_is_handled_at_once_and_does_not_travel(desk: Desk) -> None:
    assert (desk.courier.is_here("one"), desk.courier.is_here("two")) == (True, False)
    assert await desk.courier.tell("one", drain("n")) == "sent"
    assert (desk.given, desk.courier.sent) == ([["n"]], 0)
    assert desk.fabric.count("inbox.send") == 0


async def test_a_message_to_another_instance_goes_into_its_inbox(
    desk: Desk, cluster: NodesWorld
) -> None:
    two = await cluster.start("two")
    assert await desk.courier.tell("two", drain("n")) == "sent"
    assert await desk.courier.tell("nobody", drain("n")) == "gone"
    assert desk.courier.post("two", drain("m")) == Post("two", encode_message(drain("m")))
    assert (desk.given, desk.courier.sent) == ([], 3)
    assert await two.take_messages() == [drain("n")]


async def test_neighbours_of_a_kind_that_is_taken_together_are_handled_together(
    desk: Desk,
) -> None:
    done = await desk.handle(
        cancel("a"), cancel("b"), drain("c"), drain("d"), cancel("e"), drain("f")
    )
    assert desk.given == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]
    assert done == ["#0", "#1", "#2", "#3", "#4", "#5"]
    assert (desk.courier.received, desk.courier.failed) == (6, 0)


async def test_one_that_spoils_its_neighbours_is_found_and_the_others_are_done(desk: Desk) -> None:
    desk.spoiled = {"b"}
    with capture_logs() as logs:
        done = await desk.handle(cancel("a"), cancel("b"))
    assert desk.given == [["a", "b"], ["a"], ["b"]]
    assert (done, desk.courier.failed) == (["#0"], 1)
    assert [(line["kind"], line["attempt"], line["log_level"]) for line in logs] == [
        ("Cancel", 1, "error"),
        ("Cancel", 1, "error"),
    ]
    assert all(isinstance(line["exc_info"], ValueError) for line in logs)


@pytest.mark.parametrize("message", [cancel("a"), drain("a")])
async def test_one_that_cannot_be_handled_is_tried_once_and_left(
    desk: Desk, message: Message
) -> None:
    desk.spoiled = {"a"}
    with capture_logs():
        assert await desk.handle(message, drain("b")) == ["#1"]
    assert desk.given == [["a"], ["b"]]
    assert desk.courier.failed == 1


async def test_a_message_that_came_twice_is_tried_once_each_time(desk: Desk) -> None:
    desk.spoiled = {"a"}
    with capture_logs():
        assert await desk.handle(drain("a"), drain("a")) == []
    assert (desk.given, desk.courier.failed) == ([["a"], ["a"]], 2)


async def test_while_the_fabric_is_away_a_message_is_tried_three_times(
    desk: Desk, clock: VirtualClock
) -> None:
    desk.away_turns = 3
    work = asyncio.create_task(desk.handle(cancel("a")))
    await clock.advance(10 * SECOND)
    assert await work == []
    assert desk.given_at == [0, 200 * MILLISECOND, 400 * MILLISECOND]
    assert desk.courier.failed == 1


async def test_a_message_is_done_if_the_fabric_comes_back_in_time(
    desk: Desk, clock: VirtualClock
) -> None:
    desk.away_turns = 2
    work = asyncio.create_task(desk.handle(cancel("a")))
    await clock.advance(399 * MILLISECOND)
    assert not work.done()
    await clock.advance(MILLISECOND)
    assert await work == ["#0"]
    assert (len(desk.given), desk.courier.failed) == (3, 0)


async def test_a_message_that_cannot_be_read_is_left_for_the_dead_letters(desk: Desk) -> None:
    garbage = InboxEntry(id="x", body=b'{"kind":"%s"}' % (b"k" * 300))
    fine = InboxEntry(id="y", body=encode_message(drain("n")))
    with capture_logs() as logs:
        assert await desk.courier.handle([garbage, fine]) == ["y"]
    assert (desk.courier.received, desk.courier.failed, desk.given) == (2, 1, [["n"]])
    (line,) = logs
    assert (line["log_level"], line["id"], len(line["err"])) == ("warning", "x", 200)


async def test_the_inbox_is_opened_and_read_in_portions_and_what_is_done_is_removed(
    desk: Desk, clock: VirtualClock, cluster: NodesWorld
) -> None:
    cluster.hub.mailboxes.clear()
    desk.fabric.calls.clear()
    desk.spoiled = {"b"}
    reading = asyncio.create_task(desk.courier.read())
    await clock.settle()
    assert [name for name, _, _ in desk.fabric.calls] == ["inbox.open", "inbox.read"]
    for name in ("a", "b", "c"):
        assert await desk.fabric.inbox.send("one", encode_message(cancel(name))) == "sent"
    with capture_logs():
        await clock.settle()
    assert desk.given == [["a", "b"], ["a"], ["b"], ["c"]]
    assert await desk.fabric.inbox.measure() == InboxState(length=1, pending=1, dead_letters=0)
    assert desk.fabric.last("inbox.read") == (2, SECOND, ["3"])
    reading.cancel()


async def leave_alone(desk: Desk, *names: str) -> None:
    """Messages that were handed out, and not done."""
    for name in names:
        await desk.fabric.inbox.send("one", encode_message(cancel(name)))
    await desk.fabric.inbox.read(10, 0)


async def test_what_was_left_alone_long_enough_is_handled_again(
    desk: Desk, clock: VirtualClock
) -> None:
    await leave_alone(desk, "a", "b", "c")
    await clock.advance(10 * SECOND - 1)
    assert await step(desk.courier.chores) is None
    assert (desk.given, desk.courier.state) == ([], InboxState(3, 3, 0))
    desk.spoiled = {"b"}
    await clock.advance(1)
    with capture_logs():
        assert await step(desk.courier.chores) is None
    assert desk.given == [["a", "b"], ["a"], ["b"]]  # in portions too
    assert (desk.courier.state, desk.courier.buried) == (InboxState(2, 2, 0), 0)


async def test_without_anything_left_alone_the_chores_only_measure(desk: Desk) -> None:
    desk.fabric.calls.clear()
    with capture_logs() as logs:
        assert await step(desk.courier.chores) is None
    assert [name for name, _, _ in desk.fabric.calls] == [
        "inbox.bury",
        "inbox.reclaim",
        "inbox.measure",
    ]
    assert logs == []


async def test_what_failed_too_often_becomes_a_dead_letter_in_portions(
    desk: Desk, clock: VirtualClock
) -> None:
    await leave_alone(desk, "a", "b", "c")
    await desk.fabric.inbox.reclaim(0, 10)
    await clock.advance(10 * SECOND)
    with capture_logs() as logs:
        assert await step(desk.courier.chores) == AGAIN
        assert desk.courier.state == InboxState(0, 0, 2)  # the third was done
        assert await step(desk.courier.chores) is None
    assert (desk.given, desk.courier.buried) == ([["c"]], 2)
    assert [(line["log_level"], line["count"]) for line in logs] == [("warning", 2)]


async def test_fewer_dead_letters_than_a_portion_are_all_there_were(
    desk: Desk, clock: VirtualClock
) -> None:
    await leave_alone(desk, "a")
    await desk.fabric.inbox.reclaim(0, 10)
    await clock.advance(10 * SECOND)
    with capture_logs():
        assert await step(desk.courier.chores) is None
    assert (desk.courier.state, desk.courier.buried) == (InboxState(0, 0, 1), 1)


async def test_messages_of_instances_reach_those_who_handle_them(
    one: Instance, two: Instance
) -> None:
    """The whole engine at both ends: a drain mark that is set on one instance."""
    node = await two.node("n")
    await one.engine.registration.set_draining("n", True, "two")
    assert not node.hosted.record.is_draining
    await two.read()
    assert node.hosted.record.is_draining
