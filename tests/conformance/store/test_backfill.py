"""Runs of a backfill on every SQL store: made once for each slot however many ask, let in one by
one, put off together, cancelled together."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND
from ksana.domain.schedule import make_cron
from ksana.domain.tasks.backfill import Caps, Span
from ksana.domain.tasks.records import Definition, Task
from ksana.engine.tasks.rescue import wake_due
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.definitions import NewTask, TaskService
from ksana.service.tasks.ledger import LedgerService
from ksana.store.sql import SqlStore
from tests.api.tasks_ground import SilentHints

pytestmark = pytest.mark.spec("B7")
HINTS = SilentHints()


async def make_task(store: SqlStore) -> Task:
    definition = Definition("t", "", make_cron("0 0 * * * *"), target_url="http://t/")
    return await TaskService(store, SystemClock(), HINTS, SECOND).create(NewTask("C", definition))


def past(hours: int) -> Span:
    start = SystemClock().now() // DAY * DAY - 2 * DAY
    return Span(start, start + hours * HOUR)


async def test_many_who_ask_for_the_same_range_at_once_fire_each_slot_once(
    store: SqlStore,
) -> None:
    task = await make_task(store)
    service = BackfillService(store, HINTS, SECOND)
    span = past(12)
    filled = await asyncio.gather(
        *(service.backfill(task.id, span, Caps(count=5)) for _ in range(4))
    )
    assert sorted(slot for one in filled for slot in one.plan.slots) == [
        span.since + hour * HOUR for hour in range(12)
    ]
    runs = await store.read(lambda tx: tx.runs.list_runs(task_id=task.id, limit=100))
    assert len(runs) == 12
    page = await LedgerService(store, 30 * DAY, SECOND).list_page(span.since, span.until)
    [entry] = page.entries  # though the task was not made yet
    assert (entry.sums.expected, entry.sums.fired, entry.missing) == (12, 12, 0)


async def test_runs_are_let_in_as_the_task_has_room_and_the_rest_is_put_off(
    store: SqlStore,
) -> None:
    task = await make_task(store)
    service = BackfillService(store, HINTS, SECOND)
    await service.backfill(task.id, past(4), Caps(count=4, interval_us=1))

    def look(tx: Any) -> list[tuple[bool, bool, int | None]]:
        runs = tx.runs.list_runs(task_id=task.id, limit=10)
        return [(run.is_counted, run.ready_host is not None, run.wake_at) for run in reversed(runs)]

    first, *rest = await store.read(look)
    assert first == (True, True, None)  # it was let in with the call
    assert all(one[:2] == (False, False) for one in rest)
    assert (await store.read(lambda tx: tx.runs.count_open([task.id])))[task.id].active == 1
    await store.transact(wake_due, None)
    later = await store.read(look)
    assert later[0] == first
    before = [one[2] or 0 for one in rest]
    assert all((one[2] or 0) - at >= SECOND for one, at in zip(later[1:], before, strict=True))
    # Their distances stay: the pace is kept.
    now = [one[2] or 0 for one in later[1:]]
    assert [one - now[0] for one in now] == [one - before[0] for one in before]
    assert await store.read(lambda tx: tx.run_due.count_unfinished(task.id, 3)) == 3
    assert await service.cancel(task.id) == 3
    assert await store.read(lambda tx: tx.run_due.count_unfinished(task.id, 10)) == 1
    assert await store.read(lambda tx: tx.run_due.next_wake_at()) is None


async def test_a_dry_run_writes_nothing(store: SqlStore) -> None:
    task = await make_task(store)
    seen = await BackfillService(store, HINTS, SECOND).preview(
        task.id, past(4), Caps(count=3, interval_us=MINUTE)
    )
    assert len(seen.plan.slots) == 3
    assert await store.read(lambda tx: tx.runs.list_runs(task_id=task.id, limit=10)) == []
