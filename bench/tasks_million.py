"""A million tasks that wait: what they cost at the start, in memory, at rest, and when others fire.

python -m bench.tasks_million [--waiting 1000000] [--few 1000] [--due 500] [--rounds 3] [--idle 30]

The stores are filled through the store itself and kept in bench/results, named after the schema: a
later run finds them. Firing is measured on both servers in turns, and the best of each counts: by
the length of the firing passes as /metrics has it, and from the slot to the last record.
"""

import argparse
import hashlib
import inspect
import os
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import uvloop

import ksana.store.sql
from bench.figure import Figure
from bench.ground import cores, making, report
from bench.ground.served import Served, serve
from ksana.base.clock import SystemClock
from ksana.base.instant import DAY, SECOND, Instant
from ksana.domain.schedule import Once
from ksana.domain.tasks.records import Definition, Task
from ksana.domain.zones import rules_version
from ksana.engine.tasks.zone_rules import note_edition
from ksana.ports.tasks.tables import TasksTx
from ksana.store.sql import open_store

NAME = "tasks_million"
RESULTS = Path(__file__).parent / "results"
WAITING, FEW, DUE, ROUNDS, IDLE_SEC = 1_000_000, 1_000, 500, 3, 30.0
STARTS = 3
AT_ONCE = 5_000
FIRST_DUE, SPREAD = 60 * DAY, 300 * DAY
"""The waiting tasks are due so far ahead, spread so wide: a kept file stays of use for weeks."""
START_GOAL_MS, MEMORY_GOAL_MB, IDLE_GOAL_PERCENT, FIRING_GOAL = 2_000, 150, 0.5, 1.3
WITHIN_SEC = 60


class Fired(NamedTuple):
    """One round of firing."""

    passes_ms: float
    recorded_ms: float


def insert_waiting(tx: TasksTx, start: int, stop: int, count: int, now: Instant) -> None:
    tasks = []
    for n in range(start, stop):
        at = now + FIRST_DUE + SPREAD * n // count
        definition = Definition(
            name=f"waiting {n}",
            description="",
            schedule=Once(at),
            http_method="POST",
            target_url="http://127.0.0.1:9/hook",
            headers={"Content-Type": "application/json"},
            body=f'{{"order":{n}}}',
            tags=("bench",),
        )
        tasks.append(
            Task(
                id=0,
                job_id=f"waiting-{n}",
                dialect="C",
                definition=definition,
                status="ENABLED",
                version=1,
                created_at=now,
                updated_at=now,
                is_deleted=False,
                next_slot_at=at,
                fire_at=at,
                runs_fired=0,
                last_run_at=None,
                last_status="",
                last_error="",
            )
        )
    tx.tasks.insert(tasks)


async def fill(path: Path, count: int) -> None:
    """Write a store with so many waiting tasks."""
    clock = SystemClock()
    store = await open_store(f"sqlite:///{path}", clock)
    try:
        for start in range(0, count, AT_ONCE):
            await store.transact(
                insert_waiting, start, min(start + AT_ONCE, count), count, clock.now()
            )
        # As a server leaves it that has served: the first start with other rules goes through all.
        await store.transact(note_edition, rules_version(), NAME)
    finally:
        await store.close()


def find_filled(count: int) -> Path:
    """The kept file with so many waiting tasks, filled now if there is none of this schema, or its
    tasks are soon due."""
    RESULTS.mkdir(exist_ok=True)
    folder = Path(ksana.store.sql.__file__).parent
    sources = [
        *sorted((folder / "migrations").glob("*.sql")),
        *sorted((folder / "tasks").glob("*.py")),
    ]
    made_of = (
        b"".join(source.read_bytes() for source in sources)
        + inspect.getsource(insert_waiting).encode()
    )
    path = RESULTS / f"waiting-{count}-{hashlib.sha256(made_of).hexdigest()[:12]}.db"
    if path.exists() and first_fire_at(path) > SystemClock().now() + DAY:
        return path
    for old in RESULTS.glob(f"waiting-{count}-*"):
        old.unlink()
    part = path.with_name(path.name + "-filling")
    uvloop.run(fill(part, count))
    os.replace(part, path)
    return path


def first_fire_at(path: Path) -> Instant:
    """When the first of the waiting tasks is due."""
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT fire_at FROM tasks WHERE job_id = 'waiting-0'").fetchone()
    return 0 if row is None else int(row[0] or 0)


def time_start(file: Path) -> float:
    """Seconds from the start of the process until /readyz answers."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        serve(Path(folder), file=file) as served,
    ):
        return served.started_sec


def fire(served: Served, url: str, due: int) -> Fired:
    """Let so many once jobs be due at one instant."""
    slot_at = (int(time.time() + 2 + due / 250) + 1) * SECOND
    making.send(served.port, [making.once_job(url, slot_at, n) for n in range(due)])
    time.sleep(max(0.0, slot_at / SECOND - time.time() - 0.2))
    passes = served.metric("cronjob_scheduler_scan_latency_sum")
    recorded_at = served.wait_until_recorded(slot_at, WITHIN_SEC)
    passes = served.metric("cronjob_scheduler_scan_latency_sum") - passes
    answered = sum(ran.is_answered for ran in served.runs(since=slot_at))
    if answered != due:
        raise SystemExit(f"{answered} of {due} jobs were answered")
    return Fired(passes * 1000, recorded_at * 1000 - slot_at / 1000)


def measure_firing(
    url: str, many: Served, few: Served, options: argparse.Namespace
) -> list[Figure]:
    """Both servers in turns."""
    rounds = [
        (fire(many, url, options.due), fire(few, url, options.due)) for _ in range(options.rounds)
    ]
    ours = Fired(*(min(column) for column in zip(*(one for one, _ in rounds), strict=True)))
    floor = Fired(*(min(column) for column in zip(*(other for _, other in rounds), strict=True)))
    what = f"firing {options.due} with {options.waiting:,} ÷ {options.few:,} waiting"
    return [
        Figure(
            NAME,
            f"{what}: passes",
            ours.passes_ms,
            floor.passes_ms,
            "ms",
            FIRING_GOAL,
            less_is_better=True,
        ),
        Figure(
            NAME,
            f"{what}: to the last record",
            ours.recorded_ms,
            floor.recorded_ms,
            "ms",
            FIRING_GOAL,
            less_is_better=True,
        ),
    ]


def measure_memory(served: Served, what: str) -> Figure:
    rss_mb, anon_mb = served.rss_mb()
    note = f"{anon_mb:.0f} MB of it not mapped files"
    return Figure(
        NAME, what, rss_mb, unit="MB", goal=MEMORY_GOAL_MB, less_is_better=True, note=note
    )


def measure(options: argparse.Namespace) -> list[Figure]:
    """Start, memory, rest, firing."""
    many_file, few_file = find_filled(options.waiting), find_filled(options.few)
    starts = [(time_start(many_file), time_start(few_file)) for _ in range(STARTS)]
    many_ms, few_ms = (statistics.median(column) * 1000 for column in zip(*starts, strict=True))
    what = f"{options.waiting:,} waiting"
    figures = [
        Figure(
            NAME,
            f"{what}: start until ready",
            many_ms,
            unit="ms",
            goal=START_GOAL_MS,
            less_is_better=True,
        ),
        Figure(NAME, f"{options.few:,} waiting: start until ready", few_ms, unit="ms"),
    ]
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        cores.target() as url,
        serve(Path(folder, "many"), file=many_file) as many,
        cores.on(cores.LAST),
    ):
        time.sleep(2)  # what a start still does after it is ready is no idling
        idle = many.idle_percent(options.idle)
        figures += [
            measure_memory(many, f"{what}: memory"),
            Figure(
                NAME,
                f"{what}: CPU at rest",
                idle,
                unit="%",
                goal=IDLE_GOAL_PERCENT,
                less_is_better=True,
            ),
        ]
        with serve(Path(folder, "few"), file=few_file) as few:
            figures += measure_firing(url, many, few, options)
        figures.append(measure_memory(many, f"{what}: memory after firing"))
    return figures


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--due", type=int, default=DUE)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--idle", type=float, default=IDLE_SEC, help="seconds of rest")
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(parse([]))


if __name__ == "__main__":
    report.show(measure(parse()))
