"""The HTTP server: uvicorn with deadlines it lacks (F52) and refusals in our own error body.

uvicorn waits for a request's head and body as long as bytes drip in, caps no head, and answers some
refusals as plain text. `GuardedProtocol` gives every connection a deadline for its head, a minimum
rate for its body and for the reading of answers, and caps the head. One timer per server sweeps all
connections: nothing is armed per request.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from ksana.api.core.app import RESPOND
from ksana.api.core.errors import error_body
from ksana.api.core.fastpath import MAX_WHOLE, BufferedRequest, CoroutineDriver
from ksana.base.ids import new_uid

HEAD_SEC: Final = 5.0
"""A head must be complete this long after its first byte, or after the connection was made."""
BODY_GRACE_SEC: Final = 10.0
BODY_BYTES_PER_SEC: Final = 16 * 1024
"""A body may take the grace plus its size at this rate."""
WRITE_STALL_SEC: Final = 30.0
"""A reader that takes nothing for this long is dropped."""
KEEP_ALIVE_SEC: Final = 75
SWEEP_SEC: Final = 1.0
MAX_HEAD: Final = 32 * 1024
MAX_HEADERS: Final = 100
MAX_CONNECTIONS: Final = 4096
WS_MAX_SIZE: Final = 1024 * 1024
WS_PING_SEC: Final = 20.0


class _HeadTooLargeError(Exception):
    """The head passes the cap; the parser turns it into its own error on the way out."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection with deadlines. Times are of the event loop; the sweep judges them."""

    max_connections = MAX_CONNECTIONS

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._since = 0.0
        """When the present phase began: head awaited, or body awaited, or idle."""
        self._head_bytes = 0
        """Bytes of the chunks in which the present head came; 0 when none is being received."""
        self._receiving = False
        self._in_head = True
        self._body_bytes = 0
        self._stalled_since: float | None = None
        self._too_large = False
        self._default_from: list[tuple[bytes, bytes]] | None = None
        self._default_head = b""
        self._whole: BufferedRequest | None = None
        """The request being received, if it is for a swift route."""
        self._find_swift = getattr(config.app, "find_swift", None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if (
            self._in_head
            and self._receiving
            and self._head_bytes > MAX_HEAD
            and not self.transport.is_closing()
        ):
            self._too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._receiving = True
        self._since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._in_head = False
        headers = self.headers
        if len(headers) > MAX_HEADERS or (
            self._head_bytes > MAX_HEAD
            and len(self.url) + sum(len(n) + len(v) for n, v in headers) > MAX_HEAD
        ):
            self._too_large = True
            raise _HeadTooLargeError
        self._whole = self._begin_whole()
        if self._whole is not None:
            self.cycle = self._whole  # type: ignore[assignment]
            return
        url, expects = self.url, self.expect_100_continue
        super().on_message_begin()  # makes the scope, which a swift route does without
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _begin_whole(self) -> BufferedRequest | None:
        """A request that can be answered without ASGI: for a swift route, small, alone on its
        connection."""
        find, parser, cycle = self._find_swift, self.parser, self.cycle
        if (
            find is None
            or self.expect_100_continue
            or self.flow.write_paused
            or parser.should_upgrade()
        ):
            return None
        found = find(parser.get_method(), self.url)
        if found is None or (cycle is not None and not cycle.response_complete) or self._is_full():
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"0")
        if (
            b"transfer-encoding" in headers
            or len(length) > 6
            or not length.isdigit()
            or int(length) > MAX_WHOLE
        ):
            return None
        return BufferedRequest(
            found, headers, parser.get_http_version() != "1.0" and parser.should_keep_alive()
        )

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._whole is not None:
            self._whole.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving = False
        self._in_head = True
        self._head_bytes = self._body_bytes = 0
        self._since = self.loop.time()
        whole = self._whole
        if whole is None:
            super().on_message_complete()
            return
        self._whole = None
        served = self.config.app.serve_whole(whole)  # type: ignore[union-attr]
        CoroutineDriver(served, partial(self._finish_whole, whole), self.loop)

    def _finish_whole(
        self, cycle: BufferedRequest, answered: tuple[int, bytes, bytes] | None
    ) -> None:
        cycle.response_complete = True
        if answered is None:  # given up by the end of the loop
            self.transport.close()
        elif not self.transport.is_closing():
            status, head, body = answered
            self.transport.write(self._join(status, head, body, cycle.keep_alive))
            if not cycle.keep_alive:
                self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        # As uvicorn does, without its timer per answer: the sweep closes idle connections.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if not self._receiving:
            self._since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[RESPOND] = partial(self._respond, cycle)  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, _tell_full if self._is_full() else app)

    def _is_full(self) -> bool:
        return (
            len(self.connections) > self.max_connections or len(self.tasks) >= self.max_connections
        )

    def _respond(self, cycle: RequestResponseCycle, status: int, head: bytes, body: bytes) -> bool:
        """Write a whole answer at once; False if it must go the long way. `head` is trusted: no
        value came from outside."""
        if cycle.response_started or cycle.disconnected or self.flow.write_paused:
            return False
        shown = b"" if cycle.scope["method"] == "HEAD" else body
        self.transport.write(self._join(status, head, shown, cycle.keep_alive))
        cycle.response_started = cycle.response_complete = True
        cycle.scope.pop(RESPOND, None)  # type: ignore[typeddict-item]  # it holds the cycle, which holds the scope
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def _join(self, status: int, head: bytes, body: bytes, keep_alive: bool) -> bytes:
        default = self.server_state.default_headers
        if default is not self._default_from:
            self._default_from = default
            self._default_head = b"".join(b"%s: %s\r\n" % header for header in default)
        end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
        return STATUS_LINE[status] + self._default_head + head + end + body

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since = None

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse(
                431,
                "TOO_LARGE",
                f"the head is larger than {MAX_HEAD} bytes or {MAX_HEADERS} headers",
            )
        else:
            self._refuse(400, "INVALID_ARGUMENT", "this is not an HTTP request")

    def judge(self, now: float) -> None:
        """Close the connection if its phase has taken too long."""
        if self.transport.is_closing():
            return
        if self._stalled_since is not None and now - self._stalled_since > WRITE_STALL_SEC:
            self.transport.abort()
            return
        waited = now - self._since
        if not self._receiving:
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if not is_answering and waited > (self.timeout_keep_alive if self.cycle else HEAD_SEC):
                self.transport.close()
        elif self._in_head:
            if waited > HEAD_SEC:
                self._refuse(
                    408, "INVALID_ARGUMENT", f"the head did not arrive within {HEAD_SEC:g} s"
                )
        elif (
            waited > BODY_GRACE_SEC + self._body_bytes / BODY_BYTES_PER_SEC
            and not self.flow.read_paused
        ):
            self._refuse(408, "INVALID_ARGUMENT", "the body arrives too slowly")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer and close; while an earlier answer is still going out, only close."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = error_body(code, message, new_uid())
            head = (
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                % len(body)
            )
            self.transport.write(STATUS_LINE[status] + head + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers (boot owns those) and with the sweep.

    `stop` begins the end: listeners close, `on_stop` runs (live streams end there), what runs
    finishes.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], Any] | None = None) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._stopping = asyncio.Event()

    @property
    def port(self) -> int:
        """The port listened on, known once started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Ask for an orderly end."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Tick once a second, not ten times: renew the Date header and sweep."""
        loop = asyncio.get_running_loop()
        while not self.should_exit:
            await self.on_tick(0)
            now = loop.time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, GuardedProtocol):
                    connection.judge(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SEC):
                    await self._stopping.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        if self._on_stop is not None:
            result = self._on_stop()
            if asyncio.iscoroutine(result):
                await result
        await super().shutdown(sockets)


def make_config(
    app: Any,
    host: str,
    port: int,
    *,
    graceful_sec: int = 10,
    keep_alive_sec: int = KEEP_ALIVE_SEC,
    max_connections: int = MAX_CONNECTIONS,
) -> uvicorn.Config:
    """Configure uvicorn as Ksana runs it."""
    protocol = type("LimitedProtocol", (GuardedProtocol,), {"max_connections": max_connections})
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="auto",  # uvloop where it exists, so that Windows still starts
        http=protocol,
        ws="websockets-sansio",
        ws_max_size=WS_MAX_SIZE,
        ws_ping_interval=WS_PING_SEC,
        ws_ping_timeout=WS_PING_SEC,
        ws_per_message_deflate=False,  # F51: no compression, no bombs
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=None,  # the protocol caps connections itself, with our error body
        timeout_keep_alive=keep_alive_sec,
        timeout_graceful_shutdown=graceful_sec,
    )


async def _tell_full(scope: Any, receive: Any, send: Any) -> None:
    body = error_body("RATE_LIMITED", "too many connections are open", new_uid())
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"1"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": head})
    await send({"type": "http.response.body", "body": body})
