"""One HTTP connection with deadlines and caps that uvicorn lacks (F52), refusing in our own body.

uvicorn waits for a request's head and body as long as bytes drip in, caps no head, and answers some
refusals as plain text. `GuardedProtocol` gives every connection a deadline for its head, a minimum
rate for its body and for the reading of answers, and caps the head. One timer per server checks all
connections (`server`): nothing is armed per request.
"""

import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from ksana.api.core.connection_guard import ConnectionGuard
from ksana.api.core.crowd import Crowd
from ksana.api.core.errors import error_body
from ksana.api.core.exchange import HEADERS
from ksana.base.ids import new_uid

HEAD_SEC: Final = 5.0
"""A head must be complete this long after its first byte, or after the connection was made."""
BODY_GRACE_SEC: Final = 10.0
BODY_BYTES_PER_SEC: Final = 16 * 1024
"""A body may take the grace plus its size at this rate."""
WRITE_STALL_SEC: Final = 30.0
"""A reader that takes nothing for this long is dropped."""
SERVED: Final = ("1.1", "1.0")
"""Versions of HTTP. The parser takes more for good, 2.0 in the syntax of 1.1 among them."""
MAX_HEAD: Final = 32 * 1024
MAX_HEADERS: Final = 100
MAX_CONNECTIONS: Final = 4096
REFUSED_HEAD_SEC: Final = 1.0
"""A connection that is to be refused is heard no longer."""
FULL: Final = "too many connections are open"


class HeadTooLargeError(Exception):
    """The head passes the cap; the parser turns it into its own error on the way out."""


class BadHeadError(Exception):
    """The head cannot be taken; the parser turns it into its own error on the way out."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection with deadlines. Times are the event loop's."""

    max_connections = MAX_CONNECTIONS
    crowd = Crowd()
    guard = ConnectionGuard()

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
        self._is_silent = self._is_upgrading = self._is_refused = False
        self._version = "1.1"
        self._fault = "this is not a request of HTTP/1.1 or HTTP/1.0"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._is_silent = True
        self.crowd.silent += 1
        self.crowd.arrivals += 1
        self._is_refused = not self.guard.enter(self, self.client[0] if self.client else "")

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.leave(self)
        self._end_silence()
        if self._is_upgrading:  # gone before it was let in
            self._is_upgrading = False
            self.crowd.sockets -= 1
        super().connection_lost(exc)

    def _end_silence(self) -> None:
        if self._is_silent:
            self._is_silent = False
            self.crowd.silent -= 1

    def handle_websocket_upgrade(self) -> None:
        """Wait for its turn. What the caller sends meanwhile waits in the kernel."""
        if self._is_refused:
            self._refuse(429, "RATE_LIMITED", FULL)
            return
        self.crowd.sockets += 1
        self._is_upgrading = True
        self.transport.pause_reading()
        self.crowd.let_in(self._upgrade, self.loop)

    def _upgrade(self) -> None:
        if not self._is_upgrading or self.transport.is_closing():
            return
        self._is_upgrading = False
        self.guard.upgrade(self)
        self.transport.resume_reading()
        super().handle_websocket_upgrade()

    @property
    def idle_since(self) -> float | None:
        """Since when no request is answered and none has a complete head; None otherwise."""
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        return None if is_answering or self.is_in_body or self._is_upgrading else self._since

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._is_silent:
                self._end_silence()
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

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line of the head. A trailer, after the body, never becomes a header: what
        the head said was judged already."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._receiving = True
        self._since = self.loop.time()

    def on_headers_complete(self) -> None:
        """Check the complete head against the caps. Raise HeadTooLargeError or BadHeadError."""
        lines = self.headers
        headers = dict(lines)
        self._version = self.parser.get_http_version()
        if self._version not in SERVED:
            self._fault = f"HTTP/{self._version} is not served: say HTTP/1.1"
            raise BadHeadError
        if len(headers) != len(lines) and [name for name, _ in lines].count(b"host") > 1:
            self._fault = "the request has two Host lines"
            raise BadHeadError
        if b"host" not in headers and self._version != "1.0":
            self._fault = "the request has no Host line, which HTTP/1.1 asks for"
            raise BadHeadError
        if len(lines) > MAX_HEADERS or (
            self._head_bytes > MAX_HEAD
            and len(self.url) + sum(len(n) + len(v) for n, v in lines) > MAX_HEAD
        ):
            self._too_large = True
            raise HeadTooLargeError
        expected = headers.get(b"expect")
        if expected is not None and expected.lower() == b"100-continue":
            self.expect_100_continue = True
        # Only now: what is refused above is answered as a head, whatever was answered before it.
        self._in_head = False
        self.begin_request(headers)

    def begin_request(self, headers: dict[bytes, bytes]) -> None:
        """Begin to serve a request whose head is complete and was found good. `headers` by name."""
        self.scope[HEADERS] = headers  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.end_message()
        super().on_message_complete()

    @property
    def is_in_body(self) -> bool:
        """Whether a head is complete and its body is not."""
        return self._receiving and not self._in_head

    def end_message(self) -> None:
        """The request is complete; what follows is its answer, then the next head."""
        self._receiving = False
        self._in_head = True
        self._head_bytes = self._body_bytes = 0
        self._since = self.loop.time()

    def on_response_complete(self) -> None:
        # As uvicorn does, without its timer per answer: the deadline check closes idle connections.
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
        super()._start_asgi_task(cycle, _refuse_full if self.is_full() else app)

    def is_full(self) -> bool:
        """Whether more connections or requests are open than the server takes. WebSockets are not
        counted: they are bounded by whoever serves them."""
        most, connections, tasks = self.max_connections, len(self.connections), len(self.tasks)
        if connections <= most and tasks < most:
            return self._is_refused
        crowd = self.crowd
        return self._is_refused or connections - crowd.apart > most or tasks - crowd.sockets >= most

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since = self.loop.time()
        self.guard.note_unread(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since = None
        self.guard.note_read(self)

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse(
                431,
                "TOO_LARGE",
                f"the head is larger than {MAX_HEAD} bytes or {MAX_HEADERS} headers",
            )
        else:
            self._refuse(400, "INVALID_ARGUMENT", self._fault)

    def check_deadlines(self, now: float) -> None:
        """Close the connection if its phase has taken too long."""
        if self.transport.is_closing() or self._is_upgrading:
            return
        if self._stalled_since is not None and now - self._stalled_since > WRITE_STALL_SEC:
            self.transport.abort()
            return
        waited = now - self._since
        if not self._receiving:
            is_answering = self.cycle is not None and not self.cycle.response_complete
            patience = REFUSED_HEAD_SEC if self._is_refused else HEAD_SEC
            if not is_answering and waited > (self.timeout_keep_alive if self.cycle else patience):
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
        """Answer and close. Only close while an earlier answer is not out, or where the request
        was answered before its body was complete."""
        cycle = self.cycle
        is_of_this = cycle is not None and not self._in_head
        if cycle is None or (
            not self.pipeline
            and cycle.response_complete != is_of_this
            and (cycle.response_complete or not cycle.response_started)
        ):
            body = error_body(code, message, new_uid())
            retry = b"retry-after: 1\r\n" if status == 429 else b""
            head = (
                b"content-type: application/json\r\ncontent-length: %d\r\n%s"
                b"connection: close\r\n\r\n" % (len(body), retry)
            )
            self.transport.write(STATUS_LINE[status] + head + body)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()


async def _refuse_full(scope: Any, receive: Any, send: Any) -> None:
    body = error_body("RATE_LIMITED", FULL, new_uid())
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"1"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": head})
    await send({"type": "http.response.body", "body": body})
