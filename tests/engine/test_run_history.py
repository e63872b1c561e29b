"""Retention of runs: by age and by number, in small batches, never unfinished work, never
definitions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.ids import new_uid
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND
from ksana.domain.dead_letters import LetterFilter
from ksana.domain.tasks.records import NewRun, Options, Task
from ksana.engine.core import retention as retention_loop
from ksana.engine.core.retention import Retention
from ksana.engine.tasks import run_history
from ksana.engine.tasks.run_history import BATCH, MAX_NOTED, RunHistory, add_run_history
from ksana.store.sql import SqlStore
from tests.engine.tasks_world import World, every, open_world, task_of
from tests.ground.dead_letters import Failing

pytestmark = pytest.mark.spec("X13")

KEEP = 30 * DAY


@pytest.fixture
async def world(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    world = await open_world(tmp_path, clock)
    await world.die()
    yield world
    await world.store.close()


async def add_task(world: World, keep: int = 1000, name: str = "t") -> Task:
    return await world.add(
        task_of(every(world, 3600), name=name, options=Options(history_limit=keep))
    )


async def add_runs(
    store: SqlStore, task: Task, count: int, status: str = "SUCCESS", *, callbacks: bool = False
) -> list[int]:
    """Runs that ended now, or, SCHEDULED, have not."""

    def write(tx: Any) -> list[int]:
        new = [
            NewRun(
                uid=new_uid(),
                task_id=task.id,
                slot_at=None,
                scheduled_time=tx.now,
                status=status,
                trigger="manual",
                exec_type="SYNC",
                is_counted=True,
                host="h",
                is_ready=False,
                held_by=None,
                token=1,
                reason="RUN_NOW",
                trace_id="t",
            )
            for _ in range(count)
        ]
        ids: list[int] = tx.run_changes.insert(new)
        for run_id in ids if callbacks else ():
            tx.run_changes.insert_callback(run_id, "{}", "{}", "RECEIVED")
        return ids

    return await store.transact(write)


async def kept(store: SqlStore, task: Task) -> list[int]:
    rows = await store.read(lambda tx: tx.runs.list_runs(task_id=task.id, limit=100_000))
    return sorted(run.id for run in rows)


async def let_run(pump: Any, clock: VirtualClock, us: int) -> None:
    running = asyncio.ensure_future(pump.run())
    await clock.advance(us)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def make_retention(world: World) -> Retention:
    retention = Retention(world.store, world.clock, "one")
    add_run_history(retention, KEEP)
    return retention


async def test_runs_that_ended_long_ago_go_with_their_callbacks_and_young_ones_stay(
    world: World,
) -> None:
    task = await add_task(world)
    old = await add_runs(world.store, task, 2 * BATCH + 3, callbacks=True)
    await world.clock.advance(KEEP)
    young = await add_runs(world.store, task, 4, "FAILED")
    await world.clock.advance(MINUTE)
    retention = make_retention(world)
    await let_run(retention.pump, world.clock, 5 * SECOND)
    assert retention.removed == {"runs": len(old)}
    assert await kept(world.store, task) == young
    assert await world.store.read(lambda tx: tx.runs.list_callbacks(old[0])) == []
    assert (await world.tasks.get(task.id)).id == task.id


async def test_unfinished_runs_at_the_old_end_stay_and_slow_nothing_down(world: World) -> None:
    task = await add_task(world)
    unfinished = await add_runs(world.store, task, BATCH + 10, "SCHEDULED")
    await add_runs(world.store, task, 3 * BATCH)
    await world.clock.advance(KEEP + MINUTE)
    retention = make_retention(world)
    now = world.clock.now()
    assert await retention.step() == now + retention_loop.PAUSE, "more may follow"
    assert retention.removed == {"runs": BATCH - 10}
    await let_run(retention.pump, world.clock, 5 * SECOND)
    assert await kept(world.store, task) == unfinished


@pytest.mark.spec("X13")
async def test_runs_that_are_merely_young_are_not_passed_over(world: World) -> None:
    task = await add_task(world)
    retention = Retention(world.store, world.clock, "one")
    add_run_history(retention, 10 * MINUTE)
    running = asyncio.ensure_future(retention.pump.run())
    for _ in range(20):
        await add_runs(world.store, task, 30)
        await world.clock.advance(MINUTE)
    await world.clock.advance(11 * MINUTE)  # less than until a walk begins anew
    assert retention.removed["runs"] == 20 * 30
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_task_keeps_its_newest_successes_and_all_that_failed(world: World) -> None:
    task, other = await add_task(world, keep=5), await add_task(world, keep=5, name="o")
    failed = await add_runs(world.store, task, 3, "FAILED")
    await add_runs(world.store, task, 20, callbacks=True)
    skipped = await add_runs(world.store, task, 2, "SKIPPED")
    newest = await add_runs(world.store, task, 5)
    few = await add_runs(world.store, other, 5)
    history = RunHistory(world.store, world.clock)
    history.note([(task.id, 5)])
    await history.step()
    assert history.removed == 20
    assert await kept(world.store, task) == sorted([*failed, *skipped, *newest])
    assert await kept(world.store, other) == few


async def test_a_task_is_looked_at_once_it_grew_by_a_tenth(world: World) -> None:
    task = await add_task(world, keep=50)
    history = RunHistory(world.store, world.clock)
    await history.step()  # the first sweep
    await add_runs(world.store, task, 60)
    for _ in range(4):
        history.note([(task.id, 50)])
    await history.step()
    assert history.removed == 0
    history.note([(task.id, 50)])
    await history.step()
    assert history.removed == 10


async def test_the_sweep_finds_what_nobody_noted(world: World) -> None:
    tasks = [
        await add_task(world, keep=2, name=f"t{n}") for n in range(run_history.TASKS_A_LOOK + 5)
    ]
    for task in (tasks[0], tasks[-1]):
        await add_runs(world.store, task, 6)
    history = RunHistory(world.store, world.clock)
    await let_run(history.pump, world.clock, 3 * MINUTE)
    assert history.removed == 8
    await add_runs(world.store, tasks[3], 3)
    await let_run(history.pump, world.clock, 2 * HOUR)
    assert history.removed == 9


async def test_a_lowered_limit_is_followed_in_batches(world: World) -> None:
    task = await add_task(world, keep=10)
    await add_runs(world.store, task, 3 * BATCH)
    history = RunHistory(world.store, world.clock)
    now = world.clock.now()
    assert await history.step() == now + run_history.PAUSE
    assert history.removed == BATCH
    await let_run(history.pump, world.clock, SECOND)
    assert len(await kept(world.store, task)) == 10


async def test_what_is_remembered_is_bounded(world: World) -> None:
    history = RunHistory(world.store, world.clock)
    for task_id in range(MAX_NOTED + 100):
        history.note([(task_id, 1000)])
    assert len(history._grown) == MAX_NOTED


async def test_runs_of_the_engine_stay_within_the_limit_for_a_task_that_fires_all_the_time(
    world: World,
) -> None:
    await world.revive()
    task = await world.add(task_of(every(world, 1), options=Options(history_limit=20)))
    history = RunHistory(world.store, world.clock)
    world.metrics.recorded = history.recorded  # type: ignore[method-assign]
    running = asyncio.ensure_future(history.pump.run())
    await world.clock.advance(3 * MINUTE)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.die()
    assert 20 <= len(await kept(world.store, task)) <= 32


@pytest.mark.spec("B12")
async def test_a_task_keeps_as_many_dead_letters_as_successes_and_their_runs_go_with_age(
    world: World,
) -> None:
    failing = Failing(world.store)
    task_id, other = await failing.add_task("t", 3), await failing.add_task("o", 3)
    runs = [await failing.fail_run(task_id) for _ in range(8)]
    apart = await failing.fail_run(other)
    history = RunHistory(world.store, world.clock)
    history.note([(task_id, 3)])
    await history.step()
    letters = (await failing.letters.list_letters(["tasks"], LetterFilter(), None, 10)).letters
    assert {letter.entity_id for letter in letters} == {str(run) for run in (*runs[-3:], apart)}
    retention = make_retention(world)
    await let_run(retention.pump, world.clock, MINUTE)
    assert retention.removed == {"runs": 0}
    await world.clock.advance(KEEP + MINUTE)
    await let_run(retention.pump, world.clock, MINUTE)
    assert retention.removed == {"runs": 5}
    left = await world.store.read(lambda tx: tx.runs.list_runs(limit=100))
    assert {run.id for run in left} == {*runs[-3:], apart}


async def test_a_walk_begins_anew_every_hour_and_finds_what_was_settled_meanwhile(
    world: World,
) -> None:
    failing = Failing(world.store)
    task_id = await failing.add_task()
    await failing.fail_run(task_id)
    for _ in range(BATCH):  # a window of runs that stay
        await failing.fail_run(task_id)
    await world.clock.advance(KEEP + MINUTE)
    retention = make_retention(world)
    await let_run(retention.pump, world.clock, MINUTE)
    await world.store.transact(lambda tx: tx.dead_letters.settle("tasks", ["1"]))
    await let_run(retention.pump, world.clock, 10 * MINUTE)
    assert retention.removed == {"runs": 0}, "what was passed over is not looked at again"
    await let_run(retention.pump, world.clock, 2 * HOUR)
    assert retention.removed == {"runs": 1}
