"""Reading cron expressions and finding, counting and refusing what they name, on the plain
calendar."""

import time
from datetime import datetime, timedelta

import pytest

from ksana.base.errors import InvalidError
from ksana.domain.cron import parse_cron

EPOCH = datetime(1970, 1, 1)


def local(text: str) -> int:
    return int((datetime.fromisoformat(text) - EPOCH).total_seconds())


def list_slots(expr: str, after: str, n: int) -> list[str]:
    found, at, slots = parse_cron(expr), local(after), []
    for _ in range(n):
        at = found.next_local(at + 1)
        slots.append((EPOCH + timedelta(seconds=at)).isoformat(" "))
    return slots


@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("*/5 * * * *", "0 */5 * * * *"),
        ("30 */5 * * * *", "30 */5 * * * *"),
        ("  0  9 *\t* mon-fri ", "0 0 9 * * MON-FRI"),
        ("@yearly", "0 0 0 1 1 *"),
        ("@annually", "0 0 0 1 1 *"),
        ("@monthly", "0 0 0 1 * *"),
        ("@weekly", "0 0 0 * * 0"),
        ("@Daily", "0 0 0 * * *"),
        ("@midnight", "0 0 0 * * *"),
        ("@hourly", "0 0 * * * *"),
        ("0 0 ? jan,DEC ?", "0 0 0 ? JAN,DEC ?"),
    ],
)
def test_expressions_are_stored_as_six_fields(text: str, stored: str) -> None:
    assert parse_cron(text).normalized == stored
    assert parse_cron(stored).normalized == stored


@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    ("expr", "slots"),
    [
        ("*/25 * * * *", ["2026-01-01 00:25:00", "2026-01-01 00:50:00", "2026-01-01 01:00:00"]),
        ("10/20 * * * *", ["2026-01-01 00:10:00", "2026-01-01 00:30:00", "2026-01-01 00:50:00"]),
        ("5-20/10 3 * * *", ["2026-01-01 03:05:00", "2026-01-01 03:15:00", "2026-01-02 03:05:00"]),
        ("15 10 0 * * *", ["2026-01-01 00:10:15", "2026-01-02 00:10:15"]),
        (
            "0 0 */10 * *",
            [
                "2026-01-11 00:00:00",
                "2026-01-21 00:00:00",
                "2026-01-31 00:00:00",
                "2026-02-01 00:00:00",
            ],
        ),
        ("0 0 * */5 *", ["2026-01-02 00:00:00"]),
        ("0 0 1 */5 *", ["2026-06-01 00:00:00", "2026-11-01 00:00:00", "2027-01-01 00:00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 * * 0", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        (
            "0 0 * * 5-7",
            [
                "2026-01-02 00:00:00",
                "2026-01-03 00:00:00",
                "2026-01-04 00:00:00",
                "2026-01-09 00:00:00",
            ],
        ),
        ("0 0 * * SUN,WED", ["2026-01-04 00:00:00", "2026-01-07 00:00:00"]),
        ("0 0 * * 1/3", ["2026-01-04 00:00:00", "2026-01-05 00:00:00", "2026-01-08 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 31 * *", ["2026-01-31 00:00:00", "2026-03-31 00:00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00:00", "2026-02-28 00:00:00", "2026-03-31 00:00:00"]),
        ("0 0 L 2 ?", ["2026-02-28 00:00:00", "2027-02-28 00:00:00", "2028-02-29 00:00:00"]),
        ("0 0 LW * *", ["2026-01-30 00:00:00", "2026-02-27 00:00:00", "2026-03-31 00:00:00"]),
        ("0 0 1W * *", ["2026-02-02 00:00:00", "2026-03-02 00:00:00"]),
        ("0 0 1W 8 *", ["2026-08-03 00:00:00"]),
        ("0 0 15W 2,3,8 *", ["2026-02-16 00:00:00", "2026-03-16 00:00:00", "2026-08-14 00:00:00"]),
        ("0 0 31W * *", ["2026-01-30 00:00:00", "2026-03-31 00:00:00", "2026-05-29 00:00:00"]),
        ("0 0 29W 2 *", ["2028-02-29 00:00:00", "2032-02-27 00:00:00"]),
        ("0 0 * * MON#1", ["2026-01-05 00:00:00", "2026-02-02 00:00:00"]),
        ("0 0 * * 5#5", ["2026-01-30 00:00:00", "2026-05-29 00:00:00"]),
        ("0 0 * * 5L", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 * * friL", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 * * 7L", ["2026-01-25 00:00:00", "2026-02-22 00:00:00"]),
    ],
)
def test_each_form_names_the_days_and_times_the_contract_says(expr: str, slots: list[str]) -> None:
    assert list_slots(expr, "2026-01-01 00:00:00", len(slots)) == slots


@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    ("expr", "slots"),
    [
        ("0 0 13 * 5", ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]),
        ("0 0 13 * *", ["2026-01-13", "2026-02-13"]),
        ("0 0 * * 5", ["2026-01-02", "2026-01-09"]),
        ("0 0 ? * 5", ["2026-01-02", "2026-01-09"]),
        ("0 0 13 * ?", ["2026-01-13", "2026-02-13"]),
        ("0 0 */2 * 5", ["2026-01-09", "2026-01-23", "2026-02-13"]),
        ("0 0 1-7 * */7", ["2026-01-04", "2026-02-01", "2026-03-01"]),
        ("0 0 L * 1#1", ["2026-01-05", "2026-01-31", "2026-02-02"]),
    ],
)
def test_two_restricted_day_fields_match_either_and_a_star_makes_both_needed(
    expr: str, slots: list[str]
) -> None:
    assert list_slots(expr, "2026-01-01 00:00:00", len(slots)) == [
        f"{day} 00:00:00" for day in slots
    ]


@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    ("expr", "part"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "7 fields"),
        ("60 * * * *", "minute"),
        ("60 * * * * *", "second"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * 32 * *", "day of month"),
        ("* * * 13 *", "month"),
        ("* * * 0 *", "month"),
        ("* * * * 8", "day of week"),
        ("* * * FOO *", "month"),
        ("* * * * MO", "day of week"),
        ("*/0 * * * *", "minute"),
        ("*/61 * * * *", "minute"),
        ("*/x * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("1//2 * * * *", "minute"),
        ("1-2-3 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("1, * * * *", "minute"),
        (",1 * * * *", "minute"),
        ("1.5 * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("? * * * *", "minute"),
        ("* ? * * *", "hour"),
        ("* * ?/2 * *", "day of month"),
        ("* * 1,? * *", "day of month"),
        ("50-10 * * * *", "minute"),
        ("* 22-2 * * *", "hour"),
        ("* * * * FRI-SUN", "day of week"),
        ("* * * * 6-1", "day of week"),
        ("* * * NOV-FEB *", "month"),
        ("* * L-3 * *", "day of month"),
        ("* * 1,L * *", "day of month"),
        ("* * L,15 * *", "day of month"),
        ("* * 1W,15W * *", "day of month"),
        ("* * LW,1 * *", "day of month"),
        ("* * 1-5W * *", "day of month"),
        ("* * 0W * *", "day of month"),
        ("* * 32W * *", "day of month"),
        ("* * W * *", "day of month"),
        ("* * WL * *", "day of month"),
        ("* * * * 1#2,3#1", "day of week"),
        ("* * * * 1,5L", "day of week"),
        ("* * * * 1#0", "day of week"),
        ("* * * * 1#6", "day of week"),
        ("* * * * 8#1", "day of week"),
        ("* * * * #1", "day of week"),
        ("* * * * L", "day of week"),
        ("* * * * 8L", "day of week"),
        ("* L * * *", "hour"),
        ("@never", "@yearly"),
        ("@every 5m", '"kind": "every", "every": "5m"'),
        ("@reboot", "@yearly"),
        ("0-99999999/1 * * * *", "minute"),
        ("99999999999999999999999 * * * *", "minute"),
        ("*/99999999999999999999999 * * * *", "minute"),
    ],
)
def test_a_bad_expression_is_refused_naming_the_field_and_what_is_allowed(
    expr: str, part: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        parse_cron(expr)
    assert refused.value.field == "cron_expr"
    assert part in refused.value.message
    assert any(word in refused.value.message for word in ("allowed", "must"))


@pytest.mark.fault("F25")
@pytest.mark.spec("C7", "X13")
def test_an_expression_may_have_255_characters_and_no_more() -> None:
    minutes = ",".join(["10"] * 81)
    longest = f"{minutes} 10 * * *".ljust(255)
    assert len(parse_cron(longest).normalized) <= 255
    with pytest.raises(InvalidError, match="255"):
        parse_cron(longest + " ")
    grows = ",".join(["10"] * 82) + ",1 1 * * *"  # the second field in front makes it 257
    assert len(grows) == 255
    with pytest.raises(InvalidError, match="255"):
        parse_cron(grows)


@pytest.mark.fault("F25")
@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    "expr",
    [
        "0 0 31 4 *",
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 31W 4 *",
        "0 0 30W 2 ?",
        "0 0 LW * */7",
        "0 0 31 4 */2",
    ],
)
def test_an_expression_that_never_comes_is_refused_at_once(expr: str) -> None:
    begun = time.process_time()
    with pytest.raises(InvalidError, match="never comes within 50 years"):
        parse_cron(expr)
    assert time.process_time() - begun < 0.005


@pytest.mark.spec("C7")
def test_rare_days_are_found_across_the_missing_leap_year_2100() -> None:
    assert list_slots("0 0 29 2 *", "2096-03-01 00:00:00", 1) == ["2104-02-29 00:00:00"]
    for weekday in range(7):
        expr = f"0 0 29 2 */{weekday}" if weekday > 3 else f"0 0 */28 2 {weekday}"
        assert parse_cron(expr).next_local(local("2072-03-01 00:00:00")) < local(
            "2122-03-01 00:00:00"
        )
    leap_sunday = parse_cron("0 0 29 2 */7")
    assert leap_sunday.next_local(local("2088-03-01 00:00:00")) == local("2128-02-29 00:00:00")


@pytest.mark.spec("C7", "C10")
@pytest.mark.parametrize(
    "expr",
    [
        "*/7 3-5 * * *",
        "30 6-16/4 * * 1-5",
        "10,40 5 12 L * *",
        "0 0 13 * 5",
        "*/20 * * * * *",
        "0 0 29 2 *",
    ],
)
def test_looking_back_and_counting_agree_with_looking_forward(expr: str) -> None:
    found = parse_cron(expr)
    start = at = local("2027-12-30 11:22:33")
    slots = []
    for _ in range(300):
        at = found.next_local(at + 1)
        slots.append(at)
    assert slots == sorted(set(slots))
    for index in (0, 1, 7, 150, 299):
        assert found.count_local(start, slots[index]) == index
        assert found.count_local(start, slots[index] + 1) == index + 1
        assert found.previous_local(slots[index]) == slots[index]
        if index:
            assert found.previous_local(slots[index] - 1) == slots[index - 1]


def test_an_expression_without_end_stops_at_the_calendar() -> None:
    every_minute = parse_cron("* * * * *")
    last = local("9999-12-31 23:59:00")
    assert every_minute.next_local(last) == last
    assert every_minute.next_local(last + 1) > last + 10**12
    assert every_minute.previous_local(local("0001-01-01 00:00:00") - 1) < -(10**12)
