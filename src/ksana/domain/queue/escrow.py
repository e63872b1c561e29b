"""Escrow: units of the capacity set aside for an instance, which it grants without anybody's lock.
Pure: rows and `now` in, a decision out.

    the pool (one row)  ──deal──▶  allotments (rows of the instances)  ──draw──▶  active leases
          ▲                                │    ▲                                     │
          └───────────gather───────────────┘    └──────────free (whoever ends it)─────┘

What a transaction frees it may grant again itself: such a unit goes from one lease to the next and
is set aside for nobody in between.

A unit is at home in the pool, in one allotment, or in one active lease. The pool counts as used
what is not at home: `used = units of active leases + units of allotments`, and lets nothing out
beyond the total. Everything else follows: an instance that draws from its own allotment moves a
unit that is out already, so the sum of the active leases never passes the total, and whoever ends a
lease keeps its units in an allotment of its own, wherever the lease was granted.

Whoever holds the pool may bring home every allotment, of the living and of the dead alike. That is
how units are moved, and why nobody has to find out who died.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ksana.base.instant import MILLISECOND, MINUTE, Instant, Micros
from ksana.domain.queue.admission import Capacity

IDLE: Final[Micros] = 100 * MILLISECOND
"""An allotment that nobody has touched for so long is to spare: its units are brought home when
another instance could use them."""

GONE: Final[Micros] = MINUTE
"""An instance whose allotments nobody has touched for so long gets none, until it asks again."""


class Allotment(msgspec.Struct, frozen=True, gc=False):
    """Units set aside for an instance, in a row of one of its connections."""

    shard: int
    instance: int
    units: int
    leases: int
    """Leases granted from here less leases ended here; the pool counts the rest."""
    seen_at: Instant
    era: int
    """Another one whenever it was brought home: what was decided by its units before is void."""


class Draw(msgspec.Struct, frozen=True, gc=False):
    """Units taken from an allotment, if it is still of this era."""

    shard: int
    era: int
    units: int


class Standing(msgspec.Struct, frozen=True):
    """The pool and all allotments as last committed: what a claim sees without a lock."""

    pool: Capacity
    allotments: Sequence[Allotment]
    freed: int = 0
    """Units of leases that this transaction has ended, and not granted again."""

    def of_instance(self, instance: int) -> list[Allotment]:
        """What is set aside for an instance."""
        return [one for one in self.allotments if one.instance == instance]


def gather(pool: Capacity, allotments: Iterable[Allotment]) -> Capacity:
    """The capacity with every allotment brought home: `used` is what the active leases hold."""
    units = leases = 0
    for one in allotments:
        units, leases = units + one.units, leases + one.leases
    return msgspec.structs.replace(pool, used=pool.used - units, active=pool.active + leases)


def own_capacity(standing: Standing, instance: int, now: Instant) -> Capacity | None:
    """What an instance may grant by itself, as a capacity of its own. None: nothing, it must hold
    the pool, because units are kept for somebody or more is out than the total allows."""
    pool = standing.pool
    if pool.reserved(now) or pool.used > pool.total:
        return None
    units = standing.freed + sum([one.units for one in standing.of_instance(instance)])
    return Capacity(units, 0, 0, 0, None, 0, 0)


def should_gather(standing: Standing, instance: int, now: Instant, *, is_patient: bool) -> bool:
    """Tell whether an instance that cannot grant all that is asked for brings all units home first:
    there are some that nobody uses, or others have some. One that is patient, because it grants
    something and the rest comes again, leaves others what they use."""
    others = [one for one in standing.allotments if one.instance != instance and one.units]
    if standing.pool.used < standing.pool.total:
        return True
    return any(one.seen_at <= now - IDLE for one in others) if is_patient else bool(others)


def draw(standing: Standing, instance: int, first: int, units: int) -> list[Draw]:
    """From which of its allotments an instance takes so many units, beyond those that this
    transaction has freed: `first` before the others, then the largest, so that few rows are
    written."""
    units -= min(units, standing.freed)
    drawn: list[Draw] = []
    allotments = standing.of_instance(instance)
    for one in sorted(allotments, key=lambda one: (one.shard != first, -one.units)):
        taken = min(one.units, units)
        if taken > 0:
            drawn.append(Draw(one.shard, one.era, taken))
            units -= taken
    if units:
        raise AssertionError("more is drawn than was set aside")
    return drawn


def deal(
    capacity: Capacity,
    allotments: Iterable[Allotment],
    shard: int,
    instance: int,
    now: Instant,
) -> dict[int, int]:
    """Set aside what is free, in equal parts for each instance that is about, the rest for the one
    that deals, at `shard`. Nothing while units are kept for somebody: then all is decided at
    home."""
    free = capacity.total - capacity.used
    if free <= 0 or capacity.reserved(now):
        return {}
    newest: dict[int, Allotment] = {}
    for one in allotments:
        if one.instance != instance and one.seen_at > now - GONE:
            before = newest.get(one.instance)
            if before is None or one.seen_at > before.seen_at:
                newest[one.instance] = one
    part = free // (len(newest) + 1)
    dealt = {one.shard: part for one in newest.values()} if part else {}
    return {**dealt, shard: free - part * len(dealt)}


def with_dealt(capacity: Capacity, dealt: Mapping[int, int]) -> Capacity:
    """The pool after units were set aside: they are out."""
    return msgspec.structs.replace(capacity, used=capacity.used + sum(dealt.values()))
