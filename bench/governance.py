"""Governance jobs pulled and acknowledged in batches, pulls beside a million objects, and pulls
beside the built-in worker.

python -m bench.governance [--jobs 40000] [--few 1000] [--many 1000000]
[--only drain|million|decay] [--store sqlite|postgres]

drain    pull + ack-batch of 100 through the API of the real server, a few workers at once, until
         all jobs are done. The objects are registered. The audit is verified afterwards.
million  100 due jobs pulled through the service beside `many` objects that are due later ÷ beside
         `few`, in turns; the medians.
decay    the 99th of 100 pulls by time while the built-in worker fades `many` objects ÷ without it.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from tests.ground.process import Program

from bench.figure import BenchError, Figure
from bench.ground import cores, disk, report
from bench.ground.served import serve
from bench.http_layer import cpu_seconds
from ksana.base.clock import SystemClock
from ksana.base.instant import DAY, HOUR, SECOND
from ksana.domain.governance.jobs import Ack, NewGovernanceJob, decide_enqueue, digest_of
from ksana.domain.governance.objects import new_object
from ksana.domain.governance.records import GovernanceJob, Rules, Who
from ksana.engine.governance.ending import ack_jobs, new_job_ids
from ksana.engine.governance.pulling import Pull, pull_jobs
from ksana.engine.governance.worker import GovernanceWorker
from ksana.service.governance.audit import AuditService
from ksana.store.sql import SqlStore, open_store

NAME = "governance"
JOBS, FEW, MANY = 40_000, 1_000, 1_000_000
WORKERS, BATCH, ROUNDS, PULLS = 8, 100, 15, 100
DRAIN_GOAL = {"sqlite": 10_000.0, "postgres": 4_000.0}
MILLION_GOAL, DECAY_GOAL = 1.3, 2.0
RULES = Rules()
WHO = Who(actor="bench")
PULL = msgspec.json.encode({"worker_id": "bench", "limit": BATCH})

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


# Filling


def fill(
    tx: Any, first: int, count: int, run_at: int, action: str, has_objects: bool, is_planned: bool
) -> None:
    """Jobs as they lie in the store, and their objects where wanted; with `is_planned` each job is
    its object's next action."""
    jobs: list[GovernanceJob] = []
    objects = []
    for number, job_id in enumerate(new_job_ids(tx.now, count), first):
        new = NewGovernanceJob(
            job_id=job_id,
            object_type="memory",
            object_id=f"mem_{number:09d}",
            action=action,
            urgency=1,
            run_at=run_at + number,
        )
        jobs.append(decide_enqueue(new, tx.now).job)
        if has_objects:
            governed = new_object("memory", new.object_id, RULES, tx.now)
            objects.append(
                msgspec.structs.replace(
                    governed,
                    half_life_us=DAY,
                    next_action=action if is_planned else None,
                    next_action_at=run_at + number if is_planned else None,
                    decayed_at=tx.now - HOUR,
                )
            )
    tx.objects.insert_if_new(objects)
    tx.governance.write([(None, job) for job in jobs])


async def fill_store(
    store: SqlStore,
    count: int,
    run_at: int,
    action: str,
    has_objects: bool,
    first: int = 0,
    *,
    is_planned: bool = True,
) -> None:
    for start in range(first, first + count, 5_000):
        size = min(5_000, first + count - start)
        await store.transact(fill, start, size, run_at, action, has_objects, is_planned)


# Through the API


class Connection:
    """One keep-alive connection that asks and waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: bytes) -> Any:
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        self._writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 20"):
            raise BenchError(answer.decode(errors="replace")[:300])
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return _decode(await self._reader.readexactly(length))

    def close(self) -> None:
        self._writer.close()


async def drain(port: int) -> int:
    """Pull and acknowledge until nothing is due; how many."""
    done = 0

    async def work() -> None:
        nonlocal done
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
        while jobs := (await connection.post("/scheduler/jobs/pull", PULL))["jobs"]:
            items = [{"job_id": job["job_id"], "lease_token": job["lease_token"]} for job in jobs]
            sent = _encode({"items": items})
            results = (await connection.post("/scheduler/jobs/ack-batch", sent))["results"]
            if any(one["status"] != "succeeded" for one in results):
                raise BenchError(f"not all of a batch succeeded: {results[0]}")
            done += len(results)
        connection.close()

    await asyncio.gather(*(work() for _ in range(WORKERS)))
    return done


@contextlib.contextmanager
def served(kind: str, folder: Path, jobs: int) -> Iterator[tuple[str, int, int]]:
    """A server with so many due jobs: (store, port, pid)."""
    if kind == "sqlite":
        url = f"sqlite:///{folder / 'ksana.db'}"
        asyncio.run(_fill_url(url, jobs))
        with serve(folder) as server:
            yield url, server.port, server.program.pid
        disk.check_synced(folder / "ksana.db")
        return
    from bench.ground import databases

    with databases.postgres() as database:
        url = database.url(database.create_database())
        asyncio.run(_fill_url(url, jobs))
        with Program(folder, store=url) as program:
            program.start(within_s=120)
            yield url, program.port, program.pid
            program.terminate()


async def _fill_url(url: str, jobs: int) -> None:
    store = await open_store(url, SystemClock(), durability="strict")
    due_at = SystemClock().now() - HOUR
    await fill_store(store, jobs, due_at, "decay", has_objects=True, is_planned=False)
    await store.close()


async def _check_audit(url: str, jobs: int) -> None:
    store = await open_store(url, SystemClock())
    verified = await AuditService(store).verify()
    await store.close()
    if not verified.ok or verified.entries < 2 * jobs:
        raise BenchError(f"the audit has {verified.entries} entries, {verified.findings[:3]}")


def measure_drain(kind: str, jobs: int) -> list[Figure]:
    with disk.folder() as folder:
        with served(kind, folder, jobs) as (url, port, pid), cores.on(cores.LAST):
            cpu, began = cpu_seconds(pid), time.perf_counter()
            done = uvloop.run(drain(port))
            wall, cpu = time.perf_counter() - began, cpu_seconds(pid) - cpu
        if done != jobs:
            raise BenchError(f"{done} of {jobs} jobs were acknowledged")
        if kind == "sqlite":
            asyncio.run(_check_audit(url, jobs))
    what = f"pull + ack in batches of {BATCH} through the API, {kind}"
    per_cpu = f"{done / cpu:,.0f} per CPU-second of the server"
    return [Figure(NAME, what, done / wall, unit=" jobs/s", goal=DRAIN_GOAL[kind], note=per_cpu)]


# Beside many


async def cycle(store: SqlStore, number: int) -> float:
    """100 jobs fall due, are pulled and acknowledged; the seconds that the pull took."""
    first = 10_000_000 + number * BATCH
    await fill_store(store, BATCH, SystemClock().now() - HOUR, "decay", False, first)
    pull = Pull(worker_id="bench", limit=BATCH, lease_us=60 * SECOND)
    began = time.perf_counter()
    pulled = await store.transact(pull_jobs, pull, RULES, WHO)
    spent = time.perf_counter() - began
    jobs = [one.job.job for one in pulled.handed]
    if len(jobs) != BATCH:
        raise BenchError(f"{len(jobs)} of {BATCH} due jobs were handed out")
    acks = [
        Ack(job_id=job.job_id, token=job.lease_token, digest=digest_of(job.job_id)) for job in jobs
    ]
    await store.transact(ack_jobs, acks, RULES, WHO)
    return spent


async def compare_sizes(folder: Path, few: int, many: int) -> list[Figure]:
    later = SystemClock().now() + 365 * DAY
    stores = []
    for count in (few, many):
        store = await open_store(f"sqlite:///{folder / f'{count}.db'}", SystemClock())
        await fill_store(store, count, later, "decay", has_objects=True)
        stores.append(store)
    spent: list[list[float]] = [[], []]
    for number in range(ROUNDS):
        for side, store in enumerate(stores):
            spent[side].append(await cycle(store, number))
    for store in stores:
        await store.close()
    ours, floor = (statistics.median(side[2:]) * 1000 for side in reversed(spent))
    what = f"pull of {BATCH} due jobs beside {many:,} objects ÷ beside {few:,}"
    return [Figure(NAME, what, ours, floor, unit=" ms", goal=MILLION_GOAL, less_is_better=True)]


async def compare_decay(folder: Path, many: int) -> list[Figure]:
    clock = SystemClock()
    store = await open_store(f"sqlite:///{folder / 'decay.db'}", clock)
    await fill_store(store, many, clock.now() - HOUR, "decay", has_objects=True)

    async def pulls() -> float:
        """The 99th of a hundred pulls by time, of jobs that the worker does not take."""
        spent: list[float] = []
        for number in range(PULLS):
            first = 20_000_000 + number
            await fill_store(store, 1, clock.now() - HOUR, "verify", False, first)
            pull = Pull(worker_id="b", limit=10, lease_us=60 * SECOND, actions=("verify",))
            began = time.perf_counter()
            await store.transact(pull_jobs, pull, RULES, WHO)
            spent.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)
        return sorted(spent)[int(PULLS * 0.99) - 1] * 1000

    floor = min([await pulls(), await pulls()])
    worker = GovernanceWorker(store, clock, RULES, 5 * SECOND)
    loop = asyncio.create_task(worker.pump.run())
    ours = min([await pulls(), await pulls()])
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    await store.close()
    what = f"p99 of pulls while the built-in worker fades {many:,} objects ÷ without it"
    return [Figure(NAME, what, ours, floor, unit=" ms", goal=DECAY_GOAL, less_is_better=True)]


def run() -> list[Figure]:
    """All of it, as `make bench ARGS=governance` does."""
    return [
        *measure_drain("sqlite", JOBS),
        *measure_drain("postgres", JOBS),
        *_beside(FEW, MANY, ("million", "decay")),
    ]


def _beside(few: int, many: int, wanted: tuple[str, ...]) -> list[Figure]:
    figures: list[Figure] = []
    with disk.folder() as folder:
        if "million" in wanted:
            figures += uvloop.run(compare_sizes(folder, few, many))
        if "decay" in wanted:
            figures += uvloop.run(compare_decay(folder, many))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--many", type=int, default=MANY)
    parser.add_argument("--only", choices=("drain", "million", "decay"))
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    given = parser.parse_args()
    figures: list[Figure] = []
    if given.only in (None, "drain"):
        figures += measure_drain(given.store, given.jobs)
    if given.only != "drain":
        figures += _beside(given.few, given.many, (given.only or "million", given.only or "decay"))
    report.show(figures)


if __name__ == "__main__":
    main()
