"""The one request pipeline: from a request to the bytes of its answer.

Every HTTP request passes `Pipeline.serve`, whether it came through ASGI (`app`) or past it
(`fastpath`): source check, route, key and scope, size, query, body, handler, encoding, counting.
A request passes no middleware and no list of patterns. Every answer that is not a 2xx is the X8
body. Surfaces hand in their routes; nothing here knows what they do, and nothing here writes to a
socket.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgspec

from ksana.api.core.access_log import NO_ACCESS_LOG, log_request
from ksana.api.core.auth import Authenticator, RateLimiter
from ksana.api.core.body import (
    MAX_DEPTH,
    check_depth,
    check_length,
    check_media_type,
    check_no_nul,
    drop_members,
    find_refusal,
    no_body,
    read_body,
    too_large,
)
from ksana.api.core.errors import error_body, refusal
from ksana.api.core.exchange import IncomingRequest, RenderedResponse, join_head
from ksana.api.core.page_turns import PageTurns
from ksana.api.core.query import decode_query, refuse_query
from ksana.api.core.router import Router
from ksana.api.core.routing import (
    Answer,
    AnyRoute,
    Call,
    Content,
    FoundRoute,
    Headers,
    Route,
    Stream,
)
from ksana.api.core.services import DEFAULT_RATE, LogControl, Services
from ksana.api.core.trace import find_trace
from ksana.api.core.traffic import RequestSpans, Traffic
from ksana.base import log
from ksana.base.errors import KsanaError, RateLimitedError, TooLargeError
from ksana.base.ids import new_uid
from ksana.base.instant import Micros
from ksana.service.core.keys import Principal

MAX_REQUEST_ID: Final = 128
DISCARDED_BODY: Final = 8 * 1024 * 1024
"""A refused body up to this size is read and dropped so that the caller sees the 413; beyond it
the connection is closed."""
UNKNOWN_ROUTE: Final = "unknown"
_INTERNAL: Final = "something went wrong on our side; the log has it under this request id"
_CLOSE: Final = (b"connection", b"close")

# Request ids only need to differ: a random prefix per process and a counter save a system call per
# request.
_ID_PREFIX: Final = new_uid()[:20]
_id_counter = itertools.count(1)
_encode = msgspec.json.Encoder().encode


class Pipeline:
    """Serves requests. Built once; holds no state of a request."""

    def __init__(
        self,
        services: Services,
        routes: Iterable[AnyRoute],
        spans: RequestSpans | None = None,
        logs: LogControl | None = None,
    ) -> None:
        self.router = Router(routes)
        self.authenticator = Authenticator(services)
        self._services = services
        self._max_body = services.settings.max_body
        self._monotonic = services.clock.monotonic
        traffic = Traffic()
        services.metrics.register(traffic)
        self._answers = traffic.answers
        self._spans = spans
        self._logs = logs or NO_ACCESS_LOG
        self._pages = PageTurns()
        self._limiter = RateLimiter(
            services.settings.rate,
            self._monotonic,
            spares_local=services.settings.rate == DEFAULT_RATE,
        )

    async def serve(self, request: IncomingRequest) -> RenderedResponse:
        """Answer a request. Raise nothing but cancellation."""
        started, headers, method = self._monotonic(), request.headers, request.method
        sent_id = headers.get(b"x-request-id")
        request_id = next_request_id() if sent_id is None else sane_request_id(sent_id)
        template, principal, is_admitted = UNKNOWN_ROUTE, None, False
        try:
            self.authenticator.check_source(headers)
            route, params = request.found or self._find(request)
            call = Call(self._services, method, request.path, headers, request_id)
            template, call.params, call.is_gone = route.path, params, request.is_gone
            if route.scope is not None:
                call.principal = principal = await self.authenticator.admit(headers, route.scope)
            is_admitted, max_body = True, route.max_body or self._max_body
            self._limiter.take(principal, request.peer)
            if request.receive is not None:
                check_length(headers, max_body)
            elif len(request.body) > max_body:
                raise too_large(max_body)
            if request.query_string or route.query is not None:
                _take_query(route, call, request.query_string)
            if route.is_page:
                response = await self._read_page(route, call, request)
            elif route.decoder is None:
                response = _render(await route.handler(call), request_id)
            else:
                raw = request.body
                if request.receive is not None:
                    raw = await read_body(request.receive, max_body)
                sent = _decode(route, raw, headers)
                response = _render(await route.handler(call, sent), request_id)
            if response.chunks is not None:
                chunks = self._count_stream(
                    response.chunks, request, template, started, request_id, principal
                )
                return RenderedResponse(200, response.head, chunks=chunks)
        except Exception as error:
            # Refused at the door, it is counted by its address.
            why = error if is_admitted else self.count_refused(request.peer) or error
            response = _render(_refuse(why, request, template, request_id), request_id)
        status, size, spent_us = response.status, len(response.body), self._monotonic() - started
        self._record(request, template, principal, request_id, status, size, spent_us)
        return response

    def count(self, principal: Principal | None, peer: Any) -> None:
        """Count a socket like a request. Raise RateLimitedError."""
        self._limiter.take(principal, peer)

    def count_refused(self, peer: Any) -> RateLimitedError | None:
        """Count a caller who was refused before it was known; the refusal it gets instead if there
        were too many."""
        try:
            self._limiter.take(None, peer)
        except RateLimitedError as error:
            return error
        return None

    def _record(
        self,
        request: IncomingRequest,
        template: str,
        principal: Principal | None,
        request_id: str,
        status: int,
        size: int | None,
        spent_us: Micros,
    ) -> None:
        """Count an answer, tell a tracer of it, and log it if requests are logged."""
        counted = self._answers.get((request.method, template, status))
        if counted is None:
            counted = self._answers[request.method, template, status] = [0, 0]
        counted[0] += 1
        counted[1] += spent_us
        if self._spans is not None:
            trace = find_trace(request.headers)
            self._spans.served(request.method, template, status, spent_us, request_id, trace)
        if self._logs.access:
            log_request(request, template, principal, request_id, status, size, spent_us)

    async def _read_page(
        self, route: Route, call: Call, request: IncomingRequest
    ) -> RenderedResponse:
        """Read and render a page in its turn: the rows are gone when the next one's are read."""
        await self._pages.take(call.principal, request.peer)
        size, began = 0, 0.0
        try:
            value = await route.handler(call)
            began = asyncio.get_running_loop().time()
            response = _render(value, call.request_id)
            size = len(response.body)
            return response
        finally:
            self._pages.give_back(size, began)

    def log_socket(
        self, request: IncomingRequest, template: str, started: Micros, status: int, call: Call
    ) -> None:
        """Log a socket that ended, or was refused, if requests are logged."""
        if self._logs.access:
            spent_us = self._monotonic() - started
            log_request(request, template, call.principal, call.request_id, status, None, spent_us)

    def _find(self, request: IncomingRequest) -> FoundRoute:
        route, params = self.router.find(request.method, request.path, request.raw_path)
        assert isinstance(route, Route)
        return route, params

    async def _count_stream(
        self,
        chunks: AsyncIterator[bytes],
        request: IncomingRequest,
        template: str,
        started: Micros,
        request_id: str,
        principal: Principal | None,
    ) -> AsyncIterator[bytes]:
        """Pass the chunks on; close and count them when they end or the reader goes."""
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
            spent_us = self._monotonic() - started
            self._record(request, template, principal, request_id, 200, None, spent_us)


def _take_query(route: Route, call: Call, query_string: bytes) -> None:
    if route.query is not None:
        call.query = decode_query(route.query, query_string, allows_unknown=route.any_query)
    elif not route.any_query:
        refuse_query(query_string)


def _decode(route: Route, body: bytes, headers: dict[bytes, bytes]) -> Any:
    """A body as the route's type."""
    decoder, content_type = route.decoder, headers.get(b"content-type")
    assert decoder is not None
    if not body:
        if not route.empty_body_ok:
            raise no_body()
        body = b"{}"
    elif content_type is not None and content_type != b"application/json":
        check_media_type(content_type)
    try:
        if not body.isascii():
            body.decode("utf-8")  # msgspec.Raw members are not looked into
        if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
            check_depth(body)
        if b"\\u0000" in body:
            check_no_nul(body)
        if route.has_ignored:
            body = drop_members(body, route.ignored_members)
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise find_refusal(error, route, body, headers) from None


def next_request_id() -> str:
    """Make a request id."""
    return f"{_ID_PREFIX}{next(_id_counter):012x}"


def sane_request_id(sent: bytes) -> str:
    """Keep a caller's request id if it is short and printable, else make one."""
    text = sent.decode("latin-1")
    if 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable():
        return text
    return next_request_id()


def _refuse(error: Exception, request: IncomingRequest, template: str, request_id: str) -> Content:
    """The X8 body of an error; one that is not ours is a bug, and its text stays in the log."""
    if isinstance(error, KsanaError):
        status, body, extra = refusal(error, request_id)
        if isinstance(error, TooLargeError) and _is_endless(request.headers):
            extra.append(_CLOSE)
        return Content(body, "application/json", status, tuple(extra))
    log.error(
        "request failed",
        request_id=request_id,
        method=request.method,
        route=template,
        exc_info=error,
    )
    return Content(error_body("INTERNAL", _INTERNAL, request_id), "application/json", 500)


def _is_endless(headers: dict[bytes, bytes]) -> bool:
    length = headers.get(b"content-length", b"")
    return not length.isdigit() or len(length) > 18 or int(length) > DISCARDED_BODY


def _render(value: Any, request_id: str) -> RenderedResponse:
    """A handler's value as bytes. All of it is encoded before anything is sent, so that a value
    that cannot be encoded is a 500 and not half an answer."""
    kind, status, media_type = type(value), 200, "application/json"
    headers: Headers = ()
    if kind is Answer:
        status, headers = value.status, value.headers
        body = b"" if value.value is None else _encode(value.value)
        media_type = "" if value.value is None else media_type
    elif kind is Content:
        status, headers = value.status, value.headers
        body, media_type = value.body, value.media_type
    elif kind is Stream:
        return RenderedResponse(200, _stream_head(value, request_id), chunks=value.chunks)
    else:
        body = _encode(value)
    if media_type and not headers:
        head = (
            f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\n"
        ).encode()
        return RenderedResponse(status, head, body)
    lines = [(b"x-request-id", request_id.encode()), *headers]
    if media_type:
        lines.append((b"content-type", media_type.encode()))
    if status not in (204, 304):
        lines.append((b"content-length", b"%d" % len(body)))
    return RenderedResponse(status, join_head(lines), body, None, _CLOSE in headers)


def _stream_head(stream: Stream, request_id: str) -> bytes:
    lines = [
        (b"content-type", stream.media_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", request_id.encode()),
        *stream.headers,
    ]
    return join_head(lines)
