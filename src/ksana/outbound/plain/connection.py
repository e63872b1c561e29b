"""One open connection of the plain client, with the answer that is being read from it, if any.

Its socket is watched for as long as it lives, so the end of an idle one is seen at once and it is
never used again.
"""

import asyncio
import socket
import time
from typing import Any, Final, Protocol

from ksana.outbound.plain.response import ResponseParser

READ_BYTES: Final = 64 * 1024


class Origin:
    """A host and port, the addresses last checked for it, and its idle connections."""

    __slots__ = ("checked", "host", "idle", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.checked: tuple[str, ...] = ()
        self.idle: list[PlainConnection] = []


class ConnectionOwner(Protocol):
    """Who a connection reports to."""

    def may_write(self, connection: "PlainConnection") -> bool: ...

    def on_bytes(self, connection: "PlainConnection", data: bytes) -> None: ...

    def on_end(self, connection: "PlainConnection", error: OSError | None) -> None: ...


class PlainConnection:
    """One connection. It carries one call at a time."""

    __slots__ = (
        "_fd",
        "_is_writing",
        "_loop",
        "_owner",
        "_recv",
        "_sock",
        "_unsent",
        "born_s",
        "call",
        "calls",
        "has_written",
        "idle_s",
        "ip",
        "is_open",
        "is_sent",
        "origin",
        "response",
    )

    def __init__(
        self,
        owner: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        ip: str,
        origin: Origin,
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._sock = sock
        self._recv = sock.recv
        self._fd = sock.fileno()
        self._unsent = memoryview(b"")
        self._is_writing = False
        self.ip = ip
        self.origin = origin
        self.response: ResponseParser | None = None
        self.call: Any = None
        self.calls = 0
        self.born_s = self.idle_s = time.monotonic()
        self.is_open = self.is_sent = True
        self.has_written = False
        """Whether a byte of the present request was written."""
        loop.add_reader(self._fd, self._on_readable)

    def send(self, encoded: bytes) -> None:
        """Send a request, what does not fit at once later. Raise OSError if the connection has
        broken."""
        self.calls += 1
        try:
            sent = self._sock.send(encoded)
        except (BlockingIOError, InterruptedError):
            sent = 0
        self.has_written = sent > 0
        if sent < len(encoded):
            self._unsent = memoryview(encoded)[sent:]
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
            self._owner.on_end(self, error)
            return
        if data:
            self._owner.on_bytes(self, data)
        else:
            self._owner.on_end(self, None)

    def _on_writable(self) -> None:
        if not self._owner.may_write(self):
            return
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # An answer may have come before the break; reading shows it, now or at the end.
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
