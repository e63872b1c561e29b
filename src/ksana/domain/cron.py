"""Cron expressions as bit sets over the local calendar: next, previous and count by arithmetic,
never slot by slot.

Local time here is a plain count of seconds since 1970-01-01T00:00:00 on the wall; zones and DST are
the business of `domain.timetable`, the text is read by `domain.cronfields`. An expression that can
never match does not exist.
"""

from array import array
from calendar import isleap
from datetime import date
from functools import lru_cache
from typing import Final

from ksana.base.errors import InvalidError
from ksana.domain.cron_fields import FIELD, CronFields, DayRule, read_fields

LocalSecond = int
"""Seconds since 1970-01-01T00:00:00 as a wall clock counts them."""

NEVER: Final[LocalSecond] = 1 << 62
"""Later than every local time there is."""

LONG_AGO: Final[LocalSecond] = -NEVER
"""Earlier than every local time there is."""

_DAY = 86_400
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_FIRST_DAY = date(1, 1, 1).toordinal() - _EPOCH_ORDINAL
_LAST_DAY = date(9999, 12, 31).toordinal() - _EPOCH_ORDINAL

_BLOCK_BITS = 9
_BLOCK_DAYS = 1 << _BLOCK_BITS
_BLOCK_MASK = _BLOCK_DAYS - 1

_SEARCH_BLOCKS = 37
"""Blocks searched for a day, more than 50 years. The longest wait of the calendar is 40 (29
February on a given weekday, across 2100)."""

_PROOF_BLOCKS = (40, 41, *range(22, 43))
"""From 2001 to 2029: 28 years without a missing leap year hold each of the 14 kinds of year, so
what does not match here never matches. The blocks that will be asked for soon come first."""

_MONTH_DAYS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_MAX_BLOCKS = 512
"""Blocks an expression keeps (some 700 years) before it starts over."""


_MANY_TIMES = 48
_NO_STEP = 1 << 20


class CronExpr:
    """A parsed expression. Days are kept as bits in blocks of 512, the times of a day as 1440 bits
    of minutes and 60 of seconds; all questions are shifts and bit counts."""

    __slots__ = (
        "_blocks",
        "_days",
        "_first",
        "_last",
        "_months",
        "_per_day",
        "fields",
        "fixed",
        "minutes",
        "seconds",
    )

    def __init__(self, fields: CronFields) -> None:
        self.fields = fields
        self.fixed: bool = not (fields.text[1].startswith("*") or fields.text[2].startswith("*"))
        """Neither minute nor hour begins with `*`: the Debian rule for fixed times applies (see
        domain.timetable)."""
        self.seconds: int = fields.seconds
        self.minutes: int = sum(
            fields.minutes << 60 * hour for hour in range(24) if fields.hours >> hour & 1
        )
        self._months: int = fields.months
        self._days: DayRule = fields.days
        self._first: int = _lowest(self.minutes) * 60 + _lowest(self.seconds)
        self._last: int = _highest(self.minutes) * 60 + _highest(self.seconds)
        self._per_day: int = self.minutes.bit_count() * self.seconds.bit_count()
        self._blocks: dict[int, int] = {}

    @property
    def normalized(self) -> str:
        """The six fields as stored."""
        return " ".join(self.fields.text)

    def next_local(self, at: LocalSecond) -> LocalSecond:
        """Find the earliest match at or after `at`; NEVER if there is none within the search."""
        day, second_of_day = divmod(at, _DAY)
        index = day >> _BLOCK_BITS
        block = self._blocks.get(index)
        if block is None:
            block = self._fill_block(index)
        days = block >> (day & _BLOCK_MASK)
        if days & 1:
            minute, second = divmod(second_of_day, 60)
            minutes = self.minutes >> minute
            if minutes & 1:
                seconds = self.seconds >> second
                if seconds:
                    return at + (seconds & -seconds).bit_length() - 1
                minutes -= 1
            if minutes:
                minute += (minutes & -minutes).bit_length() - 1
                return day * _DAY + minute * 60 + self._first % 60
            days -= 1
        if days:
            return (day + (days & -days).bit_length() - 1) * _DAY + self._first
        for following in range(index + 1, index + _SEARCH_BLOCKS):
            block = self._block(following)
            if block:
                return ((following << _BLOCK_BITS) + _lowest(block)) * _DAY + self._first
        return NEVER

    def previous_local(self, at: LocalSecond) -> LocalSecond:
        """Find the latest match at or before `at`; LONG_AGO if there is none within the search."""
        day, second_of_day = divmod(at, _DAY)
        index = day >> _BLOCK_BITS
        days = self._block(index) & ((2 << (day & _BLOCK_MASK)) - 1)
        if days >> (day & _BLOCK_MASK) & 1:
            minute, second = divmod(second_of_day, 60)
            minutes = self.minutes & ((2 << minute) - 1)
            if minutes >> minute & 1:
                seconds = self.seconds & ((2 << second) - 1)
                if seconds:
                    return day * _DAY + minute * 60 + _highest(seconds)
                minutes ^= 1 << minute
            if minutes:
                return day * _DAY + _highest(minutes) * 60 + self._last % 60
            days ^= 1 << (day & _BLOCK_MASK)
        if days:
            return ((index << _BLOCK_BITS) + _highest(days)) * _DAY + self._last
        for preceding in range(index - 1, index - _SEARCH_BLOCKS, -1):
            block = self._block(preceding)
            if block:
                return ((preceding << _BLOCK_BITS) + _highest(block)) * _DAY + self._last
        return LONG_AGO

    def count_local(self, start: LocalSecond, until: LocalSecond) -> int:
        """Count the matches in [start, until)."""
        if until <= start:
            return 0
        first_day, from_second = divmod(max(start, _FIRST_DAY * _DAY), _DAY)
        last_day, to_second = divmod(min(until, (_LAST_DAY + 1) * _DAY), _DAY)
        count = self._count_days(first_day, last_day) * self._per_day
        if from_second and self._matches_day(first_day):
            count -= self._count_times(from_second)
        if to_second and self._matches_day(last_day):
            count += self._count_times(to_second)
        return count

    def minute_steps(self) -> "array[int] | None":
        """By minute of the day, the second at which the first matching minute at or after it
        begins. None where a day holds so few times that the table would not pay."""
        return _minute_steps(self.minutes) if self._per_day >= _MANY_TIMES else None

    def second_steps(self) -> list[int]:
        """By second of the minute, how long until the first matching second of the same minute."""
        return [
            _lowest(self.seconds >> second) if self.seconds >> second else _NO_STEP
            for second in range(60)
        ]

    def can_match(self) -> bool:
        """Tell whether any day ever matches."""
        return any(self._block(index) for index in _PROOF_BLOCKS)

    def _matches_day(self, day: int) -> bool:
        return bool(self._block(day >> _BLOCK_BITS) >> (day & _BLOCK_MASK) & 1)

    def _count_days(self, first: int, until: int) -> int:
        """Count matching days in [first, until): one bit count per 512 days."""
        first_index, last_index = first >> _BLOCK_BITS, until >> _BLOCK_BITS
        head = self._block(first_index) >> (first & _BLOCK_MASK) << (first & _BLOCK_MASK)
        tail_mask = (1 << (until & _BLOCK_MASK)) - 1
        if first_index == last_index:
            return (head & tail_mask).bit_count()
        between = sum(
            self._block(index).bit_count() for index in range(first_index + 1, last_index)
        )
        return head.bit_count() + between + (self._block(last_index) & tail_mask).bit_count()

    def _count_times(self, until_second: int) -> int:
        """Count the times of a matching day before that second of the day."""
        minute, second = divmod(until_second, 60)
        count = (self.minutes & ((1 << minute) - 1)).bit_count() * self.seconds.bit_count()
        if self.minutes >> minute & 1:
            count += (self.seconds & ((1 << second) - 1)).bit_count()
        return count

    def _block(self, index: int) -> int:
        block = self._blocks.get(index)
        return self._fill_block(index) if block is None else block

    def _fill_block(self, index: int) -> int:
        """Work out 512 days, a month at a time."""
        first = index << _BLOCK_BITS
        day, until = max(first, _FIRST_DAY), min(first + _BLOCK_DAYS, _LAST_DAY + 1)
        block = 0
        if day < until:
            start = date.fromordinal(day + _EPOCH_ORDINAL)
            year, month, day = start.year, start.month, day - start.day + 1
        while day < until:
            length = _MONTH_DAYS[month] + (month == 2 and isleap(year))
            if self._months >> month & 1:
                bits = self._days.month_bits((day + 4) % 7, length) >> 1  # 1970 began on a Thursday
                shift = day - first
                block |= bits << shift if shift >= 0 else bits >> -shift
            day += length
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        block &= (1 << _BLOCK_DAYS) - 1
        if len(self._blocks) >= _MAX_BLOCKS:
            self._blocks.clear()
        self._blocks[index] = block
        return block


@lru_cache(maxsize=4096)
def parse_cron(text: str) -> CronExpr:
    """Read an expression of 5 or 6 fields or an alias. Raise InvalidError naming the field and what
    is allowed; an expression that never matches (31 April) is refused too."""
    expr = CronExpr(read_fields(text))
    if not expr.can_match():
        days, months = expr.fields.text[3], expr.fields.text[4]
        raise InvalidError(
            f"day of month {days!r} in month {months!r} with day of week {expr.fields.text[5]!r} "
            "never comes within 50 years: name a day that exists",
            field=FIELD,
        )
    return expr


@lru_cache(maxsize=1024)
def _minute_steps(minutes: int) -> "array[int]":
    steps, ahead = array("I", bytes(4 * 1441)), _NO_STEP
    steps[1440] = ahead
    for minute in range(1439, -1, -1):
        if minutes >> minute & 1:
            ahead = minute * 60
        steps[minute] = ahead
    return steps


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _highest(bits: int) -> int:
    return bits.bit_length() - 1
