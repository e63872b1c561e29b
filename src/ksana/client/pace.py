"""How fast a worker begins jobs, and from that how many it takes ahead: no more than it begins
within a moment, so that jobs are not kept from others."""

from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros

AHEAD: Micros = 100 * MILLISECOND
"""Jobs are taken ahead for so long."""
MOST = 1_000
"""So many at most, unless the worker says otherwise."""
_LEAST_SPAN: Micros = 20 * MILLISECOND
"""A rate is measured over this at least."""
_REST: Micros = SECOND
"""None are asked for so long after the server gave none: those that wait may have no attempt to
spare, or units are short."""


class Pace:
    """Counts what one worker begins. Times are of a monotonic clock."""

    def __init__(self, now: Instant, most: int) -> None:
        self._most = most
        self._rate = 0.0
        """Jobs begun in a microsecond."""
        self._begun = 0
        self._measured_at = now
        self._rests_until: Instant | None = 0
        """None: for good."""

    def count_ahead(self, begun: int, now: Instant) -> int:
        """How many jobs to take ahead, after so many were begun since the start."""
        span = now - self._measured_at
        if span >= _LEAST_SPAN:
            self._rate = (self._rate + (begun - self._begun) / span) / 2
            self._begun, self._measured_at = begun, now
        if self._rests_until is None or now < self._rests_until:
            return 0
        return min(self._most, int(self._rate * AHEAD))

    def rest(self, now: Instant) -> None:
        """The server had none to be taken ahead."""
        if self._rests_until is not None:
            self._rests_until = now + _REST

    def stop(self) -> None:
        """The server does not know of taking ahead."""
        self._rests_until = None
