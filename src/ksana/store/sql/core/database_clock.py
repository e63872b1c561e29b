"""The clock of a network database, one for all writers of an instance: asked once a second, and
carried on by our monotonic clock between."""

import time
from collections.abc import Callable
from typing import Final

from ksana.base.instant import Instant, Micros
from ksana.store.sql.core.session import Session

REFRESH_SECONDS: Final = 1.0
MOST_HELD_BACK: Final[Micros] = 100_000
"""So far the clock may seem to have gone back without our following it. What is more is a clock
that was set."""

SURE: Final[Micros] = 2_000
"""A first answer that took longer is asked for again: the server read its clock some time between
question and answer, and a busy machine may take half a second for either way."""
MOST_FIRST: Final = 3


class DatabaseClock:
    """Used by several threads. Two that ask at once both ask, and the later answer stays; what is
    answered to two at once may differ by microseconds.

    An answer tells between which two values the offset between the clocks lies, as far apart as
    question and answer. One that is known stays if it lies between them, and else becomes the
    nearer one: so an answer that was on its way for long changes nothing, and a clock that was set
    is followed."""

    def __init__(self, sql: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._sql = sql
        self._monotonic = monotonic
        self._offset: Micros = 0
        self._is_known = False
        self._read_at = -1e9
        self._last: Instant = 0

    def read(self, session: Session) -> Instant:
        """The time, not before what was answered last."""
        here = self._monotonic()
        if here - self._read_at > REFRESH_SECONDS:
            here = self._ask(session)
        now = self._offset + int(here * 1e6)
        if now < self._last <= now + MOST_HELD_BACK:
            return self._last
        self._last = now
        return now

    def _ask(self, session: Session) -> float:
        """Ask the server, and tell when it had answered by our clock."""
        for _ in range(1 if self._is_known else MOST_FIRST):
            before = self._monotonic()
            row = session.raw(self._sql)
            after = self._monotonic()
            assert row is not None
            least, most = int(row[0]) - int(after * 1e6), int(row[0]) - int(before * 1e6)
            known = self._offset if self._is_known else (least + most) // 2
            self._offset, self._is_known = min(max(known, least), most), True
            if most - least <= SURE:
                break
        # Whoever was frozen under way knows little: asked anew for the next transaction.
        self._read_at = after if after - before < REFRESH_SECONDS else -1e9
        return after

    def forget(self) -> None:
        """Ask anew: the next connection may lead to another server."""
        self._is_known = False
        self._read_at = -1e9
