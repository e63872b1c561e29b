"""Run the benchmarks: `python -m bench [name …]`. Each figure as a ratio to its floor; all of it as
JSON in bench/results.

`tasks` and `queue` mean all whose names begin so. Without a name all are run but `scale`, which
wants other products installed. A module that defines `run() -> list[Figure]` is called. Any other
is a script that prints JSON lines: it is started as a process and each line with a `ratio` (and
perhaps a `goal`) counts as a figure. Misses are told, they fail nothing: the machines are noisy.
"""

import importlib
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench.figure import describe, row_of

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NO_BENCH = {"__init__", "__main__", "figure", "pairs"}
GROUPS = ("tasks", "queue")
NEEDS_PEERS = {"scale"}
LIMIT_S = 900


def list_all() -> list[str]:
    """All benchmarks, by the names of their files."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NO_BENCH)


def list_names(group: str = "") -> list[str]:
    """Those of a group, or all that need no other product installed."""
    return [
        name
        for name in list_all()
        if name not in NEEDS_PEERS and (not group or name.partition("_")[0] == group)
    ]


def choose(words: list[str]) -> list[str]:
    """The benchmarks that are asked for, each once, in that order."""
    unknown = [word for word in words if word not in GROUPS and word not in list_all()]
    if unknown:
        sys.exit(
            f"no benchmark is called {', '.join(unknown)}: "
            f"there are {', '.join(sorted({*GROUPS, *list_all()}))}"
        )
    if not words:
        return list_names()
    return list(
        dict.fromkeys(
            name for word in words for name in (list_names(word) if word in GROUPS else [word])
        )
    )


def run_module(name: str) -> list[dict[str, Any]]:
    try:
        return [row_of(figure) for figure in importlib.import_module(f"bench.{name}").run()]
    except (
        Exception,
        SystemExit,
    ) as error:  # one that fails must not take along the figures of the others
        traceback.print_exc()
        return [{"bench": name, "what": f"failed: {error}", "is_met": False}]


def run_script(name: str) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            cwd=HERE.parent,
        )
    except subprocess.TimeoutExpired:
        return [{"bench": name, "what": f"not done after {LIMIT_S} s", "is_met": False}]
    rows = [
        {"bench": name, **row}
        for row in map(as_object, done.stdout.splitlines())
        if row is not None
    ]
    if done.returncode:
        rows.append({"bench": name, "what": f"ended with {done.returncode}", "is_met": False})
    return rows


def as_object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def main() -> None:
    rows: list[dict[str, Any]] = []
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    for name in choose(sys.argv[1:]):
        is_module = "\ndef run() -> list[Figure]:" in (HERE / f"{name}.py").read_text("utf-8")
        for row in run_module(name) if is_module else run_script(name):
            rows.append(row)
            print(describe(row), flush=True)
        path.write_text(json.dumps(rows, indent=1, default=str), encoding="utf-8")
    print(f"kept in {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
