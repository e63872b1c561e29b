"""What is remembered of steps of the clock, on every SQL store."""

from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition
from ksana.engine.tasks.clock_steps import read_windows, write_unseen_steps
from ksana.ports.clock_steps import ClockStep
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.conformance.store.test_history import new_run
from tests.ground.task_rows import a_task

pytestmark = pytest.mark.spec("X5", "X2")


async def test_steps_are_remembered_while_they_concern_time_to_come(store: SqlStore) -> None:
    steps = [
        ClockStep(is_back=False, from_at=10, to_at=100, seen_at=100),
        ClockStep(is_back=True, from_at=100, to_at=120, seen_at=20),
    ]

    def add(tx: Any) -> None:
        for step in steps:
            tx.clock_steps.add(step)

    await store.transact(add)
    assert await store.read(lambda tx: tx.clock_steps.list_beyond(99)) == steps
    assert await store.read(lambda tx: tx.clock_steps.list_beyond(100)) == steps[1:]
    assert await store.transact(lambda tx: tx.clock_steps.purge(100, 10)) == 0
    assert await store.transact(lambda tx: tx.clock_steps.purge(121, 1)) == 1
    assert await store.transact(lambda tx: tx.clock_steps.purge(121, 10)) == 1
    assert await store.read(lambda tx: tx.clock_steps.list_beyond(0)) == []


@pytest.mark.fault("F20")
async def test_a_life_that_ended_later_than_now_is_a_step_back_that_nobody_saw(
    store: SqlStore, database: Database
) -> None:
    for name in ("dead", "me", "peer"):
        await store.transact(
            lambda tx, name=name: tx.instances.register(name, "h", "1", 15 * SECOND, False)
        )
    now = await store.read(lambda tx: tx.now)
    assert (await store.read(read_windows)).lived == ()
    database.ask(
        f"UPDATE instances SET outage_from = {now - HOUR}, started_at = {now + HOUR}, "
        f"alive_at = {now + HOUR + MINUTE} WHERE id = 'dead'"
    )
    for _ in range(2):  # once, however often somebody starts
        await store.transact(write_unseen_steps, "me")
    windows = await store.read(read_windows)
    [lived] = windows.lived
    assert (lived.since, lived.until) == (now + HOUR, now + HOUR + MINUTE)
    [skipped] = windows.skipped
    assert (skipped.since, skipped.until) == (now - HOUR, now + HOUR)
    # Such an outage is none for what is due now.
    assert await store.read(lambda tx: tx.instances.list_outages(now - HOUR)) == []


async def test_slots_that_have_a_run_are_known_and_kept_until_their_time(store: SqlStore) -> None:
    def fill(tx: Any) -> tuple[list[int], int]:
        definition = Definition("t", "", Every(HOUR, tx.now, False))
        tasks = [a_task(f"j{n}", definition, tx.now, tx.now + HOUR, "T") for n in range(2)]
        ids = tx.tasks.insert(tasks)
        runs = [
            new_run(ids[0], tx.now, "SUCCESS", slot_at=tx.now + n * HOUR) for n in (-2, -1, 1, 2)
        ]
        tx.run_changes.insert([*runs, new_run(ids[1], tx.now, "SUCCESS", slot_at=tx.now + HOUR)])
        return ids, tx.now

    (one, two), now = await store.transact(fill)
    read = store.read
    assert await read(lambda tx: tx.runs.list_slots(one, now, now + 2 * HOUR, 10)) == [
        now + HOUR,
        now + 2 * HOUR,
    ]
    assert await read(lambda tx: tx.runs.list_slots(one, now - HOUR, now + HOUR, 10)) == [
        now + HOUR
    ]
    assert await read(lambda tx: tx.runs.list_claimed([one, two], now + HOUR, now + HOUR)) == {
        (one, now + HOUR),
        (two, now + HOUR),
    }
    surplus = await read(lambda tx: tx.history.list_surplus(one, 0, 10))
    runs = await read(lambda tx: {run.id: run.slot_at for run in tx.runs.list_runs(task_id=one)})
    assert sorted(runs[run_id] for run_id in surplus) == [now - 2 * HOUR, now - HOUR]
