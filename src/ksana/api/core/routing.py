"""Routes as data: a route declares its path, types, scope and limits once; parsing, errors and
OpenAPI follow from it. How they are found is told in `router`. Nothing here reads a socket.
"""

import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ksana.api.core.services import Services
from ksana.api.core.trace import Trace, find_trace
from ksana.service.core.keys import Principal

if TYPE_CHECKING:  # loaded with the first socket
    from starlette.websockets import WebSocket

Headers = tuple[tuple[bytes, bytes], ...]
Converter = Callable[[str], Any]
"""Turns a path segment into an id, or raises ValueError with what is allowed."""

MAX_ID: Final = 2**53 - 1
_PARAMETER = re.compile(r"\{([a-z_]+)(?::([a-z]+))?\}\Z", re.ASCII)
_SIZES: Final = frozenset({"limit", "page_size"})
_DIGITS = re.compile(r"[0-9]{1,16}\Z", re.ASCII)


class Answer(msgspec.Struct, frozen=True):
    """A JSON answer. `value` is anything msgspec encodes; None has no body (204)."""

    status: int = 200
    value: Any = None
    headers: Headers = ()


class Content(msgspec.Struct, frozen=True):
    """An answer that is ready as bytes."""

    body: bytes
    media_type: str
    status: int = 200
    headers: Headers = ()


class Stream(msgspec.Struct, frozen=True):
    """An answer that goes on. The chunks are closed when the reader goes away; a slow reader slows
    the chunks down."""

    chunks: AsyncIterator[bytes]
    media_type: str
    headers: Headers = ()


class Call:
    """One request as its handler sees it."""

    __slots__ = (
        "app",
        "headers",
        "is_gone",
        "method",
        "params",
        "path",
        "principal",
        "query",
        "request_id",
    )

    def __init__(
        self, app: Services, method: str, path: str, headers: Mapping[bytes, bytes], request_id: str
    ) -> None:
        self.app = app
        self.method = method
        self.path = path
        self.request_id = request_id
        self.params: dict[str, Any] = {}
        self.query: Any = None
        self.principal: Principal | None = None
        """Who calls; None while auth is off and on open routes."""
        self.headers = headers
        """By name, in lower case."""
        self.is_gone: Callable[[], bool] = bool
        """Whether the caller is known to have left: what is handed to it would be lost."""

    def header(self, name: str) -> str | None:
        """Find a header by its name in any case."""
        value = self.headers.get(name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    @property
    def trace(self) -> Trace | None:
        """The caller's trace, if it sent a sound one."""
        return find_trace(self.headers)


Handler = Callable[..., Awaitable[Any]]
"""`async def submit(call: Call, body: SubmitJob) -> Answer | Content | Stream | struct`; without
`body` where the route declares none. A plain value is a 200."""
SocketHandler = Callable[["WebSocket", Call], Awaitable[None]]


class Route:
    """One method on one path, with everything the layer and the OpenAPI page need to know about it.

    A body's `Raw` member takes its default from a factory: a schema cannot show a default of type
    Raw. Parameters in the path: `{id}` is text, `{id:int}` a row id, `{id:uuid}` a UUID,
    `{path:rest}` all that follows.
    """

    __slots__ = (
        "answer_headers",
        "answers",
        "any_query",
        "body",
        "converters",
        "decoder",
        "empty_body_ok",
        "handler",
        "has_ignored",
        "hidden",
        "ignored_members",
        "is_fastpath",
        "is_page",
        "max_body",
        "media_types",
        "method",
        "path",
        "query",
        "request_headers",
        "scope",
        "segments",
        "summary",
        "tags",
    )

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        scope: str | None,
        summary: str,
        tags: tuple[str, ...] = (),
        body: Any = None,
        query: type[msgspec.Struct] | None = None,
        answers: Mapping[int, Any] | None = None,
        converters: Mapping[str, Converter] | None = None,
        max_body: int | None = None,
        empty_body_ok: bool = False,
        ignored_members: frozenset[str] = frozenset(),
        media_types: tuple[str, ...] = ("application/json",),
        request_headers: tuple[str, ...] = (),
        answer_headers: tuple[str, ...] = (),
        hidden: bool = False,
        any_query: bool = False,
        is_fastpath: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.scope = scope
        self.summary = summary
        self.tags = tags
        self.body = body
        self.query = query
        self.answers = dict(answers or {200: Any})
        self.max_body = max_body
        """Overrides the setting for this route alone."""
        self.empty_body_ok = empty_body_ok
        """An empty body reads as `{}`: action calls need none."""
        self.ignored_members = ignored_members
        """Server-owned members that callers send back: dropped before decoding."""
        self.has_ignored = bool(ignored_members)
        self.media_types = media_types
        """What a success may come as, for OpenAPI."""
        self.request_headers = request_headers
        """Headers that mean something here, for OpenAPI; `words` has what."""
        self.answer_headers = answer_headers
        """Headers of a success besides the usual ones, for OpenAPI."""
        self.hidden = hidden
        """Not in OpenAPI: pages for people."""
        self.any_query = any_query or hidden
        """Query members that are not declared are ignored, not refused: machines report here, or a
        browser asks for a page."""
        self.is_fastpath = is_fastpath
        """Small requests are served without ASGI and without a task: see `fastpath`. The handler
        and what it calls use nothing that needs a current task, and it does not stream."""
        self.is_page = query is not None and not _SIZES.isdisjoint(query.__struct_fields__)
        """It answers rows, up to a number the caller names: see `page_turns`."""
        self.decoder: msgspec.json.Decoder[Any] | None = (
            None if body is None else msgspec.json.Decoder(body)
        )
        self.segments, self.converters = _read_template(path, converters or {})


class SocketRoute:
    """A WebSocket endpoint. Origin, host, key and scope are checked before the handler runs."""

    __slots__ = ("converters", "handler", "method", "path", "scope", "segments", "summary")

    def __init__(
        self,
        path: str,
        handler: SocketHandler,
        *,
        scope: str | None,
        summary: str,
        converters: Mapping[str, Converter] | None = None,
    ) -> None:
        self.method = "WEBSOCKET"
        self.path = path
        self.handler = handler
        self.scope = scope
        self.summary = summary
        self.segments, self.converters = _read_template(path, converters or {})


AnyRoute = Route | SocketRoute
FoundRoute = tuple[Route, dict[str, Any]]


def _read_template(
    path: str, given: Mapping[str, Converter]
) -> tuple[tuple[tuple[str, str | None], ...], dict[str, Converter]]:
    """Split `/a/{id:int}` into ((literal or kind, parameter or None), …) and its converters."""
    segments: list[tuple[str, str | None]] = []
    converters: dict[str, Converter] = {}
    for part in path.split("/")[1:]:
        match = _PARAMETER.match(part)
        if match is None:
            segments.append((part, None))
            continue
        name, kind = match[1], match[2] or "text"
        segments.append((kind, name))
        converters[name] = given.get(name, CONVERTERS[kind])
    return tuple(segments), converters


def to_row_id(text: str) -> int:
    """Read an integer id from 1 below 2^53."""
    if _DIGITS.match(text) and 1 <= int(text) <= MAX_ID:
        return int(text)
    raise ValueError(f"{text[:64]!r} is not an id: it is a whole number from 1")


def to_uuid_text(text: str) -> str:
    """Read a UUID into its usual form."""
    try:
        if len(text) == 36:
            return str(uuid.UUID(text))
    except ValueError:
        pass
    raise ValueError(
        f"{text[:64]!r} is not an id: it is a UUID such as 6f1c3c2e-8f0d-4b8e-9d55-0f6b1a2c3d4e"
    )


def to_text(text: str) -> str:
    """Read a name or text id: 1 to 255 characters, none of them a control character."""
    if 1 <= len(text) <= 255 and text.isprintable():
        return text
    raise ValueError("an id has 1 to 255 printable characters")


CONVERTERS: Final[dict[str, Converter]] = {
    "int": to_row_id,
    "uuid": to_uuid_text,
    "text": to_text,
    "rest": str,
}
