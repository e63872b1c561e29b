"""Durable submit of queue jobs over HTTP: 201 after the sync, 32 keep-alive connections. SQLite
FULL.

    python -m bench.queue_submit [--rounds 5] [--seconds 3] [--batch 100] [--batch-connections 8]

The real server on one core, the client on the other. The floor is a bare ASGI echo on the same
uvicorn and the same core, with the same requests, in turns. At the end the store must hold as many
jobs as were answered.
"""

import argparse
import json
import statistics
from typing import NamedTuple

from bench.figure import BenchError, Figure
from bench.ground import cores, disk, report
from bench.ground.loading import Echo, Loaded, echo, load
from bench.ground.making import post
from bench.ground.served import Served, serve
from bench.http_layer import CONNECTIONS

NAME = "queue_submit"
ROUNDS, SECONDS, BATCH, BATCH_CONNECTIONS = 5, 3.0, 100, 8
SUBMIT_GOAL, BATCH_GOAL = 0.4, 30_000
GOAL_BATCH = 100
"""The goal of batches is said of this size; others are told without it."""
JOB = {
    "addon_id": "bench",
    "job_type": "render",
    "cost_units": 1,
    "payload": {"frame": 17, "scene": "harbour"},
}


class Turns(NamedTuple):
    """Rounds of one kind of request, ours and the floor's."""

    ours: list[Loaded]
    floor: list[Loaded]

    @property
    def answered(self) -> int:
        return sum(one.answered for one in self.ours)

    def median(self, member: str) -> tuple[float, float]:
        return (
            statistics.median(getattr(one, member) for one in self.ours),
            statistics.median(getattr(one, member) for one in self.floor),
        )

    @property
    def note(self) -> str:
        """Whether the client was the bottleneck of anything."""
        own, floor = self.median("client_share")
        return f"client's core {own:.0%} busy, {floor:.0%} at the floor"


def take_turns(
    floor: Echo, served: Served, request: bytes, connections: int, options: argparse.Namespace
) -> Turns:
    """The floor and ours, one after the other, several times."""
    turns = Turns([], [])
    for _ in range(options.rounds):
        turns.floor.append(load(floor.port, request, options.seconds, floor.pid, connections))
        turns.ours.append(
            load(served.port, request, options.seconds, served.program.pid, connections)
        )
    return turns


def measure(options: argparse.Namespace) -> list[Figure]:
    """One by one, and in batches."""
    one = post("/api/scheduler/jobs/submit", JOB)
    many = post("/api/scheduler/jobs/submit-batch", {"jobs": [JOB] * options.batch})
    on = cores.FIRST if options.cores == "first" else cores.ALL
    with (
        disk.folder() as folder,
        echo() as floor,
        serve(folder, on=on) as served,
        cores.on(cores.LAST),
    ):
        disk.check_synced(served.file)
        singles = take_turns(floor, served, one, CONNECTIONS, options)
        batches = take_turns(floor, served, many, options.batch_connections, options)
        kept, answered = (
            disk.count_states(served.file),
            singles.answered + options.batch * batches.answered,
        )
    if kept != {"QUEUED": answered}:
        raise BenchError(f"{answered} jobs were answered, the store has {json.dumps(kept)}")
    ours, echoed = singles.median("per_sec")
    ours_cpu, echoed_cpu = singles.median("per_cpu_sec")
    jobs, echoed_jobs = (rate * options.batch for rate in batches.median("per_sec"))
    what = f"submit-batch of {options.batch}, {options.batch_connections} connections"
    goal = BATCH_GOAL if options.batch == GOAL_BATCH else None
    return [
        Figure(
            NAME,
            f"submit, {CONNECTIONS} connections ÷ ASGI echo",
            ours,
            echoed,
            goal=SUBMIT_GOAL,
            note=singles.note,
        ),
        Figure(NAME, "the same per CPU-second of the server", ours_cpu, echoed_cpu),
        Figure(NAME, what, jobs, unit=" jobs/s", goal=goal, note=batches.note),
        Figure(NAME, f"{what} ÷ ASGI echo", jobs, echoed_jobs, unit=" jobs/s"),
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each round loads")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--batch-connections", type=int, default=BATCH_CONNECTIONS)
    parser.add_argument(
        "--cores", choices=("first", "all"), default="first", help="where the server runs"
    )
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(parse([]))


if __name__ == "__main__":
    report.show(measure(parse()))
