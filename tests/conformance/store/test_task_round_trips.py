"""Firing and recording cost as many round trips for many tasks as for one."""

import asyncio
import threading
from typing import Any

import pytest

from ksana.base.instant import HOUR
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition
from ksana.engine.tasks.run_writer import write_changes
from ksana.store.sql import SqlStore
from tests.conformance.store.test_batches import add_runs
from tests.conformance.store.test_round_trips import trips_of
from tests.ground.task_rows import a_finish, a_task


def add_tasks(tx: Any, count: int, first: int = 0) -> list[int]:
    names = [f"trips-{first + number}" for number in range(count)]
    every = Every(HOUR, tx.now, False)
    ids: list[int] = tx.tasks.insert(
        [a_task(name, Definition(name, "", every), tx.now, tx.now) for name in names]
    )
    return ids


@pytest.mark.spec("C11")
async def test_ends_of_runs_whose_tasks_have_a_line_cost_few_round_trips(store: SqlStore) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    trips: dict[int, list[int]] = {2: [], 40: []}
    for turn in range(8):  # over all writers: each asks for the clock and for types now and then
        for count, spent in trips.items():
            tasks = await store.transact(add_tasks, count, turn * 100 + count)
            runs = [(await store.transact(add_runs, task, 1))[0] for task in tasks]
            ends = [
                a_finish(run_id, token, task, frees_slot=True)
                for (run_id, token), task in zip(runs, tasks, strict=True)
            ]
            more, written = await trips_of(
                store, lambda ends=ends: store.transact(write_changes, ends)
            )
            assert written.done == [True] * count
            spent.append(more)
    assert min(trips[2]) == min(trips[40]) <= 4, "locks, ends, who waits, commit"


@pytest.mark.spec("C11", "X4")
async def test_tasks_that_are_locked_are_left_out_by_others(store: SqlStore) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has one writer")
    first, second, third = await store.transact(add_tasks, 3)
    is_locked, may_end = threading.Event(), threading.Event()

    def hold(tx: Any) -> None:
        tx.tasks.lock([third, first, 10**9])
        is_locked.set()
        may_end.wait(30)

    def list_due(tx: Any) -> list[int]:
        return [task.id for task in tx.task_due.list_due(tx.now, 10)]

    holding = asyncio.ensure_future(store.transact(hold))
    try:
        await asyncio.to_thread(is_locked.wait, 30)
        assert await store.transact(list_due) == [second]
    finally:
        may_end.set()
        await holding
    assert sorted(await store.transact(list_due)) == [first, second, third]
