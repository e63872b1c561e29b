"""What enabling a task would do, from its events and its schedule."""

import msgspec
import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND, Instant
from ksana.domain.explain import Fact
from ksana.domain.schedule import Once, Schedule, make_every
from ksana.domain.tasks.backfill import Span
from ksana.domain.tasks.records import Definition, Options, Task
from ksana.domain.tasks.resuming import disabled_since, missed_while_disabled, preview_resume
from tests.ground.task_rows import a_task

pytestmark = pytest.mark.spec("B7")

NOON: Instant = 1_800_000_000 * SECOND


def disabled(schedule: Schedule, max_runs: int | None = None, fired: int = 0) -> Task:
    definition = Definition("t", "", schedule, options=Options(max_runs=max_runs))
    task = a_task("j", definition, NOON, NOON + MINUTE)
    return msgspec.structs.replace(
        task, status="DISABLED", fire_at=None, updated_at=NOON + HOUR, runs_fired=fired
    )


def test_slots_that_passed_are_counted_and_none_is_fired() -> None:
    task = disabled(make_every(MINUTE, now=NOON))
    bill = preview_resume(task, NOON + 90 * SECOND, NOON + 10 * MINUTE)
    assert (bill.passed, bill.fires) == (9, 0)
    assert (bill.first_passed, bill.last_passed) == (NOON + 2 * MINUTE, NOON + 10 * MINUTE)
    assert (bill.next_slot_at, bill.fire_at) == (NOON + 11 * MINUTE, NOON + 11 * MINUTE)


def test_a_task_that_is_enabled_or_has_no_slot_left_says_so() -> None:
    enabled = a_task("j", Definition("t", "", Once(NOON + HOUR)), NOON, NOON + HOUR)
    bill = preview_resume(enabled, disabled_since(enabled, ()), NOON)
    assert (bill.disabled_at, bill.passed, bill.next_slot_at) == (None, 0, NOON + HOUR)
    assert bill.fires == 0
    used_up = disabled(make_every(MINUTE, now=NOON), max_runs=3, fired=3)
    assert preview_resume(used_up, NOON, NOON + HOUR).next_slot_at is None
    past = preview_resume(disabled(Once(NOON + MINUTE)), NOON, NOON + HOUR)
    assert (past.passed, past.next_slot_at) == (1, None)


def test_the_slots_of_the_time_it_was_disabled_lie_after_that_and_up_to_now() -> None:
    assert missed_while_disabled(NOON, NOON + HOUR) == Span(NOON + 1, NOON + HOUR + 1)


def test_it_is_disabled_since_the_last_event_that_disabled_it() -> None:
    task = disabled(make_every(MINUTE, now=NOON))
    facts = [
        Fact(9, NOON + 9, "TASK_CHANGED", {"status": "DISABLED"}),
        Fact(8, NOON + 8, "TRIGGER_REFUSED", {}),
        Fact(7, NOON + 7, "TASK_DISABLED", {"version": 3}),
        Fact(6, NOON + 6, "TASK_ENABLED", {"version": 2}),
        Fact(5, NOON + 5, "TASK_DISABLED", {"version": 1}),
    ]
    assert disabled_since(task, facts) == NOON + 7
    assert disabled_since(task, facts[:2]) == NOON + 9
    assert disabled_since(task, ()) == task.updated_at
    made = Fact(1, NOON + 1, "TASK_CREATED", {"status": "DISABLED"})
    assert disabled_since(task, [made]) == NOON + 1
