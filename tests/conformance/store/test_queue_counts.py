"""What the queue counted over time, on every SQL store: the same figures before, while and after
minutes are packed."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import DAY, HOUR, MINUTE
from ksana.domain import histogram
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.effects import METRICS
from ksana.engine.queue.leasing import sweep
from ksana.service.queue.claims import Claim, JobClassCache, claim_jobs
from ksana.service.queue.jobs import cancel_job
from ksana.service.queue.releases import release_leases
from ksana.service.queue.stats import read_series, read_snapshot
from ksana.store.sql import SqlStore, open_store
from ksana.store.sql.core.migrate import list_migrations
from tests.conformance.store.ground import Database
from tests.conformance.store.test_queue_store import LIMITS, new_job, submit

WIDTHS = (1, 2, 5, 7, 15, 21, 30, 60, 90, 1439, 1440)

Counted = list[tuple[str, int, str, int]]
"""Metric, minute, entry, count."""


def write(tx: Any, counts: Counted) -> None:
    """Count in minutes of the past, as commits of that time did."""
    columns = ("metric", "minutes", "bucket_at", "entry", "count", "total")
    rows = [
        (f"queue.{metric}", 1, at, entry, count, 0.0) for metric, at, entry, count in sorted(counts)
    ]
    tx._session.run_rows("core.add_to_bucket", columns, rows)


def make_past(now: int, seed: int) -> Counted:
    """Two days of counts of each kind: some minutes empty, several shards, gauges that go down."""
    dice = random.Random(seed)
    this_minute = now - now % MINUTE
    past: Counted = []
    for ago in dice.sample(range(1, 2 * 1440), 60):
        at = this_minute - ago * MINUTE
        for shard in dice.sample("0123", 2):
            past.append(("done", at, shard, dice.randint(1, 9)))
            past.append(("queued", at, shard, dice.randint(-9, 9)))
            past += [
                ("run", at, f"{bucket}.{shard}", dice.randint(1, 9))
                for bucket in dice.sample(range(56), 3)
            ]
    return past


def sums_of(past: Counted, metric: str, since: int, until: int, width: int) -> dict[int, int]:
    """What must be told."""
    sums: Counter[int] = Counter()
    for name, at, entry, count in past:
        if name == metric and since <= at < until:
            bucket, is_span, _ = entry.partition(".")
            sums[at - at % width] += histogram.pack({int(bucket): count}) if is_span else count
    return {at: count for at, count in sums.items() if count}


async def check(store: SqlStore, past: Counted, now: int) -> None:
    """Every metric, over stretches of many widths, and from an instant amid a minute."""
    for minutes in WIDTHS:
        width = minutes * MINUTE
        last = now - now % width
        since = last - (2 * 1440 // minutes + 1) * width
        for metric in ("done", "queued", "run"):
            sums = await store.read(
                lambda tx, *span: tx.series.sum_stretches(*span),
                f"queue.{metric}",
                since,
                last + width,
                width,
            )
            assert {at: count for at, count in sums.items() if count} == sums_of(
                past, metric, since, last + width, width
            ), minutes
    for since in (now - DAY, now - DAY - 1, now - 90 * MINUTE):
        told = await store.read(
            lambda tx, since: tx.series.sum_since(["queue.done", "queue.never"], since), since
        )
        assert told == {
            "queue.done": sum(sums_of(past, "done", since, now + MINUTE, MINUTE).values()),
            "queue.never": 0,
        }


@pytest.mark.spec("Q15")
async def test_counts_are_summed_over_stretches_of_any_whole_minutes(
    store: SqlStore, store_url: str
) -> None:
    now = await store.read(lambda tx: tx.now)
    past = make_past(now, 1)
    await store.transact(write, past)
    await check(store, past, now)
    assert await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 100)) == 100
    await check(store, past, now)
    while await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 100)):
        pass
    await check(store, past, now)
    other = await open_store(store_url, SystemClock())
    await check(other, past, now)
    await other.close()


@pytest.mark.spec("Q15")
async def test_what_is_counted_late_in_a_packed_minute_is_added(store: SqlStore) -> None:
    now = await store.read(lambda tx: tx.now)
    past, late = make_past(now, 2), make_past(now, 3)
    again = [(metric, at, entry, 2) for metric, at, entry, _ in past[::3]]
    await store.transact(write, past)
    await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 10_000))
    await store.transact(write, late)
    await store.transact(write, again)
    await check(store, past + late + again, now)
    await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 10_000))
    await check(store, past + late + again, now)


@pytest.mark.spec("Q15", "X4")
async def test_instances_that_pack_and_count_at_once_lose_and_double_nothing(
    store: SqlStore, store_url: str
) -> None:
    other = await open_store(store_url, SystemClock())
    now = await store.read(lambda tx: tx.now)
    past = [part for seed in range(10) for part in make_past(now, 4)[seed::10]]
    writes = [(one, [(*part[:3], 1)]) for one in (store, other) for part in past[:60]]

    async def pack(one: SqlStore) -> None:
        for _ in range(30):
            await one.transact(lambda tx: tx.series.pack_minutes(METRICS, 25))

    counting = [one.transact(write, part) for one, part in writes]
    await asyncio.gather(pack(store), pack(other), *counting, store.transact(write, past))
    await check(other, past + [part for _, some in writes for part in some], now)
    await other.close()


@pytest.mark.spec("Q15")
async def test_the_present_minute_is_not_packed_and_a_past_one_wholly(
    store: SqlStore, database: Database
) -> None:
    now = await store.read(lambda tx: tx.now)
    await store.transact(write, make_past(now, 5))
    await store.transact(lambda tx: tx.series.add("queue.done", 3))
    await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 10_000))
    left = database.ask("SELECT bucket_at, n FROM rollups")
    assert left == [] or (
        len(left) == 1 and left[0][0] >= now - now % MINUTE
    )  # the minute may turn between the two
    assert await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 10_000)) in (0, 1)


@pytest.mark.spec("Q14", "Q15")
async def test_all_that_the_queue_counts_can_be_packed(store: SqlStore, database: Database) -> None:
    ids = await submit(store, *(new_job() for _ in range(6)), is_batch=True)
    await store.transact(cancel_job, ids[5], "no")
    claimed = await store.transact(
        claim_jobs, Claim("w", Wants(), 3, has_lease=True), JobClassCache(), LIMITS
    )
    statuses = ("SUCCEEDED", "FAILED", "TIMEOUT")
    items = [
        Release(one.lease_id, status) for one, status in zip(claimed.leases, statuses, strict=True)
    ]
    await store.transact(release_leases, items)
    await store.transact(
        claim_jobs,
        Claim("w", Wants(), 1, has_lease=True, ttl_sec=0.000001),
        JobClassCache(),
        LIMITS,
    )
    await store.transact(sweep, 50)
    assert {row[0] for row in database.ask("SELECT DISTINCT metric FROM rollups")} == set(METRICS)

    async def figures() -> Any:
        series = [
            await store.read(read_series, metric, HOUR, 3 * HOUR)
            for metric in ("jobs_done", "jobs_queued", "run_seconds_p95")
        ]
        return [one.values for one in series], await store.read(read_snapshot, 100)

    database.ask(f"UPDATE rollups SET bucket_at = bucket_at - {2 * MINUTE}")
    before = await figures()
    assert await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 1000)) >= len(METRICS)
    assert database.ask("SELECT COUNT(*) FROM rollups") == [(0,)]
    assert await figures() == before


@pytest.mark.spec("X13")
async def test_hours_are_purged_in_small_batches_once_they_are_over(
    store: SqlStore, database: Database
) -> None:
    now = await store.read(lambda tx: tx.now)
    first = now - now % HOUR - 5 * HOUR
    await store.transact(write, [("done", first + n * HOUR, "0", 1) for n in range(5)])
    await store.transact(lambda tx: tx.series.pack_minutes(METRICS, 100))
    end_of_third = first + 3 * HOUR
    purges = [await store.transact(lambda tx: tx.series.purge(end_of_third, 2)) for _ in range(3)]
    assert purges == [2, 1, 0]
    assert database.ask("SELECT MIN(hour_at), COUNT(*) FROM queue_hours") == [(end_of_third, 2)]


@pytest.mark.spec("Q15")
async def test_a_store_of_before_keeps_its_counts(
    store: SqlStore, database: Database, store_url: str
) -> None:
    now = await store.read(lambda tx: tx.now)
    past = make_past(now, 6)
    await store.transact(write, past)
    await store.close()
    for width in (5, 30):  # as the last version wrote them beside
        start = f"bucket_at - bucket_at % {width * MINUTE}"
        database.ask(
            "INSERT INTO rollups (metric, minutes, bucket_at, entry, n, total)"
            f" SELECT metric, {width}, {start}, entry, SUM(n), 0 FROM rollups WHERE minutes = 1"
            f" GROUP BY metric, {start}, entry"
        )
    hours_version = next(one.version for one in list_migrations() if one.name == "queue_hours")
    database.ask("DROP TABLE queue_hours")
    database.ask(f"DELETE FROM schema_migrations WHERE version = {hours_version}")
    again = await open_store(store_url, SystemClock())
    await check(again, past, now)
    await again.transact(lambda tx: tx.series.pack_minutes(METRICS, 10_000))
    await check(again, past, now)
    assert database.ask("SELECT COUNT(*) FROM rollups") == [(0,)]
    await again.close()
