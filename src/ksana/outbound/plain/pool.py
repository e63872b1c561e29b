"""The idle connections of the plain client, kept by origin."""

import asyncio
from collections import OrderedDict
from time import monotonic
from typing import Final

from ksana.outbound.curl.handle import CONNECTION_LIFE_S
from ksana.outbound.plain.connection import Origin, PlainConnection
from ksana.outbound.resend import can_send_again
from ksana.ports.caller import Request

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
        self._idle: OrderedDict[PlainConnection, None] = OrderedDict()
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
            if idle_s <= CHECK_FIRST_AFTER_S or _is_fit(connection, request, now_s, idle_s):
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
        now_s = monotonic()
        while self._idle and now_s - (oldest := next(iter(self._idle))).idle_s > IDLE_LIFE_S:
            self.drop(oldest)
        if self._idle:
            self._sweep = self._loop.call_later(_SWEEP_S, self._close_old)


def _is_fit(connection: PlainConnection, request: Request, now_s: float, idle_s: float) -> bool:
    """Tell whether a connection that was idle for a while may carry a request."""
    if idle_s <= CHECK_AFTER_S and can_send_again(request):
        return True
    if idle_s > IDLE_LIFE_S or now_s - connection.born_s > CONNECTION_LIFE_S:
        return False
    return connection.is_silent()
