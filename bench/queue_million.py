"""A million queue jobs beside the few that count: claims with them ÷ without them, and the figures
of the queue. SQLite FULL.

python -m bench.queue_million [--future 1000000] [--ended 100000] [--few 1000] [--finished 1000000]
[--only claim|sdk|stats]

claim  claim + lease, then release, through the service on two stores in turns, cycle by cycle; the
       medians count. Cold: the first cycle after the store was opened anew and the system's cache
       of its file dropped.
sdk    the same through the SDK and the real server, no-op jobs in batches.
stats  every stats endpoint of the real server beside jobs that ended over the last 30 days; the
       slowest of 20 calls counts.
"""

import argparse
import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import queue_sdk
from bench.figure import BenchError, Figure
from bench.ground import cores, disk, filling, report
from bench.ground.served import Served, serve
from ksana.base.clock import SystemClock
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from ksana.service.queue.stats import METRICS
from ksana.store.sql import SqlStore, open_store

NAME = "queue_million"
FUTURE, ENDED, FEW, FINISHED = 1_000_000, 100_000, 1_000, 1_000_000
ROUNDS, CYCLES, SIZES, SDK_JOBS, SDK_ROUNDS, CALLS = 5, 100, (1, 10, 100), 20_000, 3, 20
CLAIM_GOAL, STATS_GOAL_MS = 1.3, 20
WINDOWS = (("5m", "24h"), ("1m", "33h"), ("30m", "30d"), ("21m", "700h"))
"""Bucket and range: the usual one, the most points of the finest, the longest that is kept, 2,000
points that fit no hour."""
CAPACITY = {"KSANA_CAPACITY_TOTAL": "100000"}


class Cycle(NamedTuple):
    """What one claim and its release took, in milliseconds."""

    claim: float
    release: float
    cpu: float

    @property
    def whole(self) -> float:
        return self.claim + self.release


class Side:
    """One of the two stores, and all cycles on it."""

    def __init__(self, file: Path, future: int, ended: int) -> None:
        self.file, self.future, self.ended = file, future, ended
        self.done = 0
        self.cold: dict[int, list[Cycle]] = {size: [] for size in SIZES}
        self.warm: dict[int, list[Cycle]] = {size: [] for size in SIZES}
        self._store: SqlStore | None = None

    async def fill(self) -> None:
        """Write the rows that are beside."""
        await filling.fill(self.file, self.future, self.ended, has_events=True, has_counts=True)

    async def open(self) -> None:
        self._clock = SystemClock()
        self._store = await open_store(f"sqlite:///{self.file}", self._clock)
        self._service = QueueService(self._store, self._clock, filling.LIMITS)

    async def close(self) -> None:
        assert self._store is not None
        await self._store.close()

    async def submit(self, size: int) -> None:
        """Jobs for the next cycle; not timed."""
        await self._service.submit_batch(filling.new_jobs(self._clock, size))

    async def cycle(self, size: int) -> Cycle:
        """Claim with leases, release; both are on disk when they answer."""
        cpu, at = time.process_time(), time.perf_counter()
        claimed = await self._service.claim(Claim("w1", Wants("bench"), size, True, 30.0))
        between = time.perf_counter()
        items = [
            Release(lease.lease_id, "SUCCEEDED", result_json=filling.RESULT)
            for lease in claimed.leases
        ]
        outcomes = await self._service.release_batch_compactly(items)
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        if [getattr(one, "state", one) for one in outcomes] != ["DONE"] * size:
            raise BenchError(
                f"{len(claimed.leases)} of {size} jobs were claimed, and ended {outcomes}"
            )
        self.done += size
        return Cycle((between - at) * 1000, (ended - between) * 1000, cpu * 1000)

    async def cool(self, size: int) -> None:
        """Open the store anew with nothing of it in memory, and run the first cycle."""
        await self.open()
        await self.submit(size)
        await self.close()
        disk.forget(self.file)
        await self.open()
        self.cold[size].append(await self.cycle(size))

    def check(self, before: dict[str, int]) -> None:
        """All that was claimed has ended, and nothing else has changed."""
        wanted = {**before, "DONE": before["DONE"] + self.done}
        if (after := disk.count_states(self.file)) != wanted:
            raise BenchError(f"the store has {after} and should have {wanted}")


async def compare(many: Side, few: Side, options: argparse.Namespace) -> None:
    """Both stores in turns."""
    before = [disk.count_states(side.file) for side in (many, few)]
    for _ in range(options.rounds):
        for size in SIZES:
            for side in (many, few):
                await side.cool(size)
            for number in range(options.cycles):
                for side in (many, few) if number % 2 else (few, many):
                    await side.submit(size)
                    side.warm[size].append(await side.cycle(size))
            for side in (many, few):
                await side.close()
    for side, states in zip((many, few), before, strict=True):
        side.check(states)


def median(cycles: list[Cycle], part: Callable[[Cycle], float]) -> float:
    return statistics.median(part(cycle) for cycle in cycles)


def measure_claims(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Claims at the service."""
    many, few = (
        Side(folder / "many.db", options.future, options.ended),
        Side(folder / "few.db", options.few, 0),
    )
    for side in (many, few):
        asyncio.run(side.fill())
    uvloop.run(compare(many, few, options))
    beside = f"{options.future:,} future, {options.ended:,} ended ÷ {options.few:,} future"
    parts: dict[str, Callable[[Cycle], float]] = {
        "claim + lease": lambda one: one.claim,
        "release": lambda one: one.release,
        "CPU of both": lambda one: one.cpu,
    }
    figures = []
    for size in SIZES:
        for what, part in parts.items():
            pair = median(many.warm[size], part), median(few.warm[size], part)
            figures.append(
                Figure(
                    NAME,
                    f"{what} of {size}, {beside}",
                    *pair,
                    "ms",
                    CLAIM_GOAL,
                    less_is_better=True,
                )
            )
        cold = (
            median(many.cold[size], lambda one: one.whole),
            median(few.cold[size], lambda one: one.whole),
        )
        figures.append(
            Figure(
                NAME,
                f"cold, both of {size}",
                *cold,
                "ms",
                note="first after opening, file not cached",
            )
        )
    return figures


def measure_sdk(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Claims through the SDK and the real server, both servers in turns."""
    many, few = folder / "many.db", folder / "few.db"
    for file, future, ended in ((many, options.future, options.ended), (few, options.few, 0)):
        if not file.exists():
            asyncio.run(filling.fill(file, future, ended, has_events=True, has_counts=True))
    before = [disk.count_states(file)["DONE"] for file in (many, few)]
    spent: tuple[list[float], list[float]] = ([], [])
    with (
        serve(folder / "1", file=many, env=CAPACITY) as one,
        serve(folder / "2", file=few, env=CAPACITY) as other,
        cores.on(cores.LAST),
    ):
        for _ in range(options.sdk_rounds):
            for served, column in zip((one, other), spent, strict=True):
                uvloop.run(queue_sdk.submit(served.program.url(), options.sdk_jobs, 500))
                column.append(
                    uvloop.run(queue_sdk.drain(served.program.url(), options.sdk_jobs, 1000))[0]
                    * 1000
                )
    for file, done in zip((many, few), before, strict=True):
        if disk.count_states(file)["DONE"] != done + options.sdk_jobs * options.sdk_rounds:
            raise BenchError(f"not every job of the SDK ended: {disk.count_states(file)}")
    ours, floor = (statistics.median(column) for column in spent)
    what = f"{options.sdk_jobs:,} jobs through the SDK, {options.future:,} future ÷ {options.few:,}"
    return [Figure(NAME, what, ours, floor, "ms", CLAIM_GOAL, less_is_better=True)]


class Asker:
    """One keep-alive connection."""

    def __init__(self, served: Served) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)

    def get(self, path: str) -> tuple[float, Any]:
        """Milliseconds until the whole answer is here, and the answer."""
        began = time.perf_counter()
        self._connection.request("GET", "/api/scheduler/stats/" + path)
        answer = self._connection.getresponse()
        text = answer.read()
        spent = time.perf_counter() - began
        if answer.status != 200:
            raise BenchError(f"{path} answered {answer.status}: {text[:300].decode()}")
        return spent * 1000, json.loads(text)


def measure_stats(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Every stats endpoint, all metrics, in several windows."""
    file = folder / "finished.db"
    states = asyncio.run(filling.fill(file, 0, options.finished, has_events=False, has_counts=True))
    with serve(folder / "stats", file=file) as served, cores.on(cores.LAST):
        time.sleep(2)  # what a start still does after it is ready is no answer
        asker = Asker(served)
        check_counts(asker, states)
        beside = f"{options.finished:,} finished"
        figures = describe_calls(
            f"stats/snapshot, {beside}", {"": [asker.get("snapshot")[0] for _ in range(CALLS)]}
        )
        for bucket, span in WINDOWS:
            path = f"timeseries?metric={{}}&bucket={bucket}&range={span}"
            calls = {
                metric: [asker.get(path.format(metric))[0] for _ in range(CALLS)]
                for metric in METRICS
            }
            figures += describe_calls(f"stats/timeseries, {span} by {bucket}, {beside}", calls)
    return figures


def check_counts(asker: Asker, states: dict[str, int]) -> None:
    """The endpoints must tell what is in the store, or their speed says nothing."""
    told = {
        metric: sum(
            point["value"]
            for point in asker.get(f"timeseries?metric={metric}&bucket=1h&range=30d")[1]["points"]
        )
        for metric in ("jobs_submitted", "jobs_done", "jobs_failed", "jobs_timeout")
    }
    there = {
        "jobs_submitted": sum(states.values()),
        "jobs_done": states["DONE"],
        "jobs_failed": states["FAILED"],
        "jobs_timeout": states["TIMEOUT"],
    }
    if told != there:
        raise BenchError(f"the endpoints tell {told}, the store has {there}")


def describe_calls(what: str, calls: dict[str, list[float]]) -> list[Figure]:
    """The slowest call of all, and the median of the slowest metric; the metrics above the goal by
    name."""
    slowest = max(calls, key=lambda metric: max(calls[metric]))
    over = ", ".join(
        f"{name} {max(some):.0f}"
        for name, some in calls.items()
        if max(some) > STATS_GOAL_MS and name
    )
    middle = max(statistics.median(some) for some in calls.values())
    note = f"above the goal: {over}" if over else slowest
    return [
        Figure(
            NAME,
            f"{what}: max",
            max(calls[slowest]),
            unit="ms",
            goal=STATS_GOAL_MS,
            less_is_better=True,
            note=note,
        ),
        Figure(NAME, f"{what}: p50", middle, unit="ms"),
    ]


def measure(options: argparse.Namespace) -> list[Figure]:
    """What was asked for, one after the other."""
    figures: list[Figure] = []
    with disk.folder() as folder:
        if options.only in (None, "claim"):
            figures += measure_claims(folder, options)
        if options.only in (None, "sdk"):
            figures += measure_sdk(folder, options)
        for file in folder.glob("*.db*"):
            file.unlink()
        if options.only in (None, "stats"):
            figures += measure_stats(folder, options)
    return figures


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--future", type=int, default=FUTURE)
    parser.add_argument("--ended", type=int, default=ENDED)
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--finished", type=int, default=FINISHED, help="for stats")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--cycles", type=int, default=CYCLES, help="warm ones in a round, of each size"
    )
    parser.add_argument("--sdk-jobs", type=int, default=SDK_JOBS)
    parser.add_argument("--sdk-rounds", type=int, default=SDK_ROUNDS)
    parser.add_argument("--only", choices=("claim", "sdk", "stats"))
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(parse([]))


if __name__ == "__main__":
    report.show(measure(parse()))
