"""A timetable over one jump of a clock, under every choice of its rules, against a walk through
real time: the next slot, the latest, and how many."""

import random
from datetime import UTC, datetime

import pytest

from ksana.domain.timetable import Timetable, _clock_of, get_timetable
from ksana.domain.zones import MARGIN
from tests.properties.cron_walk import Walk, load_zone

pytestmark = pytest.mark.spec("C7", "X5")

FORWARD = int(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp())
BACK = int(datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp())
EXPRESSIONS = ("30 2 * * *", "*/20 * * * *", "0 3 * * *", "15 1-3 * * *", "7 7 7 * * *")
WALKS = {at: Walk(load_zone("Europe/Berlin"), at, 60, reach=5 * 3600) for at in (FORWARD, BACK)}
LATER = Walk(load_zone("Europe/Berlin"), FORWARD + MARGIN, 60, reach=5 * 3600)


@pytest.mark.parametrize("expr", ["30 2 * * *", "15 1-3 * * *", "*/20 * * * *"])
@pytest.mark.parametrize("gap", ["next", "skip", "shift"])
def test_what_a_jump_skipped_does_not_reach_into_later_days(expr: str, gap: str) -> None:
    slots = LATER.slots(expr, gap, None)
    get_timetable.cache_clear()
    _clock_of.cache_clear()
    table = get_timetable(expr, "Europe/Berlin", gap, None)  # type: ignore[arg-type]
    found, at = [], LATER.start - 1
    while (slot := table.next_after(at)) is not None and slot <= LATER.end:
        found.append(slot)
        at = slot
    assert found == slots
    assert len(slots) >= 1
    assert table.count_between(LATER.start - 1, LATER.end) == len(slots)
    assert [table.latest_at_or_before(slot) for slot in slots] == slots


@pytest.mark.parametrize("expr", EXPRESSIONS)
@pytest.mark.parametrize("jump", [FORWARD, BACK], ids=["forward", "back"])
@pytest.mark.parametrize("overlap", ["first", "second", "both", None])
@pytest.mark.parametrize("gap", ["next", "skip", "shift", None])
def test_slots_about_a_jump_are_those_of_a_walk(
    expr: str, jump: int, gap: str | None, overlap: str | None
) -> None:
    walk = WALKS[jump]
    slots = walk.slots(expr, gap, overlap)
    get_timetable.cache_clear()
    table = get_timetable(expr, "Europe/Berlin", gap, overlap)  # type: ignore[arg-type]
    found, at = [], walk.start - 1
    while (slot := table.next_after(at)) is not None and slot <= walk.end:
        found.append(slot)
        at = slot
    assert found == slots
    back, at = [], walk.end
    while (before := table.latest_at_or_before(at)) is not None and before >= walk.start:
        back.append(before)
        at = before - 1
    assert back[::-1] == slots
    edges = sorted({walk.start, jump - 1, jump, jump + 3600, walk.end, *slots})
    for low in edges:
        for high in edges:
            expected = sum(low < slot <= high for slot in slots)
            assert table.count_between(low, high) == expected


@pytest.mark.parametrize(
    ("expr", "gap", "overlap"),
    [
        ("30 2 * * *", "next", "first"),
        ("*/20 * * * *", "skip", "both"),
        ("0 * * * *", "skip", "both"),
    ],
)
def test_fixed_times_and_others_have_rules_of_their_own_where_none_are_chosen(
    expr: str, gap: str, overlap: str
) -> None:
    get_timetable.cache_clear()
    table = get_timetable(expr, "Europe/Berlin", None, None)
    assert (table.gap, table.overlap) == (gap, overlap)
    chosen = get_timetable(expr, "Europe/Berlin", "shift", "second")
    assert (chosen.gap, chosen.overlap) == ("shift", "second")


@pytest.mark.parametrize(
    ("expr", "steps"),
    [
        ("0,30 * * * * *", [30] * 6),
        ("5,20,50 * * * * *", [15, 30, 15] * 2),
        ("7 * * * * *", [60] * 4),
    ],
)
def test_several_seconds_of_a_minute_all_fire(expr: str, steps: list[int]) -> None:
    get_timetable.cache_clear()
    table = get_timetable(expr, "UTC", None, None)
    at = table.next_after(FORWARD)
    assert at is not None
    for step in steps:
        following = table.next_after(at)
        assert following == at + step
        at = following


@pytest.mark.parametrize("after", [-601, -2, -1, 0, 599])
def test_the_beginning_of_time_is_an_instant_like_any_other(after: int) -> None:
    get_timetable.cache_clear()
    table = get_timetable("*/20 * * * *", "Asia/Kathmandu", None, None)  # +05:30 then
    assert table.next_after(after) == (-600 if after < -600 else 600)


@pytest.mark.parametrize("expr", ["*/7 9-17 * * *", "0,59 */7 0-3 * * *", "30 */7 20-23 * * *"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "Europe/Berlin"])
def test_a_timetable_answers_the_same_whatever_it_was_asked_before(expr: str, zone: str) -> None:
    get_timetable.cache_clear()
    table = get_timetable(expr, zone, None, None)
    instants = [BACK + at for at in range(-2 * 86_400, 2 * 86_400, 1_799)]
    random.Random(1).shuffle(instants)
    for at in instants:
        slot = table.next_after(at)
        assert slot == Timetable(table.expr, table.zone, None, None).next_after(at)
        assert slot is not None and table.next_after(slot - 1) == slot


@pytest.mark.parametrize(
    "expr",
    ["10,40 59 23 * * *", "0,59 */7 * * * *", "5,10 0 0 * * *", "30 59 23 * * 1", "59 59 23 * * *"],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
def test_slots_by_the_second_are_the_same_forward_backward_and_counted(
    expr: str, zone: str
) -> None:
    get_timetable.cache_clear()
    table = get_timetable(expr, zone, None, None)
    start, end = BACK + 4 * 86_400, BACK + 12 * 86_400
    forward, at = [], start
    while (slot := table.next_after(at)) is not None and slot <= end:
        # Once from the day that is remembered, once from nothing.
        assert slot == Timetable(table.expr, table.zone, None, None).next_after(at)
        forward.append(slot)
        at = slot
    backward, at = [], end
    while (before := table.latest_at_or_before(at)) is not None and before > start:
        backward.append(before)
        at = before - 1
    assert forward == backward[::-1]
    assert table.count_between(start, end) == len(forward) > 0


@pytest.mark.parametrize(
    ("expr", "hour"),
    [("30 2 * * *", 2.5), ("0 2 * * *", 2.0), ("0 3 * * *", None), ("59 1 * * *", None)],
)
def test_a_time_within_the_jump_is_skipped_and_one_at_its_end_is_not(
    expr: str, hour: float | None
) -> None:
    get_timetable.cache_clear()
    table = get_timetable(expr, "Europe/Berlin", None, None)
    [jump] = table.zone.transitions_between(FORWARD - 1, FORWARD)
    midnight = FORWARD - 3_600
    assert table.skips_at(jump) == (None if hour is None else midnight + hour * 3_600)
    [back] = table.zone.transitions_between(BACK - 1, BACK)
    assert table.skips_at(back) is None


def test_the_last_second_before_a_jump_is_found_from_behind_it() -> None:
    table = get_timetable("59 59 1 * * *", "Europe/Berlin", None, None)
    assert table.latest_at_or_before(FORWARD + 3_600) == FORWARD - 1


def test_every_second_of_a_gap_is_shifted() -> None:
    last = get_timetable("59 59 2 * * *", "Europe/Berlin", "shift", None)
    assert last.latest_at_or_before(FORWARD + 7_200) == FORWARD + 3_599
    every = get_timetable("* * 2 * * *", "Europe/Berlin", "shift", None)
    assert every.count_between(FORWARD - 1, FORWARD + 7_200) == 3_600


def test_within_a_day_the_first_second_follows_the_last() -> None:
    table = get_timetable("10,59 */15 * * * *", "UTC", None, None)
    at, found = FORWARD - 1, []
    for _ in range(5):
        slot = table.next_after(at)
        assert slot is not None
        found.append(slot - FORWARD)
        at = slot
    assert found == [10, 59, 910, 959, 1_810]
