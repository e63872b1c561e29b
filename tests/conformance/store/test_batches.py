"""Many guarded changes in one statement answer as one by one would, on every SQL store."""

from typing import Any

import pytest

from ksana.base.ids import new_token, new_uid
from ksana.base.instant import HOUR
from ksana.domain.schedule import Every
from ksana.domain.tasks.changes import make_ready
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import Definition, NewRun, Task
from ksana.engine.tasks.claimer import claim_ready
from ksana.ports.tasks.tables import Advance
from ksana.store.sql import SqlStore
from tests.ground.task_rows import a_finish, a_task


def add_tasks(tx: Any, count: int) -> list[Task]:
    definition = Definition("t", "", Every(HOUR, tx.now, False), target_url="http://h/")
    ids = tx.tasks.insert([a_task(f"j{n}", definition, tx.now, tx.now, "T") for n in range(count)])
    return [tx.tasks.find(task_id) for task_id in ids]


def add_runs(tx: Any, task_id: int, count: int) -> list[tuple[int, int]]:
    runs = [
        NewRun(
            uid=new_uid(),
            task_id=task_id,
            slot_at=tx.now + n,
            scheduled_time=tx.now,
            status="RUNNING",
            trigger="schedule",
            exec_type="SYNC",
            is_counted=True,
            host="h",
            is_ready=False,
            held_by="me",
            token=new_token(),
            reason="PARALLEL",
            trace_id="t",
        )
        for n in range(count)
    ]
    return [
        (run_id, run.token) for run_id, run in zip(tx.run_changes.insert(runs), runs, strict=True)
    ]


@pytest.mark.fault("F01")
@pytest.mark.spec("X2", "C10")
@pytest.mark.parametrize("count", [1, 7, 8, 171])
async def test_each_slot_of_many_is_claimed_or_not_by_its_own_guard(
    store: SqlStore, count: int
) -> None:
    def advance(tx: Any) -> tuple[list[Task], list[bool]]:
        tasks = add_tasks(tx, count)
        for task in tasks[::3]:
            # The version rises: the slot seen before is void.
            tx.tasks.delete_if_living(task, task.definition)
        return tasks, tx.task_due.advance_unchanged(
            [Advance(task, tx.now + n, tx.now + n, 1, "") for n, task in enumerate(tasks)]
        )

    tasks, claimed = await store.transact(advance)
    assert claimed == [n % 3 != 0 for n in range(count)]
    for n, task in enumerate(tasks):
        found = await store.read(lambda tx, task_id: tx.tasks.find(task_id), task.id)
        assert found.runs_fired == (1 if claimed[n] else 0)
        assert (found.next_slot_at is not None) is claimed[n]


@pytest.mark.spec("X2", "C10")
async def test_when_every_guard_holds_each_row_gets_its_own_values(store: SqlStore) -> None:
    def advance(tx: Any) -> tuple[int, list[Task], list[bool]]:
        tasks = add_tasks(tx, 171)
        changes = [
            Advance(task, tx.now + n, None if n % 2 else tx.now + n, n, "missed" if n % 5 else "")
            for n, task in enumerate(tasks)
        ]
        return tx.now, tasks, tx.task_due.advance_unchanged(changes)

    now, tasks, claimed = await store.transact(advance)
    assert claimed == [True] * 171
    found = await store.read(lambda tx: [tx.tasks.find(task.id) for task in tasks])
    assert [task.next_slot_at for task in found] == [now + n for n in range(171)]
    assert [task.fire_at for task in found] == [None if n % 2 else now + n for n in range(171)]
    assert [task.runs_fired for task in found] == list(range(171))
    assert [task.last_status for task in found] == ["missed" if n % 5 else "" for n in range(171)]


@pytest.mark.fault("F12")
@pytest.mark.spec("X2", "C19")
async def test_an_outcome_under_a_void_token_is_refused_and_its_neighbours_are_written(
    store: SqlStore,
) -> None:
    def finish(tx: Any) -> tuple[list[tuple[int, int]], list[bool]]:
        (task,) = add_tasks(tx, 1)
        runs = add_runs(tx, task.id, 50)
        ends = [
            a_finish(run_id, token + (1 if n == 33 else 0), task.id)
            for n, (run_id, token) in enumerate(runs)
        ]
        return runs, tx.run_changes.finish(ends)

    runs, written = await store.transact(finish)
    assert written == [n != 33 for n in range(50)]
    states = await store.read(lambda tx: [tx.runs.find(run_id).status for run_id, _ in runs])
    assert states == ["RUNNING" if n == 33 else "SUCCESS" for n in range(50)]


@pytest.mark.spec("X2", "C14")
async def test_taking_up_a_retry_counts_an_attempt_and_taking_up_a_first_try_does_not(
    store: SqlStore,
) -> None:
    def fill(tx: Any) -> list[int]:
        (task,) = add_tasks(tx, 1)
        runs = add_runs(tx, task.id, 12)
        members = {"new": "RETRYING", "end_time": None, "wake_at": tx.now}
        ends = [a_finish(run_id, token, task.id, **members) for run_id, token in runs]
        assert all(tx.run_changes.finish(ends))
        due = tx.run_due.list_wakes(tx.now, 100)
        assert all(tx.run_changes.move([make_ready(run) for run in due]))
        return [run_id for run_id, _ in runs]

    ids = await store.transact(fill)
    claimed, _ = await store.transact(
        lambda tx: claim_ready(tx, "h", "me", [new_token() for _ in range(20)], 0)
    )
    assert [run.run_id for run in claimed] == ids
    stored = await store.read(lambda tx: [tx.runs.find(run_id) for run_id in ids])
    assert [(run.attempt, run.status, run.token) for run in stored] == [
        (2, "RUNNING", run.token) for run in claimed
    ]


@pytest.mark.spec("X2", "C10")
async def test_the_ids_of_many_new_runs_are_their_own(store: SqlStore) -> None:
    def fill(tx: Any) -> list[tuple[int, int]]:
        (task,) = add_tasks(tx, 1)
        return add_runs(tx, task.id, 203)

    runs = await store.transact(fill)
    assert len({run_id for run_id, _ in runs}) == 203
    found = await store.read(lambda tx: [tx.runs.find(run_id) for run_id, _ in runs])
    assert [run.token for run in found] == [token for _, token in runs]
    assert [run.slot_at - found[0].slot_at for run in found] == list(range(203))


@pytest.mark.spec("X2", "C11")
async def test_open_runs_of_many_tasks_are_counted_at_once(store: SqlStore) -> None:
    def fill(tx: Any) -> list[int]:
        tasks = add_tasks(tx, 3)
        add_runs(tx, tasks[0].id, 2)
        add_runs(tx, tasks[2].id, 1)
        return [task.id for task in tasks]

    ids = await store.transact(fill)
    counts = await store.read(lambda tx: tx.runs.count_open(ids))
    assert counts == {ids[0]: Counts(2, 0), ids[2]: Counts(1, 0)}
    assert await store.read(lambda tx: tx.runs.count_open([])) == {}


@pytest.mark.spec("X2")
async def test_the_last_fact_of_many_tasks_is_noted_unless_a_later_one_is_known(
    store: SqlStore,
) -> None:
    def fill(tx: Any) -> list[int]:
        ids = [task.id for task in add_tasks(tx, 20)]
        tx.tasks.note_last([(ids[0], "failed", "later")], tx.now + HOUR)
        tx.tasks.note_last([(task_id, "success", f"e{task_id}") for task_id in ids], tx.now)
        return ids

    ids = await store.transact(fill)
    found = await store.read(lambda tx: [tx.tasks.find(task_id) for task_id in ids])
    assert [task.last_error for task in found] == ["later", *(f"e{task_id}" for task_id in ids[1:])]


@pytest.mark.spec("C12")
async def test_plain_and_other_outcomes_are_written_in_one_go_and_answered_in_order(
    store: SqlStore,
) -> None:
    def finish(tx: Any) -> tuple[list[bool], list[Any]]:
        [task] = add_tasks(tx, 1)
        runs = add_runs(tx, task.id, 24)
        ends = []
        for place, (run_id, token) in enumerate(runs):
            members: dict[str, Any] = {}
            if place % 3 == 1:
                members = {
                    "new": "FAILED",
                    "reason": "NOT_RETRYABLE",
                    "error": "no",
                    "response_truncated": True,
                    "response_code": 404,
                }
            # every eighth is another's by now
            ends.append(a_finish(run_id, token + (place % 8 == 0), task.id, **members))
        return tx.run_changes.finish(ends), [tx.runs.find(run_id) for run_id, _ in runs]

    held, runs = await store.transact(finish)
    assert held == [place % 8 != 0 for place in range(24)]
    for place, run in enumerate(runs):
        if place % 8 == 0:
            assert (run.status, run.response_code) == ("RUNNING", None)
        elif place % 3 == 1:
            assert (run.status, run.response_code, run.error_message, run.reason) == (
                "FAILED",
                404,
                "no",
                "NOT_RETRYABLE",
            )
        else:
            assert (run.status, run.response_code, run.error_message, run.reason) == (
                "SUCCESS",
                200,
                None,
                "ANSWERED_2XX",
            )
            assert (run.end_time, run.request_headers, run.held_by) == (2, "{}", None)
