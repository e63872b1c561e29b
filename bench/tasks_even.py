"""Even load: a thousand tasks a second apart in steps of a millisecond, each every second: how late
their requests start.

    python -m bench.tasks_even [--tasks 1000] [--seconds 20]

The slots are the tasks' own, the times those the server recorded: of the run's start, and of its
request's sending.
"""

import argparse
import tempfile
import time
from pathlib import Path

from bench.figure import Figure
from bench.ground import cores, making, report
from bench.ground.served import Ran, serve
from ksana.base.instant import MILLISECOND, SECOND, Instant

TASKS, SECONDS = 1_000, 20
LATENESS_GOAL_MS = 20
WITHIN_SEC = 60
NAME = "tasks_even"


def load_evenly(url: str, tasks: int, seconds: int) -> tuple[list[Ran], float]:
    """Let the tasks fire `seconds` times each; all runs, and the CPU the server used per second."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        serve(Path(folder)) as served,
        cores.on(cores.LAST),
    ):
        first_at = (int(time.time() + 5 + tasks / 300) + 1) * SECOND
        last_at = first_at + seconds * SECOND
        spread_us = SECOND // tasks
        requests = [
            making.every_task(url, n, 1, first_at + n * spread_us, last_at - SECOND + n * spread_us)
            for n in range(tasks)
        ]
        making.send(served.port, requests)
        time.sleep(max(0.0, first_at / SECOND - time.time()))
        cpu_sec = served.cpu()
        # Looks would disturb what is measured: there are none before the last slot.
        time.sleep(max(0.0, last_at / SECOND - time.time()))
        cpu_sec = served.cpu() - cpu_sec
        served.wait_until_recorded(last_at, WITHIN_SEC)
        return served.runs(since=first_at), cpu_sec / seconds


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def lateness(what: str, late_us: list[Instant]) -> list[Figure]:
    """p50, p99, max and min of one kind of lateness."""
    ordered = sorted(late / MILLISECOND for late in late_us)
    return [
        Figure(NAME, f"{what}, p50", percentile(ordered, 0.5), unit="ms"),
        Figure(
            NAME,
            f"{what}, p99",
            percentile(ordered, 0.99),
            unit="ms",
            goal=LATENESS_GOAL_MS,
            less_is_better=True,
        ),
        Figure(NAME, f"{what}, max", ordered[-1], unit="ms"),
        Figure(NAME, f"{what}, min (never early)", ordered[0], unit="ms", goal=0),
    ]


def measure(options: argparse.Namespace) -> list[Figure]:
    """All figures of the even load."""
    with cores.target() as url:
        runs, cpu_share = load_evenly(url, options.tasks, options.seconds)
    due = options.tasks * options.seconds
    what = f"{options.tasks:,} firings/s"
    return [
        Figure(
            NAME,
            f"{what}, {options.seconds} s: answered",
            sum(ran.is_answered for ran in runs),
            due,
            unit="",
            goal=1,
        ),
        *lateness(
            f"{what}: slot to start",
            [ran.started_at - ran.slot_at for ran in runs if ran.started_at is not None],
        ),
        *lateness(
            f"{what}: slot to request sent",
            [ran.sent_at - ran.slot_at for ran in runs if ran.sent_at is not None],
        ),
        Figure(NAME, f"{what}: CPU of the server", cpu_share * 100, unit="%"),
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(parse([]))


if __name__ == "__main__":
    report.show(measure(parse()))
