"""Schedules in words, and the next firings with notes where the clock jumps."""

import pytest

from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, format_instant, parse_instant
from ksana.domain.preview import preview
from ksana.domain.schedule import Once, make_cron, make_every
from ksana.domain.schedule_words import describe

T0 = parse_instant("2026-01-01T00:00:00Z")


@pytest.mark.spec("B3")
@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/25 * * * *", "at minutes 0, 25 and 50 of every hour"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("*/10 * 3 * * *", "every 10 seconds from 03:00 to 03:59"),
        ("5 * * * * *", "at second 5 of every minute"),
        ("*/5 5 * * * *", "every 5 seconds of minute 5 of every hour"),
        ("0 * * * *", "at minute 0 of every hour"),
        ("0 */3 * * *", "every 3 hours at minute 0"),
        ("30 */7 * * *", "at minute 30 of hours 0, 7, 14 and 21"),
        ("*/10 9-17 * * 1-5", "every 10 minutes from 09:00 to 17:59 on Monday to Friday"),
        ("30 2 * * *", "at 02:30 every day"),
        ("15 30 2 * * *", "at 02:30:15 every day"),
        ("30 6-16/4 * * 1-5", "at 06:30, 10:30 and 14:30 on Monday to Friday"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 LW * *", "at 00:00 on the last working day (Monday to Friday) of the month"),
        (
            "0 0 15W * *",
            "at 00:00 on the working day (Monday to Friday) nearest to day 15 of the month",
        ),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday"),
        ("0 0 1-7 * */7", "at 00:00 on days 1 to 7 of the month if that is Sunday"),
        ("0 12 * * MON#2", "at 12:00 on the second Monday of the month"),
        ("0 12 * * 5L", "at 12:00 on the last Friday of the month"),
        ("0 0 1 1,6-8 *", "at 00:00 on day 1 of the month in January and June to August"),
        ("0 0 * * 6,0", "at 00:00 on Saturday and Sunday"),
        # The most times that are listed, and one more.
        ("0,20,40 1,2 * * *", "at 01:00, 01:20, 01:40, 02:00, 02:20 and 02:40 every day"),
        ("0,20,40 1-3 * * *", "at minutes 0, 20 and 40 from 01:00 to 03:59 every day"),
        (
            "0,10,20,30 1,5 * * *",
            "at minutes 0, 10, 20 and 30 from 01:00 to 01:59 and 05:00 to 05:59 every day",
        ),
        ("*/30 5 9 * * *", "every 30 seconds of minute 5 from 09:00 to 09:59 every day"),
        ("*/1 * * * *", "every minute"),
        ("*/60 * * * *", "at minute 0 of every hour"),
        ("1,2 * * * *", "at minutes 1 and 2 of every hour"),
        ("10,20 * * * * *", "at seconds 10 and 20 of every minute"),
        ("0 10 ? 6 ?", "at 10:00 in June"),
        ("0 10 * * ?", "at 10:00 every day"),
        ("0 10 ? * 1", "at 10:00 on Monday"),
        ("0 10 ? * *", "at 10:00 every day"),
        ("0 10 3 * ?", "at 10:00 on day 3 of the month"),
        ("* 5 * * *", "every minute from 05:00 to 05:59"),
        ("0 0 1,2 * *", "at 00:00 on days 1 and 2 of the month"),
    ],
)
def test_a_cron_schedule_reads_as_a_sentence(expr: str, words: str) -> None:
    assert describe(make_cron(expr)) == f"{words}, UTC time"


@pytest.mark.spec("B3")
def test_other_kinds_bounds_and_rules_read_as_a_sentence_too() -> None:
    assert describe(Once(T0)) == "once at 2026-01-01T00:00:00Z"
    assert (
        describe(make_every(5 * MINUTE, now=T0, jitter_us=5 * SECOND))
        == "every 5m, each up to 5s later"
    )
    assert (
        describe(make_every(90 * MINUTE, now=T0, start_at=T0))
        == "every 1h30m, from 2026-01-01T00:00:00Z"
    )
    wanted = make_cron("0 9 * * *", "Asia/Shanghai", end_at=T0, dst_gap="skip", dst_overlap="both")
    assert describe(wanted) == (
        "at 09:00 every day, Asia/Shanghai time, until 2026-01-01T00:00:00Z "
        "(times the clock skips do not fire; times that come twice fire both times)"
    )


@pytest.mark.spec("B3")
def test_a_preview_shows_instant_local_time_and_offset() -> None:
    firings = preview(make_cron("0 9 * * *", "Asia/Kathmandu"), T0, 3)
    assert [format_instant(firing.at) for firing in firings] == [
        "2026-01-01T03:15:00Z",
        "2026-01-02T03:15:00Z",
        "2026-01-03T03:15:00Z",
    ]
    assert firings[0].local == "2026-01-01T09:00:00+05:45"
    assert {firing.offset for firing in firings} == {"+05:45"}
    assert {firing.note for firing in firings} == {None}


@pytest.mark.spec("B3")
def test_a_preview_ends_with_its_schedule() -> None:
    assert [firing.at for firing in preview(Once(T0 + HOUR), T0, 5)] == [T0 + HOUR]
    assert len(preview(make_every(HOUR, now=T0, end_at=T0 + DAY), T0, 100)) == 24
    assert (
        preview(make_every(1_500_000, now=T0), T0, 1)[0].local == "2026-01-01T00:00:01.500000+00:00"
    )


@pytest.mark.spec("B3", "C9")
@pytest.mark.parametrize(
    ("expr", "rules", "after", "notes"),
    [
        (
            "30 2 * * *",
            {},
            "2026-03-28T12:00:00Z",
            [
                "2026-03-29 02:30 does not exist (clocks go from +01:00 to +02:00): "
                "fires right after the gap",
                None,
            ],
        ),
        (
            "30 2 * * *",
            {"dst_gap": "skip"},
            "2026-03-28T12:00:00Z",
            [
                "2026-03-29 02:30 does not exist (clocks go from +01:00 to +02:00) and is skipped",
                None,
            ],
        ),
        (
            "30 2 * * *",
            {"dst_gap": "shift"},
            "2026-03-28T12:00:00Z",
            [
                "2026-03-29 02:30 does not exist (clocks go from +01:00 to +02:00): fires 1h later",
                None,
            ],
        ),
        (
            "30 2 * * *",
            {},
            "2026-10-24T12:00:00Z",
            [
                "2026-10-25 02:30 comes twice: fires the first time only",
                "clocks go from +02:00 to +01:00 before this firing",
                None,
            ],
        ),
        (
            "30 2 * * *",
            {"dst_overlap": "both"},
            "2026-10-24T12:00:00Z",
            [
                "2026-10-25 02:30 comes twice: fires the first time",
                "2026-10-25 02:30 comes twice: fires the second time",
                None,
            ],
        ),
        (
            "0 2 * * *",
            {"dst_gap": "shift"},
            "2026-03-28T12:00:00Z",
            [
                "2026-03-29 02:00 does not exist (clocks go from +01:00 to +02:00): fires 1h later",
                None,
            ],
        ),
        (
            "30 1,2 * * *",
            {"dst_gap": "shift"},
            "2026-03-28T12:00:00Z",
            [
                None,
                "2026-03-29 02:30 does not exist (clocks go from +01:00 to +02:00): fires 1h later",
            ],
        ),
        (
            "0 2 * * *",
            {"dst_overlap": "both"},
            "2026-10-24T12:00:00Z",
            [
                "2026-10-25 02:00 comes twice: fires the first time",
                "2026-10-25 02:00 comes twice: fires the second time",
                None,
            ],
        ),
        (
            "30 1 * * *",
            {},
            "2026-10-24T12:00:00Z",
            [None, "clocks go from +02:00 to +01:00 before this firing", None],
        ),
        (
            "0 9 * * *",
            {},
            "2026-03-28T12:00:00Z",
            ["clocks go from +01:00 to +02:00 before this firing", None],
        ),
    ],
)
def test_a_preview_says_where_the_clock_shapes_a_firing(
    expr: str, rules: dict[str, str], after: str, notes: list[str | None]
) -> None:
    wanted = make_cron(expr, "Europe/Berlin", **rules)  # type: ignore[arg-type]
    assert [firing.note for firing in preview(wanted, parse_instant(after), len(notes))] == notes


@pytest.mark.spec("B3", "C9")
def test_a_firing_between_a_gap_and_what_it_puts_off_is_not_taken_for_it() -> None:
    """Lord Howe's clocks go half an hour ahead: 02:15 does not exist and fires at 02:45."""
    wanted = make_cron("15,30 2 * * *", "Australia/Lord_Howe", dst_gap="shift")
    firings = preview(wanted, parse_instant("2026-10-03T12:00:00Z"), 2)
    assert [firing.local[11:16] for firing in firings] == ["02:30", "02:45"]
    assert firings[0].note == "clocks go from +10:30 to +11:00 before this firing"
