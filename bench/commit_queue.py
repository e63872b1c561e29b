"""The commit queue: transactions per second of many callers and of one, beside what the database
does when fed by hand.

Each caller's function writes one row and one event. Floors, measured in the same run: the same two
rows by `executemany`, a hundred items a commit; and for one caller how often the disk syncs a 4 KiB
page appended to a file, as a log does. Rounds of ours and of the floor alternate, and the best of
each counts: noise only ever slows.
"""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import uvloop

from bench.figure import Figure
from ksana.base.clock import SystemClock
from ksana.store.sql import SqlStore, open_store
from ksana.store.sql.core.session import Session
from ksana.store.sql.core.statements import load_statements

CALLERS = 256
ROUNDS = 3
SQLITE_ITEMS, NETWORK_ITEMS, LONE_ITEMS = 20_000, 5_000, 1_500
GROUP = 100
SYNCS = 1_500
GROUPED_GOAL, LONE_GOAL = 0.5, 0.35


INSTANCE_COLUMNS = (
    "id",
    "host",
    "version",
    "started_at",
    "alive_at",
    "lease_until",
    "stopped_at",
    "outage_from",
)
EVENT_COLUMNS = ("ts", "entity_type", "entity_id", "event_type", "data_json")


def row_of(name: str) -> tuple[Any, ...]:
    return (name, "bench", "1", 1, 1, 1, None, None)


def event_of(name: str) -> tuple[Any, ...]:
    return (1, "TASK", name, "FIRED", '{"n":1}')


def write_one(tx: Any, name: str) -> None:
    tx._session.run(
        "core.insert_instance",
        id=name,
        host="bench",
        version="1",
        started_at=1,
        alive_at=1,
        lease_until=1,
        stopped_at=None,
        outage_from=None,
    )
    tx.events.append("TASK", name, "FIRED", {"n": 1})


async def call(store: SqlStore, items: int, callers: int, prefix: str) -> float:
    """Items per second of so many callers."""
    names = iter([f"{prefix}{n}" for n in range(items)])

    async def caller() -> None:
        for name in names:
            await store.transact(write_one, name)

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return items / (time.perf_counter() - begun)


def feed(store: SqlStore, items: int, prefix: str) -> float:
    """The floor: the same rows by executemany, a hundred items a commit, on the store's own kind of
    connection."""
    statements = load_statements(store.dialect.macros)
    with closing(
        Session(store.dialect, store.dialect.connect(read_only=False), statements)
    ) as session:
        begun = time.perf_counter()
        for start in range(0, items, GROUP):
            names = [f"{prefix}{n}" for n in range(start, start + GROUP)]
            session.raw(store.dialect.begin_write)
            session.run_rows("core.insert_instance", INSTANCE_COLUMNS, list(map(row_of, names)))
            session.run_rows("core.append_events", EVENT_COLUMNS, list(map(event_of, names)))
            session.raw("COMMIT")
        return items / (time.perf_counter() - begun)


def feed_sqlite(path: Path, items: int, prefix: str) -> float:
    """SQLite's floor without a line of ours: positional parameters on a plain connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        begun = time.perf_counter()
        for start in range(0, items, GROUP):
            names = [f"{prefix}{n}" for n in range(start, start + GROUP)]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO instances (id, host, version, started_at, alive_at, lease_until)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [(name, "bench", "1", 1, 1, 1) for name in names],
            )
            connection.executemany(
                "INSERT INTO event_packs (ts, entity_type, entity_id, event_type, data_json)"
                " VALUES (?, ?, ?, ?, ?)",
                [(1, "TASK", name, "FIRED", '{"n":1}') for name in names],
            )
            connection.execute("COMMIT")
        return items / (time.perf_counter() - begun)


def sync_rate(folder: Path, appended: bool) -> float:
    """How often a second the disk syncs one page: at the end of a growing file, or over the same
    page again."""
    file = os.open(folder / f"sync-{time.monotonic_ns()}", os.O_RDWR | os.O_CREAT)
    page = os.urandom(4096)
    try:
        begun = time.perf_counter()
        for n in range(SYNCS):
            os.pwrite(file, page, n * 4096 if appended else 0)
            os.fdatasync(file)
        return SYNCS / (time.perf_counter() - begun)
    finally:
        os.close(file)


async def measure_sqlite(folder: Path) -> list[Figure]:
    path = folder / "bench.db"
    store = await open_store(f"sqlite:///{path}", SystemClock())
    grouped, fed, lone, appended, overwritten = [], [], [], [], []
    for n in range(ROUNDS):
        fed.append(await asyncio.to_thread(feed_sqlite, path, SQLITE_ITEMS, f"f{n}-"))
        grouped.append(await call(store, SQLITE_ITEMS, CALLERS, f"g{n}-"))
        appended.append(await asyncio.to_thread(sync_rate, folder, True))
        lone.append(await call(store, LONE_ITEMS, 1, f"l{n}-"))
        overwritten.append(await asyncio.to_thread(sync_rate, folder, False))
    health = store.health()
    await store.close()
    share = f"{health.transactions / max(1, health.commits):.0f} functions a commit over all"
    return [
        Figure(
            "commit_queue",
            f"sqlite, {CALLERS} callers ÷ raw inserts by {GROUP}",
            max(grouped),
            max(fed),
            goal=GROUPED_GOAL,
            note=share,
        ),
        Figure(
            "commit_queue",
            "sqlite, one caller ÷ fdatasync, page appended",
            max(lone),
            max(appended),
            goal=LONE_GOAL,
        ),
        Figure(
            "commit_queue",
            "sqlite, one caller ÷ fdatasync, page overwritten",
            max(lone),
            max(overwritten),
        ),
    ]


async def measure_network(kind: str, url: str) -> list[Figure]:
    store = await open_store(url, SystemClock())
    await call(store, 500, CALLERS, "warm")
    grouped, fed, lone = [], [], []
    for n in range(2):
        fed.append(await asyncio.to_thread(feed, store, NETWORK_ITEMS, f"f{n}-"))
        grouped.append(await call(store, NETWORK_ITEMS, CALLERS, f"g{n}-"))
        lone.append(await call(store, 300, 1, f"l{n}-"))
    await store.close()
    return [
        Figure(
            "commit_queue",
            f"{kind}, {CALLERS} callers ÷ executemany by {GROUP}",
            max(grouped),
            max(fed),
        ),
        Figure("commit_queue", f"{kind}, one caller", max(lone)),
    ]


def run() -> list[Figure]:
    """All figures of the commit queue."""
    from tests.ground.server import MissingServerError

    from bench.ground import databases

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        figures = uvloop.run(measure_sqlite(Path(folder)))
    for start in (databases.mariadb, databases.postgres):
        with contextlib.suppress(MissingServerError), start() as server:
            figures += uvloop.run(
                measure_network(server.name, server.url(server.create_database()))
            )
    return figures
