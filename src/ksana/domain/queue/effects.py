"""What follows from changes of jobs, whatever moved them: counts, and who is to be woken. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

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


class FigureChanges(msgspec.Struct):
    """How the figures of the queue change. `waited_since` and `ran_since` tell from when to count
    the wait and the run of each job that started or ended."""

    queued: int = 0
    running: int = 0
    leases: int = 0
    units: int = 0
    arrivals: int = 0
    """How often something became claimable, or units became free."""
    ended_leases: int = 0
    freed_units: int = 0
    expired: int = 0
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    waited_since: Counter[Instant] = msgspec.field(default_factory=Counter)
    ran_since: Counter[Instant] = msgspec.field(default_factory=Counter)


Kind = tuple[str, str, str, str | None]
"""(move, old state, new state, how the lease ended) of a change."""


def group_changes(changes: Sequence[JobChange]) -> dict[Kind, Sequence[JobChange]]:
    """Changes by their kind, in the order of the first of each. A batch is mostly of one."""
    kinds = [(change.move, change.old, change.new, change.lease_end) for change in changes]
    if kinds.count(kinds[0]) == len(kinds):
        return {kinds[0]: changes}
    groups: dict[Kind, list[JobChange]] = {}
    for kind, change in zip(kinds, changes, strict=True):
        groups.setdefault(kind, []).append(change)
    return dict(groups)


def count_changes(groups: Mapping[Kind, Sequence[JobChange]], now: Instant) -> FigureChanges:
    """Add up what grouped changes do to the figures."""
    counts = FigureChanges()
    for (_, old, new, lease_end), changes in groups.items():
        number = len(changes)
        if old == "QUEUED":
            counts.queued -= number
        elif old == "RUNNING":
            counts.running -= number
        if new == "QUEUED":
            counts.queued += number
        elif new == "RUNNING":
            counts.running += number
            counts.leases += number
            counts.units += sum([change.cost_units for change in changes])
            counts.waited_since.update([change.due_at for change in changes])
        elif new in ENDED:
            counts.ended[new] += number
        if new == "QUEUED" or lease_end is not None:
            counts.arrivals += number
        if lease_end is not None:
            counts.ended_leases += number
            counts.freed_units += sum([change.cost_units for change in changes])
            counts.expired += number if lease_end == "EXPIRED" else 0
            if new != "QUEUED":
                counts.ran_since.update([change.started_at or now for change in changes])
    counts.leases -= counts.ended_leases
    counts.units -= counts.freed_units
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
