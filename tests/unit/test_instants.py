"""Texts of times and durations: what is read is what was written."""

import pytest

from ksana.base.durations import MAX_DURATION, format_duration, parse_duration
from ksana.base.instant import DAY, SECOND, format_instant, parse_instant

AT = parse_instant("2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("fraction", "micros"),
    [
        (".5", 500_000),
        (".123456", 123_456),
        (".000001", 1),
        (",25", 250_000),
        (".1234567", 123_456),
        (".123456789", 123_456),
        (".1234567891", 123_456),
        (".999999999999", 999_999),
    ],
)
@pytest.mark.parametrize("zone", ["Z", "z", "+00:00", "-0000"])
def test_a_fraction_is_cut_to_microseconds_whatever_the_zone(
    fraction: str, micros: int, zone: str
) -> None:
    assert parse_instant(f"2026-01-01T00:00:00{fraction}{zone}") == AT + micros


@pytest.mark.parametrize("separator", ["T", "t", " "])
def test_a_fraction_is_read_behind_every_separator(separator: str) -> None:
    assert parse_instant(f"2026-01-01{separator}00:00:01.5Z") == AT + SECOND + 500_000


@pytest.mark.parametrize(
    "text", ["2026-02-30T00:00:00.5Z", "2026-01-01T24:00:01.5Z", "2026-01-01T00:61:00.5Z"]
)
def test_an_impossible_time_with_a_fraction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="possible"):
        parse_instant(text)


@pytest.mark.parametrize("micros", [0, 1, 10, 999_999, 500_000])
def test_an_instant_comes_back_as_it_was_written(micros: int) -> None:
    assert parse_instant(format_instant(AT + micros)) == AT + micros


@pytest.mark.parametrize("span", [0, 1, 1500, SECOND, 90 * SECOND, DAY + 1, MAX_DURATION])
def test_a_duration_comes_back_as_it_was_written_each_time(span: int) -> None:
    assert [parse_duration(format_duration(span)) for _ in range(2)] == [span, span]


def test_a_text_that_is_no_duration_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="'5 parsecs' is not a duration"):
            parse_duration("5 parsecs")
        with pytest.raises(ValueError, match="longer than a hundred years"):
            parse_duration("999999999999")


def test_a_number_is_seconds_as_a_text_is() -> None:
    assert parse_duration(" 90 ") == parse_duration(90) == parse_duration("1m30s") == 90 * SECOND
