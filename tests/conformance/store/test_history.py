"""The past of tasks and runs, on every SQL store: what explain asks, and what retention removes."""

from typing import Any

import pytest

from ksana.base.ids import new_token, new_uid
from ksana.base.instant import HOUR, SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition, NewRun, Options
from ksana.ports.retention import START
from ksana.service.tasks.explain import explain_run, explain_task
from ksana.store.sql import SqlStore
from tests.ground.task_rows import a_task


def new_run(task_id: int, at: int, status: str, **members: Any) -> NewRun:
    given: dict[str, Any] = {
        "uid": new_uid(),
        "task_id": task_id,
        "slot_at": None,
        "scheduled_time": at,
        "status": status,
        "trigger": "manual",
        "exec_type": "SYNC",
        "is_counted": True,
        "host": "h",
        "is_ready": False,
        "held_by": None,
        "token": new_token(),
        "reason": "BELOW_LIMIT",
        "trace_id": "t",
        **members,
    }
    return NewRun(**given)


@pytest.mark.fault("F34")
@pytest.mark.spec("X2", "X13")
async def test_runs_are_removed_by_age_and_by_number_and_unfinished_ones_are_not(
    store: SqlStore,
) -> None:

    def fill(tx: Any) -> tuple[int, list[int]]:
        definition = Definition(
            "t", "", Every(HOUR, tx.now, False), options=Options(history_limit=3)
        )
        [task_id] = tx.tasks.insert([a_task("j", definition, tx.now, tx.now + HOUR)])
        states = ["SCHEDULED", *["SUCCESS"] * 6, "FAILED", "SUCCESS"]
        ids = tx.run_changes.insert([new_run(task_id, tx.now, state) for state in states])
        for run_id in (ids[0], ids[1], ids[8]):
            tx.run_changes.insert_callback(run_id, "{}", "{}", "RECEIVED")
        return task_id, ids

    task_id, ids = await store.transact(fill)
    assert await store.read(lambda tx: tx.history.list_limits(0, 10)) == [(task_id, 3)]
    assert await store.read(lambda tx: tx.history.list_surplus(task_id, 7, 10)) == []
    surplus = await store.read(lambda tx: tx.history.list_surplus(task_id, 3, 2))
    assert surplus == [ids[4], ids[3]]
    surplus = await store.read(lambda tx: tx.history.list_surplus(task_id, 3, 10))
    assert surplus == [ids[4], ids[3], ids[2], ids[1]]
    assert await store.transact(lambda tx: tx.history.remove_runs([*surplus, ids[0]])) == 4
    assert await store.read(lambda tx: tx.runs.list_callbacks(ids[1])) == []
    for kept in (ids[0], ids[8]):  # not removed, or not among those to remove
        assert len(await store.read(lambda tx, kept=kept: tx.runs.list_callbacks(kept))) == 1
    old = await store.read(lambda tx: tx.history.find_old_runs(tx.now - HOUR, START, 10))
    assert (old.keys, old.is_end) == ([], True)
    old = await store.read(lambda tx: tx.history.find_old_runs(tx.now + HOUR, START, 2))
    assert (old.keys, old.after, old.is_end) == ([ids[5]], (0, ids[5]), False)
    old = await store.read(lambda tx: tx.history.find_old_runs(tx.now + HOUR, old.after, 10))
    assert (old.keys, old.is_end) == ([ids[6], ids[7], ids[8]], True)
    assert await store.transact(lambda tx: tx.history.remove_runs([ids[5], *old.keys])) == 4
    assert [run.id for run in await store.read(lambda tx: tx.runs.list_runs(task_id=task_id))] == [
        ids[0]
    ]


@pytest.mark.spec("X2", "B1")
async def test_tasks_and_runs_are_explained_alike(store: SqlStore) -> None:

    def fill(tx: Any) -> tuple[int, list[int]]:
        made_at = tx.now - 10 * SECOND
        tx.instances.register("i1", "host", "0", 15 * SECOND, False)
        definition = Definition("t", "", Every(HOUR, made_at - HOUR, False), target_url="http://h/")
        [task_id] = tx.tasks.insert([a_task("j", definition, tx.now, made_at + HOUR)])
        tx.events.append("TASK", task_id, "TASK_CREATED", {})
        runs = [
            new_run(task_id, made_at, "RUNNING", slot_at=made_at, trigger="schedule", held_by="i1"),
            new_run(task_id, tx.now, "SCHEDULED"),
            new_run(task_id, tx.now, "SCHEDULED"),
            new_run(task_id, tx.now, "SCHEDULED", is_ready=True),
            new_run(task_id, tx.now, "SCHEDULED", is_ready=True),
        ]
        return task_id, tx.run_changes.insert(runs)

    task_id, ids = await store.transact(fill)
    for run_id, what, position, instance in (
        (ids[0], "answer", None, "i1"),
        (ids[1], "turn", 1, None),
        (ids[2], "turn", 2, None),
        (ids[3], "place", 1, None),
        (ids[4], "place", 2, None),
    ):
        waits_for = (await store.read(explain_run, run_id)).why.waits_for
        assert waits_for is not None
        assert (waits_for.what, waits_for.position, waits_for.instance) == (
            what,
            position,
            instance,
        )
    found = await store.read(explain_task, task_id, None)
    assert (found.why.verdict, found.slot_run is not None) == ("running", True)
    assert [one.code for one in found.why.reasons][1:3] == ["BELOW_LIMIT", "RUN_BY_HAND"]
    assert (await store.read(explain_task, task_id, found.at + 2 * HOUR)).why.verdict == "will_run"
    before = await store.read(explain_task, task_id, found.at - HOUR)
    assert before.why.verdict == "not_created"
    assert await store.read(lambda tx: tx.history.count_alive()) == 1
