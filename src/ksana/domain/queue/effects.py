"""What follows from changes of jobs, whatever moved them: counts, and who is to be woken. Pure."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.changes import READY, SCHEDULED, JobChange
from ksana.domain.queue.jobs import ENDED

METRICS = (
    "queue.canceled",
    "queue.done",
    "queue.expired",
    "queue.failed",
    "queue.leases",
    "queue.queued",
    "queue.run",
    "queue.running",
    "queue.submitted",
    "queue.timeout",
    "queue.units",
    "queue.wait",
)
"""All that the queue counts over time."""


class Counts(msgspec.Struct):
    """How the figures of the queue change. `waited_since` and `ran_since` tell from when to count
    the wait and the run of each job that started or ended."""

    queued: int = 0
    running: int = 0
    leases: int = 0
    units: int = 0
    arrivals: int = 0
    """How often something became claimable, or units became free."""
    expired: int = 0
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    waited_since: Counter[Instant] = msgspec.field(default_factory=Counter)
    ran_since: Counter[Instant] = msgspec.field(default_factory=Counter)


def count_changes(changes: Iterable[JobChange], now: Instant) -> Counts:
    """Add up what these changes do to the figures."""
    counts = Counts()
    for change in changes:
        old, new = change.old, change.new
        if old == "QUEUED":
            counts.queued -= 1
        elif old == "RUNNING":
            counts.running -= 1
        if new == "QUEUED":
            counts.queued += 1
            counts.arrivals += 1
        elif new == "RUNNING":
            counts.running += 1
            counts.leases += 1
            counts.units += change.cost_units
            counts.waited_since[change.due_at] += 1
        elif new in ENDED:
            counts.ended[new] += 1
            if change.lease_end is not None:
                counts.ran_since[change.started_at or now] += 1
                counts.arrivals += 1
        if change.lease_end is not None:
            counts.leases -= 1
            counts.units -= change.cost_units
            counts.expired += change.lease_end == "EXPIRED"
    return counts


class Wake(msgspec.Struct, frozen=True):
    """Whom changes concern that waits for something."""

    has_ready: bool = False
    has_capacity: bool = False
    next_due: Instant | None = None
    """When the first job that was put off is due."""


def wake_after(changes: Iterable[JobChange]) -> Wake:
    """Tell what these changes are to wake."""
    has_ready = has_capacity = False
    next_due: Instant | None = None
    for change in changes:
        if change.lease_end is not None:
            has_capacity = True
        if change.position == READY:
            has_ready = True
        elif change.position == SCHEDULED:
            next_due = change.due_at if next_due is None else min(next_due, change.due_at)
    return Wake(has_ready, has_capacity, next_due)
