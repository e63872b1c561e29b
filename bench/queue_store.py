"""Queue cycles through the store, batches of 100: submit, claim + lease, release ÷ the same rows in bare SQL on SQLite FULL.

    python bench/queue_store.py [seconds] [rounds]

Then the same cycles on private PostgreSQL and MariaDB servers ÷ on SQLite, where they are installed. In turns, medians count;
each store is asked at the end whether every job is done. See queue_million for claims with many rows beside them.
"""

import asyncio
import contextlib
import json
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ksana.base.clock import SystemClock
from ksana.base.ids import new_ordered_uuids
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.service.queue.claims import Claim, JobClassCache, claim_jobs
from ksana.service.queue.jobs import submit_jobs
from ksana.service.queue.releases import release_compactly
from ksana.store.sql import SqlStore, open_store

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds only what lies beside it

from bench.ground import disk

NAME = "queue_store"
SECONDS, ROUNDS = 3.0, 3
BATCH = 100
RAW_GOAL, POSTGRES_GOAL, MARIADB_GOAL = 0.5, 0.35, 0.12
LIMITS = Limits(1_000_000)
CLASS = class_of("bench", "noop", 1, ())
PAYLOAD = (
    '{"user":12345,"kind":"summary","fields":["a","b","c"],"note":"some text here to pad the body"}'
)

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
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "temp_store=MEMORY",
        "cache_size=-65536",
        "mmap_size=268435456",
    ):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.executescript(RAW_SCHEMA)
    insert = "INSERT INTO job(state,priority,run_at,queue,url,payload) VALUES(?,?,?,?,?,?)"
    rows = [(0, 5, 0.0, "default", "http://127.0.0.1:9000/hooks/report", PAYLOAD)] * BATCH
    if db.execute("PRAGMA synchronous").fetchone()[0] != disk.FULL:
        raise SystemExit("the floor does not sync")
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(insert, rows)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        ids = [row[0] for row in db.execute(RAW_CLAIM, (1e9, "w1", 1.0, BATCH)).fetchall()]
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "UPDATE job SET state=2, lease_until=NULL, owner=NULL WHERE id=? AND state=1",
            [(i,) for i in ids],
        )
        db.executemany(
            "INSERT INTO event(job_id,kind,at,detail) VALUES(?,?,?,?)",
            [(i, 3, 1.0, "200") for i in ids],
        )
        db.execute("COMMIT")
        done += len(ids)
    speed = done / (time.perf_counter() - began), done / (time.process_time() - cpu)
    db.close()
    return speed


class Spent(NamedTuple):
    """One round on a store: jobs per second of each part, of the whole, and of the whole by CPU time of this process."""

    submit: float
    cycle: float
    whole: float
    per_cpu: float


def new_jobs(count: int) -> list[NewJob]:
    """Jobs that differ in nothing."""
    ids = new_ordered_uuids(SystemClock().now(), count)
    return [NewJob(job_id, "NORMAL", CLASS, "{}", PAYLOAD, None, 1, None, None) for job_id in ids]


async def cycle(store: SqlStore, book: JobClassCache) -> int:
    """Claim with leases, then release: what a worker in batches costs the store."""
    claimed = await store.transact(
        claim_jobs, Claim("w1", Wants("bench"), BATCH, True, 30.0), book, LIMITS
    )
    items = [
        Release(lease.lease_id, "SUCCEEDED", result_json='{"ok":true}') for lease in claimed.leases
    ]
    outcomes = (await store.transact(release_compactly, items)).answers
    if [getattr(one, "state", one) for one in outcomes] != ["DONE"] * BATCH:
        raise SystemExit(f"{len(items)} of {BATCH} jobs were claimed, and ended {outcomes}")
    return len(items)


async def store_cycles(url: str, seconds: float) -> Spent:
    """Submit, claim, release, for a while, one after the other."""
    store = await open_store(url, SystemClock(), durability="strict")
    book, done, submits, cycles = JobClassCache(), 0, 0.0, 0.0
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        at = time.perf_counter()
        await store.transact(submit_jobs, new_jobs(BATCH), [CLASS], True)
        between = time.perf_counter()
        done += await cycle(store, book)
        submits, cycles = submits + between - at, cycles + time.perf_counter() - between
    cpu = time.process_time() - cpu
    queued, running = await store.read(
        lambda tx: (tx.gauges.read().queued, tx.gauges.read().running)
    )
    ended = await store.read(lambda tx: tx.series.sum_since("queue.done", 0))
    await store.close()
    if (queued, running) != (0, 0) or ended < done:
        raise SystemExit(
            f"{done} jobs were released: the store has {ended} done, {queued} queued, {running} running"
        )
    return Spent(done / submits, done / cycles, done / (submits + cycles), done / cpu)


@contextlib.contextmanager
def servers() -> Iterator[dict[str, str]]:
    """Addresses of the databases that can be started here."""
    from tests.ground.server import MissingServerError

    from bench.ground import databases

    with contextlib.ExitStack() as stack:
        urls = {}
        for start in (databases.postgres, databases.mariadb):
            try:
                server = stack.enter_context(start())
            except MissingServerError as error:
                print(f"passed over, {error}", file=sys.stderr, flush=True)
                continue
            urls[server.name] = server.url(server.create_database())
        yield urls


def say(what: str, ours: float, floor: float | None = None, goal: float | None = None) -> None:
    row = {"bench": NAME, "what": what, "ours": round(ours), "unit": " jobs/s", "goal": goal}
    print(
        json.dumps(row | ({} if floor is None else {"floor": round(floor), "ratio": ours / floor})),
        flush=True,
    )


def median(rounds: list[Spent]) -> Spent:
    return Spent(*(statistics.median(column) for column in zip(*rounds, strict=True)))


def main(seconds: float, rounds: int) -> None:
    kinds: dict[str, list[Spent]] = {}
    raw: list[tuple[float, float]] = []
    with disk.folder() as folder, servers() as urls:
        for number in range(rounds):
            raw.append(raw_cycles(folder / f"raw-{number}.db", seconds))
            file = folder / f"ksana-{number}.db"
            for kind, url in {"sqlite": f"sqlite:///{file}", **urls}.items():
                kinds.setdefault(kind, []).append(asyncio.run(store_cycles(url, seconds)))
            disk.check_synced(file)
            done = disk.count_states(file)
            if set(done) != {"DONE"}:
                raise SystemExit(f"the store has {done}")
    ours = median(kinds["sqlite"])
    floor, floor_per_cpu = (statistics.median(column) for column in zip(*raw, strict=True))
    say("submit of 100, SQLite", ours.submit)
    say("claim + lease, release, SQLite", ours.cycle)
    say("submit to finish, SQLite ÷ bare SQL", ours.whole, floor, RAW_GOAL)
    say("the same per CPU-second", ours.per_cpu, floor_per_cpu)
    for kind, goal in (("postgres", POSTGRES_GOAL), ("mariadb", MARIADB_GOAL)):
        if kind in kinds:
            say(f"submit to finish, {kind} ÷ SQLite", median(kinds[kind]).whole, ours.whole, goal)


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS,
        int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS,
    )
