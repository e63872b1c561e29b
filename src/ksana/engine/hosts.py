"""Places: how many calls may be in flight, in all and per host, and how many runs are worth holding ahead of a place.

A run that is held waits in our memory for a place; one that is only ready waits in the store, for any instance. To keep a
fast host busy some runs are held ahead, as many as the host will start within a quarter second by its measured rate. A host
that hangs has a rate of nothing, so nothing is held for it beyond its free places.
"""

from collections import deque
from typing import Final

from ksana.base.instant import MILLISECOND, Micros
from ksana.engine.held import HeldRun

AHEAD: Final = 32
"""Runs held ahead for a host nothing is known of yet."""

AHEAD_WINDOW: Final[Micros] = 250 * MILLISECOND
AHEAD_LIMIT: Final = 4096
_RATE_WINDOW: Final[Micros] = 100 * MILLISECOND


class Rooms:
    """A snapshot of how many runs may be held now, taken on the event loop and used in a transaction."""

    __slots__ = ("_by_host", "_default", "_total")

    def __init__(self, by_host: dict[str, int], default: int, total: int) -> None:
        self._by_host = by_host
        self._default = default
        self._total = total

    def copy(self) -> "Rooms":
        """A copy to use up."""
        return Rooms(dict(self._by_host), self._default, self._total)

    def take(self, host: str) -> bool:
        """Take one place at a host, if there is one."""
        room = self._by_host.get(host, self._default)
        if room <= 0 or self._total <= 0:
            return False
        self._by_host[host] = room - 1
        self._total -= 1
        return True


class HostLine:
    """One host: what is in flight, what waits here for a place, how fast it answers."""

    __slots__ = ("_window_count", "_window_ends", "host", "in_flight", "is_known", "limit", "rate", "waiting")

    def __init__(self, host: str, limit: int) -> None:
        self.host = host
        self.limit = limit
        self.in_flight = 0
        self.waiting: deque[HeldRun] = deque()
        self.rate = 0.0
        self.is_known = False
        self._window_count = 0
        self._window_ends: Micros = 0

    def ended(self, now_mono: Micros) -> None:
        """A call ended: count it into the rate."""
        self.in_flight -= 1
        if now_mono >= self._window_ends:
            self._roll(now_mono)
        self._window_count += 1

    def room(self, now_mono: Micros) -> int:
        """How many more runs may be held for this host."""
        if now_mono >= self._window_ends:
            self._roll(now_mono)
        ahead = AHEAD if not self.is_known else min(int(self.rate * AHEAD_WINDOW / 1e6), AHEAD_LIMIT)
        return self.limit - self.in_flight + ahead - len(self.waiting)

    def _roll(self, now_mono: Micros) -> None:
        late = now_mono - self._window_ends
        if self._window_ends and self._window_count:
            self.is_known = True
            measured = self._window_count / ((_RATE_WINDOW + max(0, late)) / 1e6)
            self.rate = measured if self.rate == 0 else 0.5 * self.rate + 0.5 * measured
        elif self._window_ends:
            self.rate *= 0.5 ** min(20, 1 + late // _RATE_WINDOW)
            self.is_known = self.is_known or self.in_flight >= self.limit
        self._window_count = 0
        self._window_ends = now_mono + _RATE_WINDOW
