"""The queue's upkeep on the virtual clock: past minutes are packed soon, a backlog in small
batches, old hours are removed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.engine.core.retention import Retention
from ksana.engine.queue.chores import (
    HEAL_EVERY,
    PACK,
    PACK_EVERY,
    PACK_LOCK_US,
    PAUSE,
    SAMPLE_EVERY,
    QueueChores,
    add_queue_rows,
    pack,
)
from ksana.ports.queue.tables import JobFilter
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from ksana.service.queue.stats import read_series
from ksana.store.sql import SqlStore, open_store
from tests.ground.logs import capture_logs

KEEP = 30 * DAY
COLUMNS = ("metric", "minutes", "bucket_at", "entry", "count", "total")


@pytest.fixture
async def store(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[SqlStore]:
    store = await open_store(f"sqlite:///{tmp_path}/k.db", clock, inline=True)
    yield store
    await store.close()


@asynccontextmanager
async def upkeep(store: SqlStore, clock: VirtualClock) -> AsyncIterator[list[int]]:
    """The loop at work; when the figures were sampled."""
    sampled: list[int] = []

    async def sample() -> None:
        sampled.append(clock.now())

    running = asyncio.ensure_future(QueueChores(store, clock, "one", sample).pump.run())
    yield sampled
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("Q2")
async def test_a_class_that_is_missing_is_noticed_within_minutes(
    store: SqlStore, clock: VirtualClock
) -> None:
    queue = QueueService(store, clock, Limits())
    await queue.submit(a_job(queue))
    async with upkeep(store, clock):
        await clock.advance(SECOND)
        await store.transact(lose_classes)
        await clock.advance(HEAL_EVERY - MINUTE)
        assert await rows_of(store, "job_classes") == 0
        await queue.submit(a_job(queue))  # it relies on the class, as one that slept might
        with capture_logs() as logs:
            await clock.advance(2 * MINUTE)
    assert [(line["event"], line["count"]) for line in logs] == [
        ("classes of queue jobs were missing", 1)
    ]
    claimed = await queue.claim(Claim("w", Wants(job_types=frozenset(["t"])), 9))
    assert len(claimed.taken) == 2


def lose_classes(tx: Any) -> None:
    tx._session.wrote = True
    tx._session.raw("DELETE FROM job_classes")


def a_job(queue: QueueService) -> NewJob:
    kind = class_of("a", "t", 1, ())
    return NewJob(queue.new_id(), "NORMAL", kind, "{}", "{}", None, 1, None, None)


async def rows_of(store: SqlStore, table: str) -> int:
    row = await store.read(lambda tx: tx._session.raw(f"SELECT COUNT(*) FROM {table}"))
    return int(row[0])


def count_some(tx: Any) -> None:
    tx.series.add("queue.done", 2)
    tx.series.observe("queue.run", {4: 1, 9: 1})


@pytest.mark.spec("Q15")
async def test_past_minutes_are_packed_and_told_as_before(
    store: SqlStore, clock: VirtualClock
) -> None:
    for _ in range(90):
        await store.transact(count_some)
        await clock.advance(MINUTE)
    before = [
        await store.read(read_series, metric, 7 * MINUTE, 2 * HOUR)
        for metric in ("jobs_done", "run_seconds_p95")
    ]
    assert sum(value or 0 for value in before[0].values) == 180
    async with upkeep(store, clock):
        await clock.advance(SECOND)
    assert await rows_of(store, "rollups") == 0
    assert await rows_of(store, "queue_hours") <= 2 * 3
    after = [
        await store.read(read_series, metric, 7 * MINUTE, 2 * HOUR)
        for metric in ("jobs_done", "run_seconds_p95")
    ]
    assert after == before


@pytest.mark.spec("Q15")
async def test_few_minutes_are_left_to_read_one_by_one(
    store: SqlStore, clock: VirtualClock
) -> None:
    most = 0
    async with upkeep(store, clock):
        for _ in range(20):
            await store.transact(count_some)
            most = max(most, await rows_of(store, "rollups"))
            await clock.advance(MINUTE)
    assert 3 < most <= 3 * (PACK_EVERY // MINUTE + 2)
    assert await store.read(lambda tx: tx.series.sum_since(["queue.done"], 0)["queue.done"]) == 40


@pytest.mark.spec("Q15")
async def test_a_backlog_is_packed_in_batches_and_keeps_nothing_else(
    store: SqlStore, clock: VirtualClock
) -> None:
    minutes = 2 * PACK
    rows = [
        ("queue.done", 1, clock.now() // MINUTE * MINUTE - n * MINUTE, "0", 1, 0.0)
        for n in range(1, minutes + 1)
    ]
    await store.transact(lambda tx: tx._session.run_rows("core.add_to_bucket", COLUMNS, rows))
    async with upkeep(store, clock) as sampled:
        await clock.advance(SECOND)
    assert len(sampled) == 1
    assert await rows_of(store, "rollups") == 0
    told = await store.read(lambda tx: tx.series.sum_since(["queue.done"], 0))
    assert told == {"queue.done": minutes}


@pytest.mark.spec("Q15")
async def test_between_two_batches_of_a_backlog_callers_have_their_turn(
    store: SqlStore, clock: VirtualClock
) -> None:
    minute = clock.now() // MINUTE * MINUTE
    rows = [("queue.done", 1, minute - n * MINUTE, "0", 1, 0.0) for n in range(1, PACK + 2)]
    await store.transact(lambda tx: tx._session.run_rows("core.add_to_bucket", COLUMNS, rows))
    sampled: list[int] = []

    async def sample() -> None:
        sampled.append(clock.now())

    chores = QueueChores(store, clock, "one", sample)
    assert chores.pump.name == "queue-chores"
    assert await chores._step() == clock.now() + PAUSE
    assert (await rows_of(store, "rollups"), sampled) == (1, [])
    assert await chores._step() == clock.now() + SAMPLE_EVERY
    assert (await rows_of(store, "rollups"), sampled) == (0, [clock.now()])


@pytest.mark.spec("Q15")
async def test_minutes_are_packed_every_five_minutes_and_figures_read_every_fifteen_seconds(
    store: SqlStore, clock: VirtualClock
) -> None:
    begun_at = clock.now()
    packed: list[int] = []
    async with upkeep(store, clock) as sampled:
        await clock.settle()
        for _ in range(2 * PACK_EVERY // SAMPLE_EVERY):
            await store.transact(count_some)
            await clock.advance(SAMPLE_EVERY)
            if await rows_of(store, "rollups") == 0:
                packed.append(clock.now() - begun_at)
    assert sampled == [
        begun_at + nth * SAMPLE_EVERY for nth in range(2 * PACK_EVERY // SAMPLE_EVERY + 1)
    ]
    assert packed == [PACK_EVERY, 2 * PACK_EVERY]


async def test_one_instance_at_a_time_packs(store: SqlStore, clock: VirtualClock) -> None:
    await store.transact(count_some)
    await clock.advance(MINUTE)
    await store.transact(pack, "other", 0)
    assert await store.transact(pack, "one", PACK) == 0
    assert await rows_of(store, "rollups") == 3
    await clock.advance(PACK_LOCK_US)
    assert await store.transact(pack, "one", PACK) == 3


@pytest.mark.spec("X13")
async def test_old_jobs_and_hours_are_removed_by_the_cores_retention(
    store: SqlStore, clock: VirtualClock
) -> None:
    queue = QueueService(store, clock, Limits())
    ended, waiting = [
        NewJob(job_id, "NORMAL", class_of("a", "t", 1, ()), "{}", "{}", None, 1, None, None)
        for job_id in queue.new_ids(2)
    ]
    await queue.submit(ended)
    await queue.cancel(ended.job_id, None)
    await queue.submit(waiting)
    await clock.advance(MINUTE)
    async with upkeep(store, clock):
        await clock.advance(SECOND)
    assert await rows_of(store, "queue_hours") == 3
    await clock.advance(KEEP + HOUR)
    retention = Retention(store, clock, "one")
    add_queue_rows(retention, KEEP)
    await retention.step()
    assert await rows_of(store, "queue_hours") == 0
    left = await store.read(lambda tx: tx.job_lists.list_page(JobFilter(), None, 10))
    assert [job.job_id for job in left] == [waiting.job_id]
    assert retention.removed == {"queue_jobs": 1, "job_classes": 0, "series": 3}
