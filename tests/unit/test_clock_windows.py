"""A clock that was ahead and was set back, and schedules of the past, as plain values."""

from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND, Instant
from ksana.domain import schedule as schedules
from ksana.domain.explain import Fact
from ksana.domain.schedule import Every, Once, make_cron
from ksana.domain.tasks.arming import arm, rearm
from ksana.domain.tasks.clock_steps import (
    NO_WINDOWS,
    ClockWindows,
    LivedSpan,
    SkippedSpan,
    find_lived,
    find_skipped_slot,
    make_windows,
)
from ksana.domain.tasks.past_schedule import schedule_in_force
from tests.unit.task_ground import EVERY_TEN, NOW, a_definition, a_task

pytestmark = pytest.mark.spec("X5")

TEN = 10 * SECOND
SKIPPED = SkippedSpan(NOW, NOW + HOUR)
LIVED = LivedSpan(NOW + HOUR, NOW + HOUR + MINUTE, NOW)
WINDOWS = make_windows([SKIPPED], [LIVED])


def test_windows_are_in_order_and_know_their_ends() -> None:
    first, second = SkippedSpan(1, 9), SkippedSpan(3, 4)
    lived = [LivedSpan(7, 8, 0), LivedSpan(2, 12, 0)]
    windows = make_windows([second, first], lived)
    assert windows == ClockWindows((first, second), (lived[1], lived[0]), 12)
    assert windows.skipped_until == 9
    assert (NO_WINDOWS.skipped_until, NO_WINDOWS.lived_until) == (0, 0)
    assert make_windows([], []) == NO_WINDOWS


@pytest.mark.parametrize(
    ("due_at", "is_lived"),
    [
        (LIVED.since, False),
        (LIVED.since + 1, True),
        (LIVED.until, True),
        (LIVED.until + 1, False),
    ],
)
def test_what_fires_in_time_that_was_lived_was_decided_then(due_at: int, is_lived: bool) -> None:
    assert find_lived(a_task(), due_at, WINDOWS) == (LIVED if is_lived else None)
    later = LivedSpan(LIVED.until, LIVED.until + 9, NOW)
    assert find_lived(a_task(), LIVED.until + 1, make_windows([], [LIVED, later])) == later


@pytest.mark.parametrize(
    ("created_at", "was_there"),
    [
        (NOW - 1, True),
        (NOW, False),  # made after the clock was set back
        (LIVED.since, False),
        (LIVED.since + 1, True),  # made while the clock was ahead
    ],
)
def test_a_span_concerns_tasks_that_were_there(created_at: int, was_there: bool) -> None:
    task = a_task(created_at=created_at)
    assert LIVED.concerns(task) is was_there
    assert (find_lived(task, LIVED.until, WINDOWS) is not None) is was_there


def skipped_slot(now: Instant = NOW, claimed: Any = (), windows: Any = WINDOWS, **task: Any) -> Any:
    ahead = {"next_slot_at": LIVED.until + TEN, "fire_at": LIVED.until + TEN}
    return find_skipped_slot(a_task(**ahead | task), now, windows, claimed)


def test_a_task_is_armed_for_the_first_slot_that_was_jumped_over() -> None:
    assert skipped_slot() == (NOW + TEN, NOW + TEN)
    assert skipped_slot(NOW + 1) == (NOW + TEN, NOW + TEN)
    assert skipped_slot(NOW + TEN) == (NOW + 2 * TEN, NOW + 2 * TEN)
    assert skipped_slot(NOW - HOUR) == (NOW + TEN, NOW + TEN), "only what was jumped over"


def test_slots_that_were_made_up_or_lived_are_passed_over() -> None:
    assert skipped_slot(claimed={NOW + TEN, NOW + 2 * TEN}) == (NOW + 3 * TEN, NOW + 3 * TEN)
    lived = LivedSpan(NOW, NOW + 3 * TEN, NOW)
    windows = make_windows([SKIPPED], [lived])
    assert skipped_slot(windows=windows) == (NOW + 4 * TEN, NOW + 4 * TEN)


@pytest.mark.parametrize(
    "task",
    [
        {"status": "DISABLED"},
        {"max_runs": 5, "runs_fired": 5},
        {"next_slot_at": NOW + TEN},
        {"next_slot_at": NOW + 1},
        {"schedule": Once(NOW)},
        {"schedule": Once(SKIPPED.until + 1)},
    ],
)
def test_a_task_that_has_no_such_slot_or_is_armed_as_early_stays(task: dict[str, Any]) -> None:
    schedule = task.pop("schedule", EVERY_TEN)
    ahead = {"next_slot_at": LIVED.until + TEN, **task}
    assert find_skipped_slot(a_task(schedule, **ahead), NOW, WINDOWS, ()) is None


def test_a_task_with_runs_left_or_without_a_slot_is_armed() -> None:
    assert skipped_slot(max_runs=5, runs_fired=4) is not None
    assert skipped_slot(next_slot_at=None, fire_at=None) == (NOW + TEN, NOW + TEN)
    assert skipped_slot(next_slot_at=NOW + TEN + 1) == (NOW + TEN, NOW + TEN)


def test_the_last_instant_that_was_jumped_over_counts_and_a_later_span_is_looked_at() -> None:
    once = Once(SKIPPED.until)
    task = a_task(once, next_slot_at=None, fire_at=None)
    windows = make_windows([SKIPPED], [])
    assert find_skipped_slot(task, NOW, windows, ()) == (SKIPPED.until, SKIPPED.until)
    second = SkippedSpan(NOW + 2 * HOUR, NOW + 3 * HOUR)
    later = a_task(Once(NOW + 2 * HOUR + 1), next_slot_at=None)
    assert find_skipped_slot(later, NOW, make_windows([SKIPPED, second], []), ()) == (
        NOW + 2 * HOUR + 1,
        NOW + 2 * HOUR + 1,
    )


def test_with_jitter_a_slot_counts_when_it_fires() -> None:
    jittered = Every(TEN, 0, False, jitter_us=9 * SECOND)
    for slot in range(NOW, NOW + 20 * TEN, TEN):
        fires = schedules.fire_at(jittered, "j", slot)
        window = make_windows([SkippedSpan(fires - 1, fires)], [])
        task = a_task(jittered, next_slot_at=None)
        assert find_skipped_slot(task, 0, window, ()) == (slot, fires)
        assert find_skipped_slot(task, fires, window, ()) is None
        lived = make_windows([SkippedSpan(NOW, NOW + HOUR)], [LivedSpan(NOW, fires, NOW)])
        found = find_skipped_slot(task, 0, lived, ())
        assert found is not None
        assert found[1] > fires


def test_a_slot_in_time_that_was_lived_may_fire_right_after_it() -> None:
    every_second = Every(SECOND, 0, False, jitter_us=1)
    slot = next(
        at
        for at in range(NOW + MINUTE, NOW + HOUR, SECOND)
        if schedules.fire_at(every_second, "j", at) == at + 1
    )
    windows = make_windows([SKIPPED], [LivedSpan(NOW, slot, NOW)])
    task = a_task(every_second, next_slot_at=None)
    assert find_skipped_slot(task, NOW, windows, ()) == (slot, slot + 1)
    # Who is armed for a later slot is not armed as early, though it lies before that one fires.
    armed = a_task(every_second, next_slot_at=slot + 1)
    assert find_skipped_slot(armed, NOW, windows, ()) == (slot, slot + 1)


def test_a_very_long_search_ends() -> None:
    often = Every(SECOND // 10, 0, False)
    windows = make_windows([SkippedSpan(NOW, NOW + 100 * HOUR)], [])
    every = range(0, NOW + 200 * HOUR, SECOND // 10)
    assert find_skipped_slot(a_task(often, next_slot_at=None), NOW, windows, every) is None


# Arming


@pytest.mark.spec("T1", "C1")
@pytest.mark.parametrize(
    ("schedule", "status", "armed"),
    [
        (EVERY_TEN, "ENABLED", (NOW + TEN, NOW + TEN, "")),
        (EVERY_TEN, "DISABLED", (NOW + TEN, None, "")),
        (Once(NOW - 5), "ENABLED", (NOW - 5, NOW - 5, "")),
        (Once(NOW - 6), "ENABLED", (None, None, "missed")),
        (Once(NOW + 1), "DISABLED", (NOW + 1, None, "")),
        (make_cron("0 0 * * * *", end_at=NOW), "ENABLED", (None, None, "")),
    ],
)
def test_a_new_schedule_is_armed_for_its_first_slot(
    schedule: Any, status: str, armed: tuple[Instant | None, Instant | None, str]
) -> None:
    assert arm("j", a_definition(schedule), status, NOW, 5) == armed


@pytest.mark.spec("T1", "C1")
@pytest.mark.parametrize(
    ("schedule", "task", "armed"),
    [
        (EVERY_TEN, {}, NOW + TEN),
        (EVERY_TEN, {"max_runs": 2, "runs_fired": 1}, NOW + TEN),
        (EVERY_TEN, {"max_runs": 2, "runs_fired": 2}, None),
        (Once(NOW + 5), {"next_slot_at": NOW + 1}, NOW + 1),
        (Once(NOW + 5), {"next_slot_at": NOW}, NOW + 5),
        (Once(NOW + 5), {"next_slot_at": None}, NOW + 5),
        (Once(NOW + 5), {"next_slot_at": None, "runs_fired": 1}, None),
        (Once(NOW), {"next_slot_at": NOW}, None),
    ],
)
def test_a_task_that_is_enabled_again_goes_on_from_now(
    schedule: Any, task: dict[str, Any], armed: Instant | None
) -> None:
    one = a_task(schedule, **task)
    assert rearm(one, one.definition, "ENABLED", NOW) == (armed, armed)
    assert rearm(one, one.definition, "DISABLED", NOW) == (armed, None)


# Schedules of the past


def fact(**data: Any) -> Fact:
    return Fact(id=1, at=NOW, type="TASK_CHANGED", data=data)


OLD = {"kind": "once", "run_at": 1}
NEW = {"kind": "once", "run_at": 2}


@pytest.mark.spec("B1")
@pytest.mark.parametrize(
    ("before", "after", "run_at"),
    [
        ([fact(schedule=OLD), fact(schedule=NEW)], [fact(schedule_was=NEW)], 1),
        ([fact(), fact(schedule=NEW)], [], 2),
        ([fact()], [fact(), fact(schedule_was=OLD, schedule=NEW)], 1),
        ([], [fact(schedule=NEW)], 2),
        ([], [], None),
        ([fact()], [fact()], None),
    ],
)
def test_the_schedule_of_an_instant_is_what_the_events_around_it_tell(
    before: list[Fact], after: list[Fact], run_at: int | None
) -> None:
    found = schedule_in_force(before, after)
    assert found == (None if run_at is None else Once(run_at))
