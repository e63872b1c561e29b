"""The real server on a socket: deadlines, caps, keep-alive, pipelining, sockets and an orderly end
(F52)."""

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.websockets import WebSocket
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from ksana.api.core import connection as connection_module
from ksana.api.core import server as server_module
from ksana.api.core.routing import Call, SocketRoute
from tests.api.ground import CoreServices, append_events, open_house, thing_routes
from tests.api.socket_ground import PATIENCE_SEC, check_refused, converse, serving


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[CoreServices]:
    async with open_house(tmp_path) as core:
        yield core


GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST_GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def test_requests_are_answered_one_after_another_on_one_connection(
    core: CoreServices,
) -> None:
    head = LAST_GET.replace(b"GET", b"HEAD")
    async with serving(core.app(), core) as server:
        answer = await converse(server.port, GET + GET, head)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b"\r\n\r\nok") == 2
    assert answer.count(b"date: ") == 3
    assert answer.endswith(b"connection: close\r\n\r\n")


@pytest.mark.spec("X13")
async def test_the_answer_to_a_large_body_is_seen_and_the_connection_lives_on(
    core: CoreServices,
) -> None:
    size = 2 * 1024 * 1024
    post = b"POST /api/v1/things HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % size
    async with serving(core.app(), core) as server:
        answer = await converse(server.port, post, b"x" * size, LAST_GET)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"TOO_LARGE"' in answer
    assert answer.endswith(b"ok")


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    "sent", [b"hello\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\nhost: x\r\n\r\n"]
)
async def test_what_is_not_http_is_refused_in_the_same_body(
    core: CoreServices, sent: bytes
) -> None:
    async with serving(core.app(), core) as server:
        check_refused(await converse(server.port, sent), 400, "INVALID_ARGUMENT")


@pytest.mark.spec("X13")
@pytest.mark.parametrize(
    "headers",
    [b"x: " + b"y" * 40_000 + b"\r\n\r\n", b"x: y\r\n" * 101 + b"\r\n"],
    ids=["large", "many"],
)
async def test_a_head_over_the_cap_is_refused(core: CoreServices, headers: bytes) -> None:
    async with serving(core.app(), core) as server:
        answer = await converse(
            server.port, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + headers
        )
    check_refused(answer, 431, "TOO_LARGE")


@pytest.mark.spec("X13")
async def test_a_head_without_end_is_cut_off(core: CoreServices) -> None:
    async with serving(core.app(), core) as server:
        try:
            answer = await converse(server.port, b"GET /health HTTP/1.1\r\nx: ", b"y" * 4_000_000)
        except OSError:  # cut off while it was still sending
            return
    check_refused(answer, 431, "TOO_LARGE")


@pytest.fixture
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEAD_SEC", 0.2)
    monkeypatch.setattr(connection_module, "BODY_GRACE_SEC", 0.2)
    monkeypatch.setattr(connection_module, "WRITE_STALL_SEC", 0.2)
    monkeypatch.setattr(server_module, "CHECK_SEC", 0.05)


@pytest.mark.fault("F52")
@pytest.mark.usefixtures("short_deadlines")
async def test_a_head_or_body_that_drips_is_cut_off(core: CoreServices) -> None:
    async with serving(core.app(), core) as server:
        check_refused(
            await converse(server.port, b"GET /health HTTP/1.1\r\nx: "), 408, "INVALID_ARGUMENT"
        )
        post = b"POST /api/v1/things HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\n{"
        check_refused(await converse(server.port, post), 408, "INVALID_ARGUMENT")
        assert await converse(server.port) == b""
        assert await converse(server.port, b"\r\n") == b""


@pytest.mark.fault("F52")
@pytest.mark.usefixtures("short_deadlines")
async def test_bytes_that_keep_dripping_do_not_extend_the_deadline(core: CoreServices) -> None:
    async with serving(core.app(), core) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\n")
        reading = asyncio.create_task(reader.read())
        async with asyncio.timeout(PATIENCE_SEC):
            while not reading.done():
                with contextlib.suppress(OSError):
                    writer.write(b"x: y\r\n")
                    await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()
        with contextlib.suppress(OSError):
            assert reading.result().startswith(b"HTTP/1.1 408") or reading.result() == b""


@pytest.mark.usefixtures("short_deadlines")
async def test_an_idle_connection_is_closed_after_the_keep_alive_time(core: CoreServices) -> None:
    async with serving(core.app(), core, keep_alive_sec=0) as server:
        answer = await converse(server.port, GET)
    assert answer.endswith(b"ok")


async def test_an_answered_request_leaves_nothing_to_the_collector(core: CoreServices) -> None:
    async with serving(core.app(), core) as server:
        await converse(server.port, LAST_GET)
        gc.collect()
        gc.disable()
        try:
            assert (await converse(server.port, *[GET] * 20, LAST_GET)).count(b"200 OK") == 21
            left = [one for one in gc.get_objects() if isinstance(one, RequestResponseCycle)]
        finally:
            gc.enable()
    assert len(left) < 5


@pytest.mark.spec("X8")
async def test_one_connection_too_many_is_told_so(core: CoreServices) -> None:
    async with serving(core.app(), core, max_connections=1) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET ")  # one that says nothing is not counted: it is closed soon
        async with asyncio.timeout(PATIENCE_SEC):
            while b" 429 " not in (answer := await converse(server.port, LAST_GET)):
                await asyncio.sleep(0.01)
        check_refused(answer, 429, "RATE_LIMITED")
        writer.close()


STREAM = b"GET /api/v1/events/stream?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.spec("X14")
async def test_live_streams_end_when_the_server_stops(core: CoreServices) -> None:
    await core.store.transact(append_events, "a")
    async with serving(core.app(), core) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STREAM)
        async with asyncio.timeout(PATIENCE_SEC):
            assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b'"name":"a"')
    async with asyncio.timeout(PATIENCE_SEC):
        assert (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()


@pytest.mark.usefixtures("short_deadlines")
async def test_a_reader_that_stops_reading_is_dropped(core: CoreServices) -> None:
    await core.store.transact(append_events, *("x" * 200 for _ in range(60_000)))
    async with serving(core.app(), core) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(STREAM)
        async with asyncio.timeout(PATIENCE_SEC):
            while core.events.listeners == 0:
                await asyncio.sleep(0.005)
            while core.events.listeners:
                await asyncio.sleep(0.005)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def echo_socket(scope: str | None) -> SocketRoute:
    async def echo(socket: WebSocket, call: Call) -> None:
        await socket.accept()
        await socket.send_text(f"{call.params['id']} {await socket.receive_text()}")
        await socket.close()

    return SocketRoute("/ws/{id:int}", echo, scope=scope, summary="Echo")


@pytest.mark.spec("X8")
async def test_a_socket_is_served_or_refused_with_the_error_body(core: CoreServices) -> None:
    app = core.app(*thing_routes(), echo_socket("nodes:write"))
    async with serving(app, core) as server:
        base = f"ws://127.0.0.1:{server.port}"
        async with connect(f"{base}/ws/7") as socket:
            await socket.send("hi")
            assert await socket.recv() == "7 hi"
        await core.keys.create_key("k", ["queue:admin"])
        for path, headers, status, code in (
            ("/ws/7", {}, 401, "UNAUTHENTICATED"),
            ("/ws/7", {"origin": "http://evil.example"}, 403, "FORBIDDEN"),
            ("/ws/x", {}, 400, "INVALID_ID"),
            ("/nothing", {}, 404, "NOT_FOUND"),
            ("/health", {}, 404, "NOT_FOUND"),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(base + path, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body or b"")["code"] == code
        plain = LAST_GET.replace(b"/health", b"/ws/7")
        check_refused(await converse(server.port, plain), 400, "INVALID_ARGUMENT")
