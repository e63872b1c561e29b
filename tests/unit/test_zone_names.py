"""Names of zones and offsets: what is one, what it is called, what is refused and with which
hint."""

import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import SECOND, parse_instant
from ksana.domain.zones import (
    FIRST_SECOND,
    LAST_SECOND,
    MARGIN,
    STRETCH_BITS,
    Zone,
    format_offset,
    get_zone,
    zone_names,
)

pytestmark = pytest.mark.spec("C9")


def fresh(name: str) -> Zone:
    """A zone that nobody asked before."""
    get_zone.cache_clear()
    zone_names.cache_clear()
    return get_zone(name)


@pytest.mark.parametrize(
    ("given", "name", "offset"),
    [
        ("+08:00", "+08:00", 28_800),
        ("-0330", "-03:30", -12_600),
        ("+8", "+08:00", 28_800),
        ("UTC+8", "+08:00", 28_800),
        ("GMT-5", "-05:00", -18_000),
        ("UTC-05:45", "-05:45", -20_700),
        ("+23:59", "+23:59", 86_340),
        ("-23", "-23:00", -82_800),
        ("+00:00", "+00:00", 0),
        ("Z", "UTC", 0),
        ("UTC", "UTC", 0),
        ("Etc/GMT", "Etc/GMT", 0),
        ("Zulu", "Zulu", 0),
    ],
)
def test_an_offset_is_a_zone_that_never_changes(given: str, name: str, offset: int) -> None:
    zone = fresh(given)
    assert (zone.name, zone.fixed_offset) == (name, offset)
    assert [zone.offset_at(at) for at in (-(10**12), 0, 10**12)] == [offset] * 3
    assert zone.transitions_between(0, 10**10) == []
    assert zone.transitions_near(50) == []


def test_a_zone_with_a_history_has_no_fixed_offset() -> None:
    for name in ("Europe/Berlin", "Africa/Abidjan", "Etc/GMT+5"):
        assert (fresh(name).name, fresh(name).fixed_offset) == (name, None)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("berlin", "; did you mean Europe/Berlin?"),
        ("Kolkata", "; did you mean Asia/Kolkata?"),
        ("Europe/Berln", "; did you mean Europe/Berlin?"),
        ("europe/berlin", "; did you mean Europe/Berlin?"),
        ("Indianapolis", "; did you mean America/Indianapolis?"),
        ("Mars/Olympus", ""),
        ("+24:00", ""),
        ("+08:60", ""),
        ("+8:0", ""),
        ("+08:00:00", ""),
        ("+٠٨:٠٠", ""),
        ("UTC +8", ""),
        ("", ""),
        ("utc", "; did you mean Etc/UTC?"),
    ],
)
def test_what_is_no_zone_is_refused_with_what_may_have_been_meant(given: str, hint: str) -> None:
    with pytest.raises(InvalidError) as refused:
        fresh(given)
    assert refused.value.field == "timezone"
    assert str(refused.value) == (
        f"{given!r} is no time zone: allowed are IANA names such as Europe/Berlin "
        f"and offsets such as +08:00{hint}"
    )


def test_a_name_that_is_far_too_long_is_told_in_part() -> None:
    with pytest.raises(InvalidError, match=f"^'{'x' * 64}' is no time zone"):
        fresh("x" * 10_000)
    with pytest.raises(InvalidError, match="is no time zone"):
        fresh("UTC+000000000008:00")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "+00:00"),
        (59, "+00:00:59"),
        (60, "+00:01"),
        (3_600, "+01:00"),
        (20_700, "+05:45"),
        (-1, "-00:00:01"),
        (-2_670, "-00:44:30"),
        (-34_200, "-09:30"),
        (50_400, "+14:00"),
    ],
)
def test_an_offset_is_written_with_seconds_only_where_it_has_some(seconds: int, text: str) -> None:
    assert format_offset(seconds) == text


def second(text: str) -> int:
    return parse_instant(text) // SECOND


@pytest.mark.parametrize(
    ("at", "offset"),
    [
        ("2026-01-15T00:00:00Z", 3_600),
        ("2026-03-29T00:59:59Z", 3_600),
        ("2026-03-29T01:00:00Z", 7_200),
        ("2026-10-25T00:59:59Z", 7_200),
        ("2026-10-25T01:00:00Z", 3_600),
        ("1890-01-01T00:00:00Z", 3_208),
    ],
)
def test_the_offset_in_force_changes_at_the_very_second(at: str, offset: int) -> None:
    assert fresh("Europe/Berlin").offset_at(second(at)) == offset


def test_beyond_the_calendar_the_nearest_offset_holds() -> None:
    berlin, york = fresh("Europe/Berlin"), get_zone("America/New_York")
    assert berlin.offset_at(-(10**15)) == berlin.offset_at(FIRST_SECOND - MARGIN) == 3_208
    assert berlin.offset_at(10**15) == berlin.offset_at(LAST_SECOND + MARGIN) == 3_600
    assert york.offset_at(10**15) == -18_000


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_jumps_are_the_same_whichever_stretch_is_asked_first(shift: int) -> None:
    berlin = fresh("Europe/Berlin")
    low, high = second("2000-01-01T00:00:00Z"), second("2030-01-01T00:00:00Z")
    berlin.transitions_near((low >> STRETCH_BITS) + shift)
    jumps = berlin.transitions_between(low, high)
    assert len(jumps) == 60
    assert [(jump.before, jump.after) for jump in jumps] == [(3_600, 7_200), (7_200, 3_600)] * 30
    for jump in jumps:
        assert berlin.offset_at(jump.at - 1) == jump.before
        assert berlin.offset_at(jump.at) == jump.after
        assert berlin.transitions_between(jump.at - 1, jump.at) == [jump]
        assert berlin.transitions_between(jump.at, jump.at + 86_400) == []
        stretch = jump.at >> STRETCH_BITS
        assert jump in berlin.transitions_near(stretch)


def test_a_stretch_knows_the_jumps_of_a_few_days_around_it() -> None:
    berlin = fresh("Europe/Berlin")
    low, high = second("1981-01-01T00:00:00Z"), second("2200-01-01T00:00:00Z")
    for jump in berlin.transitions_between(low, high):
        stretch = jump.at >> STRETCH_BITS
        into, left = jump.at - (stretch << STRETCH_BITS), ((stretch + 1) << STRETCH_BITS) - jump.at
        assert (jump in berlin.transitions_near(stretch - 1)) is (into < MARGIN)
        assert (jump in berlin.transitions_near(stretch + 1)) is (left < MARGIN)
