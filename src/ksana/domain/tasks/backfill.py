"""Past slots that are fired on purpose: a range that somebody names, or what passed while a task
was disabled. Pure.

Only slots that have no run can be, each once: (task, slot) is unique, so a backfill that is asked
for again fires what is left. Their runs wait outside of the task's line (`is_counted` is false) and
are let into it one by one, in order, no faster than asked and only while the task has room for
another: slots that fall due meanwhile do not wait for them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.instant import DAY, MINUTE, SECOND, Instant, Micros
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Schedule
from ksana.domain.tasks.changes import RunChange, step
from ksana.domain.tasks.firing import Counts, admit
from ksana.domain.tasks.records import Run, Task

MOST: Final = 1_000
"""Slots that one backfill fires, and runs of a task that may wait to be let in."""

LOOK: Final = 20_000
"""Slots that one backfill looks at; it says where to go on."""

LONGEST: Final[Micros] = 3_660 * DAY
TRIGGER: Final = "backfill"
_LATE: Final[Micros] = SECOND


class Caps(msgspec.Struct, frozen=True):
    """What bounds a backfill: how many slots, how old they may be, how far apart they start."""

    count: int = 100
    max_age_us: Micros | None = None
    interval_us: Micros = SECOND


class Span(msgspec.Struct, frozen=True):
    """Slots from `since` to before `until`."""

    since: Instant
    until: Instant


class BackfillPlan(msgspec.Struct, frozen=True):
    """What a backfill would fire."""

    span: Span
    """What is left of the range: not too old, and not the scheduler's own."""
    slots: tuple[Instant, ...]
    """The slots to fire, oldest first."""
    in_span: int
    """Slots in it, with and without a run."""
    recorded: int
    """Those among the slots looked at that have a run."""
    next_from: Instant | None
    """Where to go on, if there may be more."""


def bound_span(task: Task, asked: Span, caps: Caps, now: Instant, edge_us: Micros) -> Span:
    """The part of a range that may be filled. The newest slots, and those from the one the task is
    armed for, belong to the scheduler, which will fire or record them."""
    until = min(asked.until, now - edge_us)
    if task.status == "ENABLED" and task.next_slot_at is not None:
        until = min(until, task.next_slot_at)
    since = asked.since if caps.max_age_us is None else max(asked.since, now - caps.max_age_us)
    return Span(since, max(since, until))


def next_slots(schedule: Schedule, after: Instant, until: Instant, limit: int) -> list[Instant]:
    """The first slots later than `after` and before `until`."""
    slots: list[Instant] = []
    while len(slots) < limit:
        slot = schedules.next_after(schedule, after)
        if slot is None or slot >= until:
            break
        slots.append(slot)
        after = slot
    return slots


def starts_of(plan: BackfillPlan, caps: Caps, now: Instant) -> list[Instant]:
    """When each slot of a plan starts at the earliest."""
    return [now + number * caps.interval_us for number in range(len(plan.slots))]


class LetIn(msgspec.Struct, frozen=True):
    """What becomes of runs of one task whose time to be let in has come."""

    changes: tuple[RunChange, ...]
    put_off_us: Micros = 0
    """By how much all that still wait are put off."""


def let_in(task: Task, due: Sequence[Run], counts: Counts, now: Instant) -> LetIn:
    """Let runs into the task's line, in order, while it has room. The rest is put off: by as much
    as the first of them is late, so that their distances stay; and where there is no room, by a
    tenth of how long it has waited, so that looking again costs little."""
    definition = task.definition
    changes: list[RunChange] = []
    for run in due:
        late_us = max(0, now - (run.wake_at or now))
        start, _ = admit(
            definition.concurrency_policy,
            definition.max_concurrency,
            definition.options.max_queued,
            counts,
        )
        if start != "start":
            pause_us = min(max((now - run.created_at) // 10, SECOND), MINUTE)
            return LetIn(tuple(changes), late_us + pause_us)
        changes.append(_promote(run))
        counts = Counts(counts.active + 1, counts.waiting)
        if late_us > _LATE:
            return LetIn(tuple(changes), late_us)
    return LetIn(tuple(changes))


def is_held_back(run: Run) -> bool:
    """Whether a run waits to be let in."""
    return run.trigger == TRIGGER and run.status == "SCHEDULED" and not run.is_counted


def _promote(run: Run) -> RunChange:
    data = f'{{"task_id":{run.task_id},"reason":"BACKFILL_TURN"}}'
    return step(run, ready_host=run.host, event="RUN_PROMOTED", data=data)
