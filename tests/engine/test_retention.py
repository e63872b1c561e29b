"""Retention on the virtual clock: everything old goes, in small batches, by one instance, and
nothing young."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND
from ksana.engine.core import retention as retention_loop
from ksana.engine.core.retention import (
    BATCH,
    EVERY,
    FIRST_BATCH,
    GOAL,
    LEAST,
    LEAST_BATCH,
    PAUSE,
    Look,
    Retention,
    add_core_rows,
    choose_batch,
    choose_wait,
)
from ksana.store.sql import SqlStore, open_store

KEEP = 30 * DAY


@pytest.fixture
async def store(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[SqlStore]:
    store = await open_store(f"sqlite:///{tmp_path}/k.db", clock, inline=True)
    yield store
    await store.close()


def make_retention(store: SqlStore, clock: VirtualClock, owner: str = "one") -> Retention:
    retention = Retention(store, clock, owner)
    add_core_rows(retention, KEEP)
    return retention


async def let_run(retention: Retention, clock: VirtualClock, us: int) -> None:
    """Run the loop while so much time passes."""
    running = asyncio.ensure_future(retention.pump.run())
    await clock.advance(us)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def fill(store: SqlStore, events: int = 0, buckets: int = 0, instances: int = 0) -> None:
    def write(tx: Any) -> None:
        for n in range(events):
            tx.events.append("TASK", n, "FIRED")
        for n in range(buckets):
            tx.rollups.add("runs", f"k{n}")
        for n in range(instances):
            tx.instances.register(f"i{tx.now}-{n}", "h", "1", SECOND, False)

    await store.transact(write)


async def count(store: SqlStore, table: str) -> int:
    row = await store.read(lambda tx: tx._session.raw(f"SELECT COUNT(*) FROM {table}"))
    return int(row[0])


@pytest.mark.spec("X13")
async def test_everything_old_is_removed_and_counted(store: SqlStore, clock: VirtualClock) -> None:
    await fill(store, events=3 * BATCH + 7, buckets=BATCH + 1, instances=4)
    await clock.advance(KEEP + 30 * MINUTE)
    await fill(store, events=5, buckets=3, instances=1)
    retention = make_retention(store, clock)
    await let_run(retention, clock, 10 * SECOND)
    assert retention.removed == {
        "events": 3 * BATCH + 7,
        "instances": 4,
        "rollups": BATCH + 1,
        "shares of counts": 0,
        "marks": 0,
        "clock steps": 0,
        "idempotency": 0,
    }
    assert [
        await count(store, table) for table in ("scheduler_events", "rollups", "instances")
    ] == [5, 3, 1]


@pytest.mark.spec("X13")
async def test_nothing_young_is_removed(store: SqlStore, clock: VirtualClock) -> None:
    await fill(store, events=50, buckets=5, instances=2)
    await clock.advance(KEEP - HOUR)
    retention = make_retention(store, clock)
    await let_run(retention, clock, 3 * MINUTE)
    assert set(retention.removed.values()) == {0}
    assert await count(store, "scheduler_events") == 50


@pytest.mark.spec("X13", "X21")
async def test_answers_that_expired_are_removed_until_none_is_left(
    store: SqlStore, clock: VirtualClock
) -> None:
    def remember(tx: Any, first: int, count: int) -> None:
        for n in range(first, first + count):
            assert tx.idempotency.remember("s", f"{n:064d}", "b" * 64, "{}", DAY)

    await store.transact(remember, 0, 3 * BATCH + 7)
    await clock.advance(DAY + SECOND)
    await store.transact(remember, 3 * BATCH + 7, 5)
    retention = make_retention(store, clock)
    await let_run(retention, clock, SECOND)
    assert retention.removed["idempotency"] == 3 * BATCH + 7
    assert await count(store, "idempotency_keys") == 5


@pytest.mark.spec("X13", "X21")
@pytest.mark.parametrize(("after_us", "is_kept"), [(DAY - 1, True), (DAY, False)])
async def test_an_answer_is_remembered_until_its_time_is_over(
    store: SqlStore, clock: VirtualClock, after_us: int, is_kept: bool
) -> None:
    await store.transact(lambda tx: tx.idempotency.remember("s", "k" * 64, "b" * 64, "{}", DAY))
    await clock.advance(after_us)
    await make_retention(store, clock).step()
    assert await count(store, "idempotency_keys") == int(is_kept)


@pytest.mark.spec("X13")
async def test_the_database_stops_growing(store: SqlStore, clock: VirtualClock) -> None:
    retention = make_retention(store, clock)
    sizes = []
    for _ in range(12):
        await fill(store, events=200, buckets=20)
        await clock.advance(KEEP // 4)
        await retention.step()
        sizes.append(await count(store, "scheduler_events"))
    assert max(sizes) <= 200 * 5
    assert sizes[-1] <= sizes[5]


async def test_a_batch_is_small_and_a_pause_follows(store: SqlStore, clock: VirtualClock) -> None:
    await fill(store, events=FIRST_BATCH + 50)
    await clock.advance(KEEP + MINUTE)
    retention = make_retention(store, clock)
    assert await retention.step() == clock.now() + PAUSE
    assert await count(store, "scheduler_events") == 50
    assert await retention.step() == clock.now() + PAUSE, "it was too early"
    assert await count(store, "scheduler_events") == 50
    await clock.advance(PAUSE)
    assert await retention.step() == clock.now() + 40 * SECOND, "150 in the first minute"
    assert await count(store, "scheduler_events") == 0


@pytest.mark.parametrize(
    ("removed", "since_us", "wait_us"),
    [
        (0, SECOND, EVERY),
        (FIRST_BATCH, 5 * SECOND, 5 * SECOND),
        (2 * FIRST_BATCH, 10 * SECOND, 5 * SECOND),
        (FIRST_BATCH // 2, 5 * SECOND, 10 * SECOND),
        (1, MINUTE, EVERY),
        (60_000, MINUTE, LEAST),
    ],
)
def test_the_next_look_comes_when_a_small_batch_has_grown_old(
    removed: int, since_us: int, wait_us: int
) -> None:
    assert choose_wait(removed, since_us) == wait_us


@pytest.mark.parametrize(
    ("batch", "look", "wanted"),
    [
        (100, Look(100, True, GOAL // 2 - 1), 200),
        (400, Look(400, True, 0), BATCH),
        (100, Look(100, True, GOAL), 100),
        (100, Look(40, False, 0), 100),  # nobody needs more
        (100, Look(100, True, 2 * GOAL + 1), 50),
        (LEAST_BATCH, Look(1, False, HOUR), LEAST_BATCH),
    ],
)
def test_a_batch_is_as_large_as_the_writer_has_time_for(
    batch: int, look: Look, wanted: int
) -> None:
    assert choose_batch(batch, look) == wanted


@pytest.mark.fault("F34")
@pytest.mark.spec("X13")
@pytest.mark.parametrize("per_second", [20, 200])
async def test_removal_keeps_pace_with_what_comes_and_the_file_settles(
    store: SqlStore, clock: VirtualClock, per_second: int
) -> None:
    keep_us = MINUTE
    retention = Retention(store, clock, "one")
    add_core_rows(retention, keep_us)

    def work(tx: Any, number: int) -> None:
        for n in range(per_second):
            tx.events.append("TASK", n, "FIRED")
            key = f"{number:032d}{n:032d}"
            assert tx.idempotency.remember("s", key, "b" * 64, "{}", keep_us)

    running = asyncio.ensure_future(retention.pump.run())
    pages, rows, keys = [], [], []
    for number in range(300):
        await store.transact(work, number)
        await clock.advance(SECOND)
        pages.append((await store.read(lambda tx: tx._session.raw("PRAGMA page_count")))[0])
        rows.append(await count(store, "scheduler_events"))
        keys.append(await count(store, "idempotency_keys"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    # The first look comes up to a minute after there is something; then each within seconds.
    kept = keep_us // SECOND * per_second
    assert max(rows[180:]) <= kept * 1.25 and max(keys[180:]) <= kept * 1.25
    assert min(rows[120:]) >= kept * 0.95, "nothing young was removed"
    assert max(pages[180:]) <= max(pages[:180]), "the file grows on"


async def test_a_look_that_finds_nothing_writes_nothing(
    store: SqlStore, clock: VirtualClock
) -> None:
    retention = make_retention(store, clock)
    await retention.step()
    commits = store.health().commits
    assert commits == 1, "the lock"
    for _ in range(3):
        await clock.advance(EVERY // 5)
        retention._kinds[0].due_mono = 0
        await retention.step()
    assert store.health().commits == commits


async def test_one_instance_at_a_time_does_it(store: SqlStore, clock: VirtualClock) -> None:
    await fill(store, events=2 * FIRST_BATCH)
    await clock.advance(KEEP + MINUTE)
    one, two = make_retention(store, clock, "one"), make_retention(store, clock, "two")
    await one.step()
    await two.step()
    assert (one.removed["events"], two.removed["events"]) == (FIRST_BATCH, 0)
    await clock.advance(retention_loop.LOCK_US)
    await two.step()
    assert two.removed["events"] == FIRST_BATCH, "the first fell silent, the second goes on"


async def test_a_surface_adds_its_own_rows(store: SqlStore, clock: VirtualClock) -> None:
    asked: list[tuple[int, int]] = []

    def remove(tx: Any, before: int, limit: int) -> int:
        asked.append((before, limit))
        return 0

    retention = make_retention(store, clock)
    retention.add("jobs", HOUR, remove)
    await retention.step()
    assert asked == [(clock.now() - HOUR, FIRST_BATCH)]


async def test_one_kind_that_fails_does_not_keep_the_others(
    store: SqlStore, clock: VirtualClock
) -> None:
    def remove(tx: Any, before: int, limit: int) -> int:
        raise RuntimeError("no such table")

    await fill(store, events=3)
    await clock.advance(KEEP + MINUTE)
    retention = Retention(store, clock, "one")
    retention.add("broken", HOUR, remove)
    add_core_rows(retention, KEEP)
    with pytest.raises(RuntimeError, match="no such table"):
        await retention.step()
    assert retention.removed["events"] == 3


async def test_a_store_that_is_down_is_left_to_the_supervisor(
    store: SqlStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*args: Any) -> None:
        raise StoreDownError("away")

    monkeypatch.setattr(store, "transact", down)
    with pytest.raises(StoreDownError):
        await make_retention(store, clock).step()
