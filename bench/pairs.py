"""Two checkouts side by side: the same benchmarks of each in turn, medians, later ÷ earlier.

    python -m bench.pairs /var/tmp/earlier [name …] [--rounds 3]

The other checkout is set up beforehand (`make setup dev` in it). Each runs its own benchmarks with
its own environment; who begins changes with the round. A figure that only one of the two has is
left out. Whether more is better is taken from the figure; where it does not say, from its unit.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.__main__ import list_all, list_names

HERE = Path(__file__).resolve().parent.parent
RENAMED = {"commit_queue": "lane"}
"""Benchmarks by the name that an earlier checkout knows them by."""
SAID_ANEW = (("plain lane", "plain client"), ("SQLite, 1,000 firings", "1,000 firings"))
LEAST = 0.95
"""What a change may cost at most: below it a figure is marked."""
_ONE = """
import json, sys
from bench import __main__ as bench
name = sys.argv[1]
is_module = "\\ndef run() -> list[Figure]:" in (bench.HERE / f"{name}.py").read_text("utf-8")
rows = bench.run_module(name) if is_module else bench.run_script(name)
print("\\n" + json.dumps(rows, default=str))
"""
"""One benchmark by itself: by its name on the command line `tasks` is a group."""
TIMES = {"ms", "us", "µs", "s", "MB", "%", " µs"}

Measured = dict[tuple[str, str, str], list[dict[str, Any]]]


def run(checkout: Path, name: str) -> list[dict[str, Any]]:
    """The figures of one benchmark of one checkout, once."""
    known = name if (checkout / "bench" / f"{name}.py").exists() else RENAMED.get(name, name)
    if not (checkout / "bench" / f"{known}.py").exists():
        return []
    done = subprocess.run(
        [checkout / ".venv" / "bin" / "python", "-c", _ONE, known],
        cwd=checkout,
        env={name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        print(f"{name} failed in {checkout}", file=sys.stderr, flush=True)
        return []
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    named = [{"ours": row.get("next_per_s"), **row, "what": words_of(row)} for row in rows]
    return [{**row, "bench": name} for row in named if row["ours"] is not None]


def words_of(row: dict[str, Any]) -> str:
    """What a figure says it is, in the words of today."""
    words = str(row.get("what", row.get("expr", "")))
    for earlier, later in SAID_ANEW:
        words = words.replace(earlier, later)
    return words


def compare(earlier: Measured, later: Measured) -> list[str]:
    """One line for each figure that both have."""
    lines = []
    for key, rows in later.items():
        if key not in earlier:
            continue
        first = rows[0]
        is_less_better = first.get("less_is_better") or key[2] in TIMES
        was, now = (
            statistics.median(float(row["ours"]) for row in some) for some in (earlier[key], rows)
        )
        ratio = (was / now if is_less_better else now / was) if was and now else float("nan")
        lines.append(
            f"{key[0]:<14} {key[1]:<70} {was:>12,.4g} {now:>12,.4g}{key[2]:<10} {ratio:5.2f}"
            f"{'' if ratio >= LEAST else '  BELOW'}  n={len(earlier[key])}+{len(rows)}"
        )
    return lines


def main() -> None:
    """Run both in turn and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("earlier", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    earlier_checkout = options.earlier.resolve()
    if unknown := set(options.names) - set(list_all()):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    for name in options.names or list_names():
        earlier: Measured = {}
        later: Measured = {}
        for round_ in range(options.rounds):
            pair = [(earlier_checkout, earlier), (HERE, later)]
            for checkout, kept in pair if round_ % 2 == 0 else reversed(pair):
                for row in run(checkout, name):
                    kept.setdefault((row["bench"], row["what"], row.get("unit", "/s")), []).append(
                        row
                    )
        for line in compare(earlier, later):
            print(line, flush=True)


if __name__ == "__main__":
    main()
