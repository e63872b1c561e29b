"""Which schedule a task had at an instant, from its recorded events. Pure."""

from collections.abc import Iterable
from typing import Any

import msgspec

from ksana.domain.explain import Fact
from ksana.domain.schedule import Schedule


def schedule_in_force(before: Iterable[Fact], after: Iterable[Fact]) -> Schedule | None:
    """The schedule at an instant from the task's events up to it, newest first, and after it,
    oldest first. None: no event tells, so it has not changed since or that is no longer known."""
    for fact in before:
        if (found := fact.data.get("schedule")) is not None:
            return _read_schedule(found)
    for fact in after:
        if (found := fact.data.get("schedule_was")) is not None:
            return _read_schedule(found)
        if fact.data.get("schedule") is not None:
            return _read_schedule(fact.data["schedule"])  # changed, but not its schedule
    return None


def _read_schedule(data: Any) -> Schedule:
    found: Schedule = msgspec.convert(data, Schedule)
    return found
