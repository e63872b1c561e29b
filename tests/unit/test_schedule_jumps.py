"""Schedules where clocks jump, and the zones that make them."""

import time

import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, format_instant, parse_instant
from ksana.domain import schedule
from ksana.domain.schedule import make_cron
from tests.unit.schedule_ground import take

T0 = parse_instant("2026-01-01T00:00:00Z")


def shown(slots: list[int]) -> list[str]:
    return [format_instant(slot) for slot in slots]


@pytest.mark.spec("C9")
@pytest.mark.parametrize(
    ("gap", "expr", "slots"),
    [
        (
            None,
            "30 2 * * *",
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
        ),
        (
            "next",
            "*/30 2 * * *",
            [
                "2026-03-28T01:00:00Z",
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T00:00:00Z",
            ],
        ),
        ("skip", "30 2 * * *", ["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"]),
        (
            "shift",
            "30 2 * * *",
            ["2026-03-28T01:30:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        ),
        (None, "0,20,40 2 * * 0", ["2026-03-29T01:00:00Z", "2026-04-05T00:00:00Z"]),
        (
            None,
            "30 2,3 29 3 *",
            ["2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2027-03-29T00:30:00Z"],
        ),
        (None, "0 2,3 29 3 *", ["2026-03-29T01:00:00Z", "2027-03-29T00:00:00Z"]),
        (None, "*/30 2 28-29 3 *", ["2026-03-28T01:00:00Z", "2026-03-28T01:30:00Z"]),
        (
            None,
            "*/10 30 2 29 3 *",
            ["2026-03-29T01:00:00Z", "2027-03-29T00:30:00Z", "2027-03-29T00:30:10Z"],
        ),
    ],
)
def test_a_time_inside_the_gap_of_berlin(
    gap: schedule.DstGap | None, expr: str, slots: list[str]
) -> None:
    assert (
        shown(
            take(
                make_cron(expr, "Europe/Berlin", dst_gap=gap),
                parse_instant("2026-03-28T00:30:00Z"),
                len(slots),
            )
        )
        == slots
    )


@pytest.mark.spec("C9")
@pytest.mark.parametrize(
    ("overlap", "expr", "slots"),
    [
        (None, "30 2 * * *", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        ("first", "30 2 * * *", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        ("second", "30 2 * * *", ["2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"]),
        (
            "both",
            "30 2 * * *",
            ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        (
            None,
            "30 * * * *",
            ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"],
        ),
        ("first", "30 * * * *", ["2026-10-25T00:30:00Z", "2026-10-25T02:30:00Z"]),
    ],
)
def test_a_time_that_comes_twice_in_berlin(
    overlap: schedule.DstOverlap | None, expr: str, slots: list[str]
) -> None:
    wanted = make_cron(expr, "Europe/Berlin", dst_overlap=overlap)
    assert shown(take(wanted, parse_instant("2026-10-25T00:00:00Z"), len(slots))) == slots


@pytest.mark.spec("C9")
@pytest.mark.parametrize(
    ("zone", "expr", "after", "slots"),
    [
        (
            "America/Santiago",
            "0 0 * * *",
            "2026-09-05T12:00:00Z",
            ["2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"],
        ),
        (
            "Africa/Cairo",
            "30 0 * * FRI",
            "2026-04-20T00:00:00Z",
            ["2026-04-23T22:00:00Z", "2026-04-30T21:30:00Z"],
        ),
        (
            "Europe/Lisbon",
            "0 1 30 3 *",
            "2025-01-01T00:00:00Z",
            ["2025-03-30T01:00:00Z", "2026-03-30T00:00:00Z"],
        ),
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2026-10-02T16:00:00Z",
            ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
        ),
        (
            "Pacific/Apia",
            "0 12 30 12 *",
            "2011-01-01T00:00:00Z",
            ["2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"],
        ),
        (
            "Asia/Pyongyang",
            "45 23 * * *",
            "2018-05-04T00:00:00Z",
            ["2018-05-04T15:00:00Z", "2018-05-05T14:45:00Z"],
        ),
        ("+08:00", "0 9 * * *", "2026-01-01T00:00:00Z", ["2026-01-01T01:00:00Z"]),
        ("-03:30", "0 9 * * *", "2026-01-01T00:00:00Z", ["2026-01-01T12:30:00Z"]),
        ("Asia/Kathmandu", "0 9 * * *", "2026-01-01T00:00:00Z", ["2026-01-01T03:15:00Z"]),
    ],
)
def test_clocks_that_jump_in_their_own_way(
    zone: str, expr: str, after: str, slots: list[str]
) -> None:
    assert shown(take(make_cron(expr, zone), parse_instant(after), len(slots))) == slots


@pytest.mark.fault("F19")
@pytest.mark.spec("C9")
def test_a_time_that_lies_in_a_skipped_gap_for_ever_is_answered_with_none() -> None:
    only_in_the_gap = make_cron("30 2 8-14 3 */7", "America/New_York", dst_gap="skip")
    begun = time.process_time()
    assert schedule.next_after(only_in_the_gap, T0) is None
    assert schedule.latest_at_or_before(only_in_the_gap, T0) is not None  # the rule began in 2007
    assert schedule.count_between(only_in_the_gap, T0, T0 + 40 * 365 * DAY) == 0
    assert time.process_time() - begun < 0.2


@pytest.mark.spec("C9")
@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Olympus",
        "",
        "europe/berlin",
        "+25:00",
        "+08:60",
        "../etc/passwd",
        "Europe/",
        "x" * 5000,
        "tzdata",
    ],
)
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidError) as refused:
        make_cron("* * * * *", zone)
    assert refused.value.field == "timezone"
    assert "IANA" in refused.value.message


def test_a_misspelt_zone_is_met_with_the_right_name() -> None:
    with pytest.raises(InvalidError, match="did you mean Europe/Berlin"):
        make_cron("* * * * *", "europe/berlin")


@pytest.mark.spec("C9")
@pytest.mark.parametrize(
    ("given", "kept"),
    [("+8", "+08:00"), ("UTC+8", "+08:00"), ("-0330", "-03:30"), ("Z", "UTC"), ("UTC", "UTC")],
)
def test_offsets_are_kept_in_one_form(given: str, kept: str) -> None:
    assert make_cron("* * * * *", given).timezone == kept
    assert make_cron("* * * * *", kept).timezone == kept
