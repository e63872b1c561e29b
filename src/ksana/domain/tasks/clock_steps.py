"""What a clock that was ahead and is set back means for slots. Pure.

While the clock was ahead, slots were decided for times that had not come: those it jumped over
became misfires, those it then lived through were fired. Set back, the first are to come after all
and are fired at their time; the second never again.

    true time   ────────A──C───────────────────────────────▶
    the clock   ────────┐                  ┌───────┐
                        └── skipped ─────▶ B lived H, then back to C
"""

from collections.abc import Container, Iterable
from typing import Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain import schedule as schedules
from ksana.domain.tasks.records import Task

_LOOK_AT: Final = 20_000
"""Slots of one task that are looked at for one to come."""


class SkippedSpan(msgspec.Struct, frozen=True):
    """Time the clock jumped over, or in which nobody ran as far as it showed."""

    since: Instant
    until: Instant


class LivedSpan(msgspec.Struct, frozen=True):
    """Time that was lived while the clock was ahead."""

    since: Instant
    until: Instant
    set_back_to: Instant

    def concerns(self, task: Task) -> bool:
        """Whether the task was there. One that was made after the clock was set back was not."""
        return not self.set_back_to <= task.created_at <= self.since


class ClockWindows(msgspec.Struct, frozen=True):
    """What is known of the time to come."""

    skipped: tuple[SkippedSpan, ...] = ()
    lived: tuple[LivedSpan, ...] = ()
    lived_until: Instant = 0
    """The end of the last of them: from then on nothing is special."""

    @property
    def skipped_until(self) -> Instant:
        """The end of what was skipped."""
        return max((span.until for span in self.skipped), default=0)


NO_WINDOWS: Final = ClockWindows()


def make_windows(skipped: Iterable[SkippedSpan], lived: Iterable[LivedSpan]) -> ClockWindows:
    """Put spans together."""
    known = tuple(sorted(lived, key=lambda span: span.since))
    return ClockWindows(
        skipped=tuple(sorted(skipped, key=lambda span: span.since)),
        lived=known,
        lived_until=max((span.until for span in known), default=0),
    )


def find_lived(task: Task, due_at: Instant, windows: ClockWindows) -> LivedSpan | None:
    """The span in which what fires at an instant was decided already."""
    for span in windows.lived:
        if span.since < due_at <= span.until and span.concerns(task):
            return span
    return None


def find_skipped_slot(
    task: Task, now: Instant, windows: ClockWindows, claimed: Container[Instant]
) -> tuple[Instant, Instant] | None:
    """The first slot to come, and when it fires, that the clock jumped over before it was set back,
    if the task is not armed for one as early. `claimed` has those that were made up then."""
    definition = task.definition
    most = definition.options.max_runs
    if task.status != "ENABLED" or (most is not None and task.runs_fired >= most):
        return None
    for span in windows.skipped:
        found = _find_in(task, max(now, span.since), span.until, windows, claimed)
        if found is not None:
            is_armed = task.next_slot_at is not None and task.next_slot_at <= found[0]
            return None if is_armed else found
    return None


def _find_in(
    task: Task,
    since: Instant,
    until: Instant,
    windows: ClockWindows,
    claimed: Container[Instant],
) -> tuple[Instant, Instant] | None:
    """The first free slot that fires after an instant, up to another."""
    schedule = task.definition.schedule
    slot = schedules.next_after(schedule, since - schedule.jitter_us - 1)
    for _ in range(_LOOK_AT):
        if slot is None or slot > until:
            return None
        due_at = schedules.fire_at(schedule, task.job_id, slot)
        lived = find_lived(task, due_at, windows)
        if lived is None and since < due_at <= until and slot not in claimed:
            return slot, due_at
        # Beyond what was lived at once: a slot fires within its jitter.
        beyond = slot if lived is None else max(slot, lived.until - schedule.jitter_us - 1)
        slot = schedules.next_after(schedule, beyond)
    return None
