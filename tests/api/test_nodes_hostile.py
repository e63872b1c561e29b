"""Nodes and sessions that do not keep to the protocol: an `error` frame, a close where it must be,
and nobody else disturbed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ksana.api.nodes.sockets import SocketBounds
from ksana.base.instant import MILLISECOND
from ksana.domain.nodes.attempts import AttemptLimits
from ksana.engine.nodes.parameters import NodeParameters
from tests.api.nodes_ground import NodesServer, Wire, nodes_server

HASTY = NodeParameters(
    progress_us=10 * MILLISECOND,
    limits=AttemptLimits(ack_us=300 * MILLISECOND, start_us=600 * MILLISECOND),
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NodesServer]:
    async with nodes_server(tmp_path, HASTY) as server:
        yield server


async def ask(session: Wire, request_id: str, **members: object) -> None:
    await session.send(
        {"type": "job_request", "model": "echo", "request_id": request_id, **members}
    )


async def all_is_well(server: NodesServer, session: Wire, request_id: str = "well") -> None:
    """A good node serves a job beside whatever happens."""
    async with server.node(node_id=f"good-{request_id}", models=["good"]) as good:
        await session.send({"type": "job_request", "model": "good", "request_id": request_id})
        await good.echo()
        while (await session.read("job_result"))["request_id"] != request_id:
            pass


async def stale_count(server: NodesServer) -> int:
    async with httpx.AsyncClient(base_url=server.base) as client:
        counts = (await client.get("/api/v1/cluster")).json()["counts"]
    return int(counts["stale_attempts"])


@pytest.mark.spec("N7")
async def test_a_node_that_answers_twice_is_heard_once(server: NodesServer) -> None:
    async with server.node() as node, server.session() as session:
        await ask(session, "r")
        assign = await node.read("job_assign")
        about = {"type": "job_result", "job_id": assign["job_id"], "attempt_id": 1}
        await node.send({**about, "success": True, "data": "first"})
        await node.send({**about, "success": True, "data": "second"})
        await node.send({**about, "success": False, "error": {"code": "X", "message": ""}})
        assert (await session.read("job_result"))["data"] == "first"
        await all_is_well(server, session)  # no other result came before this one's
        assert await stale_count(server) == 2


@pytest.mark.spec("N7")
async def test_a_node_that_answers_for_the_job_of_another_is_not_heard(server: NodesServer) -> None:
    async with (
        server.node(node_id="honest") as honest,
        server.node(node_id="thief", models=["other"]) as thief,
        server.session() as session,
    ):
        await ask(session, "r")
        assign = await honest.read("job_assign")
        about = {"job_id": assign["job_id"], "attempt_id": 1}
        for kind in ("job_ack", "job_started", "job_partial"):
            await thief.send({"type": kind, **about})
        await thief.send({"type": "job_result", **about, "success": True, "data": "stolen"})
        await thief.send({"type": "ping", "id": "1"})
        await thief.read("pong")
        assert await stale_count(server) == 4
        await honest.send({"type": "job_result", **about, "success": True, "data": "own"})
        assert (await session.read("job_result"))["data"] == "own"


@pytest.mark.spec("N3", "N7")
async def test_frames_in_a_wrong_order_are_dropped_and_counted(server: NodesServer) -> None:
    async with server.node() as node, server.session() as session:
        about = {"job_id": "none", "attempt_id": 1}
        await node.send({"type": "job_ack", **about})
        await node.send({"type": "job_result", **about, "success": True})
        await node.send({"type": "node_register", "slots": 1})
        assert (await node.read("error"))["code"] == "PROTOCOL"
        await session.send({"type": "session_init"})
        assert (await session.read("error"))["code"] == "PROTOCOL"
        await session.send({"type": "job_cancel", "job_id": "none"})
        assert (await session.read("error"))["code"] == "NOT_FOUND"
        await ask(session, "r")
        assign = await node.read("job_assign")
        about = {"job_id": assign["job_id"], "attempt_id": 2}  # an attempt that is not made yet
        await node.send({"type": "job_result", **about, "success": True, "data": "early"})
        about["attempt_id"] = 1
        # A result without an acknowledgement or a start is a result.
        await node.send({"type": "job_result", **about, "success": True, "data": "right"})
        assert (await session.read("job_result"))["data"] == "right"
        await node.send({"type": "job_partial", **about, "data": "late"})
        await all_is_well(server, session)
        assert await stale_count(server) == 4


@pytest.mark.fault("F50")
@pytest.mark.spec("N12")
async def test_a_node_that_takes_a_job_and_falls_silent_loses_it(server: NodesServer) -> None:
    async with server.node(node_id="silent") as silent, server.session() as session:
        await ask(session, "r", wait_sec=10)
        assign = await silent.read("job_assign")
        async with server.node(node_id="keen") as keen:
            again = await keen.read("job_assign")
            assert (again["job_id"], again["attempt_id"]) == (assign["job_id"], 2)
            assert (await silent.read("job_cancel"))["attempt_id"] == 1
            about = {"type": "job_result", "job_id": again["job_id"], "success": True}
            await silent.send({**about, "attempt_id": 1, "data": "late"})
            await keen.send({**about, "attempt_id": 2, "data": "kept"})
            assert (await session.read("job_result"))["data"] == "kept"
        assert await stale_count(server) == 1


@pytest.mark.spec("N3", "N4")
async def test_unknown_and_broken_frames_of_many_do_not_disturb_one(server: NodesServer) -> None:
    async def shout(number: int) -> tuple[int | None, str | None]:
        async with server.node(node_id=f"loud-{number}") as wire:
            for turn in range(20):
                bad = ("{", "[]", '{"type":"no_such"}', '{"type":"job_ack"}')[turn % 4]
                await wire.send(bad)
            return await wire.wait_closed()

    async with server.session() as session:
        shouting = [asyncio.create_task(shout(number)) for number in range(10)]
        await all_is_well(server, session)
        ends = await asyncio.gather(*shouting)
    assert set(ends) == {(1003, "TOO_MANY_BAD_FRAMES")}


@pytest.mark.fault("F51")
@pytest.mark.spec("X13", "N3")
async def test_a_frame_that_is_too_large_is_closed_with_a_code(server: NodesServer) -> None:
    async with server.session() as session, server.session() as large:
        with pytest.raises(ConnectionClosed):
            await ask(large, "big", payload="x" * (1024 * 1024))
            await large.read()
        assert large.socket.close_code == 1009
        await all_is_well(server, session)


@pytest.mark.spec("X13")
async def test_a_peer_that_floods_is_read_at_its_rate_and_others_do_not_feel_it(
    tmp_path: Path,
) -> None:
    bounds = SocketBounds(frame_rate=320)
    async with nodes_server(tmp_path, HASTY, bounds=bounds) as server, server.session() as session:
        async with server.node(node_id="flood") as flood:
            began = time.monotonic()
            beat = json.dumps({"type": "ping", "id": ""})

            async def pour() -> None:
                for _ in range(800):
                    await flood.send(beat)

            pouring = asyncio.create_task(pour())
            await all_is_well(server, session)
            await pouring
            heard = pongs = 0
            while pongs < 800:
                frame = await flood.read()
                pongs += frame["type"] == "pong"
                heard += frame["type"] == "error" and frame["code"] == "RATE_LIMITED"
            assert time.monotonic() - began >= 2.0  # 320 a second, all of them read in the end
            assert heard == 1
        await all_is_well(server, session, "after")


@pytest.mark.slow
@pytest.mark.fault("F51")
@pytest.mark.spec("X13")
async def test_readers_that_stop_are_closed_before_they_fill_the_memory_together(
    tmp_path: Path,
) -> None:
    bounds = SocketBounds(queued_bytes=64 << 20, all_queued_bytes=2 << 20)
    async with (
        nodes_server(tmp_path, HASTY, bounds=bounds, send_bytes=65_536) as server,
        server.session() as session,
    ):
        deaf = [
            server.node(node_id=f"deaf-{number}", slots=50, receive_bytes=65_536)
            for number in range(4)
        ]
        wires = [await one.__aenter__() for one in deaf]
        for number in range(60):
            await ask(session, f"r{number}", payload="x" * 800_000)
        async with asyncio.timeout(20):
            while any(f"deaf-{n}" in server.engine.hosting.nodes for n in range(4)):
                await asyncio.sleep(0.02)
        ends = {await wire.wait_closed() for wire in wires}
        assert ends <= {(4008, "SLOW_READER"), (1006, ""), (1006, None), (None, None)}, ends
        for one in deaf:
            await one.__aexit__(None, None, None)
        assert server.budget.queued == 0
        await all_is_well(server, session)


@pytest.mark.spec("X13", "X8")
async def test_one_socket_too_many_is_refused_at_the_door(tmp_path: Path) -> None:
    async with nodes_server(tmp_path, most_sockets=3) as server:
        async with server.node(node_id="a"), server.node(node_id="b"), server.session() as session:
            with pytest.raises(InvalidStatus) as caught:
                async with server.node(node_id="c"):
                    pass
            response = caught.value.response
            assert response.status_code == 429
            assert json.loads(response.body)["code"] == "RATE_LIMITED"
            await session.send({"type": "ping", "id": "1"})
            assert (await session.read("pong"))["id"] == "1"
        async with asyncio.timeout(10):
            while server.engine.hosting.nodes:
                await asyncio.sleep(0.01)
        async with server.node(node_id="c"):
            pass


@pytest.mark.spec("X13", "X19")
async def test_one_key_cannot_take_all_sockets(tmp_path: Path) -> None:
    async with nodes_server(tmp_path, most_sockets=5, most_of_a_key=1) as server:
        made = [await server.core.keys.create_key(name, ["nodes:write"]) for name in ("a", "b")]
        first, second = ({"authorization": f"Bearer {key.text}"} for key in made)
        async with server.socket("/ws/session", additional_headers=first) as wire:
            await wire.send({"type": "session_init"})
            await wire.read("session_init_ack")
            with pytest.raises(InvalidStatus) as caught:
                async with server.socket("/ws/session", additional_headers=first):
                    pass
            assert caught.value.response.status_code == 429
            async with server.socket("/ws/session", additional_headers=second) as other:
                await other.send({"type": "session_init"})
                await other.read("session_init_ack")


@pytest.mark.spec("X13", "N5")
async def test_a_line_that_is_full_takes_no_more(tmp_path: Path) -> None:
    settings = NodeParameters(max_jobs=3, max_job_bytes=1_000)
    async with nodes_server(tmp_path, settings) as server, server.session() as session:
        for number in range(3):
            await ask(session, f"r{number}", wait_sec=30)
            await session.read("job_created")
        await ask(session, "over", wait_sec=30)
        error = await session.read("error")
        assert (error["code"], error["request_id"]) == ("QUEUE_FULL", "over")
        async with httpx.AsyncClient(base_url=server.base) as client:
            refused = await client.post("/api/v1/node-jobs", json={"model": "m", "wait_sec": 9})
            assert (refused.status_code, refused.json()["code"]) == (409, "QUEUE_FULL")
        async with server.node() as node:
            await node.echo(3)
            for _ in range(3):
                await session.read("job_result")
        await ask(session, "large", wait_sec=30, payload="x" * 1_001)
        assert (await session.read("error"))["code"] == "QUEUE_FULL"
        await ask(session, "small", wait_sec=30, payload="x" * 900)
        await session.read("job_created")
