"""Fills a SQLite store with a million queue jobs in seconds: the program makes a few real ones, SQL
multiplies their rows.

Every copy has ids and times of its own; all else is what the program wrote, jobs, leases and events
alike. Counts by minute are written from the copied rows, and refused if the program's own few jobs
wrote any of another kind.
"""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.figure import BenchError
from bench.ground import disk
from ksana.base.clock import SystemClock
from ksana.base.ids import new_numbered_uuids, new_ordered_uuids
from ksana.base.instant import DAY, HOUR, MINUTE, Instant
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.engine.queue.chores import PACK, pack
from ksana.engine.queue.leasing import recount, sweep
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store

LIMITS = Limits(1_000_000)
CLASS = class_of("bench", "noop", 1, ())
PAYLOAD = (
    '{"user":12345,"kind":"summary","fields":["a","b","c"],"note":"some text here to pad the body"}'
)
RESULT = '{"ok":true}'
SPAN = 30 * DAY - 2 * HOUR
"""Finished jobs are spread over so much of the past: all that the usual retention keeps."""
FUTURE = 30 * DAY
"""Future jobs are due from tomorrow on, over so long."""
SHARDS, SPANS = 4, 6
"""Counts of a minute are written under one of so many names, another after each start: one start a
day here. Waits and runs fall into so many buckets of their histogram."""


class Moulds(NamedTuple):
    """Ids of the few real jobs: one that waits for its time, and one of each way to end with how
    many in a hundred end so."""

    future: str
    ended: tuple[tuple[str, int], ...]


def new_jobs(clock: SystemClock, count: int, run_at: Instant | None = None) -> list[NewJob]:
    """Jobs that differ in nothing."""
    ids = new_ordered_uuids(clock.now(), count)
    return [NewJob(job_id, "NORMAL", CLASS, "{}", PAYLOAD, None, 1, run_at, None) for job_id in ids]


async def make_moulds(store: SqlStore, clock: SystemClock) -> Moulds:
    """Let the program itself make one job of each kind."""
    service = QueueService(store, clock, LIMITS)
    [future] = await service.submit_batch(new_jobs(clock, 1, clock.now() + DAY))
    made = await service.submit_batch(new_jobs(clock, 3))
    claimed = await service.claim(Claim("w1", Wants("bench"), 2, True, 30.0))
    done, failed = claimed.leases
    await service.release_batch_compactly(
        [
            Release(done.lease_id, "SUCCEEDED", result_json=RESULT),
            Release(failed.lease_id, "FAILED", error="no such frame"),
        ]
    )
    [lost] = (await service.claim(Claim("w1", Wants("bench"), 1, True, 0.01))).leases
    await asyncio.sleep(0.05)
    await store.transact(sweep, 10)
    if {done.job_id, failed.job_id, lost.job_id} != {job.job_id for job in made}:
        raise BenchError("the few real jobs were not claimed once each")
    return Moulds(future.job_id, ((done.job_id, 97), (failed.job_id, 2), (lost.job_id, 1)))


async def fill(
    file: Path, future: int, finished: int, *, has_events: bool, has_counts: bool
) -> dict[str, int]:
    """Make the store; the states it has afterwards."""
    clock = SystemClock()
    store = await open_store(f"sqlite:///{file}", clock)
    moulds = await make_moulds(store, clock)
    await store.close()
    multiply(
        file, moulds, clock.now(), future, finished, has_events=has_events, has_counts=has_counts
    )
    store = await open_store(f"sqlite:///{file}", clock)
    await store.transact(recount, LIMITS.total)
    while has_counts and await store.transact(
        pack, "bench", 100 * PACK
    ):  # as the server does every few minutes
        pass
    await store.close()
    disk.sync(file)
    disk.check_synced(file)
    states = disk.count_states(file)
    made = {"QUEUED": future + 1, "ended": finished + len(moulds.ended)}
    if {"QUEUED": states["QUEUED"], "ended": sum(states.values()) - states["QUEUED"]} != made:
        raise BenchError(f"the store was to have {made} and has {states}")
    return states


def multiply(
    file: Path,
    moulds: Moulds,
    now: Instant,
    future: int,
    finished: int,
    *,
    has_events: bool,
    has_counts: bool,
) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        for pragma in (
            "journal_mode = DELETE",
            "synchronous = OFF",
            "temp_store = MEMORY",
            "cache_size = -262144",
        ):
            db.execute(
                f"PRAGMA {pragma}"
            ).fetchall()  # filling need not wait for the disk; the program opens it anew
        db.execute("BEGIN")
        db.execute(
            "CREATE TEMP TABLE copies (n INTEGER PRIMARY KEY, mould TEXT, job_id TEXT,"
            " lease_id TEXT, later, due_later)"
        )
        origins = dict(db.execute("SELECT job_id, created_at FROM scheduler_job_runs").fetchall())
        [(seq, past)] = db.execute(
            "SELECT MAX(seq), (SELECT COUNT(*) FROM past_leases) FROM scheduler_job_runs"
        )
        if past:
            raise BenchError("a mould was queued again: its earlier lease would be missing")
        db.executemany(
            "INSERT INTO copies VALUES (NULL, ?, ?, ?, ?, ?)",
            list_ended(moulds, origins, now, finished, seq + 1),
        )
        db.executemany(
            "INSERT INTO copies VALUES (NULL, ?, ?, NULL, ?, ?)",
            list_future(moulds, origins, now, future),
        )
        copy_rows(db, has_events)
        if has_counts:
            write_counts(db)
        db.execute("COMMIT")


def list_ended(
    moulds: Moulds, origins: dict[str, int], now: Instant, count: int, seq: int
) -> Iterator[tuple[str, str, str, int, int]]:
    """`seq` is the number that the first will have: a lease's id carries it."""
    kinds = [mould for mould, share in moulds.ended for _ in range(share)]
    for start, stop in pieces(count):
        at = now - SPAN + SPAN * start // max(count, 1)
        ids = new_ordered_uuids(at, stop - start)
        leases = new_numbered_uuids(range(seq + start, seq + stop))
        for n in range(start, stop):
            mould = kinds[n * 37 % 100]
            yield mould, ids[n - start], leases[n - start], at - origins[mould], 0


def list_future(
    moulds: Moulds, origins: dict[str, int], now: Instant, count: int
) -> Iterator[tuple[str, str, int, int]]:
    for start, stop in pieces(count):
        at = now - HOUR + HOUR * start // count
        for n, job_id in zip(range(start, stop), new_ordered_uuids(at, stop - start), strict=True):
            yield moulds.future, job_id, at - origins[moulds.future], FUTURE * n // count


def pieces(count: int) -> Iterator[tuple[int, int]]:
    """Rows that came in one request: as many as fit a minute of the span when a million are spread
    over it."""
    for start in range(0, count, 20):
        yield start, min(start + 20, count)


def copy_rows(db: sqlite3.Connection, has_events: bool) -> None:
    for table in ("scheduler_job_runs", "event_packs"):
        db.execute(f"CREATE TEMP TABLE mould_{table} AS SELECT * FROM {table}")
    own = {"job_id": "c.job_id", "lease_id": "c.lease_id"}
    copy(db, "scheduler_job_runs", "m.job_id = c.mould", own)
    if not has_events:
        return
    lease = "(SELECT j.lease_id FROM mould_scheduler_job_runs AS j WHERE j.job_id = c.mould)"
    of_job = "REPLACE(m.data_json, c.mould, c.job_id)"
    texts = f"REPLACE({of_job}, COALESCE({lease}, '-'), COALESCE(c.lease_id, '-'))"
    own = {"entity_id": "c.job_id", "data_json": texts, "ts": "m.ts + c.later"}
    copy(db, "event_packs", "m.entity_id = c.mould", own, order="c.n, m.id")


def copy(
    db: sqlite3.Connection, table: str, on: str, own: dict[str, str], order: str = "c.n"
) -> None:
    """Insert a copy of a mould's row for each of `copies`; times move along, and those of the
    schedule once more."""
    columns = [
        row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] not in ("seq", "id")
    ]
    values = [own.get(column) or f"m.{column}{moved(column)}" for column in columns]
    db.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"
        f" FROM copies AS c CROSS JOIN mould_{table} AS m ON {on} ORDER BY {order}"
    )


def moved(column: str) -> str:
    if column in ("run_at", "due_at"):
        return " + c.later + c.due_later"
    return " + c.later" if column.endswith("_at") else ""


def write_counts(db: sqlite3.Connection) -> None:
    """What the program counts by minute, from the copies, in place of what the real jobs wrote."""
    kinds = dict(
        db.execute(
            "SELECT metric, MIN(entry) FROM rollups WHERE metric LIKE 'queue.%' GROUP BY metric"
        ).fetchall()
    )
    counts = {
        "queue.submitted": "created_at",
        "queue.queued": "created_at",
        "queue.wait": "started_at",
        "queue.running": "started_at",
        "queue.leases": "started_at",
        "queue.units": "started_at",
        "queue.run": "finished_at",
        "queue.done": "finished_at",
        "queue.failed": "finished_at",
        "queue.timeout": "finished_at",
        "queue.expired": "finished_at",
    }
    spans, ends = (
        ("queue.wait", "queue.run"),
        {"queue.done": "DONE", "queue.failed": "FAILED", "queue.timeout": "TIMEOUT"},
    )
    shapes = {metric: r"\d+\.[0-3]" if metric in spans else r"[0-3]" for metric in counts}
    if kinds.keys() != shapes.keys() or not all(
        re.fullmatch(shapes[metric], entry) for metric, entry in kinds.items()
    ):
        raise BenchError(f"the program counts otherwise than this knows: {kinds}")
    first = {metric: int(kinds[metric].partition(".")[0]) for metric in spans}
    db.execute("DELETE FROM rollups WHERE metric LIKE 'queue.%'")
    for metric, column in counts.items():
        minute, shard = f"{column} - {column} % {MINUTE}", f"({column} / {DAY} % {SHARDS})"
        entry = (
            f"({first[metric]} + seq % {SPANS}) || '.' || {shard}"
            if metric in spans
            else f"CAST({shard} AS TEXT)"
        )
        # A gauge has the sum of its changes: what came in a minute also went in it, but for what
        # waits for its time.
        count = {"queue.running": "0", "queue.leases": "0", "queue.units": "0"}.get(
            metric, "COUNT(*)"
        )
        count = "SUM(finished_at IS NULL)" if metric == "queue.queued" else count
        state = ends.get(metric, "TIMEOUT" if metric == "queue.expired" else None)
        where = f"{column} IS NOT NULL" + ("" if state is None else f" AND state = '{state}'")
        db.execute(
            "INSERT INTO rollups (metric, minutes, entry, bucket_at, n, total)"
            f" SELECT '{metric}', 1, {entry} AS e, {minute} AS at, {count}, 0.0"
            f" FROM scheduler_job_runs WHERE {where} GROUP BY at, e"
        )
