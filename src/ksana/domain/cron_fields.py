"""The text of cron expressions: grammar, ranges and names, read into bit sets. What the bits mean
over time is `domain.cron`'s business.

    fields   [second] minute hour day-of-month month day-of-week; five fields get second 0
    each     * or a list of: a, a-b, a-b/n, a/n (from a to the field's end), */n (from the field's
             lowest value)
    days     ? = *;  day of month also L, LW, nW;  day of week also d#n (nth), dL (last); these
             stand alone
"""

import difflib
import re
from typing import Final, NamedTuple, NoReturn

from ksana.base.errors import InvalidError

FIELD: Final = "cron_expr"
MAX_LENGTH: Final = 255
LONGEST: Final = 64
"""Characters of an expression that a refusal shows."""
_ZONE_PREFIXES: Final = ("TZ=", "CRON_TZ=")
"""As crontab files and some schedulers name a zone."""

ALIASES: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}

MONTH_NAMES: Final = (
    "JAN",
    "FEB",
    "MAR",
    "APR",
    "MAY",
    "JUN",
    "JUL",
    "AUG",
    "SEP",
    "OCT",
    "NOV",
    "DEC",
)
WEEKDAY_NAMES: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]
    allowed: str


_SECOND = _Field("second", 0, 59, {}, "0-59, *, lists, ranges and steps")
_MINUTE = _Field("minute", 0, 59, {}, "0-59, *, lists, ranges and steps")
_HOUR = _Field("hour", 0, 23, {}, "0-23, *, lists, ranges and steps")
_DAY = _Field("day of month", 1, 31, {}, "1-31, *, ?, lists, ranges and steps, or alone L, LW, nW")
_MONTH = _Field(
    "month",
    1,
    12,
    {name: n for n, name in enumerate(MONTH_NAMES, 1)},
    "1-12, JAN-DEC, *, lists, ranges and steps",
)
_WEEKDAY = _Field(
    "day of week",
    0,
    7,
    {name: n for n, name in enumerate(WEEKDAY_NAMES)},
    "0-7 (0 and 7 are Sunday), SUN-SAT, *, ?, lists, ranges and steps, or alone d#n (n 1-5), dL",
)

_NUMBER = re.compile(r"\d{1,4}\Z", re.ASCII)
_NEAREST = re.compile(r"(\d{1,4})W\Z", re.ASCII)
_NTH = re.compile(r"(\w{1,4})#(\d{1,4})\Z", re.ASCII)
_LAST = re.compile(r"(\w{1,4})L\Z", re.ASCII)


class DayRule(NamedTuple):
    """Which days of a month match. Exactly one of the day-of-month forms and one of the day-of-week
    forms is used."""

    dates: int = 0
    """Bits 1-31."""
    last_day: bool = False
    last_workday: bool = False
    nearest_to: int = 0
    """nW: the working day nearest to this date, in the same month."""
    weekdays: int = 0
    """Bits 0-6, Sunday first."""
    nth: tuple[int, int] | None = None
    """d#n."""
    last_weekday: int | None = None
    """dL."""
    either: bool = False
    """Both fields are restricted: a day that matches one of them matches."""

    def month_bits(self, first_weekday: int, length: int) -> int:
        """Work out the matching days, bits 1-31, of a month by the weekday of its first (Sunday =
        0) and its length."""
        month = (2 << length) - 2
        dates = self._date_bits(first_weekday, length) & month
        weekdays = self._weekday_bits(first_weekday, length) & month
        return dates | weekdays if self.either else dates & weekdays

    def _date_bits(self, first_weekday: int, length: int) -> int:
        if self.last_day:
            return 1 << length
        if self.last_workday:
            return 1 << _nearest_workday(length, first_weekday, length)
        if self.nearest_to:
            if self.nearest_to > length:
                return 0
            return 1 << _nearest_workday(self.nearest_to, first_weekday, length)
        return self.dates

    def _weekday_bits(self, first_weekday: int, length: int) -> int:
        if self.nth is not None:
            weekday, nth = self.nth
            return 1 << 1 + (weekday - first_weekday) % 7 + 7 * (nth - 1)
        if self.last_weekday is not None:
            return 1 << length - (first_weekday + length - 1 - self.last_weekday) % 7
        if self.weekdays == 0b1111111:
            return -1
        week = (self.weekdays >> first_weekday | self.weekdays << (7 - first_weekday)) & 0b1111111
        return (week | week << 7 | week << 14 | week << 21 | week << 28) << 1


class CronFields(NamedTuple):
    """The six fields as text and as bits."""

    text: tuple[str, str, str, str, str, str]
    seconds: int
    minutes: int
    hours: int
    months: int
    days: DayRule


def read_fields(text: str) -> CronFields:
    """Read the text. Raise InvalidError(field="cron_expr") naming the part at fault and what is
    allowed."""
    parts = split_fields(text)
    second, minute, hour, day, month, weekday = parts
    return CronFields(
        text=parts,
        seconds=_read_list(_SECOND, second),
        minutes=_read_list(_MINUTE, minute),
        hours=_read_list(_HOUR, hour),
        months=_read_list(_MONTH, month),
        days=_read_days(day, weekday),
    )


def split_fields(text: str) -> tuple[str, str, str, str, str, str]:
    """Split into six upper-case fields, aliases expanded."""
    if not isinstance(text, str):
        _refuse("cron_expr must be a text of 5 or 6 fields")
    if len(text) > MAX_LENGTH:
        _refuse(f"cron_expr is longer than {MAX_LENGTH} characters")
    if text.strip().startswith("@"):
        alias = ALIASES.get(text.strip().lower())
        if alias is None:
            _refuse_alias(text.strip())
        text = alias
    parts = text.upper().split()
    if parts and parts[0].startswith(_ZONE_PREFIXES):
        zone, _, rest = text.strip().partition(" ")
        _refuse(
            f"{zone[:LONGEST]!r} cannot stand in the expression: write {rest.strip()[:LONGEST]!r} "
            f'and "timezone": "{zone.partition("=")[2][:LONGEST]}" beside it'
        )
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) != 6:
        _refuse(
            f"cron_expr has {len(parts)} fields: allowed are 5 (minute hour day month weekday) "
            f"or 6 (second minute hour day month weekday){_advise_count(parts)}"
        )
    if sum(map(len, parts)) + 5 > MAX_LENGTH:
        _refuse(f"cron_expr with its second field is longer than {MAX_LENGTH} characters")
    second, minute, hour, day, month, weekday = parts
    return second, minute, hour, day, month, weekday


def _read_days(day: str, weekday: str) -> DayRule:
    rule = DayRule(either=not day.startswith(("*", "?")) and not weekday.startswith(("*", "?")))
    return _read_weekday(weekday, _read_day(day, rule))


def _read_day(text: str, rule: DayRule) -> DayRule:
    if text == "L":
        return rule._replace(last_day=True)
    if text == "LW":
        return rule._replace(last_workday=True)
    nearest = _NEAREST.match(text)
    if nearest is not None:
        return rule._replace(nearest_to=_read_value(_DAY, nearest[1], text))
    if "L" in text or "W" in text:
        _refuse_part(_DAY, text)
    return rule._replace(dates=_read_list(_DAY, "*" if text == "?" else text))


def _read_weekday(text: str, rule: DayRule) -> DayRule:
    nth = _NTH.match(text)
    if nth is not None:
        number = int(nth[2]) if _NUMBER.match(nth[2]) else 0
        if not 1 <= number <= 5:
            _refuse_part(_WEEKDAY, text)
        return rule._replace(nth=(_read_value(_WEEKDAY, nth[1], text) % 7, number))
    last = _LAST.match(text)
    if last is not None:
        return rule._replace(last_weekday=_read_value(_WEEKDAY, last[1], text) % 7)
    bits = _read_list(_WEEKDAY, "*" if text == "?" else text)
    return rule._replace(weekdays=(bits | bits >> 7) & 0b1111111)


def _read_list(field: _Field, text: str) -> int:
    bits = 0
    for item in text.split(","):
        low, high, step = _read_item(field, item)
        if step == 1:
            bits |= (1 << high + 1) - (1 << low)
        else:
            bits |= sum(1 << value for value in range(low, high + 1, step))
    return bits


def _read_item(field: _Field, item: str) -> tuple[int, int, int]:
    """Read one element into first, last and step, all within the field's range."""
    span, slash, step_text = item.partition("/")
    step = 1
    if slash:
        widest = field.high - field.low + 1
        step = int(step_text) if _NUMBER.match(step_text) else 0
        if not 1 <= step <= widest:
            _refuse(f"{field.name} {item!r}: a step must be 1-{widest} (allowed: {field.allowed})")
    if span == "*":
        return field.low, field.high, step
    first, dash, last = span.partition("-")
    low = _read_value(field, first, item)
    if dash:
        high = _read_value(field, last, item)
        if high < low:
            _refuse(
                f"{field.name} {item!r}: a range must not run backwards, write "
                f"{_write_around(field, first, last, step)} (allowed: {field.allowed})"
            )
    else:
        high = field.high if slash else low
    return low, high, step


def _read_value(field: _Field, text: str, item: str) -> int:
    named = field.names.get(text)
    if named is not None:
        return named
    if not _NUMBER.match(text) or not field.low <= int(text) <= field.high:
        _refuse_part(field, item)
    return int(text)


def _write_around(field: _Field, first: str, last: str, step: int) -> str:
    """A range that runs over the end of its field, as a list that means the same."""
    by_value = {value: name for name, value in field.names.items()}
    low, high = _read_value(field, first, first), _read_value(field, last, last)
    # Sunday has two numbers: a week has seven days all the same.
    top = field.high - 1 if field is _WEEKDAY else field.high
    size = top - field.low + 1

    def name(value: int) -> str:
        return by_value[value] if first in field.names or last in field.names else str(value)

    if step > 1:
        values = range(low, high + size + 1, step)
        return ",".join(name((one - field.low) % size + field.low) for one in values)
    spans = ((low, top), (field.low, high))
    return ",".join(name(a) if a == b else f"{name(a)}-{name(b)}" for a, b in spans)


def _advise_count(parts: list[str]) -> str:
    if len(parts) == 7 and re.fullmatch(r"\*|[\d,/*-]*\d{4}[\d,/*-]*", parts[6], re.ASCII):
        return "; there is no field for the year: bound the schedule by start_at and end_at"
    return ""


def _refuse_alias(text: str) -> NoReturn:
    word, _, rest = text[:LONGEST].partition(" ")
    if word.lower() == "@every":
        _refuse(f'{word} must be written as "schedule": {{"kind": "every", "every": "{rest}"}}')
    near = difflib.get_close_matches(word.lower(), ALIASES, n=1)
    known = sorted(ALIASES, key=lambda one: one not in near)
    question = f": did you mean {near[0]}? Allowed are" if near else ": allowed are"
    _refuse(f"{text[:LONGEST]!r} is not known{question} {', '.join(known)}")


def _nearest_workday(day: int, first_weekday: int, length: int) -> int:
    """Move a Saturday to Friday and a Sunday to Monday, but never out of the month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _refuse_part(field: _Field, item: str) -> NoReturn:
    names = [word for word in re.split(r"[-,/]", item) if word not in field.names]
    short = [word[:3] for word in names if len(word) > 3 and word[:3] in field.names]
    advice = f"write {short[0]}; " if short else ""
    _refuse(f"{field.name} {item[:40]!r} is not valid: {advice}allowed are {field.allowed}")


def _refuse(message: str) -> NoReturn:
    raise InvalidError(message, field=FIELD)
