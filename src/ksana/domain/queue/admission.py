"""Admission: whether a job may run now within the capacity, and why not. Pure: rows and `now` in, a
decision out.

Three rules, in this order. The sum of what runs never passes the total. An addon with a share never
passes it. A refused request of the highest waiting priority keeps its units for a while, so that
small jobs do not starve a large one; only a more urgent request may pass it.
"""

from typing import Final

import msgspec

from ksana.base.instant import SECOND, Instant, Micros

RETRY_LEAST: Final[Micros] = SECOND
RETRY_MOST: Final[Micros] = 10 * SECOND
RESERVE_GRACE: Final[Micros] = 5 * SECOND
"""How long after its next try a refused request still keeps its units."""

PATIENCE: Final[Micros] = 30 * SECOND
"""A ready job that has waited longer and still does not fit keeps its units too, when claims ask
for leases at once."""


class Room(msgspec.Struct, frozen=True):
    """The capacity: what there is, what is used, and what is kept for whom."""

    total: int
    used: int
    active: int
    reserved_units: int
    reserved_for: str | None
    reserved_urgency: int
    reserved_until: Instant

    def reserved(self, now: Instant) -> int:
        """Units kept for a refused request, while that lasts."""
        return (
            self.reserved_units
            if self.reserved_for is not None and self.reserved_until > now
            else 0
        )

    def with_grant(self, cost_units: int, job_id: str) -> "Room":
        """The room after a grant; a reservation of the same job is used up by it."""
        kept = self.reserved_for != job_id
        return Room(
            self.total,
            self.used + cost_units,
            self.active + 1,
            self.reserved_units if kept else 0,
            self.reserved_for if kept else None,
            self.reserved_urgency,
            self.reserved_until,
        )

    def with_all(self, cost_units: int, count: int) -> "Room | None":
        """The room after so many grants of so many units together, when nothing stands in the way
        of any: nothing is kept for anybody and all of them fit. None: they are to be judged one by
        one."""
        if self.reserved_for is not None or self.used + cost_units > self.total:
            return None
        return Room(
            self.total,
            self.used + cost_units,
            self.active + count,
            0,
            None,
            self.reserved_urgency,
            self.reserved_until,
        )

    def with_reserve(self, ask: "Ask", until: Instant) -> "Room":
        """The room with units kept for a refused request."""
        return Room(
            self.total, self.used, self.active, ask.cost_units, ask.job_id, ask.urgency, until
        )


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One request to run."""

    job_id: str
    addon_id: str
    cost_units: int
    urgency: int


class Denial(msgspec.Struct, frozen=True, gc=False):
    """Why not now."""

    code: str
    reason: str


def find_denial(
    room: Room, ask: Ask, now: Instant, share: int | None = None, addon_used: int = 0
) -> Denial | None:
    """Decide: None admits."""
    if room.used + ask.cost_units > room.total:
        asked = f"requested={ask.cost_units}"
        return Denial(
            "CAPACITY_EXCEEDED",
            f"Capacity exceeded: used={room.used}, {asked}, capacity={room.total}",
        )
    if share is not None and addon_used + ask.cost_units > share:
        asked = f"requested={ask.cost_units}"
        return Denial(
            "SHARE_EXCEEDED",
            f"Share of {ask.addon_id} exceeded: used={addon_used}, {asked}, capacity={share}",
        )
    kept = room.reserved(now)
    is_behind = room.reserved_for != ask.job_id and ask.urgency >= room.reserved_urgency
    if kept and is_behind and room.used + kept + ask.cost_units > room.total:
        return Denial(
            "CAPACITY_RESERVED",
            f"Capacity exceeded: used={room.used}, requested={ask.cost_units}, capacity={room.total}, "
            f"reserved={kept} for a job ahead",
        )
    return None


def may_reserve(room: Room, ask: Ask, now: Instant, best_pending_urgency: int | None) -> bool:
    """Tell whether a refused request now keeps its units: nobody as urgent is before it."""
    if best_pending_urgency is not None and best_pending_urgency < ask.urgency:
        return False
    if not room.reserved(now) or room.reserved_for == ask.job_id:
        return True
    return ask.urgency < room.reserved_urgency


def retry_after_us(now: Instant, soonest_expiry: Instant | None) -> Micros:
    """When to ask again: when the first lease may run out, within bounds, in whole seconds."""
    wait = RETRY_MOST if soonest_expiry is None else soonest_expiry - now
    return min(max(-(-wait // SECOND) * SECOND, RETRY_LEAST), RETRY_MOST)
