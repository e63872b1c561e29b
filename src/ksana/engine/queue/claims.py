"""Who waits for queue jobs: claims that found nothing, woken by a job of a class they take, or by
units that became free."""

from typing import Final

from ksana.domain.queue.classes import JobClass, Wants, accepts
from ksana.domain.queue.effects import Wake
from ksana.engine.core.long_poll import LongPoll, Waiter

FREE_UNITS: Final = "units"
"""Stands for units that became free."""

Arrival = JobClass | str
ClaimPoll = LongPoll[Arrival]


def wait_for_jobs(poll: ClaimPoll, wants: Wants, needs_units: bool) -> Waiter[Arrival]:
    """A claim that is about to try, and to wait if it gets nothing."""

    def concerns(arrival: Arrival) -> bool:
        return accepts(arrival, wants) if isinstance(arrival, JobClass) else needs_units

    return Waiter(poll, concerns)


def notify_of(poll: ClaimPoll, wake: Wake) -> None:
    """Wake whom changes of jobs concern."""
    if wake.has_ready:  # of which class is not known here
        poll.notify_all()
    elif wake.has_capacity:
        poll.notify((FREE_UNITS,))
