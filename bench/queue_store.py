"""Queue cycles through the store against raw batched SQLite, and the claim's cost as rows pile up.

python bench/queue_store.py cycle [seconds]      claim, lease and release in batches of 100 ÷ the same rows in bare SQL
python bench/queue_store.py claim [future] [finished]   a claim with many rows beside it ÷ with 1,000
"""

import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ksana.base.clock import SystemClock
from ksana.base.ids import new_ordered_uuids
from ksana.domain.queue import Wants, line_of
from ksana.service.queue_jobs import Claim, Limits, LineBook, NewJob, claim_jobs, submit_jobs
from ksana.service.queue_leases import Release, release_briefly
from ksana.store.sql import SqlStore, open_store

BATCH = 100
LIMITS = Limits(1_000_000)
LINE = line_of("bench", "noop", 1, ())
PAYLOAD = '{"user":12345,"kind":"summary","fields":["a","b","c"],"note":"some text here to pad the body"}'

RAW_SCHEMA = """
CREATE TABLE job(id INTEGER PRIMARY KEY, state INTEGER NOT NULL, priority INTEGER NOT NULL, run_at REAL NOT NULL,
  queue TEXT NOT NULL, url TEXT NOT NULL, payload TEXT, attempt INTEGER NOT NULL DEFAULT 0, lease_until REAL, owner TEXT);
CREATE INDEX job_ready ON job(priority, run_at) WHERE state = 0;
CREATE INDEX job_lease ON job(lease_until) WHERE state = 1;
CREATE TABLE event(id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL, kind INTEGER NOT NULL, at REAL NOT NULL, detail TEXT);
"""
RAW_CLAIM = (
    "UPDATE job SET state=1, attempt=attempt+1, lease_until=?, owner=? WHERE id IN "
    "(SELECT id FROM job WHERE state=0 AND run_at<=? ORDER BY priority, run_at LIMIT ?) RETURNING id,url,payload,attempt"
)


def raw_cycles(path: Path, seconds: float) -> tuple[float, float]:
    """Insert, claim and finish in three transactions of bare SQL, with one event a job: per second, per CPU second."""
    db = sqlite3.connect(path, isolation_level=None, cached_statements=512)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY", "cache_size=-65536", "mmap_size=268435456"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.executescript(RAW_SCHEMA)
    insert = "INSERT INTO job(state,priority,run_at,queue,url,payload) VALUES(?,?,?,?,?,?)"
    rows = [(0, 5, 0.0, "default", "http://127.0.0.1:9000/hooks/report", PAYLOAD)] * BATCH
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(insert, rows)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        ids = [row[0] for row in db.execute(RAW_CLAIM, (1e9, "w1", 1.0, BATCH)).fetchall()]
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.executemany("UPDATE job SET state=2, lease_until=NULL, owner=NULL WHERE id=? AND state=1", [(i,) for i in ids])
        db.executemany("INSERT INTO event(job_id,kind,at,detail) VALUES(?,?,?,?)", [(i, 3, 1.0, "200") for i in ids])
        db.execute("COMMIT")
        done += len(ids)
    speed = done / (time.perf_counter() - began), done / (time.process_time() - cpu)
    db.close()
    return speed


def new_jobs(count: int, run_at: int | None = None) -> list[NewJob]:
    """Jobs that differ in nothing."""
    ids = new_ordered_uuids(SystemClock().now(), count)
    return [NewJob(job_id, "NORMAL", LINE, "{}", PAYLOAD, None, 1, run_at, None) for job_id in ids]


async def submit(store: SqlStore, count: int, run_at: int | None = None) -> None:
    await store.transact(submit_jobs, new_jobs(count, run_at), [LINE], True)


async def cycle(store: SqlStore, book: LineBook) -> int:
    """Claim with leases, then release: what a worker in batches costs the store."""
    claimed = await store.transact(claim_jobs, Claim("w1", Wants("bench"), BATCH, True, 30.0), book, LIMITS)
    items = [Release(lease.lease_id, "SUCCEEDED", result_json='{"ok":true}') for lease in claimed.leases]
    await store.transact(release_briefly, items, LIMITS)
    return len(items)


async def bench_cycles(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:///{folder}/ksana.db", SystemClock())
        book = LineBook()
        spent = {"submit": 0.0, "cycle": 0.0}
        done = 0
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            at = time.perf_counter()
            await submit(store, BATCH)
            spent["submit"] += time.perf_counter() - at
            at = time.perf_counter()
            done += await cycle(store, book)
            spent["cycle"] += time.perf_counter() - at
        per_cpu = done / (time.process_time() - cpu)
        await store.close()
        whole = done / (spent["submit"] + spent["cycle"])
        raw, raw_per_cpu = raw_cycles(Path(folder) / "raw.db", seconds)
        print(f"submit of 100           {done / spent['submit']:>9,.0f} jobs/s")
        print(f"claim+lease, release    {done / spent['cycle']:>9,.0f} jobs/s")
        print(f"submit to finish        {whole:>9,.0f} jobs/s")
        print(f"raw SQLite              {raw:>9,.0f} jobs/s")
        print(f"ratio                   {whole / raw:>9.2f}   (goal 0.5)")
        print(f"per CPU second          {per_cpu:>9,.0f} ÷ {raw_per_cpu:,.0f} = {per_cpu / raw_per_cpu:.2f}")


async def claim_cost(folder: str, future: int, finished: int) -> float:
    """The median time of a claim of ten, with that many rows beside it."""
    store = await open_store(f"sqlite:///{folder}/claim-{future}.db", SystemClock())
    book = LineBook()
    for start in range(0, finished, 1000):
        await submit(store, min(1000, finished - start))
        for _ in range(-(-min(1000, finished - start) // BATCH)):
            await cycle(store, book)
    later = SystemClock().now() + 86_400_000_000
    for start in range(0, future, 1000):
        await submit(store, min(1000, future - start), later)
    took = []
    for _ in range(300):
        await submit(store, 10)
        at = time.perf_counter()
        claimed = await store.transact(claim_jobs, Claim("w1", Wants("bench"), 10), book, LIMITS)
        took.append(time.perf_counter() - at)
        assert len(claimed.jobs) == 10
    await store.close()
    return statistics.median(took)


async def bench_claim(future: int, finished: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        few = await claim_cost(folder, 1000, 0)
        many = await claim_cost(folder, future, finished)
        print(f"claim of 10 beside 1,000 future jobs: {few * 1e6:,.0f} µs")
        print(f"beside {future:,} future and {finished:,} finished: {many * 1e6:,.0f} µs")
        print(f"ratio {many / few:.2f}   (goal 1.3)")


def main(arguments: list[str]) -> None:
    what: Any = arguments[0] if arguments else "cycle"
    if what == "claim":
        numbers = [int(text) for text in arguments[1:]] or [1_000_000, 100_000]
        asyncio.run(bench_claim(numbers[0], numbers[1] if len(numbers) > 1 else 100_000))
    else:
        asyncio.run(bench_cycles(float(arguments[1]) if len(arguments) > 1 else 3.0))


if __name__ == "__main__":
    main(sys.argv[1:])
