"""Several instances count at once, each in rows of its own: none waits for another, and the sums
are right before and after the rows are folded."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import HOUR, MINUTE
from ksana.domain.histogram import BUCKET_BITS
from ksana.engine.core.retention import SHARES_KEPT_US, Retention, add_core_rows
from ksana.engine.tasks.run_history import fold_counts
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database

WAIT = 20.0


@pytest.fixture(params=["mariadb", "postgres"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[list[SqlStore]]:
    """Three instances on one database."""
    server: Any = request.getfixturevalue(request.param)
    name = server.create_database()
    opened = [await open_store(server.url(name), SystemClock()) for _ in range(3)]
    opened[0].database = Database(server.url(name))  # type: ignore[attr-defined]
    yield opened
    for store in opened:
        await store.close()
    server.drop_database(name)


def count(tx: Any, number: int = 1) -> None:
    """All that is counted: lists' totals, minutes, series, histograms, gauges."""
    tx.row_counts.add("runs", "SUCCESS", number)
    tx.rollups.add("runs_done", count=number, total=0.5 * number)
    tx.series.add("queue.done", number)
    tx.series.observe("queue.run", {3: number}, 1.0)
    tx.gauges.add(number, 0, number)


def count_and_wait(tx: Any, has_written: threading.Event, may_end: threading.Event) -> None:
    """Write the counts and stay open."""
    count(tx)
    tx.flush()
    tx.row_counts.read("runs")  # a question: what was written before it is sent with it
    has_written.set()
    assert may_end.wait(3 * WAIT)


def read_counts(tx: Any, since: int) -> tuple[Any, ...]:
    buckets = tx.rollups.list_buckets("runs_done", "", since, since + 2 * HOUR)
    return (
        tx.row_counts.read("runs"),
        sum(number for _, number, _ in buckets),
        sum(total for _, _, total in buckets),
        len({at for at, _, _ in buckets}) == len(buckets),
        tx.series.sum_since(["queue.done"], since)["queue.done"],
        tx.series.sum_since(["queue.run"], since)["queue.run"],
        tx.gauges.read().queued,
    )


@pytest.mark.spec("X4")
async def test_nobody_waits_for_another_instances_counts(stores: list[SqlStore]) -> None:
    has_written, may_end = threading.Event(), threading.Event()
    slow = asyncio.ensure_future(stores[0].transact(count_and_wait, has_written, may_end))
    assert await asyncio.to_thread(has_written.wait, WAIT)
    try:
        # While the first has its counts written and not committed. The server ends that transaction
        # after 8 s.
        async with asyncio.timeout(6):
            for _ in range(8):
                await asyncio.gather(*(store.transact(count) for store in stores[1:]))
    finally:
        may_end.set()
    await slow
    since = await stores[0].read(lambda tx: tx.now) - HOUR
    totals, minutes, seconds, *_ = await stores[0].read(read_counts, since)
    assert (totals, minutes, seconds) == ({"SUCCESS": 17}, 17, 8.5)


@pytest.mark.spec("X4")
async def test_the_sums_stay_while_rows_are_folded(stores: list[SqlStore]) -> None:
    database: Database = stores[0].database  # type: ignore[attr-defined]
    since = await stores[0].read(lambda tx: tx.now) - HOUR
    over = asyncio.Event()

    async def write(store: SqlStore) -> int:
        done = 0
        while not over.is_set():
            await store.transact(count)
            done += 1
        return done

    def fold(tx: Any) -> int:
        return int(tx.rollups.fold(tx.now + MINUTE, 100) + tx.row_counts.fold(100))

    writers = [asyncio.create_task(write(store)) for store in stores]
    folded = 0
    for _ in range(20):
        found = await asyncio.gather(*(store.transact(fold) for store in stores[:2]))
        folded += sum(found)
    over.set()
    done = sum(await asyncio.gather(*writers))
    assert folded > 0 and done > 20
    expected = ({"SUCCESS": done}, done, 0.5 * done, True, done, done << 3 * BUCKET_BITS, done)
    assert await stores[0].read(read_counts, since) == expected
    while await stores[0].transact(fold):
        pass
    assert await stores[0].read(read_counts, since) == expected
    assert database.ask("SELECT COUNT(*) FROM rollups WHERE entry LIKE '%@%'") == [(0,)]
    assert database.ask("SELECT shard, SUM(n) FROM row_counts GROUP BY shard") == [(0, done)]


async def test_counts_of_instances_that_are_gone_are_folded_by_chores(
    stores: list[SqlStore],
) -> None:
    database: Database = stores[0].database  # type: ignore[attr-defined]
    await asyncio.gather(*(store.transact(count) for store in stores))
    database.ask(f"UPDATE rollups SET bucket_at = bucket_at - {SHARES_KEPT_US + 2 * MINUTE}")
    retention = Retention(stores[1], SystemClock(), "me")
    add_core_rows(retention, 30 * 24 * HOUR)
    await retention.step()
    await stores[1].transact(fold_counts, 100)
    [(rows, entries)] = database.ask("SELECT COUNT(*), COUNT(DISTINCT metric) FROM rollups")
    assert rows == entries == 3
    [(rows,)] = database.ask("SELECT COUNT(*) FROM row_counts")
    assert rows == 1
