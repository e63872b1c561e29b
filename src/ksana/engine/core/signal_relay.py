"""The relay: what happens here is told to the other instances, gathered for a few milliseconds.

However many jobs come and go, each name is told at most once in an interval: the first at once, the
rest of the interval as one. A caller only leaves a note here; sending is a loop of its own, so a
coordination that is slow or away holds up nobody.
"""

from collections.abc import Callable
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import HOUR, MILLISECOND, Instant, Micros
from ksana.engine.core.pump import Pump
from ksana.ports.signals import Signals

INTERVAL: Final[Micros] = 20 * MILLISECOND
"""Those who hear it look into the store: not more often than they would by their own poll."""

Merge = Callable[[str, str], str]
"""Makes one detail of two that wait to be told."""


def _latest(_: str, new: str) -> str:
    return new


class SignalRelay:
    """Owns what is to be told. `told` counts signals that were sent."""

    def __init__(self, signals: Signals, clock: Clock, *, is_shared: bool) -> None:
        """`is_shared`: whether there can be others at all. If not, nothing is noted."""
        self._signals = signals
        self._is_shared = is_shared
        self._waiting: dict[str, str] = {}
        self.told = 0
        self.pump = Pump("signals", clock, self._send, poll_us=HOUR, min_interval_us=INTERVAL)

    @property
    def is_live(self) -> bool:
        """Whether others can be heard right now."""
        return self._signals.is_live

    def subscribe(self, name: str, hear: Callable[[str], None]) -> None:
        """Be called with the detail of every signal of that name from other instances."""
        self._signals.subscribe(name, hear)

    def tell(self, name: str, detail: str = "", merge: Merge = _latest) -> None:
        """Have it told to the others, soon. `merge` makes one of two that wait."""
        if not self._is_shared:
            return
        waiting = self._waiting.get(name)
        self._waiting[name] = detail if waiting is None else merge(waiting, detail)
        self.pump.signal()

    async def _send(self) -> Instant | None:
        waiting, self._waiting = self._waiting, {}
        for name, detail in waiting.items():
            self._signals.publish(name, detail)
        self.told += len(waiting)
        return None
