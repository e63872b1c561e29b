"""The same work by other products and by ours, on every store, with one and with three instances.

    KSANA_BENCH_PEERS=/var/tmp/peers python -m bench.scale [--rounds 3] [--jobs 20000]
        [--only drain,once,single,full,add,latency,killed,burst,recurring]
        [--systems graphile,sqlite,…]

Every system is measured in each round, in turn, and the median of the rounds counts. All have the
whole machine, the same work in flight and their best settings; databases lie on the disk and sync
each commit (BullMQ's Redis keeps nothing: its fastest). Jobs do nothing; ours go through the SDK
with its own requests. A drain counts from the first job to the last, over all workers; its jobs may
be tried twice, as those of most peers by default. `once` is the same for ours with jobs that may be
tried once, which is our default: workers take no such job ahead. `full` has more claimers than
units, one job per fetch. Timers POST to as many addresses as there are timers.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.figure import BenchError, Figure
from bench.ground import cores, making, report
from bench.ground.contest import (
    Ground,
    Servers,
    SkippedError,
    System,
    ask,
    environment,
    node_peer,
    our_program,
    python_peer,
    tree_cpu,
    wait_for,
    workers,
)
from ksana.base.instant import SECOND

NAME = "scale"
ROUNDS, JOBS, IN_FLIGHT = 3, 20_000, 100
SINGLE_SHARE = 10
"""One job per fetch is slower by an order: a tenth of the jobs is enough."""
TIMERS, RECURRING, STEP, CALLS = 10_000, 22_000, 1_000, 64
BATCH = 500
KILLED_WITHIN_SEC = 90
CLAIMERS, FULL = 64, 50
"""Claimers and units where the capacity is full: some are always refused."""
FULL_SHARE = 2
MEASURES = ("drain", "once", "single", "full", "add", "latency", "killed", "burst", "recurring")
TIMER_SYSTEMS = ("croner", "apscheduler")
OURS = ("sqlite", "postgres", "mariadb")


def systems(servers: Servers) -> dict[str, System]:
    """Everybody, by a short name."""
    found = {
        "graphile": System(
            "graphile-worker", lambda: node_peer("graphile.js"), servers.on_postgres
        ),
        "graphile-3": System(
            "graphile-worker, 3 workers", lambda: node_peer("graphile.js"), servers.on_postgres, 3
        ),
        "pgqueuer": System(
            "PgQueuer", lambda: python_peer("pgqueuer_jobs.py"), servers.on_postgres
        ),
        "bullmq": System(
            "BullMQ", lambda: node_peer("bullmq.js"), servers.on_redis, kept="nothing kept"
        ),
        "croner": System("croner", lambda: node_peer("croner.js"), servers.on_redis),
        "apscheduler": System(
            "APScheduler 3, asyncio",
            lambda: python_peer("apscheduler_timers.py"),
            servers.on_redis,
        ),
    }
    for kind, title in (("sqlite", "SQLite"), ("postgres", "PostgreSQL"), ("mariadb", "MariaDB")):
        for count in (1,) if kind == "sqlite" else (1, 3):
            name = kind if count == 1 else f"{kind}-{count}"
            title_of = f"Ksana, {title}" + (f", {count} instances" if count > 1 else "")
            found[name] = System(title_of, our_program, _ksana(servers, kind, count), count)
    return found


def _ksana(servers: Servers, kind: str, count: int) -> Callable[[], Any]:
    return lambda: servers.ksana(kind, count)


class Figures(NamedTuple):
    """What one measurement of one system gave, by name: value and unit."""

    values: dict[str, tuple[float, str]]


WORDS = {
    "drain": "drain",
    "once": "drain of jobs tried once",
    "single": "one job per fetch",
    "full": f"{CLAIMERS} claimers, capacity {FULL}",
}


def drain(system: System, options: argparse.Namespace, measure: str, jobs: int) -> Figures:
    """Fill the queue, then let the workers empty it."""
    in_flight = options.single_in_flight if measure == "single" else options.in_flight
    if measure == "full":
        in_flight = -(-CLAIMERS // system.workers)
    action = "single" if measure in {"single", "full"} else "drain"
    filling = {"jobs": jobs, "batch": BATCH, **({"attempts": 1} if measure == "once" else {})}
    with system.ground() as ground:
        filled = ask(system.command(), "fill", filling, environment(ground, 0))
        used = tree_cpu(ground.instance_pids), tree_cpu(ground.database_pids)
        with workers(system, ground, action, {"in_flight": in_flight}) as running:
            wait_for(
                running,
                lambda: sum(worker.told.get("done", 0) for worker in running) >= jobs,
                120,
            )
            told = [worker.told for worker in running if worker.told.get("done")]
            own = tree_cpu([worker.process.pid for worker in running])
            _check(ground, jobs)
        instances = tree_cpu(ground.instance_pids) - used[0]
        database = tree_cpu(ground.database_pids) - used[1]
        if sum(one["done"] for one in told) != jobs:
            raise BenchError(f"{told} of {jobs} jobs")
    wall = max(one["last"] for one in told) - min(one["first"] for one in told)
    what = WORDS[measure]
    values = {
        what: (jobs / wall, "/s"),
        f"{what}: CPU of instances and database": ((instances + database) / jobs * 1e6, " µs/job"),
        f"{what}: CPU of the database": (database / jobs * 1e6, " µs/job"),
        f"{what}: CPU of workers": (own / jobs * 1e6, " µs/job"),
    }
    if measure == "drain":
        values[f"added in batches of {BATCH}"] = (jobs / filled["sec"], "/s")
    return Figures(values)


def _check(ground: Ground, jobs: int) -> None:
    """Ours must have them all in the store, done; releases may still be on their way."""
    if ground.database is None:
        return
    statement = "SELECT COUNT(*) FROM scheduler_job_runs WHERE state = 'DONE'"
    give_up_at = time.monotonic() + 20
    while (count := ground.database.one(statement)[0]) != jobs:
        if time.monotonic() > give_up_at:
            raise BenchError(f"the store has {count} of {jobs} jobs done")
        time.sleep(0.05)


def add(system: System, options: argparse.Namespace) -> Figures:
    """One job after the other, by one caller."""
    with system.ground() as ground:
        told = ask(system.command(), "add", {"seconds": options.seconds}, environment(ground, 0))
    return Figures({"added one by one": (told["count"] / told["sec"], "/s")})


def latency(system: System, options: argparse.Namespace) -> Figures:
    """A job every 10 ms: from before the submit to the handler."""
    with system.ground() as ground:
        told = ask(system.command(), "latency", {"count": 500}, environment(ground, 0))
    cuts = statistics.quantiles(told["waits"], n=100)
    return Figures(
        {
            "submit to start, p50": (cuts[49], " ms"),
            "submit to start, p99": (cuts[98], " ms"),
        }
    )


def killed(system: System, options: argparse.Namespace) -> Figures:
    """Ten jobs are held by a worker that is killed: how long until another has done them all."""
    with system.ground() as ground:
        ask(system.command(), "fill", {"jobs": 10, "batch": 10}, environment(ground, 0))
        with workers(system, ground, "hold", {"in_flight": 10}) as holding:
            wait_for(holding, lambda: all("ready" in worker.told for worker in holding), 30)
            time.sleep(3)
        began = time.time()
        with workers(system, ground, "drain", {"in_flight": 10}) as running:
            try:
                wait_for(
                    running,
                    lambda: sum(worker.told.get("done", 0) for worker in running) >= 10,
                    KILLED_WITHIN_SEC,
                )
            except TimeoutError:
                return Figures({"work of a killed worker not back": (KILLED_WITHIN_SEC, " s")})
            last = max(worker.told.get("last", 0) for worker in running)
    return Figures({"work of a killed worker back": (last - began, " s")})


# ------------------------------------------------------------------------------ timers


def burst(key: str, system: System, servers: Servers, target: str, tasks: int) -> Figures:
    """So many timers at one instant: when the last was answered."""
    if key in TIMER_SYSTEMS:
        options = {"tasks": tasks, "lead_sec": 3 + tasks / 2000, "in_flight": CALLS}
        env = environment(Ground([""], [], []), 0, PEER_TARGET=target)
        told = ask(system.command(), "burst", options, env)
        if told["late"] or told["failed"] or told["answered"] != tasks:
            raise BenchError(f"it told {told}")
        return Figures({f"{tasks:,} timers at once, last answer": (told["sec"], " s")})
    values = {}
    for label, env in (("", {}), (f", {CALLS} a host", {"KSANA_TASKS_PER_HOST": str(CALLS)})):
        with servers.ksana(*_kind(key), env=env) as ground:
            slot_at = (int(time.time() + 5 + tasks / 400) + 1) * SECOND
            requests = [making.once_job(f"{target}/{n}", slot_at, n) for n in range(tasks)]
            making.send(_port(ground.stores[0]), requests)
            if time.time() > slot_at / SECOND - 0.3:
                raise BenchError("the timers could not be made before their instant")
            last = _wait_recorded(ground.database, slot_at, tasks)
        values[f"{tasks:,} timers at once, last answer{label}"] = (last - slot_at / SECOND, " s")
    return Figures(values)


def _wait_recorded(database: Any, slot_at: int, tasks: int) -> float:
    """Until every run is a success in the store; when the last was answered."""
    statement = (
        "SELECT COUNT(*), MAX(end_time) FROM task_runs"
        f" WHERE scheduled_time = {slot_at} AND status = 'SUCCESS'"
    )
    time.sleep(max(0.0, slot_at / SECOND - time.time()) + 1)
    give_up_at = time.monotonic() + 60
    while True:
        count, last = database.one(statement)
        if count == tasks:
            return float(last) / SECOND
        if time.monotonic() > give_up_at:
            raise BenchError(f"{count} of {tasks} runs were answered")
        time.sleep(0.1)


def recurring(key: str, system: System, servers: Servers, target: str, tasks: int) -> Figures:
    """A thousand more timers every second, each every second: the most that were answered a second,
    over three of them."""
    what, seconds = "recurring timers answered, most", tasks // STEP + 2
    if key in TIMER_SYSTEMS:
        options = {"tasks": tasks, "step": STEP, "seconds": seconds, "in_flight": CALLS}
        env = environment(Ground([""], [], []), 0, PEER_TARGET=target)
        told = ask(system.command(), "recurring", options, env)
        counts = {int(second): count for second, count in told["by_second"].items()}
        return Figures({what: (_most(counts, seconds), "/s")})
    env = {"KSANA_TASKS_PER_HOST": str(CALLS)}
    with servers.ksana(*_kind(key), env=env) as ground:
        first = int(time.time() + 5 + tasks / 400) + 1
        requests = [
            every_timer(f"{target}/{n}", n, first + n // STEP, first + 3600) for n in range(tasks)
        ]
        making.send(_port(ground.stores[0]), requests)
        if time.time() > first:
            raise BenchError("the timers could not be made before their first instant")
        time.sleep(first + seconds + 1 - time.time())
        counts = {
            second: ground.database.one(
                "SELECT COUNT(*) FROM task_runs WHERE status = 'SUCCESS' AND end_time >="
                f" {(first + second) * SECOND} AND end_time < {(first + second + 1) * SECOND}"
            )[0]
            for second in range(seconds)
        }
    return Figures({what: (_most(counts, seconds), "/s")})


def _most(counts: dict[int, int], seconds: int) -> float:
    """The highest mean of three seconds in a row."""
    return max(
        sum(counts.get(at + more, 0) for more in range(3)) / 3 for at in range(max(1, seconds - 2))
    )


def every_timer(url: str, number: int, first: int, last: int) -> bytes:
    """A timer that POSTs every second from `first` to `last`, one at a time."""
    call = {"method": "POST", "url": url, "body": f'{{"order":{number}}}'}
    schedule = {
        "kind": "every",
        "every": "1s",
        "start_at": making.format_instant(first * SECOND),
        "end_at": making.format_instant(last * SECOND),
    }
    return making.post("/jobs", {"http": call, "schedule": schedule})


def _kind(key: str) -> tuple[str, int]:
    kind, _, count = key.partition("-")
    return kind, int(count or 1)


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].strip("/"))


# ------------------------------------------------------------------------------ all of it


def run_one(
    measure: str,
    key: str,
    system: System,
    servers: Servers,
    target: str,
    options: argparse.Namespace,
) -> Figures:
    if measure in {"burst", "recurring"}:
        act, count = (
            (burst, options.timers) if measure == "burst" else (recurring, options.recurring)
        )
        return act(key, system, servers, target, count)
    if measure in {"drain", "once"}:
        return drain(system, options, measure, options.jobs)
    if measure == "single":
        return drain(system, options, measure, max(1, options.jobs // SINGLE_SHARE))
    if measure == "full":
        kind, count = _kind(key)
        env = {"KSANA_CAPACITY_TOTAL": str(FULL)}
        full = system._replace(ground=lambda: servers.ksana(kind, count, env))
        return drain(full, options, measure, max(1, options.jobs // FULL_SHARE))
    return {"add": add, "latency": latency, "killed": killed}[measure](system, options)


def applies(measure: str, key: str) -> bool:
    """Whether the product does such a thing."""
    if measure in {"burst", "recurring"}:
        return key in TIMER_SYSTEMS or key.partition("-")[0] in OURS
    if measure in {"once", "full"}:
        return key.partition("-")[0] in OURS
    if measure == "single":
        return key not in {*TIMER_SYSTEMS, "pgqueuer", "bullmq"}
    return key not in TIMER_SYSTEMS and not (measure in {"add", "latency"} and "-3" in key)


def measure(options: argparse.Namespace) -> list[Figure]:
    """The median of every figure of every system, over rounds in turn."""
    taken: dict[tuple[str, str, str], list[float]] = {}
    with Servers() as servers, cores.on(cores.ALL), cores.target() as target:
        all_systems = systems(servers)
        chosen = [key for key in all_systems if not options.systems or key in options.systems]
        for number in range(options.rounds):
            for what in options.only or MEASURES:
                if what == "killed" and number:
                    continue  # a matter of settings: once is enough
                for key in chosen:
                    if not applies(what, key):
                        continue
                    system = all_systems[key]
                    try:
                        got = run_one(what, key, system, servers, target, options)
                    except (SkippedError, BenchError, TimeoutError) as reason:
                        line = f"{system.name}, {what}: passed over, {reason!r}"
                        print(line, file=sys.stderr, flush=True)
                        continue
                    for name, (value, unit) in got.values.items():
                        taken.setdefault((name, system.name, unit), []).append(value)
                        print(f"  {number + 1} {system.name}: {name} {value:.4g}{unit}", flush=True)
    return [
        Figure(
            NAME,
            f"{name}: {system}",
            statistics.median(values),
            unit=unit,
            note=f"median of {len(values)}" if len(values) > 1 else "once",
        )
        for (name, system, unit), values in sorted(taken.items())
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--single-in-flight", type=int, default=10)
    parser.add_argument("--timers", type=int, default=TIMERS)
    parser.add_argument("--recurring", type=int, default=RECURRING)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long jobs are added singly")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=None)
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(parse([]))


if __name__ == "__main__":
    report.show(measure(parse()))
