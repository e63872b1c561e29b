"""The JSON store: time of one change at 1,000 and 10,000 jobs, beside the bare replacing of a file
of the same size.

The floor is what nobody can go below with one file: write, fsync, rename, fsync of the folder.
Medians; times in µs.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.figure import Figure
from ksana.base.clock import SystemClock
from ksana.base.instant import MINUTE, Instant
from ksana.domain.schedule import make_every
from ksana.domain.tasks.records import Definition, RetryPolicy, Task
from ksana.service.tasks.definitions import NewTask, TaskService
from ksana.store.jsonfile import JsonStore, open_store
from ksana.store.jsonfile.atomic import replace_file

ROUNDS = 21
AT_ONCE = 100


class _NoHints:
    def due(self, at: Instant | None) -> None: ...

    def made(self, tasks: object) -> None: ...

    def ready(self, host: str) -> None: ...

    def canceled(self, run_id: int) -> None: ...


def _definition(now: Instant, number: int) -> Definition:
    return Definition(
        name=f"job {number}",
        description="",
        schedule=make_every(60 * MINUTE, now=now),
        target_url=f"http://127.0.0.1:9/jobs/{number}",
        http_method="POST",
        headers={"Content-Type": "application/json"},
        body='{"job_id": "<filled-by-service>"}',
        retry=RetryPolicy(3),
        concurrency_policy="SKIP",
        misfire_policy="SKIP",
    )


def _renamed(task: Task, now: Instant) -> Definition:
    return msgspec.structs.replace(task.definition, name=task.definition.name + "'")


async def _open(folder: Path) -> tuple[JsonStore, TaskService]:
    clock = SystemClock()
    store = await open_store(f"json:///{folder}", clock, serve=True)
    return store, TaskService(store, clock, _NoHints(), 0)


async def _median_us(work: Any, rounds: int = ROUNDS) -> float:
    times = []
    for number in range(rounds):
        began = time.perf_counter()
        await work(number)
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


async def _measure(count: int, folder: Path) -> list[Figure]:
    store, service = await _open(folder)
    now = SystemClock().now()
    for first in range(0, count, 5000):
        numbers = range(first, min(first + 5000, count))
        await asyncio.gather(
            *(service.create(NewTask("T", _definition(now, number))) for number in numbers)
        )
    text = (folder / "jobs.json").read_bytes()

    async def bare(number: int) -> None:
        await asyncio.to_thread(replace_file, folder / "bare.json", [text])

    async def change(number: int) -> None:
        await service.change(1 + number, _renamed)

    async def change_many(number: int) -> None:
        await asyncio.gather(*(service.change(1 + at, _renamed) for at in range(AT_ONCE)))

    floor = await _median_us(bare)
    one = await _median_us(change)
    many = await _median_us(change_many, 7) / AT_ONCE
    await store.close()
    began = time.perf_counter()
    store, _ = await _open(folder)
    start_us = (time.perf_counter() - began) * 1e6
    await store.close()
    size = f"file of {len(text) / 1e6:.1f} MB"
    return [
        Figure(
            "jsonfile",
            f"one change at {count:,} jobs",
            one,
            floor,
            " µs",
            2.5,
            less_is_better=True,
            note=size,
        ),
        Figure(
            "jsonfile",
            f"one of {AT_ONCE} changes at once, {count:,} jobs",
            many,
            floor,
            " µs",
            note=size,
        ),
        Figure(
            "jsonfile",
            f"start with {count:,} jobs",
            start_us,
            None,
            " µs",
            2e6 if count == 10_000 else None,
            True,
        ),
    ]


def run() -> list[Figure]:
    """Measure on the disk that holds the temporary folder."""
    figures: list[Figure] = []
    for count in (1_000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            figures += asyncio.run(_measure(count, Path(folder)))
    return figures
