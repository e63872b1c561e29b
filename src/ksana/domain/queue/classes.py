"""Job classes: jobs that no claim can tell apart, and which of them a worker takes. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from ksana.base.instant import HOUR, MINUTE, Instant, Micros


class JobClass(msgspec.Struct, frozen=True, gc=False):
    """All jobs that a claim's filters cannot tell apart: same addon, type, cost and needs. The id
    follows from these."""

    id: int
    addon_id: str
    job_type: str
    cost_units: int
    needs: tuple[str, ...]


class Wants(msgspec.Struct, frozen=True):
    """What a worker takes; None or empty means anything."""

    addon_id: str | None = None
    job_types: frozenset[str] = frozenset()
    max_cost_units: int | None = None
    capabilities: tuple[tuple[str, bool], ...] = ()


def needs_of(constraints: Mapping[str, Any]) -> tuple[str, ...]:
    """The constraints that bind: those given a true value."""
    return tuple(sorted(name for name, value in constraints.items() if value))


KEPT: Final[Micros] = 10 * MINUTE
"""A class stays so long after it was entered last, and then as long as jobs of it wait or are
held."""

TRUSTED: Final[Micros] = 5 * MINUTE
"""Who has entered a class relies on it for so long. What is submitted in that time is committed
long before the class may go."""

KEPT_AFTER: Final[Micros] = HOUR
"""A class stays so long after a job of it was due that waits for its time: many that wait do not
each write to their class."""

MOST_CLASSES: Final = 10_000
"""Classes that may be there at a time, unless set otherwise. A claim that finds none of its jobs at
the head of the queue looks at each class that it takes."""


def kept_until(now: Instant, run_ats: Iterable[Instant | None] = ()) -> Instant:
    """How long a class stays at least that jobs for these times are submitted to."""
    last_at = max((run_at for run_at in run_ats if run_at is not None), default=0)
    return max(now + KEPT, last_at + KEPT_AFTER)


_MOST_NEEDS: Final = 16
_LONGEST_NEED: Final = 128
"""Classes with more, or with longer ones, are not remembered: what is takes little room."""


def class_of(addon_id: str, job_type: str, cost_units: int, needs: tuple[str, ...]) -> JobClass:
    """The class of such jobs. The id is a hash, so every instance and every retry finds the same
    one."""
    is_small = not needs or (len(needs) <= _MOST_NEEDS and max(map(len, needs)) <= _LONGEST_NEED)
    find = _find_class if is_small else _find_class.__wrapped__
    return find(addon_id, job_type, cost_units, needs)


@lru_cache(maxsize=4096)
def _find_class(addon_id: str, job_type: str, cost_units: int, needs: tuple[str, ...]) -> JobClass:
    text = msgspec.json.encode((addon_id, job_type, cost_units, needs))
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    return JobClass(number, addon_id, job_type, cost_units, needs)


def accepts(kind: JobClass, wants: Wants) -> bool:
    """Tell whether a worker takes the jobs of a class."""
    if wants.addon_id is not None and kind.addon_id != wants.addon_id:
        return False
    if wants.job_types and kind.job_type not in wants.job_types:
        return False
    if wants.max_cost_units is not None and kind.cost_units > wants.max_cost_units:
        return False
    if not kind.needs:
        return True
    capabilities = dict(wants.capabilities)
    return all(_is_met(need, capabilities) for need in kind.needs)


def _is_met(need: str, capabilities: Mapping[str, bool]) -> bool:
    if not capabilities.get(need, True):
        return False
    if need.endswith("_required"):
        return capabilities.get(need.removesuffix("_required") + "_available", False)
    return True


def rivals_of(
    kind: JobClass, classes: Iterable[JobClass], filters: Iterable[Wants]
) -> list[JobClass]:
    """The classes whose jobs compete with those of `kind` for the same workers: all that some known
    worker takes who takes `kind` too. Where no such worker is known, those of the same addon: a
    worker serves one addon unless it says otherwise."""
    takers = [wants for wants in filters if accepts(kind, wants)]
    if not takers:
        return [one for one in classes if one.addon_id == kind.addon_id]
    return [one for one in classes if any(accepts(one, wants) for wants in takers)]
