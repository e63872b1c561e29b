"""The one transaction of a firing pass: which slots are claimed, and which runs are written."""

from typing import Any

import pytest

from ksana.base.instant import SECOND, Instant
from ksana.domain.tasks.clock_steps import ClockWindows, LivedSpan, make_windows
from ksana.domain.tasks.firing import Counts, PlannedRun
from ksana.domain.tasks.records import Task
from ksana.engine.tasks.firing import (
    LEFT_FOR,
    Fired,
    drop_due_slots,
    fire_due,
    plan_runs,
)
from ksana.engine.tasks.host_limits import SlotBudget
from ksana.engine.tasks.task_secrets import CLEAR
from ksana.ports.store import Share
from ksana.ports.tasks.tables import Advance, find_no_task
from tests.unit.delivery_ground import a_called_task, a_claim
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import NOW


def due_tx(*due: Task, ours: list[bool] | None = None, **answers: Any) -> ScriptedTx:
    """A transaction in which these tasks are due; nobody was faster unless `ours` says so."""
    given: dict[str, Any] = {
        "task_due_list_due": list(due),
        "instances_list_outages": [],
        "runs_count_open": {},
        "task_due_advance_unchanged": lambda advances: ours or [True] * len(advances),
        "run_changes_insert": lambda runs: [100 + n for n in range(len(runs))],
        "task_due_next_fire_at": NOW + 10 * SECOND,
    }
    return ScriptedTx(**given | answers)


PLENTY = SlotBudget({}, 9, 9, soon_default=9, lease=3)


def test_nothing_due_is_one_look_and_the_next_instant() -> None:
    tx = due_tx()
    fired = fire_due(tx, "me", 5, PLENTY, share=Share(1, 2))
    assert fired == Fired([], set(), NOW + 10 * SECOND, False, [], 0, NOW)
    assert tx.told == [
        Told("task_due.list_due", (NOW, 5, find_no_task, Share(1, 2), NOW - LEFT_FOR), {}),
        Told("task_due.next_fire_at", (Share(1, 2), NOW, LEFT_FOR), {}),
    ]


def test_a_due_task_is_claimed_its_run_written_and_the_watermark_with_it() -> None:
    task = a_called_task("a")
    tx = due_tx(task)
    fired = fire_due(tx, "me", 5, PLENTY)
    [run] = tx.args_of("run_changes.insert")[0][0]
    assert fired.claimed == [
        a_claim(
            100,
            task=task,
            uid=run.uid,
            token=run.token,
            trace_id=run.uid,
            held_by="me",
            due_at=NOW,
        )
    ]
    assert fired == Fired(
        fired.claimed, set(), NOW + 10 * SECOND, False, [], 1, NOW, watermark=100, due=[task]
    )
    assert tx.args_of("task_due.advance_unchanged") == [
        ([Advance(task, NOW + 10 * SECOND, NOW + 10 * SECOND, 1, "")],)
    ]
    assert tx.args_of("instances.note_begun") == [("me", 100)]
    assert PLENTY.taken == [], "the budget is used up in a copy"


def test_a_run_without_a_slot_is_left_ready_for_anybody() -> None:
    tx = due_tx(a_called_task("a"), a_called_task("b", id=8))
    fired = fire_due(tx, "me", 5, SlotBudget({"a": 0}, 1, 9))
    assert (fired.ready_hosts, [run.host for run in fired.claimed]) == ({"a"}, ["b"])
    assert (fired.watermark, tx.args_of("instances.note_begun")) == (0, []), "none is sent soon"


def test_the_watermark_covers_those_that_are_sent_soon() -> None:
    tx = due_tx(*(a_called_task("a", id=n) for n in range(4)))
    fired = fire_due(tx, "me", 5, SlotBudget({}, 9, 9, {"a": 2}))
    assert ([run.run_id for run in fired.claimed], fired.watermark) == ([100, 101, 102, 103], 101)


def test_a_slot_that_somebody_else_claimed_makes_no_run_and_no_misfire() -> None:
    late = a_called_task("a", fire_at=NOW - 600 * SECOND, next_slot_at=NOW - 600 * SECOND)
    tx = due_tx(late, a_called_task("b", id=8), ours=[False, True])
    fired = fire_due(tx, "me", 5, PLENTY)
    assert ([run.host for run in fired.claimed], fired.misfires) == (["b"], [])
    assert "events.append" not in tx.verbs()


def test_slots_that_nobody_was_there_for_are_recorded_and_told() -> None:
    slot = NOW - 600 * SECOND
    late = a_called_task("a", fire_at=slot, next_slot_at=slot, misfire_policy="SKIP")
    tx = due_tx(a_called_task("b", id=8), late)
    fired = fire_due(tx, "me", 5, PLENTY)
    [(entity, task_id, kind, data)] = tx.args_of("events.append")
    assert (entity, task_id, kind) == ("TASK", 7, "TASK_MISFIRED")
    assert fired.misfires == [(7, data["count"])]
    assert tx.args_of("instances.list_outages") == [(slot,)], "since the oldest of them"


def test_open_runs_are_counted_where_a_limit_asks_for_it() -> None:
    limited = a_called_task("a")
    free = a_called_task("b", id=8, concurrency_policy="PARALLEL")
    tx = due_tx(limited, free, runs_count_open={7: Counts(1, 0), 8: Counts(1, 0)})
    fired = fire_due(tx, "me", 5, PLENTY)
    assert tx.args_of("runs.count_open") == [([7],)]
    assert [run.host for run in fired.claimed] == ["b"], "the other waits for its turn"
    assert fired.ready_hosts == set()


def test_a_full_pass_does_not_look_for_what_is_next() -> None:
    fired = fire_due(due_tx(a_called_task("a")), "me", 1, PLENTY)
    assert (fired.is_full, fired.next_at) == (True, None)


def lived_to(until: Instant) -> ClockWindows:
    """The clock was ahead, and showed all until then."""
    return make_windows([], [LivedSpan(NOW + 100 * SECOND, until, NOW + 50 * SECOND)])


@pytest.mark.parametrize(("until", "is_asked"), [(NOW - 1, False), (NOW, True)])
def test_slots_decided_while_the_clock_was_ahead_are_not_fired_again(
    until: Instant, is_asked: bool
) -> None:
    tasks = a_called_task("a"), a_called_task("b", id=8, fire_at=NOW, next_slot_at=NOW - SECOND)
    tx = due_tx(*tasks, runs_list_claimed={(7, NOW)})
    fired = fire_due(tx, "me", 5, PLENTY, windows=lived_to(until))
    asked = [([7, 8], NOW - SECOND, NOW)] if is_asked else []
    assert tx.args_of("runs.list_claimed") == asked
    assert [run.host for run in fired.claimed] == (["b"] if is_asked else ["a", "b"])


def test_whether_any_was_is_told_by_the_first_that_is_due() -> None:
    first, last = a_called_task("a", fire_at=NOW - SECOND), a_called_task("b", id=8)
    tx = due_tx(first, last, runs_list_claimed=set())
    fire_due(tx, "me", 5, PLENTY, windows=lived_to(NOW - SECOND))
    assert len(tx.args_of("runs.list_claimed")) == 1


def test_without_slots_there_is_nothing_to_leave_out() -> None:
    spent = a_called_task("a", misfire_policy="SKIP", fire_at=NOW - 600 * SECOND, max_runs=0)
    tx = due_tx(spent)
    assert fire_due(tx, "me", 5, PLENTY, windows=lived_to(NOW)).claimed == []
    assert "runs.list_claimed" not in tx.verbs()


@pytest.mark.parametrize(
    ("start", "has_slot", "status", "is_ready", "holder"),
    [
        ("start", True, "RUNNING", False, "me"),
        ("start", False, "SCHEDULED", True, None),
        ("wait", True, "SCHEDULED", False, None),
        ("skip", True, "SKIPPED", False, None),
    ],
)
@pytest.mark.parametrize("exec_type", ["SYNC", "ASYNC"])
def test_a_slot_becomes_a_run_as_it_was_decided(
    start: Any, has_slot: bool, status: str, is_ready: bool, holder: str | None, exec_type: Any
) -> None:
    task = a_called_task("a", exec_type=exec_type)
    plan = PlannedRun(NOW, "schedule", start, "WHY")
    budget = SlotBudget({}, int(has_slot), 9)
    [run] = plan_runs(NOW, [(task, plan)], "me", budget)
    assert (run.status, run.is_ready, run.held_by) == (status, is_ready, holder)
    assert (run.task_id, run.slot_at, run.scheduled_time) == (7, NOW, NOW)
    assert (run.reason, run.trigger, run.host) == ("WHY", "schedule", "a")
    assert (run.is_counted, run.trace_id) == (True, run.uid)
    called_back = exec_type == "ASYNC" and start != "skip"
    assert run.callback_hash == (CLEAR.hash_new_token(run.uid) if called_back else None)
    limits = ',"max_concurrency":1,"max_queued":100,"policy":"QUEUE"'
    assert run.more == (limits if start == "skip" else "")
    assert len(budget.taken) == (start == "start" and has_slot)


# Slots that a change takes away


@pytest.mark.parametrize(
    "members",
    [{"fire_at": None}, {"next_slot_at": None}, {"fire_at": NOW + 1}],
    ids=["not armed", "no slot", "to come"],
)
def test_a_change_drops_nothing_of_a_task_that_is_not_due(members: dict[str, Any]) -> None:
    tx = due_tx()
    drop_due_slots(tx, a_called_task("a", **members), "DISABLED")
    assert tx.told == []


def test_slots_that_are_due_when_their_task_is_changed_are_recorded_as_skipped() -> None:
    tx = due_tx()
    drop_due_slots(tx, a_called_task("a", next_slot_at=NOW - 10 * SECOND, fire_at=NOW), "DISABLED")
    assert tx.args_of("instances.list_outages") == [(NOW - 10 * SECOND,)]
    runs = tx.args_of("run_changes.insert")[0][0]
    assert [(run.slot_at, run.status, run.reason) for run in runs] == [
        (NOW - 10 * SECOND, "SKIPPED", "DISABLED"),
        (NOW, "SKIPPED", "DISABLED"),
    ]
    assert "events.append" not in tx.verbs()


def test_misfires_among_them_are_recorded_as_such() -> None:
    slot = NOW - 600 * SECOND
    tx = due_tx()
    late = a_called_task("a", next_slot_at=slot, fire_at=slot, misfire_policy="SKIP")
    drop_due_slots(tx, late, "DISABLED")
    [(_, task_id, kind, _)] = tx.args_of("events.append")
    assert (task_id, kind) == (7, "TASK_MISFIRED")
