"""The fast path: small complete requests are served without ASGI and without a task of their own.

The way through ASGI (a scope, a channel for the body, a task, an event) costs more than all the
rest of a small write. A route may opt in (`Route.is_fastpath`, checked by `router`). Its
requests go from the parser to `Pipeline.serve`, the same function that ASGI requests reach, and the
answer is one write. The coroutine is driven by the futures it waits for; no task is current
meanwhile.

Everything here depends on the inside of uvicorn. `server` checks it at start and does without this
module if it has changed.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from ksana.api.core.connection import GuardedProtocol
from ksana.api.core.exchange import EXCHANGE, IncomingRequest, RenderedResponse
from ksana.api.core.routing import FoundRoute

MAX_BUFFERED: Final = 256 * 1024
"""A larger body is read piece by piece, with the connection held back while nobody takes it."""


class BufferedRequest(IncomingRequest):
    """A request whose body is collected before it is served. It drives the coroutine that serves
    it, and has what uvicorn looks at in a cycle of its own."""

    __slots__ = ("_connection", "disconnected", "keep_alive", "response_complete", "serving")

    serving: Coroutine[Any, None, RenderedResponse]
    """Serves it, without a task: set once it is complete. It raises nothing but cancellation."""

    raw_path = query_string = b""
    """Not looked at: the route is found, and a URL with a query is not taken."""
    response_started = False
    """The answer is one write: it has not begun until it is over."""

    def __init__(
        self,
        connection: "FastpathProtocol",
        found: FoundRoute,
        path: str,
        headers: dict[bytes, bytes],
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self.method = found[0].method
        self.path = path
        self.headers = headers
        self.peer = connection.client
        self.body = b""
        self.receive = None
        self.found = found
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False

    def is_gone(self) -> bool:
        """Whether the caller has closed the connection."""
        return self.disconnected

    def step(self, _: Any = None) -> None:
        """Go on to the next future it is served by, or to the end."""
        try:
            future = self.serving.send(None)
        except StopIteration as end:
            self._connection.answer(self, end.value)
            return
        except asyncio.CancelledError:
            self._connection.answer(self, None)
            return
        if future is None:  # a bare yield: let others run first
            self._connection.loop.call_soon(self.step)
            return
        future._asyncio_future_blocking = False  # noqa: SLF001 - as asyncio.Task does
        future.add_done_callback(self.step)

    @property
    def message_event(self) -> "BufferedRequest":
        """Nobody waits for more of a request that is served once it is complete."""
        return self

    def set(self) -> None:
        """Wake nobody."""


class FastpathProtocol(GuardedProtocol):
    """A guarded connection that serves small requests itself and writes whole answers at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._default_from: list[tuple[bytes, bytes]] | None = None
        self._default_head = b""
        self._buffered: BufferedRequest | None = None
        """The request being received, if it is for a fast path route."""
        self._is_half_closed = False
        """The caller stopped sending inside a body, and may still read."""
        app: Any = config.app
        self._fixed_routes, self._find_route = app.fastpath.fixed, app.fastpath.find
        self._serve = app.pipeline.serve

    def on_message_begin(self) -> None:
        # As uvicorn does, but for the scope, which is made once the request is known to need it.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._receiving = True
        self._since = self.loop.time()

    def begin_request(self, headers: dict[bytes, bytes]) -> None:
        """Collect the request here if the fast path takes it: opted in, small, alone on its
        connection. Else give it to ASGI."""
        parser, cycle, found = self.parser, self.cycle, None
        length = headers.get(b"content-length", b"0")
        if not (
            self.expect_100_continue
            or self.flow.write_paused
            or parser.should_upgrade()
            or (cycle is not None and not cycle.response_complete)
            or b"transfer-encoding" in headers
            or len(length) > 6
            or not length.isdigit()
            or int(length) > MAX_BUFFERED
        ):
            asked = parser.get_method(), self.url
            found = self._fixed_routes.get(asked) or self._find_route(*asked)
        if found is not None and not self.is_full():
            keep_alive = self._version != "1.0" and parser.should_keep_alive()
            self._buffered = BufferedRequest(self, found[0], found[1], headers, keep_alive)
            self.cycle = self._buffered  # type: ignore[assignment]
            return
        self._buffered = None
        url, expects, lines = self.url, self.expect_100_continue, self.headers
        HttpToolsProtocol.on_message_begin(self)  # makes the scope, and begins anew
        self.url, self.expect_100_continue = url, expects
        self.headers += lines
        super().begin_request(headers)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._buffered is None:
            HttpToolsProtocol.on_body(self, body)
        else:
            self._buffered.body += body

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The caller sends no more. A request whose body is not complete is refused like any other:
        the connection stays open for that."""
        if not self.is_in_body or self.cycle.response_complete or self.transport.is_closing():
            return super().eof_received()
        self._is_half_closed = True
        self.cycle.keep_alive = False
        request = self._buffered
        if request is None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        else:
            self._buffered = None
            request.receive = _receive_nothing
            request.serving = self._serve(request)
            request.step()
        return True

    def on_message_complete(self) -> None:
        self.end_message()
        request = self._buffered
        if request is None:
            HttpToolsProtocol.on_message_complete(self)
            return
        self._buffered = None
        request.serving = self._serve(request)
        request.step()

    def answer(self, cycle: Any, response: RenderedResponse | None, has_body: bool = True) -> None:
        """Write the whole answer to a request: a small one in one piece, a large one without a copy
        of it. None: it was cancelled."""
        cycle.response_complete = True
        if response is None or response.chunks is not None:
            # Cancelled by the end of the loop. A stream is refused at start where it can be seen.
            self.transport.close()
        elif not self.transport.is_closing():
            default = self.server_state.default_headers
            if default is not self._default_from:
                self._default_from = default
                self._default_head = b"".join(b"%s: %s\r\n" % header for header in default)
            keep_alive, body = cycle.keep_alive, response.body if has_body else b""
            end = b"\r\n" if keep_alive or response.closes else b"connection: close\r\n\r\n"
            head = STATUS_LINE[response.status] + self._default_head + response.head + end
            if len(body) <= MAX_BUFFERED:
                self.transport.write(head + body)
            else:
                self.transport.writelines([head, body])
            if not keep_alive or response.closes:
                self.transport.close()
        self.on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[EXCHANGE] = (self, cycle)  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, app)

    def take_body(self, cycle: RequestResponseCycle) -> bytes | None:
        """The body of an ASGI request if all of it has come; None if it must be received."""
        if cycle.more_body or cycle.disconnected:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        return body

    def respond(self, cycle: RequestResponseCycle, response: RenderedResponse) -> bool:
        """Write the whole answer to an ASGI request at once; False if it must go through `send`."""
        if cycle.response_started or self.flow.write_paused:
            return False
        if cycle.disconnected and not self._is_half_closed:
            return False
        cycle.response_started = True
        # It holds the cycle, which holds the scope.
        cycle.scope.pop(EXCHANGE, None)  # type: ignore[typeddict-item]
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        self.answer(cycle, response, has_body=cycle.scope["method"] != "HEAD")
        return True


async def _receive_nothing() -> dict[str, Any]:
    """What is received of a body that was cut off."""
    return {"type": "http.disconnect"}
