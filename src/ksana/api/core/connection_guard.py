"""How many connections are open, in all and from each address, and how much of our answers waits
for readers. One guard per server.

The total lies below the process's descriptor limit, with room for our own calls, files and
database. When it, or an address's share, is reached, connections that are idle or have not said a
whole head yet are closed, oldest first, to make room for new ones. If all are busy, the new one is
refused. Bytes that readers do not take are bounded too: beyond it the reader that has waited
longest is dropped.
"""

import asyncio
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_UNREAD: Final = 64 * 1024 * 1024
"""Bytes of answers that may wait for all readers together."""
OVERFLOW: Final = 64
"""Connections above the total that are still told why they are refused."""
_SHARE_CLOSED: Final = 32
"""One in so many is closed at a time: looking for the oldest costs a walk over all."""


class GuardedConnection(Protocol):
    """A connection as the guard sees it."""

    transport: asyncio.Transport

    @property
    def idle_since(self) -> float | None:
        """Since when it has been idle; None while a request is being received or answered."""
        ...


class ConnectionGuard(Collector):
    """Counts connections; made once, used on the loop."""

    def __init__(
        self, total: int = 65_536, per_address: int = 65_536, *, max_unread: int = MAX_UNREAD
    ) -> None:
        self.total = total
        self.per_address = min(per_address, total)
        self._max_unread = max_unread
        self._open: dict[GuardedConnection, str] = {}
        self._of_address: dict[str, dict[GuardedConnection, None]] = {}
        self._upgraded: dict[asyncio.Transport, str] = {}
        """Sockets: their own protocol does not tell us of their end, so they are swept."""
        self._unread: dict[GuardedConnection, int] = {}
        self._unread_bytes = 0
        self.refused = 0
        self.closed_idle = 0
        self.dropped_readers = 0

    def __len__(self) -> int:
        return len(self._open) + len(self._upgraded)

    def enter(self, connection: GuardedConnection, host: str) -> bool:
        """Note a new connection. False if there is no room for it: it is to be refused."""
        address = group_address(host)
        of_address = self._of_address.setdefault(address, {})
        self._open[connection] = address
        of_address[connection] = None
        if len(self._open) + len(self._upgraded) <= self.total:
            if len(of_address) <= self.per_address:
                return True
            is_room = self._close_idle(of_address, connection)
        else:
            # Whoever holds most gives way first: an address at its limit, else the oldest of all.
            is_full = len(of_address) > self.per_address // 2
            is_room = (is_full and self._close_idle(of_address, connection)) or self._close_idle(
                self._open, connection
            )
        if not is_room:
            self.refused += 1
            if len(self._open) + len(self._upgraded) > self.total + OVERFLOW:
                connection.transport.abort()
        return is_room

    def leave(self, connection: GuardedConnection) -> None:
        """A connection has ended."""
        address = self._open.pop(connection, None)
        if address is not None:
            self._forget(address, connection)
        self.note_read(connection)

    def upgrade(self, connection: GuardedConnection) -> None:
        """A connection has become a socket."""
        address = self._open.pop(connection, None)
        if address is not None:
            self._forget(address, connection)
            self._upgraded[connection.transport] = address

    def sweep(self) -> None:
        """Forget sockets that have ended."""
        ended = [each for each in self._upgraded if each.is_closing()]
        for transport in ended:
            del self._upgraded[transport]

    def note_unread(self, connection: GuardedConnection, size: int) -> None:
        """A reader does not keep up; so many bytes wait for it. Drop who has waited longest while
        too many wait in all."""
        self._unread_bytes += size - self._unread.pop(connection, 0)
        self._unread[connection] = size
        while self._unread_bytes > self._max_unread:
            slowest = next(iter(self._unread))
            self.note_read(slowest)
            self.dropped_readers += 1
            slowest.transport.abort()

    def note_read(self, connection: GuardedConnection) -> None:
        """It keeps up again, or is gone."""
        self._unread_bytes -= self._unread.pop(connection, 0)

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "ksana_http_connections", "Connections open, sockets included.", value=len(self)
        )
        yield GaugeMetricFamily(
            "ksana_http_connections_limit", "Connections that may be open.", value=self.total
        )
        ended = CounterMetricFamily(
            "ksana_http_connections_ended",
            "Connections refused or closed to bound what callers hold.",
            labels=("reason",),
        )
        ended.add_metric(("refused",), self.refused)
        ended.add_metric(("idle",), self.closed_idle)
        ended.add_metric(("unread",), self.dropped_readers)
        yield ended

    def _forget(self, address: str, connection: GuardedConnection) -> None:
        of_address = self._of_address[address]
        of_address.pop(connection, None)
        if not of_address:
            del self._of_address[address]

    def _close_idle(
        self, among: dict[GuardedConnection, None] | dict[GuardedConnection, str], new: object
    ) -> bool:
        """Close the connections that have been idle longest. False if none is."""
        idle = [
            (since, number)
            for number, each in enumerate(among)
            if each is not new and (since := each.idle_since) is not None
        ]
        if not idle:
            return False
        idle.sort()
        chosen = {number for _, number in idle[: 1 + len(idle) // _SHARE_CLOSED]}
        closed = [each for number, each in enumerate(among) if number in chosen]
        for each in closed:
            each.transport.abort()
            self.leave(each)
        self.closed_idle += len(closed)
        return True


def group_address(host: str) -> str:
    """The address that a limit counts by: of IPv6 the network of a customer, /64."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else f"{int(address) >> 64:016x}/64"
