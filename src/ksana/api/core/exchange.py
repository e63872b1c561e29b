"""A request and its answer between a connection and the pipeline, and where connections leave
things in a request's scope.

Whether they came through ASGI or past it makes no difference from here on. Nothing here reads a
socket or writes to one.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

import msgspec

from ksana.api.core.routing import FoundRoute

HEADERS: Final = "ksana.headers"
"""Where our connections put the headers of a request by name, in its scope."""
EXCHANGE: Final = "ksana.exchange"
"""Where our connections put (connection, cycle); other servers have none of it."""
_LINE_BREAK = re.compile(rb"[\r\n\0]")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class IncomingRequest:
    """A request to be answered. While `receive` is set the body is still on its way, and is read
    only after everything that the head decides; without it `body` is complete."""

    __slots__ = (
        "body",
        "found",
        "headers",
        "method",
        "path",
        "peer",
        "query_string",
        "raw_path",
        "receive",
    )

    def __init__(
        self,
        method: str,
        path: str,
        raw_path: bytes,
        query_string: bytes,
        headers: dict[bytes, bytes],
        peer: Any,
        receive: Receive | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.raw_path = raw_path
        self.query_string = query_string
        self.headers = headers
        self.peer = peer
        """(address, port) of the caller, if the server knows it."""
        self.body = b""
        self.receive = receive
        self.found: FoundRoute | None = None
        """The route, if it had to be known before the request was complete."""

    def is_gone(self) -> bool:
        """Whether the caller is known to have left. Not known of requests that came by ASGI."""
        return False


class RenderedResponse(msgspec.Struct, frozen=True):
    """An answer as bytes. `head` holds the header lines, each with its line break; the status line
    and the server's own headers are the server's."""

    status: int
    head: bytes
    body: bytes = b""
    chunks: AsyncIterator[bytes] | None = None
    """The body of a stream, in place of `body`. Whoever sends it closes it."""
    closes: bool = False
    """The connection ends with this answer; `head` says so."""


def join_head(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The header lines. Nothing a caller sent can put a line break into them."""
    head = b""
    for name, value in headers:
        if _LINE_BREAK.search(name) or _LINE_BREAK.search(value):
            raise ValueError(f"the header {name!r} holds a line break")
        head += b"%s: %s\r\n" % (name, value)
    return head


def split_head(head: bytes) -> list[tuple[bytes, bytes]]:
    """The header lines as ASGI wants them."""
    pairs = []
    for line in head.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        pairs.append((name, value))
    return pairs
