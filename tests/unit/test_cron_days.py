"""Days and fixed times of a cron expression: what its fields may say beside numbers, and which
expressions name times that a jump of the clock moves."""

import pytest

from ksana.domain.cron import parse_cron
from ksana.domain.cron_fields import read_fields


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [
        ("30 3 * * *", True),
        ("*/10 30 3 * * *", True),
        ("1-59/2 0-6 * * *", True),
        ("*/5 3 * * *", False),
        ("* 3 * * *", False),
        ("30 */2 * * *", False),
        ("30 * * * *", False),
    ],
)
def test_times_are_fixed_where_neither_minute_nor_hour_begins_with_a_star(
    text: str, is_fixed: bool
) -> None:
    """As Debian's cron has it; what a jump of the clock does to a slot depends on it."""
    assert parse_cron(text).fixed is is_fixed


def days_of(day: str, weekday: str) -> list[int]:
    """The days that match in a month of 31 days that begins on a Saturday."""
    bits = read_fields(f"0 0 {day} * {weekday}").days.month_bits(6, 31)
    return [at for at in range(1, 32) if bits >> at & 1]


@pytest.mark.spec("C7")
def test_what_a_day_field_may_say_beside_numbers() -> None:
    every = list(range(1, 32))
    assert days_of("?", "*") == days_of("*", "?") == days_of("?", "?") == every
    assert days_of("?", "MON") == days_of("*", "1") == [3, 10, 17, 24, 31]
    assert days_of("1", "?") == days_of("1", "*") == [1]
    assert days_of("1", "MON") == [1, 3, 10, 17, 24, 31]  # both are said: either will do
    assert days_of("L", "*") == [31]
    assert days_of("LW", "*") == [31]
    assert days_of("1W", "*") == [3]
    assert days_of("*", "7") == days_of("*", "0") == days_of("*", "SUN") == [2, 9, 16, 23, 30]
    assert days_of("*", "7L") == days_of("*", "0L") == [30]
    assert days_of("*", "1-6") == [day for day in every if day not in days_of("*", "0")]
    assert days_of("*", "0-6") == days_of("*", "1-7") == every
