"""The layer: one ASGI app that finds the route, judges the caller, reads the body, calls the
handler, renders the answer.

A raw ASGI app on purpose: a request passes no middleware and no list of patterns. Every way out
that is not a 2xx is the X8 body. Surfaces hand in their routes; nothing here knows what they do.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

import msgspec
import structlog
from starlette.websockets import WebSocket

from ksana.api.core import docs, events, health, openapi
from ksana.api.core.auth import Authenticator
from ksana.api.core.body import (
    ClientGoneError,
    Receive,
    check_length,
    decode_body,
    read_body,
    too_large,
)
from ksana.api.core.errors import error_body, refusal
from ksana.api.core.fastpath import BufferedRequest
from ksana.api.core.health import StatsSections
from ksana.api.core.query import decode_query
from ksana.api.core.routing import (
    Answer,
    AnyRoute,
    Call,
    Content,
    Route,
    Router,
    SocketRoute,
    Stream,
    find_trace,
)
from ksana.api.core.services import Services
from ksana.api.core.traffic import RequestSpans, Traffic
from ksana.base.errors import KsanaError, NotFoundError, TooLargeError
from ksana.base.ids import new_uid
from ksana.base.instant import Micros

log = structlog.get_logger("ksana.api")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_REQUEST_ID: Final = 128
DISCARDED_BODY: Final = 8 * 1024 * 1024
"""A refused body up to this size is read away so that the caller sees the 413; beyond it the
connection is closed."""
RESPOND: Final = "ksana.respond"
"""Where our server puts its one-write answer in the scope; other servers have none."""
_INTERNAL: Final = "something went wrong on our side; the log has it under this request id"
_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")

# Request ids only need to differ: a random start of the process and a count spare a system call per
# request.
_ID_PREFIX: Final = new_uid()[:20]
_id_counter = itertools.count(1)
_BREAK = re.compile(rb"[\r\n\0]")
_encode = msgspec.json.Encoder().encode


def create_app(
    services: Services,
    *surfaces: Iterable[AnyRoute],
    stats: StatsSections | None = None,
    spans: RequestSpans | None = None,
) -> "Application":
    """Compose the app of the foundation's routes and those of the surfaces."""
    stats = stats or StatsSections()
    routes: list[AnyRoute] = [
        *health.routes(services, stats),
        *events.routes(services),
        *docs.routes(),
    ]
    for surface in surfaces:
        routes.extend(surface)
    described = [route for route in routes if isinstance(route, Route) and not route.hidden]
    routes.append(openapi.route(described, services.settings.version))
    return Application(services, routes, spans)


class Application:
    """The ASGI callable."""

    def __init__(
        self, services: Services, routes: Iterable[AnyRoute], spans: RequestSpans | None = None
    ) -> None:
        self.router = Router(routes)
        self._services = services
        self._doorkeeper = Authenticator(services)
        self._max_body = services.settings.max_body
        self._monotonic = services.clock.monotonic
        self._spans = spans
        self._traffic = Traffic()
        services.metrics.register(self._traffic)
        swift = [
            route for route in self.router.routes if isinstance(route, Route) and route.is_swift
        ]
        self._swift_methods = frozenset(route.method.encode() for route in swift)
        self._swift: dict[tuple[bytes, bytes], tuple[Route, dict[str, Any], str]] = {
            (route.method.encode(), route.path.encode()): (route, {}, route.path)
            for route in swift
            if not route.converters
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._serve(scope, receive, send)
        elif kind == "websocket":
            await self._serve_socket(scope, receive, send)
        elif kind == "lifespan":
            await _pass_lifespan(receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = self._monotonic()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = _request_id(headers)
        method, template = scope["method"], "unknown"
        result: Content | Stream
        try:
            self._doorkeeper.check_source(headers)
            route, params = self.router.find(method, scope["path"], scope["raw_path"])
            assert isinstance(route, Route)
            template = route.path
            call = Call(self._services, method, scope["path"], headers, request_id)
            call.params = params
            if route.scope is not None:
                call.principal = await self._doorkeeper.admit(headers, route.scope)
            max_body = route.max_body or self._max_body
            check_length(headers, max_body)
            if route.query is not None:
                call.query = decode_query(route.query, scope["query_string"])
            raw = b"" if route.decoder is None else await read_body(receive, max_body)
            result = await _answer(route, call, headers, raw)
            head = head_of(result, request_id) if isinstance(result, Content) else b""
        except ClientGoneError:
            return
        except Exception as error:
            result = _refuse(error, headers, method, template, request_id)
            head = head_of(result, request_id)
        if isinstance(result, Content):
            status = result.status
            await _send(scope, send, result, head, request_id)
        else:
            status = 200
            await _send_stream(result, request_id, receive, send)
        self._record(method, template, status, started, request_id, headers)

    def find_swift(self, method: bytes, url: bytes) -> tuple[Route, dict[str, Any], str] | None:
        """The swift route a request is for, its parameters and its path; None if it must go the
        usual way."""
        found = self._swift.get((method, url))
        if found is not None:
            return found
        if method not in self._swift_methods or b"?" in url or b"%" in url or not url.isascii():
            return None
        path = url.decode("ascii")
        try:
            route, params = self.router.find(method.decode("ascii"), path, url)
        except KsanaError:  # said in full on the usual way
            return None
        return (route, params, path) if isinstance(route, Route) and route.is_swift else None

    async def serve_whole(self, cycle: BufferedRequest) -> tuple[int, bytes, bytes]:
        """Answer a request that came whole, on a swift route: status, head and body."""
        started = self._monotonic()
        headers = cycle.headers
        request_id = _request_id(headers)
        route, params, path = cycle.found
        method = route.method
        try:
            self._doorkeeper.check_source(headers)
            call = Call(self._services, method, path, headers, request_id)
            call.params = params
            if route.scope is not None:
                call.principal = await self._doorkeeper.admit(headers, route.scope)
            if len(cycle.body) > (route.max_body or self._max_body):
                raise too_large(route.max_body or self._max_body)
            result = await _answer(route, call, headers, cycle.body)
            assert isinstance(result, Content), "a swift route does not stream"
            head = head_of(result, request_id)
        except Exception as error:
            result = _refuse(error, headers, method, route.path, request_id)
            head = head_of(result, request_id)
        self._record(method, route.path, result.status, started, request_id, headers)
        return result.status, head, result.body

    def _record(
        self,
        method: str,
        template: str,
        status: int,
        started: Micros,
        request_id: str,
        headers: dict[bytes, bytes],
    ) -> None:
        spent_us = self._monotonic() - started
        self._traffic.record(method, template, status, spent_us)
        if self._spans is not None:
            self._spans.served(method, template, status, spent_us, request_id, find_trace(headers))

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = sane_request_id(headers.get(b"x-request-id", b""))
        path = scope["path"]
        try:
            self._doorkeeper.check_source(headers)
            route, params = self.router.find(
                "WEBSOCKET", path, scope.get("raw_path") or path.encode()
            )
            assert isinstance(route, SocketRoute)
            call = Call(self._services, "WEBSOCKET", path, headers, request_id)
            call.params = params
            if route.scope is not None:
                call.principal = await self._doorkeeper.admit(headers, route.scope)
        except KsanaError as error:
            if error.status == 405:
                error = NotFoundError(f"there is no WebSocket at {path[:200]}")
            await _refuse_socket(error, request_id, scope, receive, send)
            return
        try:
            await route.handler(WebSocket(scope, receive, send), call)
        except Exception as error:
            log.error("socket failed", request_id=request_id, route=route.path, exc_info=error)
            with contextlib.suppress(Exception):
                await send({"type": "websocket.close", "code": 1011, "reason": "INTERNAL"})


async def _answer(
    route: Route, call: Call, headers: dict[bytes, bytes], raw: bytes
) -> Content | Stream:
    """Call the handler and make its answer ready."""
    if route.decoder is None:
        value = await route.handler(call)
    else:
        value = await route.handler(call, decode_body(route, raw, headers.get(b"content-type")))
    kind = type(value)
    if kind is Answer:
        # Encoded here, so that a value that cannot be is a 500 and not half an answer.
        if value.value is None:
            return Content(b"", "", value.status, value.headers)
        return Content(_encode(value.value), "application/json", value.status, value.headers)
    if kind is Content or kind is Stream:
        return value  # type: ignore[no-any-return]
    return Content(_encode(value), "application/json")


def _refuse(
    error: Exception, headers: dict[bytes, bytes], method: str, template: str, request_id: str
) -> Content:
    """The X8 body of an error; one that is not ours is a bug, and its text stays in the log."""
    if isinstance(error, KsanaError):
        status, body, extra = refusal(error, request_id)
        if isinstance(error, TooLargeError) and _is_endless(headers):
            extra.append(_CLOSE)
        return Content(body, "application/json", status, tuple(extra))
    log.error(
        "request failed", request_id=request_id, method=method, route=template, exc_info=error
    )
    return Content(error_body("INTERNAL", _INTERNAL, request_id), "application/json", 500)


def _request_id(headers: dict[bytes, bytes]) -> str:
    sent = headers.get(b"x-request-id")
    return _next_request_id() if sent is None else sane_request_id(sent)


def sane_request_id(sent: bytes) -> str:
    """Keep a caller's request id if it is short and printable, else make one."""
    text = sent.decode("latin-1")
    if 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable():
        return text
    return _next_request_id()


def _next_request_id() -> str:
    return f"{_ID_PREFIX}{next(_id_counter):012x}"


def _is_endless(headers: dict[bytes, bytes]) -> bool:
    length = headers.get(b"content-length", b"")
    return not length.isdigit() or len(length) > 18 or int(length) > DISCARDED_BODY


def head_of(content: Content, request_id: str) -> bytes:
    """The headers of a whole answer as they are sent. Nothing a caller sent can put a line break
    into them."""
    media_type, body = content.media_type, content.body
    if not content.headers and media_type:
        return f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n".encode()
    lines = [b"x-request-id: " + request_id.encode()]
    for name, value in content.headers:
        if _BREAK.search(name) or _BREAK.search(value):
            raise ValueError(f"the header {name!r} holds a line break")
        lines.append(name + b": " + value)
    if media_type:
        lines.append(b"content-type: " + media_type.encode())
    if content.status not in (204, 304):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b""])


async def _send(scope: Scope, send: Send, content: Content, head: bytes, request_id: str) -> None:
    """Send a whole answer, in one write where our own server offers it."""
    body, status = content.body, content.status
    respond = scope.get(RESPOND)
    if respond is not None and _CLOSE not in content.headers and respond(status, head, body):
        return
    headers = [(b"x-request-id", request_id.encode()), *content.headers]
    if content.media_type:
        headers.append((b"content-type", content.media_type.encode()))
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(stream: Stream, request_id: str, receive: Receive, send: Send) -> None:
    """Send chunks until they end or the reader goes. The server holds back while the reader's
    buffer is full."""
    head = [
        (b"content-type", stream.media_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", request_id.encode()),
        *stream.headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    sender = asyncio.ensure_future(_send_chunks(stream, send))
    gone = asyncio.ensure_future(_wait_gone(receive))
    try:
        await asyncio.wait((sender, gone), return_when=asyncio.FIRST_COMPLETED)
        if sender.done() and not sender.cancelled() and (error := sender.exception()) is not None:
            log.error("stream failed", request_id=request_id, exc_info=error)
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        sender.cancel()
        gone.cancel()
        await asyncio.gather(sender, gone, return_exceptions=True)


async def _send_chunks(stream: Stream, send: Send) -> None:
    chunks = stream.chunks
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse_socket(
    error: KsanaError, request_id: str, scope: Scope, receive: Receive, send: Send
) -> None:
    await receive()  # websocket.connect
    status, body, extra = refusal(error, request_id)
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.code})
        return
    head = [
        _JSON,
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
        *extra,
    ]
    await send({"type": "websocket.http.response.start", "status": status, "headers": head})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def _pass_lifespan(receive: Receive, send: Send) -> None:
    """Boot starts and stops everything; the server's lifespan has nothing to add."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
