"""Durable dispatch: once jobs due at one instant, each a POST to a local nginx, each outcome on
disk. SQLite FULL.

    python -m bench.tasks [--jobs 10000] [--rounds 2] [--seconds 2] [--cores first|all]

The real server on one core, nginx on the other. Floors of the same run: the bare libcurl loop at
the same number of calls in flight, and for making the jobs a bare ASGI echo. The best round counts
for speed, the worst for what was answered and for earliness. See scale for others beside it.
"""

import argparse
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench import http_layer
from bench.caller import run_bare
from bench.figure import BenchError, Figure
from bench.ground import cores, making, report
from bench.ground.served import Ran, serve
from ksana.base.instant import MILLISECOND, SECOND, Instant

JOBS, ROUNDS, SECONDS = 10_000, 2, 2.0
ANSWERED_GOAL_MS, DISPATCH_GOAL, ACCEPT_GOAL = 1_200, 0.5, 0.45
GOAL_JOBS = 10_000
"""The goal in milliseconds is said of so many jobs; other numbers are told without it."""
WITHIN_SEC = 120
LIMITS = {"default limits": (16, {}), "per host 64": (64, {"KSANA_TASKS_PER_HOST": "64"})}
"""How many calls are in flight at most, and the settings that make it so."""


class Burst(NamedTuple):
    """One round: what the store says of it, and what it cost."""

    made_sec: float
    slot_at: Instant
    recorded_sec: float
    cpu_sec: float
    runs: list[Ran]

    @property
    def answered_sec(self) -> float:
        return (max((ran.ended_at or 0 for ran in self.runs), default=0) - self.slot_at) / SECOND


class Bare(NamedTuple):
    """The bare libcurl loop: calls per second and per CPU-second."""

    per_sec: float
    per_cpu_sec: float


def measure_bare(url: str, concurrency: int, seconds: float) -> Bare:
    """The floor of dispatch, in this process, on the core that the server has in its turn."""
    with cores.on(cores.FIRST):
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        count = uvloop.run(run_bare(url, seconds, concurrency))
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return Bare(
        count / wall, count / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    )


def measure_echo(request: bytes, seconds: float) -> float:
    """The floor of making jobs: requests per second of a bare ASGI echo."""
    with cores.on(cores.FIRST):
        process, port = http_layer.start("floor")
    try:
        with cores.on(cores.LAST):
            return float(uvloop.run(http_layer.load(port, request, seconds, process.pid))[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def burst(
    url: str, jobs: int, env: dict[str, str], on: frozenset[int], lead_sec: float = 0
) -> Burst:
    """Make the jobs, wait for their instant, look until all is recorded."""
    lead_sec = lead_sec or 3 + jobs / 1000
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        serve(Path(folder), env=env, on=on) as served,
        cores.on(cores.LAST),
    ):
        slot_at = (int(time.time() + lead_sec) + 1) * SECOND
        made_sec = making.send(served.port, [making.once_job(url, slot_at, n) for n in range(jobs)])
        spare_sec = slot_at / SECOND - time.time()
        if spare_sec > 0.3:
            time.sleep(spare_sec - 0.1)
            cpu_sec = served.cpu()
            recorded_at = served.wait_until_recorded(slot_at, WITHIN_SEC)
            cpu_sec = served.cpu() - cpu_sec
            return Burst(
                made_sec,
                slot_at,
                recorded_at - slot_at / SECOND,
                cpu_sec,
                served.runs(since=slot_at),
            )
    if lead_sec > WITHIN_SEC:
        raise BenchError(f"making {jobs} jobs took {made_sec:.0f} s")
    return burst(url, jobs, env, on, 2 * lead_sec)  # they were due before the last was made


def measure_limits(url: str, label: str, options: argparse.Namespace) -> tuple[list[Figure], float]:
    """The figures of one setting of the limits, and the seconds it took to make the jobs."""
    concurrency, env = LIMITS[label]
    on = cores.FIRST if options.cores == "first" else cores.ALL
    bursts, bares = [], []
    for _ in range(options.rounds):
        bares.append(measure_bare(url, concurrency, options.seconds))
        bursts.append(burst(url, options.jobs, env, on))
    jobs, fastest = options.jobs, min(bursts, key=lambda one: one.recorded_sec)
    answered = min(sum(ran.is_answered for ran in one.runs) for one in bursts)
    early_us = min((ran.started_at or 0) - ran.slot_at for one in bursts for ran in one.runs)
    most = max(len(one.runs) for one in bursts)
    goal_ms = ANSWERED_GOAL_MS if jobs == GOAL_JOBS else None
    what = f"{jobs:,} at one instant, {label}"
    floor, floor_cpu = max(bare.per_sec for bare in bares), max(bare.per_cpu_sec for bare in bares)
    figures = [
        figure(
            f"{what}: last answer",
            min(one.answered_sec for one in bursts) * 1000,
            "ms",
            goal_ms,
            less_is_better=True,
        ),
        figure(f"{what}: last record", fastest.recorded_sec * 1000, "ms"),
        Figure("tasks", f"{what}: answered, fewest", answered, jobs, unit="", goal=1),
        Figure("tasks", f"{what}: runs, most", most, jobs, unit="", goal=1, less_is_better=True),
        figure(f"{what}: earliest start", early_us / MILLISECOND, "ms", 0),
        Figure(
            "tasks",
            f"dispatch ÷ bare libcurl, {label}",
            jobs / fastest.recorded_sec,
            floor,
            goal=DISPATCH_GOAL,
            note=f"{concurrency} calls in flight",
        ),
        Figure(
            "tasks",
            f"the same per CPU-second, {label}",
            jobs / min(one.cpu_sec for one in bursts),
            floor_cpu,
        ),
    ]
    return figures, min(one.made_sec for one in bursts)


def figure(
    what: str, ours: float, unit: str, goal: float | None = None, *, less_is_better: bool = False
) -> Figure:
    return Figure("tasks", what, ours, unit=unit, goal=goal, less_is_better=less_is_better)


def measure(options: argparse.Namespace) -> list[Figure]:
    """All figures of dispatch."""
    figures: list[Figure] = []
    made: list[float] = []
    with cores.target() as url:
        for label in LIMITS:
            some, made_sec = measure_limits(url, label, options)
            figures += some
            made.append(made_sec)
        echo = max(
            measure_echo(making.once_job(url, 4_000_000_000 * SECOND, n), options.seconds)
            for n in range(options.rounds)
        )
        accepted = options.jobs / min(made)
        figures.append(
            Figure(
                "tasks",
                "jobs made over HTTP, 32 connections ÷ ASGI echo",
                accepted,
                echo,
                goal=ACCEPT_GOAL,
            )
        )
        return figures


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long each floor is measured"
    )
    parser.add_argument(
        "--cores", choices=("first", "all"), default="first", help="where the server runs"
    )
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(parse([]))


if __name__ == "__main__":
    report.show(measure(parse()))
