"""A server with nothing to do, and how long `ksana --help` takes.

python -m bench.tasks_idle [--idle 30]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figure import Figure
from bench.ground import cores, report
from bench.ground.served import serve

NAME = "tasks_idle"
IDLE_SEC = 30.0
IDLE_GOAL_PERCENT, HELP_GOAL_MS = 0.3, 200
HELPS = 5


def time_help() -> float:
    """Milliseconds of `ksana --help`, best of five."""
    program = Path(sys.executable).with_name("ksana")
    command = [str(program)] if program.exists() else [sys.executable, "-m", "ksana"]
    spent = []
    for _ in range(HELPS):
        began = time.perf_counter()
        subprocess.run([*command, "--help"], check=True, stdout=subprocess.DEVNULL)
        spent.append(time.perf_counter() - began)
    return min(spent) * 1000


def measure(idle_sec: float) -> list[Figure]:
    """Rest without tasks, and the help page."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        serve(Path(folder)) as served,
        cores.on(cores.LAST),
    ):
        time.sleep(2)  # what a start still does after it is ready is no idling
        idle = served.idle_percent(idle_sec)
        rss_mb = served.rss_mb()[0]
    return [
        Figure(
            NAME,
            "no tasks: CPU at rest",
            idle,
            unit="%",
            goal=IDLE_GOAL_PERCENT,
            less_is_better=True,
        ),
        Figure(NAME, "no tasks: memory", rss_mb, unit="MB"),
        Figure(
            NAME,
            "ksana --help, best of 5",
            time_help(),
            unit="ms",
            goal=HELP_GOAL_MS,
            less_is_better=True,
        ),
    ]


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(IDLE_SEC)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--idle", type=float, default=IDLE_SEC, help="seconds of rest")
    report.show(measure(parser.parse_args().idle))
