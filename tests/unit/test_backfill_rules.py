"""A backfill: which slots it takes at a time, and how its runs are let into the task's line."""

from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.schedule import Once
from ksana.domain.tasks.backfill import BackfillPlan, Caps, Span, let_in, next_slots, starts_of
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import Run
from tests.unit.task_ground import EVERY_TEN, NOW, a_run, a_task

pytestmark = pytest.mark.spec("B7")

TASK = a_task(concurrency_policy="QUEUE", max_concurrency=2)


def held_back(number: int, late_us: int = 0, **members: Any) -> Run:
    """A run whose time to be let in was so long ago."""
    given = {"status": "SCHEDULED", "trigger": "backfill", "is_counted": False, "held_by": None}
    return a_run(id=number, wake_at=NOW - late_us, **{**given, **members})


@pytest.mark.parametrize(("limit", "found"), [(0, 0), (1, 1), (3, 3), (9, 5)])
def test_no_more_slots_are_looked_at_than_fit_and_lie_before_the_end(
    limit: int, found: int
) -> None:
    slots = [10 * SECOND * number for number in range(1, 1 + found)]
    assert next_slots(EVERY_TEN, 0, 60 * SECOND, limit) == slots


def test_slots_end_with_the_schedule() -> None:
    assert next_slots(Once(5), 0, HOUR, 9) == [5]
    assert next_slots(Once(5), 5, HOUR, 9) == []


def test_the_slots_of_a_plan_start_one_interval_after_the_other() -> None:
    plan = BackfillPlan(Span(0, NOW), (10, 20, 30), in_span=3, recorded=0, next_from=None)
    starts = starts_of(plan, Caps(interval_us=5 * SECOND), NOW)
    assert starts == [NOW, NOW + 5 * SECOND, NOW + 10 * SECOND]


def test_runs_are_let_in_while_the_task_has_room() -> None:
    due = [held_back(1), held_back(2), held_back(3)]
    found = let_in(TASK, due, Counts(0, 0), NOW)
    assert [change.run_id for change in found.changes] == [1, 2]
    assert {(change.ready_host, change.event, change.data) for change in found.changes} == {
        ("target", "RUN_PROMOTED", '{"task_id":7,"reason":"BACKFILL_TURN"}')
    }
    all_of_them = let_in(TASK, due[:2], Counts(0, 0), NOW)
    assert (len(all_of_them.changes), all_of_them.put_off_us) == (2, 0)
    none = let_in(TASK, due, Counts(2, 0), NOW)
    assert none.changes == ()


@pytest.mark.parametrize(
    ("waited_us", "late_us", "put_off_us"),
    [
        (0, 0, SECOND),
        (100 * SECOND, 0, 10 * SECOND),
        (100 * SECOND, 3 * SECOND, 13 * SECOND),
        (100 * SECOND, -3 * SECOND, 10 * SECOND),  # another clock had set its time
        (HOUR, 0, MINUTE),
    ],
)
def test_without_room_the_rest_is_put_off_by_a_tenth_of_its_wait(
    waited_us: int, late_us: int, put_off_us: int
) -> None:
    run = held_back(1, late_us, created_at=NOW - waited_us)
    assert let_in(TASK, [run], Counts(2, 0), NOW).put_off_us == put_off_us


@pytest.mark.parametrize(
    ("late_us", "let", "put_off_us"),
    [(0, 2, 0), (SECOND, 2, 0), (SECOND + 1, 1, SECOND + 1), (HOUR, 1, HOUR)],
)
def test_behind_one_that_is_late_the_rest_keeps_its_distance(
    late_us: int, let: int, put_off_us: int
) -> None:
    found = let_in(TASK, [held_back(1, late_us), held_back(2)], Counts(0, 0), NOW)
    assert (len(found.changes), found.put_off_us) == (let, put_off_us)
