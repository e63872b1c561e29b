"""When a task is due: once, every so often, or by cron. Pure: a schedule and an instant in, slots
out.

A slot is the instant a task is due by its schedule; slots strictly increase. `start_at` and
`end_at` bound them, both inclusive. Nothing here walks slot by slot over the past, so an outage of
years costs as much as one of a minute. How often a task may run at most (`max_runs`) is judged
elsewhere.
"""

import hashlib
from functools import cached_property
from typing import Final

import msgspec

from ksana.base.durations import format_duration
from ksana.base.errors import InvalidError
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros
from ksana.domain import cron, zones
from ksana.domain.timetable import DstGap, DstOverlap, Timetable, get_timetable

LEAST_EVERY: Final[Micros] = 100 * MILLISECOND
ONCE_GRACE: Final[Micros] = SECOND
"""A one-time slot may lie this far in the past when it is set."""


class Once(msgspec.Struct, frozen=True, tag="once", tag_field="kind"):
    """One slot, at `run_at`."""

    run_at: Instant
    jitter_us: Micros = 0


class Every(msgspec.Struct, frozen=True, tag="every", tag_field="kind"):
    """Slots anchor_at + k * every_us: k from 0 if the anchor was given, from 1 if it is when the
    schedule was set."""

    every_us: Micros
    anchor_at: Instant
    anchor_given: bool
    jitter_us: Micros = 0
    start_at: Instant | None = None
    end_at: Instant | None = None


class Cron(msgspec.Struct, frozen=True, dict=True, tag="cron", tag_field="kind"):
    """The local times of an expression in a zone. The DST rules, defaults included, are told in
    `domain.timetable`."""

    expr: str
    """Normalized: six fields."""
    timezone: str = "UTC"
    dst_gap: DstGap | None = None
    dst_overlap: DstOverlap | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    jitter_us: Micros = 0

    @cached_property
    def timetable(self) -> Timetable:
        """The slots without the bounds, kept with the value because every firing asks for it."""
        return get_timetable(self.expr, self.timezone, self.dst_gap, self.dst_overlap)


Schedule = Once | Every | Cron


def make_every(
    every_us: Micros,
    *,
    now: Instant,
    start_at: Instant | None = None,
    end_at: Instant | None = None,
    jitter_us: Micros = 0,
) -> Every:
    """Set an interval now. Raise InvalidError for one that is too short or a jitter that reaches
    the next slot."""
    if every_us < LEAST_EVERY:
        raise InvalidError(
            f"every must be at least {format_duration(LEAST_EVERY)}", field="schedule.every"
        )
    if not 0 <= jitter_us < every_us:
        raise InvalidError(
            f"jitter must be 0 or more and less than every ({format_duration(every_us)})",
            field="schedule.jitter",
        )
    _check_window(start_at, end_at)
    anchor_at = now if start_at is None else start_at
    return Every(every_us, anchor_at, start_at is not None, jitter_us, start_at, end_at)


def make_cron(
    expr: str,
    timezone: str = "UTC",
    *,
    dst_gap: DstGap | None = None,
    dst_overlap: DstOverlap | None = None,
    start_at: Instant | None = None,
    end_at: Instant | None = None,
    jitter_us: Micros = 0,
) -> Cron:
    """Read an expression and a zone. Raise InvalidError saying which part is wrong and what is
    allowed."""
    if dst_gap not in (None, "next", "skip", "shift"):
        raise InvalidError("dst_gap must be next, skip or shift", field="dst_gap")
    if dst_overlap not in (None, "first", "second", "both"):
        raise InvalidError("dst_overlap must be first, second or both", field="dst_overlap")
    if jitter_us < 0:
        raise InvalidError("jitter must be 0 or more", field="schedule.jitter")
    _check_window(start_at, end_at)
    return Cron(
        expr=cron.parse_cron(expr).normalized,
        timezone=zones.get_zone(timezone).name,
        dst_gap=dst_gap,
        dst_overlap=dst_overlap,
        start_at=start_at,
        end_at=end_at,
        jitter_us=jitter_us,
    )


def first_slot(schedule: Schedule, set_at: Instant) -> Instant | None:
    """The first slot of a schedule set at that instant. For `once` it may lie up to ONCE_GRACE in
    the past; None means that it lies further back and is missed, or that there is none."""
    if type(schedule) is Once:
        return schedule.run_at if schedule.run_at >= set_at - ONCE_GRACE else None
    return next_after(schedule, set_at)


def next_after(schedule: Schedule, at: Instant) -> Instant | None:
    """Find the earliest slot strictly later than `at`. None: there is none (for cron: none within
    50 years)."""
    if type(schedule) is Cron:
        start_at = schedule.start_at
        if start_at is not None and at < start_at:
            at = start_at - 1
        second = schedule.timetable.next_after(at // SECOND)
        if second is None:
            return None
        slot = second * SECOND
        end_at = schedule.end_at
        return slot if end_at is None or slot <= end_at else None
    if type(schedule) is Every:
        index = max(_index_at(schedule, at) + 1, _first_index(schedule))
        slot = schedule.anchor_at + index * schedule.every_us
        return slot if schedule.end_at is None or slot <= schedule.end_at else None
    return schedule.run_at if schedule.run_at > at else None  # type: ignore[union-attr]


def latest_at_or_before(schedule: Schedule, at: Instant) -> Instant | None:
    """Find the latest slot not later than `at`: a slot exactly at `at` counts."""
    if type(schedule) is Once:
        return schedule.run_at if schedule.run_at <= at else None
    assert not isinstance(schedule, Once)
    if schedule.end_at is not None:
        at = min(at, schedule.end_at)
    if isinstance(schedule, Every):
        index = _index_at(schedule, at)
        return (
            schedule.anchor_at + index * schedule.every_us
            if index >= _first_index(schedule)
            else None
        )
    second = schedule.timetable.latest_at_or_before(at // SECOND)
    if second is None or (schedule.start_at is not None and second * SECOND < schedule.start_at):
        return None
    return second * SECOND


def count_between(schedule: Schedule, after: Instant, until: Instant) -> int:
    """Count the slots in (after, until] by arithmetic."""
    if isinstance(schedule, Once):
        return int(after < schedule.run_at <= until)
    if schedule.end_at is not None:
        until = min(until, schedule.end_at)
    if isinstance(schedule, Every):
        first = max(_index_at(schedule, after) + 1, _first_index(schedule))
        return max(0, _index_at(schedule, until) - first + 1)
    if schedule.start_at is not None:
        after = max(after, schedule.start_at - 1)
    if until <= after:
        return 0
    return schedule.timetable.count_between(after // SECOND, until // SECOND)


def latest_n(schedule: Schedule, at: Instant, n: int, after: Instant) -> list[Instant]:
    """List the newest `n` slots in (after, at], oldest first."""
    slots: list[Instant] = []
    while len(slots) < n:
        slot = latest_at_or_before(schedule, at)
        if slot is None or slot <= after:
            break
        slots.append(slot)
        at = slot - 1
    slots.reverse()
    return slots


def fire_at(schedule: Schedule, task_key: str, slot: Instant) -> Instant:
    """When the slot fires: itself plus a jitter in [0, jitter_us], the same everywhere for this
    task and slot."""
    if schedule.jitter_us <= 0:
        return slot
    digest = hashlib.blake2b(f"{task_key}\0{slot}".encode(), digest_size=8).digest()
    return slot + int.from_bytes(digest, "big") % (schedule.jitter_us + 1)


def _index_at(schedule: Every, at: Instant) -> int:
    """The k of the latest point anchor + k * every not later than `at`."""
    return (at - schedule.anchor_at) // schedule.every_us


def _first_index(schedule: Every) -> int:
    """The k of the first slot there is."""
    first = 0 if schedule.anchor_given else 1
    if schedule.start_at is None or schedule.start_at <= schedule.anchor_at:
        return first
    return max(first, -((schedule.anchor_at - schedule.start_at) // schedule.every_us))


def _check_window(start_at: Instant | None, end_at: Instant | None) -> None:
    if start_at is not None and end_at is not None and end_at < start_at:
        raise InvalidError("end_at must not lie before start_at", field="schedule.end_at")
