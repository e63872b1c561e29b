"""Which tasks fire together because they were written alike, and how each could be parted from the
others by `H`. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from ksana.domain.cron_spread import resolve_spread, seed_of
from ksana.domain.schedule import Cron
from ksana.domain.tasks.forecast import ArmedTask

TOGETHER: Final = 3
"""Tasks that fire at one host in the same second: from so many on they are told to spread."""
SUGGESTED: Final = 100
_MOST_KEPT: Final = 10_000


class Suggestion(NamedTuple):
    """A task that could fire beside others instead of with them."""

    task: ArmedTask
    together: int
    """How many fire at its host in the same second."""
    expr: str
    """Its expression, with `H` for the minute."""
    becomes: str


class SpreadCensus:
    """Counts tasks by the host and the expression that they share, and tells which to spread. The
    first of them may stay."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._later: list[ArmedTask] = []

    def add(self, tasks: Iterable[ArmedTask]) -> None:
        """Count more tasks, in the order of their ids."""
        for task in tasks:
            key = _key(task)
            if key is None:
                continue
            self._counts[key] += 1
            if self._counts[key] > 1 and len(self._later) < _MOST_KEPT:
                self._later.append(task)

    def suggest(self) -> list[Suggestion]:
        """Those that fall together most come first."""
        found = []
        for task in self._later:
            key = _key(task)
            if key is None or self._counts[key] < TOGETHER:
                continue
            second, _, *rest = key[1].split()
            expr = " ".join((second, "H", *rest))
            becomes = resolve_spread(expr, seed_of(task.name, task.job_id))
            if becomes != key[1]:
                found.append(Suggestion(task, self._counts[key], expr, becomes))
        found.sort(key=lambda one: (-one.together, one.task.id))
        return found[:SUGGESTED]


def _key(task: ArmedTask) -> tuple[str, str] | None:
    """What tasks share that fire together: fixed second and minute of a cron expression."""
    chosen = task.schedule
    if not isinstance(chosen, Cron):
        return None
    second, minute = chosen.expr.split()[:2]
    return (task.host, chosen.expr) if second.isdigit() and minute.isdigit() else None
