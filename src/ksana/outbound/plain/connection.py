"""One open connection of the plain client, with the answer that is being read from it, if any; and
the idle ones, kept by origin.

Its socket is watched for as long as it lives, so the end of an idle one is seen at once and it is
never used again.
"""

import asyncio
import socket
import time
from typing import Any, Final, Protocol

from ksana.outbound.curl.handle import CONNECTION_LIFE_S
from ksana.outbound.plain.response import ResponseParser
from ksana.outbound.redirects import can_send_again
from ksana.ports.caller import Request

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


IDLE_LIFE_S: Final = 118
"""An idle connection is closed after this, as libcurl does; servers keep theirs for 60 to 120 s."""
CHECK_AFTER_S: Final = 1.0
"""A connection idle for longer is looked at before it is used. Of a younger one the loop has most
likely reported the end already."""
CHECK_FIRST_AFTER_S: Final = 0.01
"""The same for a request that cannot be sent again: its connection must not be a stale one. Looking
costs 1.5 µs; one used just now has hardly had the time to end."""
_SWEEP_S: Final = 15
_MAX_ORIGINS: Final = 4096


class ConnectionPool:
    """Idle connections, and the origins they lead to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_idle: int) -> None:
        self._loop = loop
        self._max_idle = max_idle
        self._idle: dict[PlainConnection, None] = {}
        """In the order in which they became idle."""
        self._sweep: asyncio.TimerHandle | None = None
        self.origins: dict[tuple[str, int], Origin] = {}

    def __len__(self) -> int:
        return len(self._idle)

    def add_origin(self, host: str, port: int) -> Origin:
        """Remember an origin; those without idle connections make room."""
        if len(self.origins) >= _MAX_ORIGINS:
            for key in [key for key, origin in self.origins.items() if not origin.idle]:
                del self.origins[key]
        origin = self.origins[(host, port)] = Origin(host, port)
        return origin

    def take(self, origin: Origin, request: Request, now_s: float) -> PlainConnection | None:
        """Take the connection used last that may carry the request; unfit ones are closed."""
        while origin.idle:
            connection = origin.idle.pop()
            del self._idle[connection]
            idle_s = now_s - connection.idle_s
            if idle_s <= CHECK_FIRST_AFTER_S or (
                idle_s <= CHECK_AFTER_S and can_send_again(request)
            ):
                return connection
            is_old = idle_s > IDLE_LIFE_S or now_s - connection.born_s > CONNECTION_LIFE_S
            if not is_old and connection.is_silent():
                return connection
            connection.close()
        return None

    def put(self, connection: PlainConnection, now_s: float) -> None:
        """Keep a connection for another call, or close it if it is old or not done."""
        if not connection.is_sent or now_s - connection.born_s >= CONNECTION_LIFE_S:
            connection.close()
            return
        connection.idle_s = now_s
        connection.origin.idle.append(connection)
        self._idle[connection] = None
        if len(self._idle) > self._max_idle:
            self.drop(next(iter(self._idle)))
        elif self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._close_old)

    def drop(self, connection: PlainConnection) -> None:
        """Close a connection, idle or not."""
        if connection in self._idle:
            del self._idle[connection]
            connection.origin.idle.remove(connection)
        connection.close()

    def close(self) -> None:
        """Close all of them."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        self.origins.clear()

    def _close_old(self) -> None:
        self._sweep = None
        now_s = time.monotonic()
        while self._idle and now_s - (oldest := next(iter(self._idle))).idle_s > IDLE_LIFE_S:
            self.drop(oldest)
        if self._idle:
            self._sweep = self._loop.call_later(_SWEEP_S, self._close_old)
