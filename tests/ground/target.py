"""An HTTP target that records every request and answers as told, well or badly. Raw bytes on
asyncio streams.

with Target() as target: target.on("/slow", Hang()) target.on("/flaky", Answer(500), Answer(200,
b"ok"))   # one after the other, the last one for good ...call target.url("/flaky")... first, second
= target.wait_for(2, path="/flaky")

Paths without a behaviour answer 200 with an empty JSON object.
"""

import asyncio
import contextlib
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

from tests.ground.background import BackgroundLoop, stop_listening
from tests.ground.child import ChildError
from tests.ground.proxy import reset

REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    302: "Found",
    404: "Not Found",
    500: "Error",
}


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    """Names in lower case; of repeated ones the last."""
    raw_headers: tuple[tuple[str, str], ...]
    body: bytes
    at: int
    """Instant (µs UTC) when the request was complete."""
    monotonic_us: int
    connection: int
    """Number of the connection it came on, from 1."""


class Behaviour(Protocol):
    """How to answer one request. True keeps the connection for the next."""

    async def answer(self, writer: asyncio.StreamWriter) -> bool: ...


@dataclass(frozen=True)
class Answer:
    """A proper answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    after_ms: float = 0

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(self.after_ms / 1000)
        body = b"" if self.status == 204 else self.body
        writer.write(head(self.status, {"Content-Length": str(len(body)), **self.headers}) + body)
        await writer.drain()
        return True


def redirect(to: str, status: int = 302) -> Answer:
    """Send the caller elsewhere."""
    return Answer(status, b"", {"Location": to})


@dataclass(frozen=True)
class Hang:
    """Take the request and never answer."""

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        await asyncio.Event().wait()  # ended by `close`
        return False


class Hold:
    """Answer only when released: for tests that need to know that a call is under way."""

    def __init__(self, then: Behaviour | None = None) -> None:
        self._then = then or Answer()
        self._released = threading.Event()

    def release(self) -> None:
        """Let all held requests, and those to come, be answered."""
        self._released.set()

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        while not self._released.is_set():
            await asyncio.sleep(0.002)
        return await self._then.answer(writer)


@dataclass(frozen=True)
class Drip:
    """Send the body one byte at a time."""

    body: bytes = b"." * 1000
    every_ms: float = 20

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        writer.write(head(200, {"Content-Length": str(len(self.body))}))
        for byte in self.body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(self.every_ms / 1000)
        return True


@dataclass(frozen=True)
class Reset:
    """Cut the connection (RST) instead of answering."""

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        reset(writer)
        return False


@dataclass(frozen=True)
class Garbage:
    """Send bytes that are not HTTP, then close."""

    data: bytes = b"\x00\xff\xfenot http at all\r\n\r\n\x80"

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        writer.write(self.data)
        await writer.drain()
        return False


@dataclass(frozen=True)
class Huge:
    """Answer with a body of `size` bytes, in chunks or with a length."""

    size: int = 256 * 1024 * 1024
    is_chunked: bool = False

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        framing = (
            {"Transfer-Encoding": "chunked"}
            if self.is_chunked
            else {"Content-Length": str(self.size)}
        )
        writer.write(head(200, framing))
        left = self.size
        while left > 0:
            piece = b"x" * min(left, 65_536)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self.is_chunked else piece)
            await writer.drain()
            left -= len(piece)
        if self.is_chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@dataclass(frozen=True)
class CloseEarly:
    """Promise `promised` bytes, send fewer, close."""

    promised: int = 100
    sent: bytes = b"half"

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        writer.write(head(200, {"Content-Length": str(self.promised)}) + self.sent)
        await writer.drain()
        return False


def head(status: int, headers: dict[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Target:
    """The server, in a thread of its own, on loopback."""

    def __init__(
        self, *, port: int = 0, tls: ssl.SSLContext | None = None, bind: str = "127.0.0.1"
    ) -> None:
        """Bound to 0.0.0.0 it answers for every 127.x.y.z, each a host of its own to the caller."""
        self.host = "127.0.0.1"
        self._bind = bind
        self.connections = 0
        self._scheme = "https" if tls else "http"
        self._news = threading.Condition()
        self._requests: list[Request] = []
        self._plans: dict[str, list[Behaviour | Callable[[Request], Behaviour]]] = {}
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._under_way: dict[int, asyncio.StreamReader] = {}
        self._background = BackgroundLoop("target")
        self._listener = self._background.call(self._listen(port, tls))
        self.port: int = self._listener.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, path: str = "/") -> str:
        return f"{self._scheme}://{self.host}:{self.port}{path}"

    def on(self, path: str, *behaviours: Behaviour | Callable[[Request], Behaviour]) -> None:
        """Answer requests to `path` with these, one after the other; the last one stays."""
        with self._news:
            self._plans[path] = list(behaviours)

    def requests(self, path: str | None = None) -> list[Request]:
        """What has arrived so far."""
        with self._news:
            return [request for request in self._requests if path is None or request.path == path]

    def wait_for(
        self, count: int, path: str | None = None, within_s: float = 10.0
    ) -> list[Request]:
        """Block until so many requests have arrived. From a coroutine use `until`."""
        with self._news:
            if not self._news.wait_for(lambda: self._count(path) >= count, within_s):
                raise ChildError(
                    f"{self._count(path)} of {count} requests arrived at {path or 'the target'}"
                )
        return self.requests(path)

    async def until(
        self, count: int, path: str | None = None, within_s: float = 10.0
    ) -> list[Request]:
        """`wait_for` without blocking the caller's event loop."""
        return await asyncio.to_thread(self.wait_for, count, path, within_s)

    @property
    def open_calls(self) -> int:
        """Requests that are being answered and whose caller is still there."""
        return sum(
            not reader.at_eof() and reader.exception() is None
            for reader in list(self._under_way.values())
        )

    def forget(self) -> None:
        """Drop records and behaviours."""
        with self._news:
            self._requests.clear()
            self._plans.clear()

    def close(self) -> None:
        self._background.call(self._unlisten())
        self._background.close()

    def _count(self, path: str | None) -> int:
        return sum(1 for request in self._requests if path is None or request.path == path)

    async def _listen(self, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
        return await asyncio.start_server(self._serve, self._bind, port, ssl=tls, backlog=2048)

    async def _unlisten(self) -> None:
        await stop_listening(self._listener)
        # Also those whose last bytes nobody reads: closed, they would wait for that for ever.
        for transport in list(self._transports):
            transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._transports.add(writer.transport)
        try:
            while (request := await read_request(reader, writer, number)) is not None:
                self._under_way[number] = reader
                if not await self._record(request).answer(writer):
                    break
                del self._under_way[number]
        except (
            OSError,
            asyncio.CancelledError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ValueError,
        ):
            pass  # the caller left in the middle or sent nonsense: nothing to record
        finally:
            self._under_way.pop(number, None)
            writer.close()

    def _record(self, request: Request) -> Behaviour:
        with self._news:
            self._requests.append(request)
            plan = self._plans.get(request.path)
            choice = (plan.pop(0) if len(plan) > 1 else plan[0]) if plan else Answer()
            self._news.notify_all()
        return choice if hasattr(choice, "answer") else choice(request)


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
) -> Request | None:
    """Read one request; None when the caller has closed."""
    try:
        block = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = block.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    raw = tuple(
        (name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line)
    )
    headers = {name.lower(): value for name, value in raw}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await _read_body(reader, headers)
    path, _, query = target.partition("?")
    now_us, monotonic_us = time.time_ns() // 1000, time.monotonic_ns() // 1000
    return Request(method, path, query, headers, raw, body, now_us, monotonic_us, number)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    with contextlib.suppress(asyncio.IncompleteReadError):
        while await reader.readline() not in (b"\r\n", b""):
            pass
    return body
