"""Rows of runs and tasks that have values in common are written as they would be one by one, and
each is guarded by its own values, on every SQL store."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ksana.base.ids import new_uid
from ksana.base.instant import HOUR, SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.records import Definition, NewRun, Task
from ksana.ports.tasks.tables import Advance
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.ground.task_rows import a_finish, a_task

pytestmark = pytest.mark.spec("X2")

COUNT = 48
"""SQLite takes 32 of them in one statement, and the rest in statements of fewer."""

NONE, SOME = range(0), range(3, COUNT, 7)
"""The rows whose guards say no."""

Members = Callable[[int], dict[str, Any]]
"""What a row has otherwise than most, by its number."""


def none(_: int) -> dict[str, Any]:
    return {}


def at(place: int, **members: Any) -> Members:
    """One row alone differs."""
    return lambda number: members if number == place else {}


def by_turns(**members: Any) -> Members:
    """Every third row differs."""
    return lambda number: {} if number % 3 else members


def new_tasks(tx: Any, count: int, members: Members = none) -> list[Task]:
    """Tasks that are not stored yet."""
    tasks = []
    for number in range(count):
        given: dict[str, Any] = {"target_url": "http://h/", "headers": {"a": "b"}, "tags": ("x",)}
        definition = Definition("t", "", Every(HOUR, 0, False), **given | members(number))
        tasks.append(a_task(new_uid(), definition, tx.now, tx.now + number, "T"))
    return tasks


def add_tasks(tx: Any, count: int) -> list[int]:
    ids: list[int] = tx.tasks.insert(new_tasks(tx, count))
    return ids


# Runs

RUN_COLUMNS = (
    "CASE WHEN open_task = task_id THEN 1 ELSE open_task END, slot_at, scheduled_time, start_time, "
    "end_time, status, attempt, trigger_kind, exec_type, is_counted, host, ready_host, wake_at, "
    "held_by, token, request_headers, request_body, response_code, response_body, "
    "response_truncated, response_encoding, error_message, reason, next_retry_time, "
    "callback_token, callback_deadline, callback_data, override_body, retry_of, trace_id, attempts,"
    " created_at, updated_at"
)
"""All but who it is."""

RUNS: dict[str, Members] = {
    "all in common": none,
    "an alike one is NULL in all": lambda _: {"callback_hash": None, "is_ready": False},
    "alike ones differ": by_turns(host="other", reason="BELOW_LIMIT", exec_type="ASYNC"),
    "an alike one differs in the first": at(0, trigger="manual"),
    "an alike one differs in the last of a statement": at(31, callback_hash="c" * 64),
    "same ones differ": by_turns(held_by="me", status="RUNNING", is_ready=False),
    "a same one differs in the first": at(0, retry_of=3),
    "a same one differs in the last of a statement": at(31, override_body='{"é":"刹那"}'),
    "all differ": lambda n: {"host": f"h{n}", "is_counted": n % 2 == 0, "retry_of": n},
}


def a_new_run(task_id: int, number: int, **members: Any) -> NewRun:
    given: dict[str, Any] = {
        "uid": new_uid(),
        "task_id": task_id,
        "slot_at": 1_000 + number,
        "scheduled_time": 2_000 + number,
        "status": "SCHEDULED",
        "trigger": "schedule",
        "exec_type": "SYNC",
        "is_counted": True,
        "host": "h",
        "is_ready": True,
        "held_by": None,
        "token": 3_000 + number,
        "reason": "PARALLEL",
        "trace_id": f"t{number}",
        "callback_hash": "a" * 64,
    }
    return NewRun(**given | members)


def runs_of(database: Database, task_id: int) -> list[tuple[Any, ...]]:
    return database.ask(
        f"SELECT {RUN_COLUMNS} FROM task_runs WHERE task_id = {task_id} ORDER BY slot_at"
    )


@pytest.mark.spec("C10")
@pytest.mark.parametrize("case", RUNS)
async def test_new_runs_are_written_as_one_by_one(
    store: SqlStore, database: Database, case: str
) -> None:
    def fill(tx: Any) -> tuple[int, int, list[int]]:
        one, many = add_tasks(tx, 2)
        for number in range(COUNT):
            tx.run_changes.insert([a_new_run(one, number, **RUNS[case](number))])
        runs = [a_new_run(many, number, **RUNS[case](number)) for number in range(COUNT)]
        return one, many, tx.run_changes.insert(runs)

    one, many, ids = await store.transact(fill)
    written = runs_of(database, many)
    assert len(written) == COUNT
    assert written == runs_of(database, one)
    found = database.ask(f"SELECT id FROM task_runs WHERE task_id = {many} ORDER BY slot_at")
    assert [row[0] for row in found] == ids


ENDS: dict[str, Members] = {
    "all in common": none,
    "alike ones differ": by_turns(response_code=204),
    "an alike one differs in the last of a statement": at(31, response_code=201),
    "same ones differ": by_turns(new="FAILED", reason="NOT_RETRYABLE", response_code=404),
    "a same one differs in the first": at(0, reason="JOB_DONE"),
    "all differ": lambda n: {"reason": f"R{n}", "response_code": 200 + n, "end_time": n},
}


@pytest.mark.fault("F12")
@pytest.mark.spec("C12", "C19")
@pytest.mark.parametrize("case", ENDS)
async def test_ends_of_runs_are_written_as_one_by_one_each_under_its_own_token(
    store: SqlStore, database: Database, case: str
) -> None:
    held = {"held_by": "me", "status": "RUNNING", "is_ready": False}

    def make_ends(tx: Any, task_id: int, refused: range) -> list[RunChange]:
        runs = [a_new_run(task_id, number, **held) for number in range(COUNT)]
        ids = tx.run_changes.insert(runs)
        return [
            a_finish(
                ids[number],
                run.token + (number in refused),
                task_id,
                request_headers=f'["k",{number},{{}}]',
                attempts=f"[[{number}]]",
                **ENDS[case](number),
            )
            for number, run in enumerate(runs)
        ]

    def write(tx: Any, refused: range) -> tuple[list[int], list[bool], list[bool]]:
        one, many = tasks = add_tasks(tx, 2)
        alone = [tx.run_changes.finish([end])[0] for end in make_ends(tx, one, refused)]
        return tasks, alone, tx.run_changes.finish(make_ends(tx, many, refused))

    for refused in NONE, SOME:
        (one, many), alone, together = await store.transact(write, refused)
        assert alone == together == [number not in refused for number in range(COUNT)]
        written = runs_of(database, many)
        assert written == runs_of(database, one)
        assert [row[5] != "RUNNING" for row in written] == together


# Tasks

TASKS: dict[str, Members] = {
    "all in common": none,
    "an alike one is NULL in all": lambda _: {"headers": {}, "tags": ()},
    "alike ones differ": by_turns(headers={"c": "d"}, timeout_us=SECOND, http_method="PUT"),
    "an alike one differs in the last of a statement": at(31, max_concurrency=7),
    "all differ": lambda n: {"catchup_limit": n, "callback_timeout_us": n * SECOND},
}

ADVANCES: dict[str, Members] = {
    "all in common": none,
    "alike ones differ": lambda n: {"next_slot_at": 7_000 + n, "fire_at": n % 2 or None},
    "same ones differ": by_turns(started=2, last_status="missed"),
    "a same one differs in the last of a statement": at(31, last_status="missed"),
    "a same one is empty in all": lambda _: {"last_status": ""},
}


TASK_COLUMNS = (
    "dialect, name, living_name, description, cron_expr, timezone, schedule_json, exec_type, "
    "http_method, target_url, headers_json, body_template, timeout_seconds, retry_policy_json, "
    "max_concurrency, concurrency_policy, misfire_policy, catchup_limit, callback_method, "
    "callback_timeout_sec, tags, options_json, sealed_by, status, version, created_at, updated_at, "
    "deleted, next_slot_at, fire_at, runs_fired, last_run_at, last_status, last_error"
)
"""All but who it is."""


def tasks_from(database: Database, first: int) -> list[tuple[Any, ...]]:
    return database.ask(f"SELECT {TASK_COLUMNS} FROM tasks WHERE id >= {first} ORDER BY id")


@pytest.mark.spec("C10")
@pytest.mark.parametrize("case", TASKS)
async def test_new_tasks_are_written_as_one_by_one(
    store: SqlStore, database: Database, case: str
) -> None:
    def fill(tx: Any) -> int:
        ids = [tx.tasks.insert([task])[0] for task in new_tasks(tx, COUNT, TASKS[case])]
        tx.tasks.insert(new_tasks(tx, COUNT, TASKS[case]))
        return int(ids[0])

    rows = tasks_from(database, await store.transact(fill))
    assert len(rows) == 2 * COUNT
    assert rows[:COUNT] == rows[COUNT:]


@pytest.mark.fault("F01")
@pytest.mark.spec("C10")
@pytest.mark.parametrize("case", ADVANCES)
async def test_slots_are_claimed_as_one_by_one_each_by_its_own_guard(
    store: SqlStore, database: Database, case: str
) -> None:
    def make_advance(task: Task, number: int, refused: range) -> Advance:
        if number in refused:  # another version than the one that was seen
            task = msgspec.structs.replace(task, version=task.version + 1)
        given: dict[str, Any] = {
            "task": task,
            "next_slot_at": 6_000,
            "fire_at": 6_000,
            "started": 1,
            "last_status": "queued",
        }
        return Advance(**given | ADVANCES[case](number))

    def write(tx: Any, refused: range) -> tuple[int, list[bool], list[bool]]:
        tasks = [tx.tasks.find(one) for one in add_tasks(tx, COUNT) + add_tasks(tx, COUNT)]
        changes = [make_advance(task, n % COUNT, refused) for n, task in enumerate(tasks)]
        alone = [tx.task_due.advance_unchanged([one])[0] for one in changes[:COUNT]]
        return tasks[0].id, alone, tx.task_due.advance_unchanged(changes[COUNT:])

    for refused in NONE, SOME:
        first, alone, together = await store.transact(write, refused)
        assert alone == together == [number not in refused for number in range(COUNT)]
        rows = tasks_from(database, first)
        assert len(rows) == 2 * COUNT
        assert rows[:COUNT] == rows[COUNT:]
