"""Who waits for queue jobs: claims that found nothing, woken by a job of a class they take, or by
units that became free."""

from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Micros
from ksana.domain.queue.classes import JobClass, Wants, accepts
from ksana.domain.queue.effects import Wake
from ksana.engine.core.long_poll import LongPoll, Waiter

FREE_UNITS: Final = "units"
"""Stands for units that became free."""

USED_UNITS: Final = "used units"
"""Stands for units that became free and were leased again at once."""

LOOK_AGAIN: Final[Micros] = SECOND
"""A claim that has not looked for so long is woken when a lease ends, whatever it found then: a job
that another held for a moment, and did not take, is told to nobody."""

Arrival = JobClass | str
ClaimPoll = LongPoll[Arrival]


class ClaimWaiter(Waiter[Arrival]):
    """A claim that tries, and waits if it gets nothing. Jobs that it takes wake it. Units wake it
    if it got none for lack of them; if there was no job, not every release of others need."""

    __slots__ = ("_clock", "_has_units", "_is_short", "_is_trying", "_looked_at", "_wants")

    def __init__(self, poll: ClaimPoll, wants: Wants, clock: Clock) -> None:
        super().__init__(poll, self._concerns)
        self._wants = wants
        self._clock = clock
        self.begin_try()

    def begin_try(self) -> None:
        """It looks for jobs now."""
        self._looked_at = self._clock.monotonic()
        self._is_short = self._has_units = False
        self._is_trying = True

    def end_try(self, is_short: bool) -> None:
        """It got none; `is_short`: for lack of units. What became free meanwhile counts."""
        self._is_short, self._is_trying = is_short, False
        if is_short and self._has_units:
            self.came.set()

    @property
    def is_idle(self) -> bool:
        """Whether it waits for nothing but a job: it does not look for one at this moment, is not
        about to, and units were not what it lacked."""
        return not (self._is_trying or self._is_short or self.came.is_set())

    @property
    def is_short(self) -> bool:
        """Whether it waits for units, and is not about to look."""
        return self._is_short and not (self._is_trying or self.came.is_set())

    def _concerns(self, arrival: Arrival) -> bool:
        if isinstance(arrival, JobClass):
            return accepts(arrival, self._wants)
        is_long = self._clock.monotonic() - self._looked_at >= LOOK_AGAIN
        if arrival == USED_UNITS:
            return is_long
        self._has_units = True
        return self._is_short or is_long


def notify_of(poll: ClaimPoll, wake: Wake, granted: int = 0) -> None:
    """Wake whom changes of jobs concern; so many units were leased again in the same commit."""
    if wake.has_ready:  # of which class is not known here
        poll.notify_all()
    elif wake.freed_units > granted:
        poll.notify((FREE_UNITS,))
    elif wake.freed_units:
        poll.notify_here((USED_UNITS,))
