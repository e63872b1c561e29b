"""Prints figures when a benchmark is run by itself: a line each for people, or JSON lines with KSANA_BENCH_JSON set."""

import json
import os

from bench.__main__ import row_of
from bench.figure import Figure


def show(figures: list[Figure]) -> None:
    """Name, figure, floor, ratio, goal, ok or missed."""
    for figure in figures:
        print(json.dumps(row_of(figure)) if os.environ.get("KSANA_BENCH_JSON") else describe(figure), flush=True)


def describe(figure: Figure) -> str:
    """One line for a person."""
    parts = [
        f"{figure.what:<58}",
        f"{readable(figure.ours)}{figure.unit}".rjust(14),
        "" if figure.floor is None else f"of {readable(figure.floor)}{figure.unit}",
        "" if figure.ratio is None else f"ratio {figure.ratio:.2f}",
        "" if figure.goal is None else f"goal {'≤' if figure.less_is_better else '≥'} {figure.goal:g}",
        {None: "", True: "ok", False: "MISSED"}[figure.is_met],
        f"({figure.note})" if figure.note else "",
    ]
    return "  ".join(part for part in parts if part)


def readable(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
