"""Schedules in plain English, for people who preview them. Words only: what fires when is
`domain.schedule`'s business."""

from collections.abc import Callable, Sequence
from typing import Final

from ksana.base.durations import format_duration
from ksana.base.instant import Instant, format_instant
from ksana.domain.cron import CronExpr, parse_cron
from ksana.domain.schedule import Cron, Every, Once, Schedule

_WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")
_FEW_TIMES = 6
_GAP_WORDS: Final = {
    "next": "times the clock skips fire right after the gap",
    "skip": "times the clock skips do not fire",
    "shift": "times the clock skips fire later by the length of the gap",
}
_OVERLAP_WORDS: Final = {
    "first": "times that come twice fire the first time",
    "second": "times that come twice fire the second time",
    "both": "times that come twice fire both times",
}


def describe(schedule: Schedule) -> str:
    """Put a schedule into one sentence without a full stop."""
    if isinstance(schedule, Once):
        return f"once at {format_instant(schedule.run_at)}" + _jitter(schedule.jitter_us)
    if isinstance(schedule, Every):
        start = schedule.anchor_at if schedule.anchor_given else schedule.start_at
        return (
            f"every {format_duration(schedule.every_us)}"
            + _bounds(start, schedule.end_at)
            + _jitter(schedule.jitter_us)
        )
    words = f"{describe_cron(parse_cron(schedule.expr))}, {schedule.timezone} time"
    words += (
        _bounds(schedule.start_at, schedule.end_at) + _jitter(schedule.jitter_us) + _dst(schedule)
    )
    return words


def describe_cron(expr: CronExpr) -> str:
    """Put an expression into words: when in the day, on which days, in which months."""
    parts = [_times(expr), _days(expr)]
    if expr.fields.text[4] != "*":
        parts.append("in " + _ranges(_bits(expr.fields.months), lambda month: _MONTHS[month - 1]))
    return " ".join(part for part in parts if part)


def _times(expr: CronExpr) -> str:
    second, minute, hour = expr.fields.text[:3]
    seconds, minutes, hours = (
        _bits(expr.fields.seconds),
        _bits(expr.fields.minutes),
        _bits(expr.fields.hours),
    )
    if expr.fixed and "*" not in second and len(seconds) * len(minutes) * len(hours) <= _FEW_TIMES:
        return "at " + _join([_clock(h, m, s) for h in hours for m in minutes for s in seconds])
    parts = []
    if seconds != [0]:
        parts.append(_steps(second, seconds, "second", 60))
        if minute == "*" and hour == "*":
            return parts[0] if parts[0].startswith("every") else parts[0] + " of every minute"
    if minute != "*" or not parts:
        words = _steps(minute, minutes, "minute", 60)
        parts.append(words if not parts else "of " + words.removeprefix("at "))
    if hour == "*":
        return (
            " ".join(parts)
            if parts[-1].startswith(("every", "of every"))
            else " ".join(parts) + " of every hour"
        )
    if hour.startswith("*/"):
        return _every_few_hours(" ".join(parts), hour, hours)
    return (
        " ".join(parts)
        + " from "
        + _ranges(hours, lambda h: f"{h:02d}:00", last=lambda h: f"{h:02d}:59", whole=True)
    )


def _every_few_hours(within: str, hour: str, hours: list[int]) -> str:
    words = _steps(hour, hours, "hour", 24)
    if not words.startswith("every"):
        return f"{within} of hours {_ranges(hours, str)}"
    return (
        f"{words} {within}"
        if within.startswith("at minute ")
        else f"{within} of every hour in {_ranges(hours, str)}"
    )


def _days(expr: CronExpr) -> str:
    day, weekday = expr.fields.text[3], expr.fields.text[5]
    any_day, any_weekday = day in ("*", "?"), weekday in ("*", "?")
    if any_day and any_weekday:
        return "every day" if expr.fixed and expr.fields.text[4] == "*" else ""
    if any_weekday:
        return _dates(expr)
    if any_day:
        return _weekdays(expr)
    link = "or" if expr.fields.days.either else "if that is"
    return f"{_dates(expr)} {link} {_weekdays(expr)}".replace("is on", "is")


def _dates(expr: CronExpr) -> str:
    rule = expr.fields.days
    if rule.last_day:
        return "on the last day of the month"
    if rule.last_workday:
        return "on the last working day (Monday to Friday) of the month"
    if rule.nearest_to:
        return (
            f"on the working day (Monday to Friday) nearest to day {rule.nearest_to} of the month"
        )
    days = _bits(rule.dates)
    return f"on day{'s' if len(days) > 1 else ''} {_ranges(days, str)} of the month"


def _weekdays(expr: CronExpr) -> str:
    rule = expr.fields.days
    if rule.nth is not None:
        return f"on the {_ORDINALS[rule.nth[1] - 1]} {_WEEKDAYS[rule.nth[0]]} of the month"
    if rule.last_weekday is not None:
        return f"on the last {_WEEKDAYS[rule.last_weekday]} of the month"
    days = _bits(rule.weekdays)
    if days == [0, 6]:
        return "on Saturday and Sunday"
    return "on " + _ranges(days, lambda day: _WEEKDAYS[day])


def _steps(text: str, values: list[int], unit: str, whole: int) -> str:
    """`*` and even steps become "every 5 minutes"; everything else lists its values."""
    if text == "*":
        return f"every {unit}"
    step = text.removeprefix("*/")
    if step != text and step.isdigit() and whole % int(step) == 0 and len(values) > 1:
        return f"every {unit}" if step == "1" else f"every {step} {unit}s"
    return f"at {unit}{'s' if len(values) > 1 else ''} {_ranges(values, str)}"


def _ranges(
    values: list[int],
    name: Callable[[int], str],
    last: Callable[[int], str] | None = None,
    whole: bool = False,
) -> str:
    """Name values, three or more in a row as "a to b". With `whole`, even one value is a range."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    words: list[str] = []
    for run in runs:
        if len(run) > 2 or whole:
            words.append(f"{name(run[0])} to {(last or name)(run[-1])}")
        else:
            words.extend(map(name, run))
    return _join(words)


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02d}:{minute:02d}" + (f":{second:02d}" if second else "")


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _bounds(start_at: Instant | None, end_at: Instant | None) -> str:
    words = "" if start_at is None else f", from {format_instant(start_at)}"
    return words if end_at is None else f"{words}, until {format_instant(end_at)}"


def _jitter(jitter_us: int) -> str:
    return f", each up to {format_duration(jitter_us)} later" if jitter_us else ""


def _dst(schedule: Cron) -> str:
    words = [_GAP_WORDS[schedule.dst_gap]] if schedule.dst_gap else []
    if schedule.dst_overlap:
        words.append(_OVERLAP_WORDS[schedule.dst_overlap])
    return f" ({'; '.join(words)})" if words else ""
