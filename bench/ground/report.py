"""Prints figures when a benchmark is run by itself: a line each for people, or JSON lines with
KSANA_BENCH_JSON set."""

import json
import os

from bench.figure import Figure, describe, row_of


def show(figures: list[Figure]) -> None:
    """Name, figure, floor, ratio, goal, ok or missed."""
    for figure in figures:
        row = row_of(figure)
        print(json.dumps(row) if os.environ.get("KSANA_BENCH_JSON") else describe(row), flush=True)
