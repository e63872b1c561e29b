"""Tasks that are armed anew after the clock was set back: for the first slot it jumped over."""

from typing import Any

import pytest

from ksana.base.instant import SECOND, format_instant
from ksana.domain.schedule import Every
from ksana.domain.tasks.clock_steps import (
    LivedSpan,
    SkippedSpan,
    make_windows,
)
from ksana.domain.tasks.records import Task
from ksana.engine.tasks.clock_steps import (
    LOCK,
    LOCK_US,
    MAX_CLAIMED,
    PAGE,
    arm_tasks,
    list_after,
)
from ksana.ports.tasks.tables import Advance
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import EVERY_TEN, NOW, a_task

pytestmark = pytest.mark.spec("X5")

AHEAD, BACK = NOW + 500 * SECOND, NOW + 600 * SECOND
SET_BACK = make_windows([SkippedSpan(NOW, AHEAD)], [LivedSpan(AHEAD, BACK, NOW)])
"""The clock jumped from NOW, was lived by for a while, and shows NOW again."""


def a_silent_task(task_id: int, **members: Any) -> Task:
    """A task that is armed for later than what the clock jumped over."""
    later = NOW + 700 * SECOND
    return a_task(**{"id": task_id, "next_slot_at": later, "fire_at": later, **members})


def arming_tx(*tasks: Task, **answers: Any) -> ScriptedTx:
    by_id = {task.id: task for task in tasks}
    given: dict[str, Any] = {
        "locks_take": True,
        "tasks_find": lambda task_id, **_: by_id.get(task_id),
        "runs_list_slots": [],
        "task_due_advance_unchanged": [True],
        "task_due_arm_if_ended": True,
    }
    return ScriptedTx(**given | answers)


SLOT = NOW + 10 * SECOND


def test_the_next_enabled_tasks_are_listed() -> None:
    tx = ScriptedTx(tasks_list_tasks=["task"])
    assert list_after(tx, 7) == ["task"]
    members = {"status": "ENABLED", "after": 7, "limit": PAGE}
    assert tx.told == [Told("tasks.list_tasks", (), members)]


def test_a_silent_task_is_armed_for_the_first_slot_that_was_jumped_over() -> None:
    task = a_silent_task(7)
    tx = arming_tx(task)
    assert arm_tasks(tx, [7], SET_BACK, "me") == [SLOT]
    was = format_instant(NOW + 700 * SECOND)
    data = {"slot": format_instant(SLOT), "was": was, "reason": "CLOCK_SET_BACK"}
    assert tx.told == [
        Told("locks.take", (LOCK, "me", LOCK_US), {}),
        Told("tasks.find", (7,), {"lock": True}),
        Told("runs.list_slots", (7, NOW, AHEAD, MAX_CLAIMED), {}),
        Told("task_due.advance_unchanged", ([Advance(task, SLOT, SLOT, 0, "")],), {}),
        Told("events.append", ("TASK", 7, "TASK_REARMED", data), {}),
    ]


def test_slots_that_were_made_up_then_are_left_out_those_in_their_jitter_too() -> None:
    jittered = Every(10 * SECOND, 0, False, 5 * SECOND)
    tx = arming_tx(a_silent_task(7, schedule=jittered), runs_list_slots=[NOW, SLOT])
    [due_at] = arm_tasks(tx, [7], SET_BACK, "me")
    assert SLOT + 10 * SECOND <= due_at <= SLOT + 15 * SECOND
    assert tx.args_of("runs.list_slots") == [(7, NOW - 5 * SECOND, AHEAD, MAX_CLAIMED)]


@pytest.mark.parametrize("is_armed", [True, False])
def test_a_task_whose_schedule_had_ended_is_armed_again(is_armed: bool) -> None:
    task = a_silent_task(7, fire_at=None, next_slot_at=None)
    tx = arming_tx(task, task_due_arm_if_ended=is_armed)
    assert arm_tasks(tx, [7], SET_BACK, "me") == ([SLOT] if is_armed else [])
    assert tx.args_of("task_due.arm_if_ended") == [(task, SLOT, SLOT)]
    assert [args[3]["was"] for args in tx.args_of("events.append")] == [None] * is_armed


@pytest.mark.parametrize(
    ("why", "first"),
    [
        ("gone", None),
        ("deleted", a_silent_task(3, is_deleted=True)),
        ("armed as early", a_task(EVERY_TEN, id=3, next_slot_at=SLOT, fire_at=SLOT)),
    ],
)
def test_a_task_that_need_not_be_armed_holds_up_no_other(why: str, first: Task | None) -> None:
    tasks = [a_silent_task(4)] if first is None else [first, a_silent_task(4)]
    tx = arming_tx(*tasks)
    assert arm_tasks(tx, [3, 4], SET_BACK, "me") == [SLOT], why
    assert [args[1] for args in tx.args_of("events.append")] == [4]


def test_a_task_that_somebody_changed_meanwhile_is_let_be() -> None:
    tx = arming_tx(a_silent_task(7), task_due_advance_unchanged=[False])
    assert arm_tasks(tx, [7], SET_BACK, "me") == []
    assert "events.append" not in tx.verbs()


def test_one_instance_at_a_time_arms() -> None:
    tx = arming_tx(a_silent_task(7), locks_take=False)
    assert arm_tasks(tx, [7], SET_BACK, "me") == []
    assert tx.verbs() == ["locks.take"]
