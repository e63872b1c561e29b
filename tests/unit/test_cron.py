"""Reading cron expressions and finding, counting and refusing what they name, on the plain
calendar."""

import time
from datetime import datetime, timedelta

import pytest

from ksana.base.errors import InvalidError
from ksana.domain.cron import CronExpr, parse_cron
from ksana.domain.cron_fields import read_fields

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
        # One value is a range too; the widest step is the field's own width.
        ("7-7 3 * * *", ["2026-01-01 03:07:00", "2026-01-02 03:07:00"]),
        ("0-30/1 3 * * *", ["2026-01-01 03:00:00", "2026-01-01 03:01:00"]),
        ("*/60 * * * *", ["2026-01-01 01:00:00", "2026-01-01 02:00:00"]),
        ("0 */24 * * *", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("0 0 */31 * *", ["2026-02-01 00:00:00", "2026-03-01 00:00:00"]),
        ("0 0 1 */12 *", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("0 0 * * */8", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("0 0 * * 0-6", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        (
            "0 0 * * 1-6",
            ["2026-01-02 00:00:00", "2026-01-03 00:00:00", "2026-01-05 00:00:00"],
        ),
        ("0 0 * * 7#1", ["2026-01-04 00:00:00", "2026-02-01 00:00:00"]),
        ("0 0 2W 5 *", ["2026-05-01 00:00:00", "2027-05-03 00:00:00"]),
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
        ("*/61 * * * *", "a step must be 1-60"),
        ("* */25 * * *", "a step must be 1-24"),
        ("* * */32 * *", "a step must be 1-31"),
        ("* * * */13 *", "a step must be 1-12"),
        ("* * * * */9", "a step must be 1-8"),
        ("*/-1 * * * *", "a step must be 1-60"),
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
        ("* * WL * *", "day of month 'WL' is not valid"),
        ("* * 3,L * *", "day of month '3,L' is not valid"),
        ("* * 3,LW * *", "day of month '3,LW' is not valid"),
        ("* * 3,4W * *", "day of month '3,4W' is not valid"),
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
    assert any(word in refused.value.message for word in ("allowed", "must", "write"))


@pytest.mark.fault("F25")
@pytest.mark.spec("C7", "X13")
def test_an_expression_may_have_255_characters_and_no_more() -> None:
    minutes = ",".join(["10"] * 81)
    longest = f"{minutes} 10 * * *".ljust(255)
    assert len(parse_cron(longest).normalized) <= 255
    with pytest.raises(InvalidError, match="255"):
        parse_cron(longest + " ")
    fits = ",".join(["10"] * 80) + ",10 1,11 * * *"
    assert len(f"0 {fits}") == 255 == len(parse_cron(fits).normalized)
    with pytest.raises(InvalidError, match="255"):
        parse_cron(fits.replace(" 1,11", " 11,11"))
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


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidError, match="must be a text of 5 or 6 fields"):
        parse_cron.__wrapped__(5)  # type: ignore[arg-type]


def test_an_expression_that_never_comes_names_its_three_fields() -> None:
    with pytest.raises(InvalidError) as refused:
        parse_cron("1 2 31 4 */6")
    assert refused.value.message.startswith(
        "day of month '31' in month '4' with day of week '*/6' never comes"
    )


def test_nothing_lies_in_an_empty_or_inverted_span() -> None:
    every_second = parse_cron("* * * * * *")
    at = local("2026-01-01 10:00:00")
    assert every_second.count_local(at, at) == every_second.count_local(at, at - 10) == 0
    assert every_second.count_local(at, at + 1) == 1


def test_counting_ends_where_the_calendar_does() -> None:
    yearly = parse_cron("0 0 1 1 *")
    long_ago, far = local("0001-01-01 00:00:00") - 10**12, local("9999-12-31 00:00:00") + 10**12
    assert yearly.count_local(long_ago, far) == 9999
    daily = parse_cron("0 0 * * *")
    assert daily.count_local(local("9999-12-30 00:00:00"), far) == 2
    assert daily.count_local(long_ago, local("0001-01-03 00:00:00")) == 2


def test_the_last_day_of_the_calendar_is_found() -> None:
    evening = parse_cron("30 15 20 * * *")
    last = local("9999-12-31 20:15:30")
    assert evening.next_local(last - 5) == last
    assert evening.previous_local(last + 10**6) == last
    assert evening.previous_local(local("2026-01-02 20:15:29")) == local("2026-01-01 20:15:30")
    first = local("0001-01-01 20:15:30")
    assert evening.next_local(first - 10**7) == first
    assert evening.previous_local(first) == first


def test_looking_back_finds_the_last_second_of_an_earlier_block() -> None:
    new_year = parse_cron("10,50 30,59 3,23 1 1 *")
    last = local("2025-01-01 23:59:50")
    assert new_year.previous_local(local("2025-12-31 00:00:00")) == last
    assert new_year.previous_local(last - 1) == local("2025-01-01 23:59:10")
    assert new_year.previous_local(local("2025-01-01 23:30:09")) == local("2025-01-01 03:59:50")
    assert new_year.previous_local(local("2025-01-01 03:30:05")) == local("2024-01-01 23:59:50")


def test_steps_tell_how_far_the_next_match_of_a_day_or_minute_is() -> None:
    few, many = parse_cron("0 0 * * *"), parse_cron("*/15 */30 * * * *")
    assert few.minute_steps() is None
    assert parse_cron("0-47 3 * * *").minute_steps() is not None
    assert parse_cron("0-46 3 * * *").minute_steps() is None
    steps = many.minute_steps()
    assert steps is not None
    never = many.second_steps()[59]
    assert (len(steps), steps[0], steps[1], steps[1410], steps[1411]) == (
        *(1441, 0, 1800),
        *(1410 * 60, never),
    )
    assert steps[1439] == steps[1440] == never > 24 * 3600
    late = parse_cron("*/15 5-59 * * * *").minute_steps()
    assert late is not None and (late[0], late[5], late[1439]) == (300, 300, 1439 * 60)
    seconds = many.second_steps()
    assert (len(seconds), seconds[0], seconds[1], seconds[45], seconds[46]) == (
        *(60, 0, 14),
        *(0, never),
    )


def test_an_expression_forgets_days_it_has_long_not_needed() -> None:
    daily = CronExpr(read_fields("0 0 * * *"))
    for year in range(1100, 2700):
        daily.next_local(local(f"{year}-06-01 00:00:00"))
        assert len(daily._blocks) <= 512
    assert daily.next_local(local("2026-06-01 00:00:01")) == local("2026-06-02 00:00:00")


def test_looking_back_finds_a_day_in_any_earlier_block_and_at_the_beginning_of_its_own() -> None:
    leap = parse_cron("0 0 29 2 *")
    for year in range(2024, 2028):
        for month in range(3, 13):
            at = local(f"{year}-{month:02}-01 00:00:00")
            assert leap.previous_local(at) == local("2024-02-29 00:00:00")
    # 2026-01-27 is the first day of a block.
    assert local("2026-01-27 00:00:00") % (512 * 86_400) == 0
    first = parse_cron("30 5 27 1 *")
    for at in ("2026-01-27 05:30:00", "2026-01-27 23:00:00", "2026-02-05 00:00:00"):
        assert first.previous_local(local(at)) == local("2026-01-27 05:30:00")
    assert first.next_local(local("2026-01-20 00:00:00")) == local("2026-01-27 05:30:00")
