"""The life of a node on a loop whose time jumps: it registers, beats, works, is cut off and
comes back."""

import inspect
import logging
import platform
from typing import Any

import pytest

from ksana.client import ApiConflictError, Node, NodeJobContext
from ksana.client.errors import AccessError, from_body
from ksana.client.node_socket import STEADY_SEC, SocketClosed
from ksana.client.stats import NodeStats
from ksana.domain.nodes import frames
from tests.client.fake_socket import FakeConnection, assign, node_ack
from tests.client.node_house import NOT_REACHED, NodeHouse, at_work
from tests.ground.jumping import on_jumping_time, pass_time, until

pytestmark = pytest.mark.spec("N3", "N7")

# --- registration ---


@on_jumping_time
async def test_a_node_tells_who_it_is_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ksana.client")
    options = {"slots": 2, "labels": {"zone": "a"}, "version": "2.1"}
    async with at_work(**options) as house:
        assert house.node.is_connected
        assert house.wire.sent == [
            {
                "type": "node_register",
                "slots": 2,
                "models": ["m"],
                "node_id": "n",
                "version": "2.1",
                "platform": platform.platform(terse=True)[:128],
                "labels": {"zone": "a"},
                "protocol": 1,
            }
        ]
    assert not house.node.is_connected
    assert caplog.messages == [
        "node n: starting, slots 2, models m",
        "node n: connected to http://h",
        "node n: stopped",
    ]
    assert house.wire.is_closed
    assert house.node.stats == NodeStats(connections=1)


@on_jumping_time
async def test_a_platform_of_many_words_is_told_as_far_as_the_server_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "platform", lambda *, terse: f"{terse}" + 200 * "x")
    async with at_work() as house:
        await pass_time()
        assert house.wire.sent[0]["platform"] == "True" + 124 * "x"


@on_jumping_time
async def test_an_id_that_the_server_gave_is_kept_for_the_next_connection() -> None:
    house = NodeHouse(node_id=None)
    house.server.hello = [node_ack("given")]
    house.start()
    await house.node.wait_connected()
    assert house.node.node_id == "given"
    house.wire.end(1001)
    await until(lambda: len(house.server.opened) == 2 and house.node.is_connected)
    await pass_time()
    asked = [wire.sent[0]["node_id"] for wire in house.server.opened]
    assert asked == [None, "given"]
    house.node.stop()
    await house.end()


@on_jumping_time
async def test_a_node_that_the_server_refuses_for_good_ends_with_the_refusal() -> None:
    house = NodeHouse()
    house.server.hello = [frames.ErrorFrame(code="NODE_ID_CONFLICT", message="taken")]
    house.start()
    with pytest.raises(ApiConflictError, match="taken"):
        await house.end()
    assert (house.node.stats, house.server.passed_on) == (NodeStats(), 1)
    assert house.wire.is_closed
    wrong_key = NodeHouse(from_body(401, {"code": "UNAUTHORIZED"}))
    wrong_key.start()
    with pytest.raises(AccessError):
        await wrong_key.end()
    revoked = NodeHouse()
    revoked.start()
    await revoked.node.wait_connected()
    revoked.wire.end(4012, "KEY_REVOKED")
    with pytest.raises(SocketClosed, match="4012 KEY_REVOKED"):
        await revoked.end()


@on_jumping_time
async def test_an_odd_answer_or_none_is_no_reason_to_give_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent, odd = FakeConnection(), FakeConnection()
    odd.say(assign())
    house = NodeHouse(silent, odd, connect_sec=3.0)
    house.start()
    await house.node.wait_connected()
    # Three seconds for the first answer, a second's pause, then two.
    assert house.server.tried_at == [0.0, 4.0, 6.0]
    assert caplog.messages == [
        "node n: cannot reach http://h, trying again until it answers:"
        " the server did not answer the first frame within 3 s"
    ]
    assert (silent.is_closed, odd.is_closed, house.server.passed_on) == (True, True, 2)
    house.node.stop()
    await house.end()
    assert house.node.stats.connections == 1


@on_jumping_time
async def test_what_the_server_would_refuse_is_told_before_anything_is_opened() -> None:
    bare = Node("http://h")
    with pytest.raises(ValueError, match=r"has no handler: register one with @node\.model"):
        await bare.run()
    with pytest.raises(ValueError, match="slots is 1 or more"):
        Node("http://h", slots=0)
    strange = NodeHouse(models=["m", "z", "a"])
    with pytest.raises(ValueError, match=r"there is no handler for a, z$"):
        await strange.node.run()
    assert strange.server.opened == []
    refused = NodeHouse(version="v" * 65)
    with pytest.raises(ValueError, match=r"the server would refuse this node: .*version"):
        await refused.node.run()
    with pytest.raises(ValueError, match="'m' has a handler already"):
        refused.node.add_model("m", lambda ctx: None)


@on_jumping_time
async def test_a_node_runs_once() -> None:
    async with at_work() as house:
        with pytest.raises(RuntimeError, match="a node runs once"):
            await house.node.run()


# --- heartbeats ---


@on_jumping_time
async def test_heartbeats_come_as_often_as_the_server_asked_and_tell_the_share_in_use() -> None:
    async with at_work() as house:
        house.wire.say(assign("a"))
        await pass_time(14.9)
        assert house.wire.sent_of("node_heartbeat") == []
        await pass_time(15.2)
        beat = {"type": "node_heartbeat", "running": 1, "load": 0.25, "models": None}
        assert house.wire.sent_of("node_heartbeat") == [beat, beat]
        house.gate.set()
        await pass_time(15.0)
        beat = {"type": "node_heartbeat", "running": 0, "load": 0.0, "models": None}
        assert house.wire.sent_of("node_heartbeat")[2:] == [beat]


@on_jumping_time
async def test_a_node_may_tell_a_load_of_its_own() -> None:
    async with at_work(load=lambda: 0.75) as house:
        await pass_time(15.1)
        [beat] = house.wire.sent_of("node_heartbeat")
        assert (beat["running"], beat["load"]) == (0, 0.75)


@on_jumping_time
async def test_models_are_announced_at_once_and_at_every_registration() -> None:
    house = NodeHouse(models=["m"])
    house.node.add_model("late", lambda ctx: None)
    assert (house.node.models, list(house.node.handlers)) == (["m"], ["m", "late"])
    house.node.announce(["late"])  # nobody to tell yet
    house.start()
    await house.node.wait_connected()
    assert house.wire.sent[0]["models"] == ["late"]
    house.node.announce(["m", "late"])
    await pass_time()
    assert house.wire.sent_of("node_heartbeat")[0]["models"] == ["m", "late"]
    with pytest.raises(ValueError, match="there is no handler for other"):
        house.node.announce(["other"])
    house.node.announce([])
    await pass_time()
    assert [beat["models"] for beat in house.wire.sent_of("node_heartbeat")] == [["m", "late"], []]
    house.node.stop()
    house.node.announce(["m"])  # a node that stops offers nothing
    await house.end()
    assert house.wire.sent_of("node_heartbeat")[-1]["models"] == []
    assert len(house.wire.sent_of("node_heartbeat")) == 3


# --- work ---


@on_jumping_time
async def test_jobs_come_and_go_over_the_socket(caplog: pytest.LogCaptureFixture) -> None:
    async with at_work() as house:
        house.wire.say(
            frames.ErrorFrame(code="STALE_ATTEMPT", message="too late"),
            assign("a", payload=[1]),
            assign("b", 2),
        )
        await pass_time()
        assert house.node.running == 2
        house.wire.say(frames.NodeJobCancel(job_id="b", attempt_id=2, reason="timed out"))
        await pass_time()
        assert house.node.running == 1
        house.gate.set()
        await pass_time()
        assert house.wire.sent[-1] == {
            "type": "job_result",
            "job_id": "a",
            "attempt_id": 1,
            "success": True,
            "data": [1],
            "error": None,
        }
    assert caplog.messages == ["the server says STALE_ATTEMPT: too late"]
    assert house.node.stats == NodeStats(connections=1, assigned=2, succeeded=1, cancelled=1)


@on_jumping_time
async def test_a_handler_knows_the_id_of_its_node() -> None:
    async with at_work(node_id=None) as house:

        @house.node.model("who", interrupt=False)
        async def who(ctx: NodeJobContext) -> str:
            return ctx.node_id

        house.wire.say(assign("a", model="who"))
        await pass_time()
        assert house.wire.sent[-1]["data"] == "n"
        assert inspect.iscoroutinefunction(who), "it can still be called"
        assert not house.node.handlers["who"].is_interrupted
        assert house.node.handlers["m"].is_interrupted


# --- a lost connection ---


@on_jumping_time
async def test_a_lost_connection_gives_up_its_attempts_and_is_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with at_work() as house:
        first = house.wire
        first.say(assign("a"))
        await pass_time()
        first.end()
        await pass_time()
        assert not house.node.is_connected
        assert house.node.running == 0
        house.node.announce(["m"])  # nobody hears it
        await until(lambda: house.node.is_connected)
        assert (first.is_closed, house.server.passed_on) == (True, 1)
        assert house.server.tried_at == [0.0, 1.001]
        assert caplog.messages == [
            "attempt 1 at job a is given up: the connection was lost",
            "node n: lost http://h, trying again until it answers:"
            " the socket was closed: 1006 cut off",
        ]
        assert house.wire.kinds == ["node_register"]
    assert house.node.stats == NodeStats(connections=2, assigned=1, lost=1)


@pytest.mark.parametrize(
    ("held_sec", "then"), [(STEADY_SEC, 1.0), (STEADY_SEC - 0.5, 4.0), (STEADY_SEC + 60, 1.0)]
)
@on_jumping_time
async def test_pauses_grow_until_a_connection_has_held(held_sec: float, then: float) -> None:
    async with at_work(NOT_REACHED, NOT_REACHED, NOT_REACHED) as house:
        assert house.server.tried_at == [0.0, 1.0, 3.0, 6.0]
        await pass_time(held_sec)
        house.wire.end(1001)
        await pass_time(10.0)
        assert house.server.tried_at[4:] == [6.0 + held_sec + then]


@on_jumping_time
async def test_a_server_that_asks_for_a_longer_pause_is_given_it() -> None:
    busy: Any = from_body(503, {"code": "STORE_DOWN"})
    busy.retry_after_sec = 7.0
    async with at_work(busy) as house:
        assert house.server.tried_at == [0.0, 7.0]
