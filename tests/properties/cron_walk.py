"""Cron by walking through real time, minute by minute: the oracle."""

import calendar
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

REACH = 26 * 3600


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


EPOCH_DAY = date(1970, 1, 1).toordinal()


NAMES = {
    "JAN": 1,
    "FEB": 2,
    "MAR": 3,
    "APR": 4,
    "MAY": 5,
    "JUN": 6,
    "JUL": 7,
    "AUG": 8,
    "SEP": 9,
    "OCT": 10,
    "NOV": 11,
    "DEC": 12,
    "SUN": 0,
    "MON": 1,
    "TUE": 2,
    "WED": 3,
    "THU": 4,
    "FRI": 5,
    "SAT": 6,
}


class Walk:
    """What the wall clock showed at each step of real time: (instant, local), both in steps of
    `unit` seconds."""

    def __init__(self, zone: ZoneInfo, middle: int, unit: int, reach: int = REACH) -> None:
        self.unit = unit
        self.start, self.end = middle - reach, middle + reach
        self.steps: list[tuple[int, int]] = []
        self.shown: dict[int, list[int]] = {}
        for at in range(self.start, self.end + 1, unit):
            wall = (EPOCH + timedelta(seconds=at)).astimezone(zone)
            seconds = (
                (wall.toordinal() - EPOCH_DAY) * 86400
                + wall.hour * 3600
                + wall.minute * 60
                + wall.second
            )
            assert seconds % unit == 0
            self.steps.append((at, seconds // unit))
            self.shown.setdefault(seconds // unit, []).append(at)

    def slots(self, expr: str, gap: str | None = None, overlap: str | None = None) -> list[int]:
        """The slots the contract asks for in this walk, in seconds."""
        second, minute, hour, day, month, weekday = sixfold(expr)
        is_fixed = minute[0] != "*" and hour[0] != "*"
        gap = gap or ("next" if is_fixed else "skip")
        overlap = overlap or ("first" if is_fixed else "both")
        hours, minutes, seconds = (
            values(hour, 0, 23),
            values(minute, 0, 59),
            sorted(values(second, 0, 59)),
        )
        table, inner = bytearray(86400 // self.unit), seconds if self.unit == 60 else [0]
        for of_day in range(len(table)):
            s = of_day * self.unit
            table[of_day] = (
                s // 3600 in hours
                and s // 60 % 60 in minutes
                and (self.unit == 60 or s % 60 in seconds)
            )
        per_day = len(table)
        days = {}
        for at_local in range(self.steps[0][1] // per_day - 1, self.steps[-1][1] // per_day + 2):
            days[at_local] = is_day(date.fromordinal(at_local + EPOCH_DAY), day, month, weekday)
        found = set()
        before_at, before = self.steps[0][0] - self.unit, self.steps[0][1] - 1
        for at, local in self.steps:
            if local > before + 1:
                skipped = [
                    m for m in range(before + 1, local) if table[m % per_day] and days[m // per_day]
                ]
                if gap == "next" and skipped:
                    found.add(at)
                elif gap == "shift":
                    found.update(
                        before_at + (m - before) * self.unit + s for m in skipped for s in inner
                    )
            if table[local % per_day] and days[local // per_day]:
                times = self.shown[local]
                if overlap == "both" or at == (times[0] if overlap == "first" else times[-1]):
                    found.update(at + s for s in inner)
            before_at, before = at, local
        return sorted(found)


def sixfold(expr: str) -> list[str]:
    fields = expr.split()
    return fields if len(fields) == 6 else ["0", *fields]


def values(text: str, low: int, high: int) -> set[int]:
    """Try every value of the field against every part of the list."""
    return {
        v
        for v in range(low, high + 1)
        if any(is_part(part, v, low, high) for part in text.split(","))
    }


def is_part(part: str, value: int, low: int, high: int) -> bool:
    span, _, step = part.partition("/")
    if span in ("*", "?"):
        first, last = low, high
    elif "-" in span:
        first, last = (number(x) for x in span.split("-"))
    else:
        first = number(span)
        last = high if step else first
    return first <= value <= last and (value - first) % int(step or 1) == 0


def number(text: str) -> int:
    return NAMES[text] if text in NAMES else int(text)


def is_day(d: date, day: str, month: str, weekday: str) -> bool:
    if d.month not in values(month, 1, 12):
        return False
    by_date, by_weekday = is_date(d, day), is_weekday(d, weekday)
    if day[0] in "*?" or weekday[0] in "*?":
        return by_date and by_weekday
    return by_date or by_weekday


def is_date(d: date, day: str) -> bool:
    length = calendar.monthrange(d.year, d.month)[1]
    if day == "L":
        return d.day == length
    if day.endswith("W"):
        wanted = length if day == "LW" else int(day[:-1])
        if wanted > length:
            return False
        workdays = [x for x in range(1, length + 1) if date(d.year, d.month, x).weekday() < 5]
        return d.day == min(workdays, key=lambda x: abs(x - wanted))
    return d.day in values(day, 1, 31)


def is_weekday(d: date, weekday: str) -> bool:
    today = d.isoweekday() % 7
    if "#" in weekday:
        wanted, nth = weekday.split("#")
        return today == number(wanted) % 7 and (d.day + 6) // 7 == int(nth)
    if weekday.endswith("L"):
        return today == number(weekday[:-1]) % 7 and (d + timedelta(days=7)).month != d.month
    return today in {v % 7 for v in values(weekday, 0, 7)}


@cache
def load_zone(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def offset(zone: ZoneInfo, at: int) -> int:
    return int((EPOCH + timedelta(seconds=at)).astimezone(zone).utcoffset().total_seconds())  # type: ignore[union-attr]


def jumps(zone: ZoneInfo, first_year: int, last_year: int) -> tuple[tuple[int, int, int], ...]:
    """(instant, offset before, offset after), found by looking every 12 hours and halving."""
    at = int(datetime(first_year, 1, 1, tzinfo=UTC).timestamp())
    end = int(datetime(last_year + 1, 1, 1, tzinfo=UTC).timestamp())
    found, before = [], offset(zone, at)
    while at < end:
        after = offset(zone, at + 43200)
        if after != before:
            low, high = at, at + 43200
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(zone, middle) == before else (low, middle)
            found.append((high, before, after))
        at, before = at + 43200, after
    return tuple(found)
