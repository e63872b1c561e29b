"""Even load: a thousand tasks a second apart in steps of a millisecond, each every second: how late
their requests start.

    python -m bench.tasks_even [--tasks 1000] [--seconds 20] [--stores sqlite,postgres,mariadb]

The slots are the tasks' own, the times those the server recorded: of the run's start, and of its
request's sending. The instance is on one core, the target on the other, a database on both. A
store whose server is not installed is passed over.
"""

import argparse
import contextlib
import sys
import time
from typing import Any, Final, NamedTuple

from bench.figure import BenchError, Figure
from bench.ground import cores, making, report
from bench.ground.contest import Servers, SkippedError, tree_cpu
from bench.ground.served import LOOK_EVERY_SEC, Ran, read_ran, select_ran
from ksana.base.instant import MILLISECOND, SECOND, Instant

TASKS, SECONDS = 1_000, 20
LATENESS_GOAL_MS = 20
WITHIN_SEC = 60
NAME = "tasks_even"
STORES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mariadb": "MariaDB"}


class Loaded(NamedTuple):
    """What one store's server did of it."""

    runs: list[Ran]
    cpu_share: float
    """CPU of the server per second."""
    database_share: float
    """That of the database's server; nothing on SQLite."""


def load_evenly(servers: Servers, store: str, url: str, tasks: int, seconds: int) -> Loaded:
    """Let the tasks fire `seconds` times each."""
    if store != "sqlite":
        servers.get(store)  # before the instance is pinned: the database has both cores
    with contextlib.ExitStack() as stack:
        with cores.on(cores.FIRST):
            ground = stack.enter_context(servers.ksana(store, 1))
        stack.enter_context(cores.on(cores.LAST))
        first_at = (int(time.time() + 5 + tasks / 300) + 1) * SECOND
        last_at = first_at + seconds * SECOND
        spread_us = SECOND // tasks
        requests = [
            making.every_task(url, n, 1, first_at + n * spread_us, last_at - SECOND + n * spread_us)
            for n in range(tasks)
        ]
        making.send(int(ground.stores[0].rpartition(":")[2].strip("/")), requests)
        time.sleep(max(0.0, first_at / SECOND - time.time()))
        pids = ground.instance_pids, ground.database_pids
        before = [tree_cpu(each) for each in pids]
        # Looks would disturb what is measured: there are none before the last slot.
        time.sleep(max(0.0, last_at / SECOND - time.time()))
        own, database = (
            (tree_cpu(each) - spent) / seconds for each, spent in zip(pids, before, strict=True)
        )
        wait_until_recorded(ground.database, last_at)
        rows = ground.database.all(select_ran(first_at))
        return Loaded([read_ran(row) for row in rows], own, database)


def wait_until_recorded(database: Any, slot_at: Instant) -> None:
    """Look until all that was due by then is fired and ended, by what the store has committed."""
    give_up_at = time.monotonic() + WITHIN_SEC
    # Armed ones first: a task is disarmed in the transaction that writes its run.
    for statement in (
        f"SELECT COUNT(*) FROM tasks WHERE fire_at <= {slot_at}",
        "SELECT COUNT(*) FROM task_runs WHERE open_task IS NOT NULL",
    ):
        while left := database.one(statement)[0]:
            if time.monotonic() > give_up_at:
                raise BenchError(f"{left} are left after {WITHIN_SEC} s of: {statement}")
            time.sleep(LOOK_EVERY_SEC)


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
    """All figures of the even load, one store after the other."""
    figures: list[Figure] = []
    with cores.target() as url, Servers() as servers:
        for store in options.stores:
            try:
                loaded = load_evenly(servers, store, url, options.tasks, options.seconds)
            except SkippedError as reason:
                print(f"{NAME}: {store} passed over, {reason}", file=sys.stderr, flush=True)
            else:
                figures += tell(store, options.tasks, options.seconds, loaded)
    return figures


def tell(store: str, tasks: int, seconds: int, loaded: Loaded) -> list[Figure]:
    """The figures of one store."""
    what, runs = f"{STORES[store]}, {tasks:,} firings/s", loaded.runs
    return [
        Figure(
            NAME,
            f"{what}, {seconds} s: answered",
            sum(ran.is_answered for ran in runs),
            tasks * seconds,
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
        Figure(NAME, f"{what}: CPU of the server", loaded.cpu_share * 100, unit="%"),
        Figure(NAME, f"{what}: CPU of the database", loaded.database_share * 100, unit="%"),
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--stores", type=lambda text: text.split(","), default=list(STORES))
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(parse([]))


if __name__ == "__main__":
    report.show(measure(parse()))
