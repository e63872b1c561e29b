"""Many connections at once: sockets let in a few at a time, and not counted as HTTP connections."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketState

from ksana.api.core.crowd import AT_ONCE, Crowd
from ksana.api.nodes.sockets import SocketBounds, SocketOutgoing, WriteBudget
from tests.api.ground import CoreServices, open_house
from tests.api.nodes_ground import nodes_server
from tests.api.socket_ground import converse, serving

LAST_GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[CoreServices]:
    async with open_house(tmp_path) as core:
        yield core


async def test_a_turn_of_the_loop_lets_in_a_few_in_their_order() -> None:
    loop = asyncio.get_running_loop()
    crowd, came = Crowd(), list[int]()
    for number in range(3 * AT_ONCE + 1):
        crowd.let_in(lambda number=number: came.append(number), loop)
    seen = []
    while len(came) <= 3 * AT_ONCE:
        await asyncio.sleep(0)
        seen.append(len(came))
    assert came == list(range(3 * AT_ONCE + 1))
    assert seen == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE, 3 * AT_ONCE + 1]


async def test_while_connections_come_in_handshakes_wait() -> None:
    loop = asyncio.get_running_loop()
    crowd, came = Crowd(), list[int]()
    for number in range(20):
        crowd.let_in(lambda number=number: came.append(number), loop)
    for turn in range(5):
        crowd.arrivals += 3
        await asyncio.sleep(0)
        assert len(came) == turn + 1
    await asyncio.sleep(0)
    assert len(came) == 5 + AT_ONCE


async def test_one_that_fails_does_not_keep_the_others_out() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    crowd, came = Crowd(), list[int]()
    crowd.let_in(lambda: came.append(1 // 0), loop)
    crowd.let_in(lambda: came.append(2), loop)
    for _ in range(3):
        await asyncio.sleep(0)
    crowd.let_in(lambda: came.append(3), loop)
    await asyncio.sleep(0)
    assert came == [2, 3]
    assert [type(one) for one in failures] == [ZeroDivisionError]


@pytest.mark.spec("N3")
async def test_open_sockets_do_not_take_the_place_of_calls(tmp_path: Path) -> None:
    async with nodes_server(tmp_path, max_connections=4) as server:
        crowd = server.crowd
        async with asyncio.TaskGroup() as group:
            over = asyncio.Event()

            async def sit(number: int) -> None:
                async with server.node(node_id=f"n{number}"):
                    await over.wait()

            for number in range(12):
                group.create_task(sit(number))
            async with httpx.AsyncClient(base_url=server.base) as client:
                async with asyncio.timeout(10):
                    while len((await client.get("/api/v1/nodes")).json()["nodes"]) < 12:
                        await asyncio.sleep(0.01)
                assert crowd.sockets == 12
                assert (await client.get("/api/v1/cluster")).status_code == 200
            over.set()
        async with asyncio.timeout(10):
            while crowd.sockets:
                await asyncio.sleep(0.01)
        assert crowd.silent == 0


async def test_silent_connections_do_not_take_the_place_of_calls(core: CoreServices) -> None:
    async with serving(core.app(), core, max_connections=2) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(10)]
        assert b"HTTP/1.1 200" in await converse(server.port, LAST_GET)
        for _, writer in silent:
            writer.close()


async def test_a_socket_that_goes_before_it_is_let_in_is_not_counted_on(tmp_path: Path) -> None:
    request = (
        b"GET /ws/node HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    async with nodes_server(tmp_path) as server:
        for _ in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            await asyncio.sleep(0)
            writer.transport.abort()
        async with asyncio.timeout(10):
            while server.crowd.sockets or server.crowd.silent:
                await asyncio.sleep(0.01)
        async with server.node() as node:
            await node.send({"type": "ping", "id": "1"})
            assert (await node.read("pong"))["id"] == "1"


@pytest.mark.spec("N4")
@pytest.mark.parametrize("size", [0, 100, 110, 130, 65_400, 65_600, 900_000])
async def test_frames_of_every_size_come_whole_and_in_order(tmp_path: Path, size: int) -> None:
    async with nodes_server(tmp_path) as server, server.node() as node, server.session() as session:
        for number in range(5):
            payload = {"n": number, "text": "é" + "x" * size}
            ask = {"type": "job_request", "model": "echo", "request_id": f"r{number}"}
            await session.send({**ask, "payload": payload, "wait_sec": 10})
        serving = asyncio.create_task(node.echo(5))
        told = {}
        while len(told) < 5:
            frame = await session.read("job_result")
            told[frame["request_id"]] = frame["data"]
        await serving
        for number in range(5):
            assert told[f"r{number}"] == {"n": number, "text": "é" + "x" * size}


async def test_without_the_extension_frames_are_sent_one_by_one() -> None:
    sent: list[Message] = []
    ended = asyncio.Event()

    async def receive() -> Message:
        await ended.wait()
        return {"type": "websocket.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    socket = WebSocket({"type": "websocket", "headers": []}, receive, send)
    socket.client_state = socket.application_state = WebSocketState.CONNECTED
    outgoing = SocketOutgoing(socket, SocketBounds(), WriteBudget())
    outgoing.start()
    for text in (b'{"a":1}', b'{"b":2}'):
        assert outgoing.send(text)
    outgoing.close(1001, "GOING_DOWN")
    await asyncio.wait_for(outgoing.ended.wait(), 5)
    await outgoing.stop()
    assert [one.get("text", one["type"]) for one in sent] == [
        '{"a":1}',
        '{"b":2}',
        "websocket.close",
    ]
