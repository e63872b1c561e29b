"""The clock of a network database, one for all writers of an instance: asked once a second, and
carried on by our monotonic clock between."""

import time
from collections.abc import Callable
from typing import Final

from ksana.base.instant import Instant, Micros
from ksana.store.sql.core.session import Session

REFRESH_SECONDS: Final = 1.0
MOST_HELD_BACK: Final[Micros] = 100_000
"""So far the clock may seem to have gone back without our following it: an answer is late by half
of its way at most, and on a busy machine that is milliseconds. What is more is a clock that was
set."""


class DatabaseClock:
    """Used by several threads. Two that ask at once both ask, and the later answer stays; what is
    answered to two at once may differ by microseconds."""

    def __init__(self, sql: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._sql = sql
        self._monotonic = monotonic
        self._offset: Micros = 0
        self._read_at = -1e9
        self._last: Instant = 0

    def read(self, session: Session) -> Instant:
        """The time, not before what was answered last."""
        here = self._monotonic()
        if here - self._read_at > REFRESH_SECONDS:
            row = session.raw(self._sql)
            after = self._monotonic()
            assert row is not None
            self._offset = int(row[0]) - int((here + after) / 2 * 1e6)
            # Whoever was frozen under way does not know when the answer was given: asked anew.
            self._read_at = after if after - here < REFRESH_SECONDS else -1e9
            here = after
        now = self._offset + int(here * 1e6)
        if now < self._last <= now + MOST_HELD_BACK:
            return self._last
        self._last = now
        return now

    def forget(self) -> None:
        """Ask anew: the next connection may lead to another server."""
        self._read_at = -1e9
