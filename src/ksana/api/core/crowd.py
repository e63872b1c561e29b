"""Thousands of connections that come together: what they are, and WebSockets let in a few at once.

After a restart every node and session comes back in the same second. Their handshakes in one turn
of the event loop would hold up every other call for as long as all of them take. So each turn lets
in a few, and the other calls have theirs. A call that is new stands in the kernel's line behind all
who came before it: as long as connections come in, handshakes wait, so that the line moves on.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

WRITE_TEXTS: Final = "ksana.write_texts"
"""The extension of ASGI by which a socket is handed many frames."""

_TEXT: Final = 0x81
"""A whole text frame; what a server sends is not masked."""
_MEDIUM: Final = struct.Struct(">BBH")
_LARGE: Final = struct.Struct(">BBQ")

AT_ONCE: Final = 8
"""Handshakes in one turn of the event loop: a few milliseconds. One while connections come in."""


class Crowd:
    """The connections of one server that are no HTTP connections in use."""

    def __init__(self) -> None:
        self.silent = 0
        """Connections that have not sent a byte; they are closed after a few seconds."""
        self.sockets = 0
        """WebSockets, those that wait included."""
        self.arrivals = 0
        """Connections that were ever made."""
        self._arrivals_seen = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_turning = False

    @property
    def apart(self) -> int:
        """Connections that do not count as HTTP connections in use."""
        return self.silent + self.sockets

    def let_in(self, begin: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Begin a handshake, now or in a later turn, in the order of coming."""
        self._waiting.append(begin)
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        most = AT_ONCE if self.arrivals == self._arrivals_seen else 1
        self._arrivals_seen = self.arrivals
        try:
            for _ in range(min(most, len(self._waiting))):
                self._waiting.popleft()()
        finally:  # one that fails must not keep out all others
            self._is_turning = bool(self._waiting)
            if self._is_turning:
                loop.call_soon(self._turn, loop)


class CountedSocket(WebSocketsSansIOProtocol):
    """A WebSocket that is counted until it ends, and takes many frames in one write. It was counted
    in by the connection it was."""

    crowd = Crowd()

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][WRITE_TEXTS] = {"write": self.write_texts}

    async def write_texts(self, texts: Sequence[bytes]) -> None:
        """Send text frames, all in one write. Raise OSError when the socket has ended."""
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise OSError("the socket has ended")
        parts = []
        for text in texts:
            size = len(text)
            if size < 126:
                parts.append(bytes((_TEXT, size)))
            elif size < 65_536:
                parts.append(_MEDIUM.pack(_TEXT, 126, size))
            else:
                parts.append(_LARGE.pack(_TEXT, 127, size))
            parts.append(text)
        self.transport.write(b"".join(parts))

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.sockets -= 1
        super().connection_lost(exc)


def counted_socket(crowd: Crowd) -> type[Any]:
    """The class of one server's sockets."""
    return type("CountedSocket", (CountedSocket,), {"crowd": crowd})
