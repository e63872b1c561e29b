"""Every guard of the writes to tasks and runs, one at a time, on every SQL store: a row that
differs from what a write expects in one thing alone is left as it is."""

from collections.abc import Callable
from typing import Any

import pytest

from ksana.base.instant import HOUR, SECOND
from ksana.domain.dead_letters import NewLetter
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition, Task
from ksana.ports.tasks.tables import Advance
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.conformance.store.test_batches import add_runs
from tests.conformance.store.test_queue_guards import set_row
from tests.ground.task_rows import a_finish, a_task

Write = Callable[[Any], bool]

TOKEN = 7
RUN_FITTING = {"status": "RUNNING", "token": TOKEN}
RUN_UNFIT: list[dict[str, Any]] = [
    {"status": "RETRYING"},
    {"status": "CANCELED"},
    {"token": TOKEN + 1},
]
"""A run that was moved, ended, or taken by another holder."""

RUN_WRITES: dict[str, Callable[[Any, int, int], list[bool]]] = {
    "the end of an attempt": lambda tx, run_id, task_id: tx.run_changes.finish(
        [a_finish(run_id, TOKEN, task_id, new="FAILED", error="no")]
    ),
    "a plain end": lambda tx, run_id, task_id: tx.run_changes.finish(
        [a_finish(run_id, TOKEN, task_id)]
    ),
    "a move without its holder": lambda tx, run_id, task_id: tx.run_changes.move(
        [a_finish(run_id, TOKEN, task_id, new="CANCELED")]
    ),
}


def add_task(tx: Any) -> Task:
    definition = Definition("t", "", Every(HOUR, tx.now, False), target_url="http://h/")
    [task_id] = tx.tasks.insert([a_task("j", definition, tx.now, tx.now)])
    found: Task = tx.tasks.find(task_id)
    return found


@pytest.mark.fault("F08")
@pytest.mark.spec("X12", "C19")
@pytest.mark.parametrize("write", RUN_WRITES)
async def test_a_run_is_changed_only_as_it_was_seen(
    store: SqlStore, database: Database, write: str
) -> None:
    task = await store.transact(add_task)
    [(run_id, _)] = await store.transact(add_runs, task.id, 1)
    columns = "status, token, end_time, reason"
    for unfit in RUN_UNFIT:
        set_row(database, "task_runs", f"id = {run_id}", **{**RUN_FITTING, **unfit})
        before = database.ask(f"SELECT {columns} FROM task_runs")
        assert await store.transact(RUN_WRITES[write], run_id, task.id) == [False], unfit
        assert database.ask(f"SELECT {columns} FROM task_runs") == before, unfit
    set_row(database, "task_runs", f"id = {run_id}", **RUN_FITTING)
    assert await store.transact(RUN_WRITES[write], run_id, task.id) == [True]
    assert database.ask(f"SELECT {columns} FROM task_runs") != before


def change(task: Task) -> Write:
    return lambda tx: bool(
        tx.tasks.change_if_version(task, task.definition, "DISABLED", None, None, 0, "")
    )


def delete(task: Task) -> Write:
    return lambda tx: bool(tx.tasks.delete_if_living(task, task.definition))


def advance(task: Task) -> Write:
    step = Advance(task, task.next_slot_at, task.fire_at, 1, "success")  # type: ignore[arg-type]
    return lambda tx: bool(tx.task_due.advance_unchanged([step])[0])


def arm(task: Task) -> Write:
    return lambda tx: bool(tx.task_due.arm_if_ended(task, HOUR, HOUR))


TASK_UNFIT: dict[str, tuple[Callable[[Task], Write], list[dict[str, Any]]]] = {
    "change": (change, [{"version": 2}, {"deleted": 1}]),
    "delete": (delete, [{"deleted": 1}]),
    "advance": (advance, [{"version": 2}, {"next_slot_at": SECOND}, {"fire_at": None}]),
    "arm": (
        arm,
        [{"version": 2}, {"deleted": 1}, {"status": "DISABLED"}, {"next_slot_at": SECOND}],
    ),
}
"""What a write must not happen to: a task that was changed or deleted since, a claimed slot,
a task that is disarmed."""


def set_task(database: Database, values: dict[str, Any]) -> None:
    shown = {key: "NULL" if value is None else repr(value) for key, value in values.items()}
    database.ask(f"UPDATE tasks SET {', '.join(f'{key} = {shown[key]}' for key in shown)}")


@pytest.mark.fault("F37")
@pytest.mark.spec("X4", "X12", "C3")
@pytest.mark.parametrize("name", TASK_UNFIT)
async def test_a_task_is_changed_only_as_it_was_seen(
    store: SqlStore, database: Database, name: str
) -> None:
    task = await store.transact(add_task)
    make, rows = TASK_UNFIT[name]
    is_ended = name == "arm"
    fitting = {
        "version": 1,
        "deleted": 0,
        "status": "ENABLED",
        "next_slot_at": None if is_ended else task.next_slot_at,
        "fire_at": None if is_ended else task.fire_at,
    }
    columns = "status, version, deleted, runs_fired, last_status, next_slot_at"
    for unfit in rows:
        set_task(database, {**fitting, **unfit})
        before = database.ask(f"SELECT {columns} FROM tasks")
        assert await store.transact(make(task)) is False, unfit
        assert database.ask(f"SELECT {columns} FROM tasks") == before, unfit
    set_task(database, fitting)
    assert await store.transact(make(task)) is True
    assert database.ask(f"SELECT {columns} FROM tasks") != before


@pytest.mark.spec("X12", "B7")
async def test_a_run_that_waits_to_be_let_in_is_paced_and_counted_only_as_it_was_seen(
    store: SqlStore, database: Database
) -> None:
    task = await store.transact(add_task)
    [(run_id, _)] = await store.transact(add_runs, task.id, 1)
    fitting = {"status": "SCHEDULED", "token": TOKEN, "is_counted": 0, "wake_at": SECOND}

    async def pace_and_count(**unfit: Any) -> tuple[int, int]:
        """How many were counted, and when the run wakes."""
        set_row(database, "task_runs", f"id = {run_id}", **{**fitting, **unfit})
        counted = await store.transact(lambda tx: tx.run_changes.count_in([(run_id, TOKEN)]))
        set_row(database, "task_runs", f"id = {run_id}", **{**fitting, **unfit})
        await store.transact(lambda tx: tx.run_changes.pace([(run_id, HOUR)]))
        return counted, database.ask("SELECT wake_at FROM task_runs")[0][0]

    assert await pace_and_count(status="RUNNING") == (0, SECOND)
    assert await pace_and_count(is_counted=1) == (0, SECOND)
    assert await pace_and_count(token=TOKEN + 1) == (0, HOUR)  # who paces has just made it
    assert await pace_and_count() == (1, HOUR)


@pytest.mark.spec("X12", "X13")
async def test_a_run_is_forgotten_only_when_it_is_over_and_its_callbacks_after_it(
    store: SqlStore, database: Database
) -> None:
    task = await store.transact(add_task)
    [(run_id, _)] = await store.transact(add_runs, task.id, 1)
    await store.transact(lambda tx: tx.run_changes.insert_callback(run_id, "{}", "", "TAKEN"))

    async def forget(name: str) -> int:
        return await store.transact(lambda tx: tx.run_changes._session.run(name, id=run_id))

    letter = NewLetter(str(run_id), "t", "FAILED", "no")
    set_row(database, "task_runs", f"id = {run_id}", open_task=task.id)
    assert await forget("history.delete_run") == 0
    database.ask("UPDATE task_runs SET open_task = NULL")
    await store.transact(lambda tx: tx.dead_letters.add("tasks", [letter]))
    assert await forget("history.delete_run") == 0
    database.ask("DELETE FROM dead_letters")
    assert await forget("history.delete_callbacks") == 0
    assert await forget("history.delete_run") == 1
    assert await forget("history.delete_callbacks") == 1
