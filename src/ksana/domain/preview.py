"""The next firings of a schedule as people want to see them: instant, local time, offset, and a
note where the clock of the zone jumps. Made by the same functions that fire in production."""

import msgspec

from ksana.base.durations import format_duration
from ksana.base.instant import SECOND, Instant, to_datetime
from ksana.domain.schedule import Cron, Schedule, next_after
from ksana.domain.timetable import Timetable
from ksana.domain.zones import MARGIN, Second, Transition, Zone, format_offset, get_zone


class PreviewedFiring(msgspec.Struct, frozen=True):
    """One slot to come."""

    at: Instant
    local: str
    """`2026-03-29T03:00:00+02:00`."""
    offset: str
    """`+02:00`."""
    note: str | None = None


def preview(schedule: Schedule, after: Instant, n: int) -> list[PreviewedFiring]:
    """List the next `n` slots later than `after`, fewer if the schedule ends."""
    firings: list[PreviewedFiring] = []
    zone = get_zone(schedule.timezone) if isinstance(schedule, Cron) else get_zone("UTC")
    before = after
    while len(firings) < n:
        slot = next_after(schedule, before)
        if slot is None:
            break
        offset = zone.offset_at(slot // SECOND)
        local = to_datetime(slot + offset * SECOND).replace(tzinfo=None).isoformat()
        note = (
            explain_jump(schedule.timetable, before // SECOND, slot // SECOND)
            if isinstance(schedule, Cron)
            else None
        )
        firings.append(
            PreviewedFiring(slot, local + format_offset(offset), format_offset(offset), note)
        )
        before = slot
    return firings


def explain_jump(timetable: Timetable, before: Second, slot: Second) -> str | None:
    """Say how a jump of the clock between the slot before and this one, or near this one, shaped
    it. None if none did."""
    zone = timetable.zone
    repeated = _repeated_note(timetable, zone, slot)
    if repeated is not None:
        return repeated
    for jump in reversed(zone.transitions_between(before, slot)):
        skipped = timetable.skips_at(jump)
        change = f"clocks go from {format_offset(jump.before)} to {format_offset(jump.after)}"
        if skipped is None:
            return f"{change} before this firing"
        missing = f"{_date_and_time(skipped)} does not exist ({change})"
        if timetable.gap == "skip":
            return f"{missing} and is skipped"
        if timetable.gap == "next" and slot == jump.at:
            return f"{missing}: fires right after the gap"
        if (
            timetable.gap == "shift"
            and timetable.expr.next_local(slot + jump.before) == slot + jump.before
        ):
            return f"{missing}: fires {format_duration((jump.after - jump.before) * SECOND)} later"
        return f"{change} before this firing"
    return None


def _repeated_note(timetable: Timetable, zone: Zone, slot: Second) -> str | None:
    local = slot + zone.offset_at(slot)
    for jump in zone.transitions_between(slot - MARGIN, slot + MARGIN):
        if not _shows_twice(jump, local):
            continue
        passage = "first" if slot < jump.at else "second"
        only = "" if timetable.overlap == "both" else " only"
        return f"{_date_and_time(local)} comes twice: fires the {passage} time{only}"
    return None


def _shows_twice(jump: Transition, local: int) -> bool:
    return jump.at + jump.after <= local < jump.at + jump.before


def _date_and_time(local: int) -> str:
    text = to_datetime(local * SECOND).strftime("%Y-%m-%d %H:%M:%S")
    return text.removesuffix(":00")
