"""A server that misbehaves on request, and a way to run one scenario by either client, on either
event loop."""

import asyncio
import contextlib
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import uvloop

from ksana.outbound.by_scheme import HttpCaller
from ksana.outbound.curl.caller import CurlCaller
from ksana.outbound.egress import EgressPolicy
from ksana.outbound.resolver import look_up_addresses
from ksana.ports.caller import Reply, Request
from tests.ground.background import stop_listening

AnyCaller = CurlCaller | HttpCaller
CLIENTS: dict[str, type[AnyCaller]] = {"plain": HttpCaller, "curl": CurlCaller}
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SECOND = 1_000_000
# How a client that has gone away shows itself; uvloop says RuntimeError when writing to a closed
# transport.
GONE = (
    asyncio.IncompleteReadError,
    ConnectionError,
    asyncio.CancelledError,
    ssl.SSLError,
    RuntimeError,
)


class Seen:
    """One request as it arrived."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("utf-8").rstrip("\r\n").split("\r\n")
        self.method, self.path, _ = first.split(" ")
        self.headers = {
            name.lower(): value for name, value in (line.split(":", 1) for line in lines)
        }
        self.headers = {name: value.strip() for name, value in self.headers.items()}
        self.body = body


class RogueServer:
    """Answers by path: each way of going wrong is a method."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self.arrived = asyncio.Event()
        self.port = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["RogueServer"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await stop_listening(server)
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(*GONE):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        seen = Seen(head, b"")
        seen.body = await reader.readexactly(int(seen.headers.get("content-length", 0)))
        self.seen.append(seen)
        self.arrived.set()
        parts = urlsplit(seen.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        way = getattr(self, "way_" + parts.path.strip("/").replace("-", "_"))
        return bool(await way(reader, writer, **query))

    async def _answer(
        self, writer: asyncio.StreamWriter, status: int, body: bytes = b"", *headers: str
    ) -> bool:
        lines = [f"HTTP/1.1 {status} Because", f"Content-Length: {len(body)}", *headers]
        writer.write(
            "\r\n".join(lines).encode()
            + b"\r\n\r\n"
            + (b"" if self.seen[-1].method == "HEAD" else body)
        )
        await writer.drain()
        return True

    async def way_ok(
        self, reader: Any, writer: Any, status: str = "200", size: str = "2", **ignored: str
    ) -> bool:
        return await self._answer(writer, int(status), b"k" * int(size))

    async def way_wait(self, reader: Any, writer: Any, after: str) -> bool:
        return await self._answer(writer, 503, b"", f"Retry-After: {after}")

    async def way_hang(self, reader: Any, writer: Any) -> bool:
        await reader.read()
        return False

    async def way_drip(self, reader: Any, writer: Any) -> bool:
        for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)
        return False

    async def way_drip_body(self, reader: Any, writer: Any) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def way_endless(self, reader: Any, writer: Any) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            await writer.drain()

    async def way_headers(self, reader: Any, writer: Any) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Many: " + b"x" * 4000 + b"\r\n")
            await writer.drain()

    async def way_bomb(self, reader: Any, writer: Any) -> bool:
        return await self._answer(writer, 200, b"\x1f\x8bnot really", "Content-Encoding: gzip")

    async def way_reset(self, reader: Any, writer: Any, after: str = "") -> bool:
        writer.write(after.encode())
        await writer.drain()
        raw = writer.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    async def way_short(self, reader: Any, writer: Any) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return False

    async def way_nothing(self, reader: Any, writer: Any) -> bool:
        writer.close()
        await writer.wait_closed()
        return False

    async def way_garbage(self, reader: Any, writer: Any) -> bool:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" + b"\x00\xff" * 200)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        return False

    async def way_to(self, reader: Any, writer: Any, url: str, status: str = "302") -> bool:
        return await self._answer(writer, int(status), b"moved", f"Location: {url}")

    async def way_loop(self, reader: Any, writer: Any) -> bool:
        return await self._answer(writer, 302, b"", "Location: /loop")


class Net:
    """What a scenario works with: the rogue server and callers that are closed after it."""

    def __init__(self, server: RogueServer, stack: contextlib.ExitStack, client_kind: str) -> None:
        self.server = server
        self._stack = stack
        self._make = CLIENTS[client_kind]
        self._caller: AnyCaller | None = None

    def caller(self, policy: EgressPolicy | None = None, **options: Any) -> AnyCaller:
        if "names" in options:
            names = options.pop("names")
            options["look_up"] = lambda host: (
                names[host] if host in names else look_up_addresses(host)
            )
        made = self._make(policy, **options)
        self._stack.callback(made.close)
        return made

    async def ask(
        self, url: str, *, caller: AnyCaller | None = None, method: str = "GET", **fields: Any
    ) -> Reply:
        """Make one call to a path of the rogue server, or a whole URL, and wait for its reply."""
        if caller is None:
            caller = self._caller = self._caller or self.caller()
        fields.setdefault("timeout_us", 5 * SECOND)
        whole = self.server.url + url if url.startswith("/") else url
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        caller.call(Request(method, whole, **fields), waiter.set_result)
        return await asyncio.wait_for(waiter, 20)


Scenario = Callable[[Net], Coroutine[Any, Any, None]]


def run_on(
    factory: Callable[[], asyncio.AbstractEventLoop],
    scenario: Callable[[Net], Awaitable[None]],
    client_kind: str = "plain",
) -> None:
    async def main() -> None:
        with contextlib.ExitStack() as stack:
            async with RogueServer().listening() as server:
                await scenario(Net(server, stack, client_kind))
                stack.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@pytest.fixture(params=list(CLIENTS))
def client_kind(request: pytest.FixtureRequest) -> str:
    """Go through a test by each client in turn."""
    return str(request.param)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest, client_kind: str) -> Callable[[Scenario], None]:
    """Run a scenario by each client, on each kind of loop in turn."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    return lambda scenario: run_on(factory, scenario, client_kind)


@pytest.fixture
def run_once(client_kind: str) -> Callable[[Scenario], None]:
    """Run a scenario by each client on uvloop only, where the kind of loop plays no part."""
    return lambda scenario: run_on(uvloop.new_event_loop, scenario, client_kind)


@pytest.fixture(params=["uvloop", "asyncio"])
def run_plain(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario by the plain client only, on each kind of loop in turn."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    return lambda scenario: run_on(factory, scenario)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    try:
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
                "-keyout",
                key,
                "-out",
                cert,
                "-subj",
                "/CN=target.test",
                "-addext",
                "subjectAltName=DNS:target.test",
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("needs the openssl command")
    return key, cert
