"""Run the benchmarks: `python -m bench [name …]`. Each figure as a ratio to its floor; all of it as JSON in bench/results.

A module that defines `run() -> list[Figure]` is called. Any other is a script that prints JSON lines: it is started as a
process and each line with a `ratio` (and perhaps a `goal`) counts as a figure. Misses are told, they fail nothing: the
machines are noisy.
"""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NO_BENCH = {"__init__", "__main__", "figure"}
LIMIT_S = 900


def list_names() -> list[str]:
    """All benchmarks, by the names of their files. Those called *_peers need other products installed: only when asked."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NO_BENCH and not path.stem.endswith("_peers"))


def run_module(name: str) -> list[dict[str, Any]]:
    module = importlib.import_module(f"bench.{name}")
    return [row_of(figure) for figure in module.run()]


def row_of(figure: Figure) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.structs.asdict(figure)
    return {**row, "ratio": figure.ratio, "is_met": figure.is_met}


def run_script(name: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py")], stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, cwd=HERE.parent
    )
    rows = [{"bench": name, **row} for row in map(as_object, done.stdout.splitlines()) if row is not None]
    if done.returncode:
        rows.append({"bench": name, "what": f"ended with {done.returncode}", "is_met": False})
    return rows


def as_object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def describe(row: dict[str, Any]) -> str:
    """One line for a person."""
    ratio = row.get("ratio", row.get("worst_ratio"))
    goal = row.get("goal")
    met = row.get("is_met")
    if met is None and ratio is not None and goal is not None and not row.get("less_is_better"):
        met = ratio >= goal
    ours, floor, unit = row.get("ours"), row.get("floor"), row.get("unit", "/s")
    parts = [f"{row['bench']:<12} {row.get('what', row.get('expr', ''))!s:<44}"]
    parts.append(f"{ours:>12,.0f}{unit}" if isinstance(ours, int | float) else " " * 14)
    parts.append(f"of {floor:>10,.0f}{unit}" if isinstance(floor, int | float) else " " * 15)
    parts.append(f"ratio {ratio:6.2f}" if isinstance(ratio, int | float) else " " * 12)
    sign = "≤" if row.get("less_is_better") else "≥"
    parts.append(f"goal {sign} {goal}" if goal is not None else "")
    parts.append("" if met is None else "ok" if met else "MISSED")
    return "  ".join(parts).rstrip()


def main() -> None:
    names = sys.argv[1:] or list_names()
    unknown = [name for name in names if not (HERE / f"{name}.py").exists()]
    if unknown:
        sys.exit(f"no benchmark is called {', '.join(unknown)}: there are {', '.join(list_names())}")
    rows: list[dict[str, Any]] = []
    for name in names:
        is_module = "\ndef run() -> list[Figure]:" in (HERE / f"{name}.py").read_text("utf-8")
        for row in run_module(name) if is_module else run_script(name):
            rows.append(row)
            print(describe(row), flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    path.write_text(json.dumps(rows, indent=1, default=str), encoding="utf-8")
    print(f"kept in {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
