"""How a node ends: what runs may finish within the grace, and nothing holds it up for ever."""

import asyncio
import contextlib
import os
import signal
import threading
from typing import Any

import pytest

from ksana.client import Node, NodeJobContext
from ksana.client.node_socket import SocketClosed
from ksana.client.stats import NodeStats
from tests.client.fake_socket import assign
from tests.client.node_house import NOT_REACHED, NodeHouse, at_work
from tests.ground.jumping import loop_time, on_jumping_time, pass_time

pytestmark = pytest.mark.spec("N3", "N7")


@on_jumping_time
async def test_a_stop_lets_what_runs_finish_and_takes_no_more() -> None:
    async with at_work() as house:
        house.wire.say(assign("a"))
        await pass_time()
        house.node.stop()
        await pass_time(1.0)
        assert house.wire.sent[-2:] == [
            {"type": "node_heartbeat", "running": 1, "load": 0.25, "models": []},
            {"type": "ping", "id": "drain"},
        ]
        house.wire.say(assign("b"))  # was on its way
        await pass_time(5.0)
        house.gate.set()
        stats = await house.end()
        assert [result["job_id"] for result in house.wire.sent_of("job_result")] == ["a", "b"]
        assert stats is house.node.stats
        assert stats == NodeStats(connections=1, assigned=2, succeeded=2)
        assert house.wire.is_closed
        assert loop_time() < 6.5


@on_jumping_time
async def test_a_stop_waits_for_what_is_on_its_way_and_no_longer_than_the_grace() -> None:
    house = NodeHouse(grace_sec=4.0)
    house.start()
    await house.node.wait_connected()
    house.wire.answers_pings = False  # nobody knows what is on its way
    house.wire.say(assign("a"))
    await pass_time()
    house.node.stop()
    await house.end()
    assert loop_time() == 4.001
    assert house.node.stats == NodeStats(connections=1, assigned=1, lost=1)
    assert house.wire.sent_of("job_result") == []
    assert house.seen[0].cancelled.reason == "the node stops"
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"


@pytest.mark.parametrize(
    ("second", "ends_at"), [(None, 30.001), (3.0, 3.001), (0.0, 2.201), (9.0, 9.001)]
)
@on_jumping_time
async def test_a_second_stop_changes_the_grace(second: float | None, ends_at: float) -> None:
    house = NodeHouse()
    house.start()
    await house.node.wait_connected()
    house.wire.say(assign("a"))
    await pass_time()
    house.node.stop()
    await pass_time(2.0)
    house.node.stop(second)
    await house.end()
    assert loop_time() == pytest.approx(ends_at, abs=0.21)
    assert loop_time() <= ends_at


@on_jumping_time
async def test_the_second_signal_cuts_the_grace() -> None:
    house = NodeHouse(grace_sec=20.0)
    house.start()
    await house.node.wait_connected()
    house.wire.say(assign("a"))
    await pass_time()
    house.node._stop_by_signal()
    await pass_time(0.5)
    assert house.running is not None and not house.running.done()
    house.node._stop_by_signal()
    await house.end()
    assert loop_time() < 0.71


@on_jumping_time
async def test_a_stop_between_two_connections_ends_at_once() -> None:
    house = NodeHouse(*[NOT_REACHED] * 9)
    house.start()
    await pass_time(1.5)
    house.node.stop()
    assert await house.end() == NodeStats()
    assert (house.server.tried_at, loop_time()) == ([0.0, 1.0], 1.5)


@on_jumping_time
async def test_results_that_cannot_be_written_hold_a_stop_up_for_some_seconds() -> None:
    house = NodeHouse()
    house.start()
    await house.node.wait_connected()
    house.wire.say(assign("a"))
    await pass_time()
    house.wire.may_write.clear()
    house.gate.set()
    await pass_time()
    house.node.stop(0.0)
    await house.end()
    assert loop_time() == 5.002


@on_jumping_time
async def test_a_handler_that_will_not_end_is_left_behind() -> None:
    house = NodeHouse()

    @house.node.model("stubborn")
    async def stubborn(_: NodeJobContext) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(500)
                return

    house.start()
    await house.node.wait_connected()
    house.wire.say(assign("a", model="stubborn"))
    await pass_time()
    house.node.stop(0.0)
    await house.end()
    assert (loop_time(), house.node.stats.lost) == (2.501, 1)


@on_jumping_time
async def test_a_load_that_cannot_be_told_is_an_error_of_the_program() -> None:
    house = NodeHouse(load=lambda: 1 / 0)
    house.start()
    with pytest.raises(ZeroDivisionError):
        await house.end()
    assert house.wire.is_closed


def test_several_addresses_are_named_without_their_keys() -> None:
    node = Node(["http://a", "http://u:p@b"], api_key="k", connect_sec=4.0)
    assert node._contact._address == "ws://a/ws/node, ws://b/ws/node"
    assert (node._address._connect_sec, node._answer_sec) == (4.0, 4.0)
    assert (node._contact.speaker, Node("http://h", "x")._contact.speaker) == ("node", "node x")


@on_jumping_time
async def test_a_node_that_is_refused_while_it_works_ends_its_handlers() -> None:
    house = NodeHouse()
    house.node.add_model("slow", house.wait_at_gate, interrupt=False)
    house.start()
    await house.node.wait_connected()
    house.wire.say(assign("a", model="slow"))
    await pass_time()
    house.wire.end(4012, "KEY_REVOKED")
    with pytest.raises(SocketClosed):
        await house.end()
    assert (house.node.running, house.node.stats.lost) == (0, 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_thread_that_does_not_end_does_not_hold_the_node_up() -> None:
    house = NodeHouse()
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    names: list[str] = []

    @house.node.model("slow")
    def slow(_: NodeJobContext) -> None:
        names.append(threading.current_thread().name)
        begun.set()
        may_end.wait(5)
        ended.set()

    house.start()
    await house.node.wait_connected()
    house.wire.say(assign("a", model="slow"))
    await asyncio.to_thread(begun.wait, 5)
    house.node.stop(0.0)
    stats = await house.end()
    assert (stats.lost, names, ended.is_set()) == (1, ["ksana-node_0"], False)
    may_end.set()


def test_a_node_run_as_a_program_ends_with_a_signal() -> None:
    house = NodeHouse()
    house.server.answers = [NOT_REACHED]
    reached: list[int] = []

    async def refuse(_: Any) -> Any:
        reached.append(1)
        os.kill(os.getpid(), signal.SIGTERM)
        raise NOT_REACHED

    house.server.open = refuse  # type: ignore[method-assign]
    house.node.serve()
    assert (reached, house.node.stats) == ([1], NodeStats())
