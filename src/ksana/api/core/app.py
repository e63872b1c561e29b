"""The ASGI app: hands HTTP requests to the pipeline and sends what it answers, serves sockets.

Surfaces hand in their routes; nothing here knows what they do.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

from ksana.api.core import docs, events, health, log_settings
from ksana.api.core.errors import refusal
from ksana.api.core.exchange import (
    EXCHANGE,
    HEADERS,
    IncomingRequest,
    Receive,
    RenderedResponse,
    split_head,
)
from ksana.api.core.health import StatsSections
from ksana.api.core.pipeline import UNKNOWN_ROUTE, Pipeline, sane_request_id
from ksana.api.core.router import FastpathRoutes, Router
from ksana.api.core.routing import AnyRoute, Call, Route, SocketRoute
from ksana.api.core.services import LogControl, Services
from ksana.api.core.traffic import RequestSpans
from ksana.base import log
from ksana.base.errors import KsanaError, NotFoundError

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_NO_EXCHANGE: Final = (None, None)
_JSON: Final = (b"content-type", b"application/json")


def create_app(
    services: Services,
    *surfaces: Iterable[AnyRoute],
    stats: StatsSections | None = None,
    spans: RequestSpans | None = None,
    logs: LogControl | None = None,
    words: Mapping[str, docs.FindWords] | None = None,
) -> "Application":
    """Compose the app of the foundation's routes and those of the surfaces. Raise ValueError for
    routes that contradict each other or opt into the fast path and cannot be served there."""
    stats = stats or StatsSections()
    routes: list[AnyRoute] = [
        *health.routes(services, stats),
        *events.routes(services),
        *docs.routes(),
        *(log_settings.routes(logs) if logs is not None else ()),
    ]
    for surface in surfaces:
        routes.extend(surface)
    routes.append(docs.root_route(routes))
    described = [route for route in routes if isinstance(route, Route) and not route.hidden]
    routes.append(docs.openapi_route(described, services.settings.version, words or {}))
    return Application(services, routes, spans, logs)


class Application:
    """The ASGI callable."""

    def __init__(
        self,
        services: Services,
        routes: Iterable[AnyRoute],
        spans: RequestSpans | None = None,
        logs: LogControl | None = None,
    ) -> None:
        self._services = services
        self.pipeline = Pipeline(services, routes, spans, logs)
        self.fastpath = FastpathRoutes(self.pipeline.router)

    @property
    def router(self) -> Router:
        """All routes."""
        return self.pipeline.router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await self._serve_socket(scope, receive, send)
            elif scope["type"] == "lifespan":
                await _pass_lifespan(receive, send)
            return
        headers = scope.get(HEADERS)
        request = IncomingRequest(
            scope["method"],
            scope["path"],
            scope["raw_path"],
            scope["query_string"],
            dict(scope["headers"]) if headers is None else headers,
            scope.get("client"),
            receive,
        )
        connection, cycle = scope.get(EXCHANGE) or _NO_EXCHANGE
        if connection is not None and (body := connection.take_body(cycle)) is not None:
            request.body, request.receive = body, None
        response = await self.pipeline.serve(request)
        if response.chunks is not None:
            if scope["method"] == "HEAD":
                await _send_head_of_stream(response, send)
            else:
                await _send_stream(response, receive, send)
            return
        if connection is None or response.closes or not connection.respond(cycle, response):
            start = {"status": response.status, "headers": split_head(response.head)}
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": response.body})

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = sane_request_id(headers.get(b"x-request-id", b""))
        path, authenticator = scope["path"], self.pipeline.authenticator
        call = Call(self._services, "WEBSOCKET", path, headers, request_id)
        log_end = self._begin_socket(scope, headers, call)
        is_counted = False
        try:
            authenticator.check_source(headers)
            raw_path = scope.get("raw_path") or path.encode()
            route, params = self.router.find("WEBSOCKET", path, raw_path)
            assert isinstance(route, SocketRoute)
            call.params = params
            if route.scope is not None:
                call.principal = await authenticator.admit(headers, route.scope)
            is_counted = True
            self.pipeline.count(call.principal, scope.get("client"))
        except KsanaError as error:
            if not is_counted:
                error = self.pipeline.count_refused(scope.get("client")) or error
            if error.status == 405:
                error = NotFoundError(f"there is no WebSocket at {path[:200]}")
            await _refuse_socket(error, request_id, scope, receive, send)
            log_end(UNKNOWN_ROUTE, error.status)
            return
        from starlette.websockets import WebSocket, WebSocketState

        socket = WebSocket(scope, receive, send)
        try:
            await route.handler(socket, call)
        except Exception as error:
            if isinstance(error, KsanaError) and socket.client_state is WebSocketState.CONNECTING:
                await _refuse_socket(error, request_id, scope, receive, send)
                return
            log.error("socket failed", request_id=request_id, route=route.path, exc_info=error)
            with contextlib.suppress(Exception):
                await send({"type": "websocket.close", "code": 1011, "reason": "INTERNAL"})
        finally:
            log_end(route.path, 101)

    def _begin_socket(
        self, scope: Scope, headers: dict[bytes, bytes], call: Call
    ) -> Callable[[str, int], None]:
        """Note when a socket began; what is returned logs its end."""
        started, query = self._services.clock.monotonic(), scope.get("query_string", b"")
        request = IncomingRequest(call.method, call.path, b"", query, headers, scope.get("client"))
        return lambda route, status: self.pipeline.log_socket(request, route, started, status, call)


async def _send_stream(response: RenderedResponse, receive: Receive, send: Send) -> None:
    """Send chunks until they end or the reader goes. The server holds back while the reader's
    buffer is full."""
    headers = split_head(response.head)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    sender = asyncio.ensure_future(_send_chunks(response.chunks, send))
    gone = asyncio.ensure_future(_wait_gone(receive))
    try:
        await asyncio.wait((sender, gone), return_when=asyncio.FIRST_COMPLETED)
        if sender.done() and not sender.cancelled() and (error := sender.exception()) is not None:
            log.error(
                "stream failed",
                request_id=dict(headers)[b"x-request-id"].decode(),
                exc_info=error,
            )
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        sender.cancel()
        gone.cancel()
        await asyncio.gather(sender, gone, return_exceptions=True)


async def _send_head_of_stream(response: RenderedResponse, send: Send) -> None:
    """Answer a HEAD: a stream has a head like any other answer, and ends with it."""
    await response.chunks.aclose()  # type: ignore[union-attr]
    headers = split_head(response.head)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _send_chunks(chunks: Any, send: Send) -> None:
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    finally:
        await chunks.aclose()


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
