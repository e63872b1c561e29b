"""The outgoing side of a socket, as the engine sees it. The edge implements it.

`send` never waits: a frame is queued, and a peer that does not read is closed when too many bytes
wait for it. The engine is told of the end by whoever reads the socket.
"""

import asyncio
from typing import Final, Protocol

import msgspec

from ksana.base.instant import Micros
from ksana.domain.nodes.frames import encode

GOING_DOWN: Final = 1001
BAD_FRAME: Final = 1003
TOO_BIG: Final = 1009
INTERNAL: Final = 1011
SLOW: Final = 4008
"""The peer does not read what is sent to it."""
REPLACED: Final = 4009
"""Another socket has taken this id over."""
CONFLICT: Final = 4010
"""A live peer has this id."""
SILENT: Final = 4011
"""No sign of life in time."""
REVOKED: Final = 4012
"""The key that opened the socket was revoked."""
LOST_OWNER: Final = 4013
"""Another instance owns this id by now."""


class Outgoing(Protocol):
    """Where frames go."""

    def send(self, frame: bytes) -> bool:
        """Queue a frame. False if the socket is closed, or is being closed because too much
        waits."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the socket, soon. Nothing happens if it has ended."""
        ...


class Peer:
    """A socket and when it was last heard."""

    __slots__ = ("heard_mono", "is_open", "is_pinged", "key_id", "outgoing", "probes")

    def __init__(self, outgoing: Outgoing, now_mono: Micros, key_id: str = "") -> None:
        self.outgoing = outgoing
        self.heard_mono = now_mono
        self.key_id = key_id
        """Which API key opened it."""
        self.is_open = True
        self.is_pinged = False
        self.probes: list[asyncio.Event] = []

    def hear(self, now_mono: Micros) -> None:
        """It sent something: it lives."""
        self.heard_mono = now_mono
        self.is_pinged = False
        if self.probes:
            for probe in self.probes:
                probe.set()
            self.probes.clear()

    def send(self, frame: msgspec.Struct) -> bool:
        """Send a frame."""
        return self.is_open and self.outgoing.send(encode(frame))

    def close(self, code: int, reason: str) -> None:
        """End it."""
        if self.is_open:
            self.is_open = False
            self.outgoing.close(code, reason)
