"""A wire: one open connection of the plain lane, with the answer that is being read from it, if its
bytes have begun.

Its socket is watched for as long as it lives, so the end of an idle one is seen at once and it is
never used again.
"""

import asyncio
import socket
import time
from typing import Any, Final, Protocol

from ksana.outbound.plain.response import Answer

READ_BYTES: Final = 64 * 1024


class Place:
    """A host and port, the addresses last judged for it, and its connections that wait for a call."""

    __slots__ = ("host", "idle", "judged", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.judged: tuple[str, ...] = ()
        self.idle: list[Wire] = []


class Exchange(Protocol):
    """What a wire tells the lane."""

    def on_bytes(self, wire: "Wire", data: bytes) -> None: ...

    def on_end(self, wire: "Wire", error: OSError | None) -> None: ...


class Wire:
    """One connection. It carries one trip at a time."""

    __slots__ = (
        "_fd",
        "_is_writing",
        "_lane",
        "_loop",
        "_recv",
        "_sock",
        "_unsent",
        "answer",
        "born_s",
        "calls",
        "has_written",
        "idle_s",
        "ip",
        "is_open",
        "is_sent",
        "place",
        "trip",
    )

    def __init__(
        self,
        lane: Exchange,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        ip: str,
        place: Place,
    ) -> None:
        self._lane = lane
        self._loop = loop
        self._sock = sock
        self._recv = sock.recv
        self._fd = sock.fileno()
        self._unsent = memoryview(b"")
        self._is_writing = False
        self.ip = ip
        self.place = place
        self.answer: Answer | None = None
        self.trip: Any = None
        self.calls = 0
        self.born_s = self.idle_s = time.monotonic()
        self.is_open = self.is_sent = True
        self.has_written = False
        """Whether a byte of the present request was written."""
        loop.add_reader(self._fd, self._on_readable)

    def send(self, letter: bytes) -> None:
        """Send a request, what does not fit at once later. Raise OSError if the connection has
        broken."""
        self.calls += 1
        try:
            sent = self._sock.send(letter)
        except (BlockingIOError, InterruptedError):
            sent = 0
        self.has_written = sent > 0
        if sent < len(letter):
            self._unsent = memoryview(letter)[sent:]
            self.is_sent = False
            self._is_writing = True
            self._loop.add_writer(self._fd, self._on_writable)

    def is_silent(self) -> bool:
        """Look whether an idle connection still has nothing to say: neither its end nor bytes that
        nobody asked for."""
        try:
            self._recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the connection."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._fd)
            self._stop_writing()
            self._sock.close()

    def _on_readable(self) -> None:
        try:
            data = self._recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lane.on_end(self, error)
            return
        if data:
            self._lane.on_bytes(self, data)
        else:
            self._lane.on_end(self, None)

    def _on_writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # An answer may have come before the break; reading tells, now or at the end.
            self._stop_writing()
            return
        self._unsent = self._unsent[sent:]
        self.has_written = True
        if not self._unsent:
            self.is_sent = True
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._unsent = memoryview(b"")
            self._loop.remove_writer(self._fd)
