"""What follows from changes of jobs, whatever moved them: counts, and who is to be woken. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

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


def count_changes(changes: Sequence[JobChange], now: Instant) -> Counts:
    """Add up what these changes do to the figures."""
    counts = Counts()
    kinds = Counter([(change.old, change.new, change.lease_end) for change in changes])
    for (old, new, lease_end), number in kinds.items():
        if old == "QUEUED":
            counts.queued -= number
        elif old == "RUNNING":
            counts.running -= number
        if new == "QUEUED":
            counts.queued += number
        elif new == "RUNNING":
            counts.running += number
            counts.leases += number
        elif new in ENDED:
            counts.ended[new] += number
        if lease_end is not None:
            counts.leases -= number
        if lease_end == "EXPIRED":
            counts.expired += number
        if new == "QUEUED" or lease_end is not None:
            counts.arrivals += number
    started = [change for change in changes if change.new == "RUNNING"]
    if started:
        counts.units += sum([change.cost_units for change in started])
        counts.waited_since = Counter([change.due_at for change in started])
    ended = [change for change in changes if change.lease_end is not None]
    if ended:
        counts.units -= sum([change.cost_units for change in ended])
        counts.ran_since = Counter(
            [change.started_at or now for change in ended if change.move == "finish"]
        )
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
