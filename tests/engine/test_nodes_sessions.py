"""Sessions: who is connected where, the way of a frame to a session, and what is kept for one that
is nowhere."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.nodes.frames import JobUpdate
from ksana.domain.nodes.messages import Push
from ksana.domain.nodes.records import SessionRecord
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import Peer
from ksana.engine.nodes.session_roll import SessionRoll
from tests.engine.nodes_world import Instance, NodesWorld, Socket

TTL = 45 * SECOND


def update(name: str) -> JobUpdate:
    return JobUpdate(job_id=name, state="RUNNING", attempt_id=1)


def names(socket: Socket) -> list[str]:
    return [frame.job_id for frame in socket.take()]


# ---- coming and going ----


@pytest.mark.spec("N2")
async def test_a_session_is_owned_and_listed_by_the_instance_it_came_to(
    one: Instance, clock: VirtualClock
) -> None:
    await clock.advance(5)
    socket = await one.session("s")
    await one.engine.sessions.roll.write()
    assert await one.fabric.owners.find("session", "s") == "one"
    assert await one.fabric.sessions.read(["one"], "", 10) == [
        SessionRecord(
            session_id="s", instance_id="one", key_id="key-of-s", connected_at=clock.now()
        )
    ]
    assert one.engine.sessions.local == {"s": socket.peer}
    assert one.fabric.count("owners.replace_if") == 0
    await clock.advance(TTL)
    assert await one.fabric.owners.find("session", "s") is None  # unless it is renewed


async def test_a_session_that_comes_again_replaces_its_older_socket(
    one: Instance, two: Instance
) -> None:
    first = await one.session("s")
    second = await one.session("s")
    assert (first.closed, second.closed) == ((4009, "SESSION_REPLACED"), None)
    await one.engine.sessions.leave("s", first.peer)  # the end of the older is told later
    assert one.engine.sessions.local == {"s": second.peer}
    assert await one.fabric.owners.find("session", "s") == "one"
    await two.session("s")
    assert await one.fabric.owners.find("session", "s") == "two"


async def test_a_session_that_leaves_is_forgotten_everywhere(one: Instance) -> None:
    socket = await one.session("s")
    await one.engine.sessions.roll.write()
    await one.engine.sessions.leave("s", socket.peer)
    await one.engine.sessions.roll.write()
    assert (one.engine.sessions.local, socket.peer.is_open) == ({}, False)
    assert await one.fabric.owners.find("session", "s") is None
    assert await one.fabric.sessions.read(["one"], "", 10) == []


async def test_a_session_is_here_while_its_socket_is_open(one: Instance) -> None:
    sessions = one.engine.sessions
    assert not sessions.is_here("s")
    socket = await one.session("s")
    assert sessions.is_here("s")
    socket.peer.is_open = False
    assert not sessions.is_here("s")


# ---- the way of a frame ----


async def test_a_frame_to_a_session_that_is_here_asks_nobody(one: Instance) -> None:
    socket = await one.session("s")
    one.fabric.calls.clear()
    await one.engine.sessions.push("s", update("a"))
    assert (names(socket), one.fabric.calls) == (["a"], [])


async def test_a_job_without_a_session_is_told_to_nobody(
    one: Instance, clock: VirtualClock
) -> None:
    one.fabric.calls.clear()
    await one.engine.sessions.push("", update("a"), keep=True)
    assert one.fabric.calls == []
    await clock.advance(MINUTE)
    await one.engine.sessions.tend()
    assert one.engine.sessions.undelivered == 0


async def test_a_frame_to_a_session_elsewhere_goes_by_its_owner(
    one: Instance, two: Instance
) -> None:
    socket = await two.session("s")
    await one.engine.sessions.push("s", update("a"), keep=True)
    (message,) = await two.take_messages()
    assert message == Push(session_id="s", frame=msgspec.Raw(msgspec.json.encode(update("a"))))
    await two.hear(message)
    assert names(socket) == ["a"]
    assert names(await one.session("s")) == []  # nothing was kept here besides


@pytest.mark.parametrize("keep", [True, False])
async def test_a_frame_to_a_session_that_is_nowhere_waits_only_if_it_must_not_be_lost(
    one: Instance, keep: bool
) -> None:
    await one.engine.sessions.push("s", update("a"), keep=keep)
    await one.engine.sessions.push("other", update("b"), keep=True)
    assert names(await one.session("s")) == (["a"] if keep else [])
    assert names(await one.session("s")) == []  # once
    assert names(await one.session("other")) == ["b"]


@pytest.mark.parametrize("fault", ["closed", "stuck", "gone"])
async def test_a_frame_that_its_session_did_not_take_waits_for_it(
    one: Instance, cluster: NodesWorld, fault: str
) -> None:
    if fault == "gone":  # its owner has no inbox any more
        await one.fabric.owners.claim("session", "s", TTL)
        cluster.hub.owners.put("session:s", "dead", TTL)
    else:
        socket = await one.session("s")
        socket.peer.is_open = fault != "closed"
        socket.is_stuck = fault == "stuck"
    await one.engine.sessions.push("s", update("a"), keep=True)
    assert names(await one.session("s")) == ["a"]


@pytest.mark.parametrize("is_stuck", [True, False])
async def test_a_frame_that_came_for_a_session_is_sent_or_kept(
    one: Instance, is_stuck: bool
) -> None:
    socket = await one.session("s")
    socket.is_stuck = is_stuck
    await one.hear(Push(session_id="s", frame=msgspec.Raw(msgspec.json.encode(update("a")))))
    assert names(socket) == ([] if is_stuck else ["a"])
    assert names(await one.session("s")) == (["a"] if is_stuck else [])


async def test_a_frame_that_came_for_a_session_that_left_waits_for_it(one: Instance) -> None:
    await one.hear(Push(session_id="s", frame=msgspec.Raw(msgspec.json.encode(update("a")))))
    assert names(await one.session("s")) == ["a"]


# ---- what is kept ----


@pytest.mark.spec("N4")
async def test_what_was_kept_follows_a_session_that_came_back_elsewhere(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    for name in ("a", "b"):
        await one.engine.sessions.push("s", update(name), keep=True)
    await one.engine.sessions.push("other", update("c"), keep=True)
    socket = await two.session("s")
    await two.session("stranger")  # nothing is kept for this one
    await clock.settle()
    one.fabric.calls.clear()
    await one.engine.sessions.tend()
    await two.read()
    assert names(socket) == ["a", "b"]
    assert one.fabric.count("owners.find") == 2
    await one.engine.sessions.tend()
    assert one.fabric.count("owners.find") == 2  # told once
    assert names(await one.session("other")) == ["c"]


async def test_what_was_kept_for_one_session_alone_follows_it(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    await one.engine.sessions.push("s", update("a"), keep=True)
    socket = await two.session("s")
    await clock.settle()
    await one.engine.sessions.tend()
    await two.read()
    assert names(socket) == ["a"]


async def test_what_was_kept_for_a_session_that_is_gone_again_is_kept_on(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    await one.engine.sessions.push("s", update("a"), keep=True)
    socket = await two.session("s")
    await clock.settle()
    await two.engine.sessions.leave("s", socket.peer)
    await one.engine.sessions.tend()
    assert names(await one.session("s")) == ["a"]


async def test_what_waited_too_long_is_thrown_away_and_counted(
    one: Instance, clock: VirtualClock
) -> None:
    sessions = one.engine.sessions
    await sessions.push("s", update("a"), keep=True)
    await clock.advance(1)
    await sessions.push("s", update("b"), keep=True)
    await clock.advance(MINUTE - 2)
    await sessions.tend()
    assert sessions.undelivered == 0
    await clock.advance(1)
    await sessions.tend()
    assert sessions.undelivered == 1
    assert names(await one.session("s")) == ["b"]


async def test_of_too_many_frames_the_oldest_are_thrown_away(one: Instance) -> None:
    sessions = one.engine.sessions
    for number in range(1_002):
        await sessions.push("s", update(str(number)), keep=True)
    assert sessions.undelivered == 2
    assert names(await one.session("s")) == [str(number) for number in range(2, 1_002)]


MEGABYTE = 1024 * 1024


class Sizes:
    """A socket that only looks how large its frames are."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def send(self, frame: bytes) -> bool:
        self.seen.append(len(frame))
        return True

    def close(self, code: int, reason: str) -> None: ...


def big(size: int) -> Push:
    """A frame of so many bytes, as another instance sends it on."""
    return Push(session_id="s", frame=msgspec.Raw(b"1" * size))


async def test_frames_that_take_too_many_bytes_are_thrown_away_the_oldest_first(
    one: Instance,
) -> None:
    tell, sessions = one.engine.courier.tell, one.engine.sessions
    for _ in range(2):
        await tell("one", big(32 * MEGABYTE))
    assert sessions.undelivered == 0
    await tell("one", big(200))
    assert sessions.undelivered == 1
    await tell("one", big(32 * MEGABYTE - 200))
    assert sessions.undelivered == 1
    sizes = Sizes()
    await sessions.enter("s", Peer(sizes, 0))
    sessions.arrived("s")
    assert sizes.seen == [32 * MEGABYTE, 200, 32 * MEGABYTE - 200]
    sessions.local.clear()
    await tell("one", big(64 * MEGABYTE))  # what was sent takes nothing any more
    assert sessions.undelivered == 1
    await tell("one", big(1))
    assert sessions.undelivered == 2


# ---- the list of sessions ----


def a_session(name: str) -> SessionRecord:
    return SessionRecord(session_id=name, instance_id="one")


def writes(instance: Instance) -> list[tuple[str, Any]]:
    """What was written to the list since the last look."""
    found = [
        (name.partition(".")[2], args)
        for name, args, _ in instance.fabric.calls
        if name.startswith("sessions.write")
    ]
    instance.fabric.calls.clear()
    return found


@pytest.fixture
def roll(one: Instance) -> SessionRoll:
    return SessionRoll(one.fabric, NodeParameters())


async def test_the_list_is_first_written_whole_then_only_what_changed(
    one: Instance, roll: SessionRoll
) -> None:
    await roll.write()
    await roll.write()
    assert writes(one) == [("write_all", ([], TTL))]
    roll.enter(a_session("a"))
    await roll.write()
    assert writes(one) == [("write", ([a_session("a")], [], TTL))]
    roll.enter(a_session("b"))
    roll.leave("a")
    roll.leave("unknown")
    await roll.write()
    ((name, (here, gone, ttl_us)),) = writes(one)
    assert (name, here, sorted(gone), ttl_us) == ("write", [a_session("b")], ["a", "unknown"], TTL)
    await roll.write()
    assert writes(one) == []


async def test_after_a_write_that_failed_the_list_is_written_whole(
    one: Instance, roll: SessionRoll
) -> None:
    await roll.write()
    roll.enter(a_session("a"))
    one.fabric.is_away = True
    with pytest.raises(DependencyDownError):
        await roll.write()
    one.fabric.is_away = False
    writes(one)
    await roll.write()
    await roll.write()
    assert writes(one) == [("write_all", ([a_session("a")], TTL))]


async def test_a_list_that_was_lost_is_written_whole_again(
    one: Instance, roll: SessionRoll, cluster: NodesWorld
) -> None:
    roll.enter(a_session("a"))
    await roll.write()
    await roll.renew()
    writes(one)
    await roll.write()
    assert writes(one) == []  # it is as long as it should be
    cluster.hub.sessions.clear()
    await roll.renew()
    await roll.write()
    assert writes(one) == [("write_all", ([a_session("a")], TTL))]


async def test_a_list_that_is_shorter_only_by_what_is_not_written_yet_is_not_lost(
    one: Instance, roll: SessionRoll
) -> None:
    await roll.write()
    roll.enter(a_session("a"))
    await roll.renew()
    writes(one)
    await roll.write()
    assert writes(one) == [("write", ([a_session("a")], [], TTL))]
