"""Once, every and cron: which slots there are, counted and found by arithmetic, and the jitter of
their firing."""

import time

import msgspec
import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, parse_instant
from ksana.domain import schedule
from ksana.domain.schedule import Cron, Every, Once, make_cron, make_every
from tests.unit.schedule_ground import take

T0 = parse_instant("2026-01-01T00:00:00Z")


@pytest.mark.spec("T6")
def test_once_has_one_slot() -> None:
    once = Once(T0)
    assert schedule.next_after(once, T0 - 1) == T0
    assert schedule.next_after(once, T0) is None
    assert schedule.latest_at_or_before(once, T0) == T0
    assert schedule.latest_at_or_before(once, T0 - 1) is None
    assert schedule.count_between(once, T0 - 1, T0) == 1
    assert schedule.count_between(once, T0, T0 + DAY) == 0
    assert schedule.latest_n(once, T0 + DAY, 5, T0 - DAY) == [T0]


@pytest.mark.spec("T6")
def test_once_may_lie_a_second_in_the_past_when_it_is_set() -> None:
    assert schedule.first_slot(Once(T0), T0 + SECOND) == T0
    assert schedule.first_slot(Once(T0), T0 + SECOND + 1) is None
    assert schedule.first_slot(make_every(MINUTE, now=T0), T0) == T0 + MINUTE


@pytest.mark.spec("T7")
def test_an_interval_without_start_counts_from_when_it_was_set() -> None:
    every = make_every(5 * MINUTE, now=T0)
    assert schedule.next_after(every, T0 - DAY) == T0 + 5 * MINUTE
    assert schedule.next_after(every, T0) == T0 + 5 * MINUTE
    assert schedule.next_after(every, T0 + 5 * MINUTE) == T0 + 10 * MINUTE
    assert schedule.latest_at_or_before(every, T0 + 5 * MINUTE - 1) is None


@pytest.mark.spec("T7")
def test_a_given_start_is_a_slot_itself_and_the_grid_for_all_others() -> None:
    every = make_every(5 * MINUTE, now=T0, start_at=T0 + HOUR)
    assert schedule.next_after(every, T0) == T0 + HOUR
    past = make_every(5 * MINUTE, now=T0, start_at=T0 - HOUR - MINUTE)
    assert schedule.next_after(past, T0) == T0 + 4 * MINUTE


@pytest.mark.spec("T7")
def test_an_interval_never_drifts_and_takes_the_first_slot_after_any_outage() -> None:
    every = make_every(7 * SECOND, now=T0)
    far = T0 + 1000 * 365 * DAY + 3
    found = schedule.next_after(every, far)
    assert found is not None and (found - T0) % (7 * SECOND) == 0 and 0 < found - far <= 7 * SECOND


@pytest.mark.spec("T9")
def test_an_interval_is_at_least_a_tenth_of_a_second() -> None:
    assert make_every(100_000, now=T0).every_us == 100_000
    with pytest.raises(InvalidError, match="100ms") as refused:
        make_every(99_999, now=T0)
    assert refused.value.field == "schedule.every"


@pytest.mark.fault("F15")
@pytest.mark.spec("T8")
def test_jitter_is_the_same_for_a_task_and_slot_and_spreads_over_its_whole_span() -> None:
    every = make_every(MINUTE, now=T0, jitter_us=5 * SECOND)
    slots = take(every, T0, 400)
    delays = [schedule.fire_at(every, "job-1", slot) - slot for slot in slots]
    assert delays == [schedule.fire_at(every, "job-1", slot) - slot for slot in slots]
    assert delays != [schedule.fire_at(every, "job-2", slot) - slot for slot in slots]
    assert 0 <= min(delays) < SECOND // 2 and 4.5 * SECOND < max(delays) <= 5 * SECOND
    assert schedule.fire_at(make_every(MINUTE, now=T0), "job-1", T0) == T0
    assert schedule.fire_at(Once(T0, jitter_us=1), "a", T0) in (T0, T0 + 1)


@pytest.mark.spec("T8")
def test_jitter_known_value_so_that_instances_of_all_versions_agree() -> None:
    cron = make_cron("* * * * *", jitter_us=HOUR)
    assert schedule.fire_at(cron, "42", T0) - T0 == 1_192_577_067


@pytest.mark.spec("T8")
def test_jitter_must_stay_below_the_interval() -> None:
    make_every(MINUTE, now=T0, jitter_us=MINUTE - 1)
    with pytest.raises(InvalidError) as refused:
        make_every(MINUTE, now=T0, jitter_us=MINUTE)
    assert refused.value.field == "schedule.jitter"


@pytest.mark.spec("C8")
@pytest.mark.parametrize(
    "wanted",
    [
        make_cron("0 * * * *", start_at=T0 + 2 * HOUR, end_at=T0 + 5 * HOUR),
        Every(HOUR, T0, True, 0, T0 + 2 * HOUR, T0 + 5 * HOUR),
        Every(HOUR, T0 - 7 * HOUR, False, 0, T0 + 90 * MINUTE, T0 + 5 * HOUR + 1),
    ],
)
def test_start_and_end_bound_every_question_and_belong_to_the_span(
    wanted: schedule.Schedule,
) -> None:
    inside = [T0 + k * HOUR for k in (2, 3, 4, 5)]
    assert take(wanted, T0 - DAY, 10) == inside
    assert schedule.latest_at_or_before(wanted, T0 + DAY) == inside[-1]
    assert schedule.latest_at_or_before(wanted, T0 + 2 * HOUR - 1) is None
    assert schedule.count_between(wanted, T0 - DAY, T0 + DAY) == 4
    assert schedule.count_between(wanted, inside[0], inside[2]) == 2
    assert schedule.latest_n(wanted, T0 + DAY, 3, T0 - DAY) == inside[1:]
    assert schedule.latest_n(wanted, T0 + DAY, 10, inside[1]) == inside[2:]


@pytest.mark.spec("C8")
def test_an_end_before_the_start_is_refused() -> None:
    for make in (
        lambda: make_cron("* * * * *", start_at=T0, end_at=T0 - 1),
        lambda: make_every(HOUR, now=T0, start_at=T0, end_at=0),
    ):
        with pytest.raises(InvalidError) as refused:
            make()
        assert refused.value.field == "schedule.end_at"


@pytest.mark.spec("C10")
def test_fractions_of_a_second_round_to_the_slots_they_lie_between() -> None:
    cron = make_cron("* * * * * *")
    assert schedule.next_after(cron, T0) == T0 + SECOND
    assert schedule.next_after(cron, T0 - 1) == T0
    assert schedule.latest_at_or_before(cron, T0 + SECOND - 1) == T0
    assert schedule.count_between(cron, T0 - 1, T0) == 1
    assert schedule.count_between(cron, T0, T0 + SECOND - 1) == 0
    assert schedule.count_between(cron, T0 + 1, T0 + SECOND) == 1
    begun = make_cron("* * * * * *", start_at=T0 + 1)
    assert schedule.next_after(begun, T0 - DAY) == T0 + SECOND, "the slot before is not within"
    assert schedule.count_between(begun, T0 - DAY, T0 + SECOND) == 1


@pytest.mark.fault("F03")
@pytest.mark.spec("C10")
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+05:30"])
def test_an_outage_of_years_is_counted_in_milliseconds(zone: str) -> None:
    until = T0 + 175 * 365 * DAY
    every_second, workdays = make_cron("* * * * * *", zone), make_cron("30 6-16/4 * * 1-5", zone)
    begun = time.process_time()
    assert schedule.count_between(every_second, T0, until) == (until - T0) // SECOND
    assert schedule.count_between(workdays, T0, until) == pytest.approx(
        3 * 5 / 7 * 175 * 365, rel=0.001
    )
    newest = schedule.latest_n(workdays, until, 1000, T0)
    assert len(newest) == 1000 and newest == sorted(set(newest))
    assert schedule.next_after(workdays, newest[-2]) == newest[-1]
    assert time.process_time() - begun < 0.5


def test_schedules_are_equal_by_value_also_after_use() -> None:
    used, fresh = make_cron("0 9 * * *", "Europe/Berlin"), make_cron("0 9 * * *", "Europe/Berlin")
    schedule.next_after(used, T0)
    assert used == fresh and hash(used) == hash(fresh)
    assert isinstance(used, Cron)


def test_schedules_survive_being_stored_as_json_also_after_use() -> None:
    for wanted in (
        Once(T0),
        make_every(HOUR, now=T0, jitter_us=5),
        make_cron("0 9 * * *", "Europe/Berlin", dst_gap="skip"),
    ):
        schedule.next_after(wanted, T0)
        stored = msgspec.json.encode(wanted)
        assert b"timetable" not in stored
        assert msgspec.json.decode(stored, type=schedule.Schedule) == wanted


@pytest.mark.parametrize("gap", ["later", "NEXT", ""])
def test_unknown_rules_for_jumps_are_refused(gap: str) -> None:
    with pytest.raises(InvalidError) as refused:
        make_cron("* * * * *", dst_gap=gap)  # type: ignore[arg-type]
    assert refused.value.field == "dst_gap"
    with pytest.raises(InvalidError) as refused:
        make_cron("* * * * *", dst_overlap=gap)  # type: ignore[arg-type]
    assert refused.value.field == "dst_overlap"


def test_a_jitter_of_nothing_is_allowed_and_less_is_refused() -> None:
    wanted = make_cron("0 9 * * *", jitter_us=0)
    assert schedule.fire_at(wanted, "j", T0) == T0
    with pytest.raises(InvalidError) as refused:
        make_cron("0 9 * * *", jitter_us=-1)
    assert refused.value.field == "schedule.jitter"
    assert schedule.fire_at(make_every(HOUR, now=T0, jitter_us=0), "j", T0) == T0
    with pytest.raises(InvalidError) as refused:
        make_every(HOUR, now=T0, jitter_us=-1)
    assert refused.value.field == "schedule.jitter"


def test_the_least_jitter_is_spread_over_two_instants() -> None:
    wanted = make_every(HOUR, now=T0, jitter_us=1)
    late = {schedule.fire_at(wanted, str(n), T0) - T0 for n in range(64)}
    assert late == {0, 1}


def test_a_window_may_be_one_instant() -> None:
    noon = T0 + 12 * HOUR
    for wanted in (
        make_cron("0 12 * * *", start_at=noon, end_at=noon),
        make_every(HOUR, now=T0, start_at=noon, end_at=noon),
    ):
        assert schedule.next_after(wanted, T0) == noon
        assert schedule.next_after(wanted, noon) is None
        assert schedule.latest_at_or_before(wanted, noon + DAY) == noon
        assert schedule.latest_at_or_before(wanted, noon - 1) is None
        assert schedule.count_between(wanted, T0, T0 + DAY) == 1
        assert schedule.count_between(wanted, noon, T0 + DAY) == 0
        assert schedule.latest_n(wanted, T0 + DAY, 5, T0) == [noon]


def test_slots_before_a_start_are_not_counted_and_an_inverted_span_holds_none() -> None:
    wanted = make_cron("0 * * * *", start_at=T0 + 5 * HOUR)
    assert schedule.next_after(wanted, T0 + 5 * HOUR - 1) == T0 + 5 * HOUR
    assert schedule.count_between(wanted, T0, T0 + 5 * HOUR - 1) == 0
    assert schedule.count_between(wanted, T0, T0 + 5 * HOUR) == 1
    assert schedule.count_between(wanted, T0 + 6 * HOUR, T0 + 7 * HOUR) == 1
    assert schedule.count_between(wanted, T0 + 9 * HOUR, T0 + 8 * HOUR) == 0
    every = make_every(HOUR, now=T0)
    assert schedule.count_between(every, T0 + 9 * HOUR, T0 + 3 * HOUR) == 0
    assert schedule.count_between(every, T0 + 9 * HOUR, T0 + 9 * HOUR) == 0


def test_an_interval_with_a_later_start_begins_at_the_first_point_of_its_grid() -> None:
    """The anchor stays, as when a start is added to a schedule that runs."""
    for late, first in ((0, HOUR), (1, HOUR), (HOUR, HOUR), (HOUR + 1, 2 * HOUR)):
        wanted = Every(HOUR, T0, False, 0, T0 + late)
        assert schedule.next_after(wanted, T0 - DAY) == T0 + first, late
        assert schedule.latest_at_or_before(wanted, T0 + first) == T0 + first
        assert schedule.latest_at_or_before(wanted, T0 + first - 1) is None


def test_the_newest_slots_are_neighbours_to_the_microsecond() -> None:
    wanted = Every(1, T0, False)
    assert schedule.latest_n(wanted, T0 + 9, 3, T0) == [T0 + 7, T0 + 8, T0 + 9]
