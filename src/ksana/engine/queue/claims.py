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

LOOK_AGAIN: Final[Micros] = SECOND
"""A claim that has not looked for so long is woken by free units, whatever it found then: a job
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

    def _concerns(self, arrival: Arrival) -> bool:
        if isinstance(arrival, JobClass):
            return accepts(arrival, self._wants)
        self._has_units = True
        return self._is_short or self._clock.monotonic() - self._looked_at >= LOOK_AGAIN


def notify_of(poll: ClaimPoll, wake: Wake) -> None:
    """Wake whom changes of jobs concern."""
    if wake.has_ready:  # of which class is not known here
        poll.notify_all()
    elif wake.has_capacity:
        poll.notify((FREE_UNITS,))
