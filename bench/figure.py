"""One figure of a benchmark: a rate or a time, beside its floor measured in the same run."""

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """`ratio` is ours ÷ floor; the goal says how much it should be at least (at most, if `less_is_better`)."""

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
