"""One figure of a benchmark: a rate or a time, beside its floor measured in the same run."""

from typing import Any

import msgspec


class BenchError(Exception):
    """The measurement did not come about, and why."""


class Figure(msgspec.Struct, frozen=True):
    """`ratio` is ours ÷ floor; the goal says how much it should be at least (at most, if
    `less_is_better`)."""

    bench: str
    what: str
    ours: float
    floor: float | None = None
    unit: str = "/s"
    goal: float | None = None
    less_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours ÷ floor."""
        return self.ours / self.floor if self.floor else None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None if there is none."""
        if self.goal is None:
            return None
        value = self.ours if self.ratio is None else self.ratio
        return value <= self.goal if self.less_is_better else value >= self.goal


def row_of(figure: Figure) -> dict[str, Any]:
    """The figure as it is kept."""
    row: dict[str, Any] = msgspec.structs.asdict(figure)
    return {**row, "ratio": figure.ratio, "is_met": figure.is_met}


def describe(row: dict[str, Any]) -> str:
    """One line for a person: what, figure, floor, ratio, goal, ok or missed."""
    ratio, goal, met = row.get("ratio", row.get("worst_ratio")), row.get("goal"), row.get("is_met")
    is_less_better = bool(row.get("less_is_better"))
    if met is None and ratio is not None and goal is not None:
        met = ratio <= goal if is_less_better else ratio >= goal
    ours, floor, unit = row.get("ours"), row.get("floor"), row.get("unit", "/s")
    parts = [
        f"{row['bench']:<13} {row.get('what', row.get('expr', ''))!s:<66}",
        "" if ours is None else f"{readable(ours)}{unit}".rjust(12),
        "" if floor is None else f"of {readable(floor)}{unit}",
        "" if ratio is None else f"ratio {ratio:.2f}",
        "" if goal is None else f"goal {'≤' if is_less_better else '≥'} {goal:,g}",
        {None: "", True: "ok", False: "MISSED"}[met],
        f"({row['note']})" if row.get("note") else "",
    ]
    return "  ".join(part for part in parts if part).rstrip()


def readable(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
