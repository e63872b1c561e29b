"""The capacity in SQL: the pool, one row, and on a shared store the allotments of the instances'
connections, a row each. What the active leases hold is counted from them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ksana.base.ids import new_token
from ksana.base.instant import Instant
from ksana.domain.queue.admission import Capacity
from ksana.domain.queue.escrow import GONE, Allotment, Draw, Standing, gather
from ksana.store.sql.core.session import Row, Session

_PROCESS: Final = new_token() >> 8 << 4
"""Tells the rows of this process from those of others."""

_ALLOTMENT: Final = ("shard", "instance", "units", "leases", "now_at", "era")
_DRAW: Final = ("units", "leases", "now_at", "shard", "era")


class SqlCapacity:
    """`queue_capacity` and `queue_allotments`."""

    flush_order = -1  # the capacity before the counts

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now
        self.is_shared = not session.is_embedded
        self.instance = _PROCESS ^ session.origin
        self.shard = _PROCESS ^ id(session)
        self.has_gathered = False
        self.freed = (0, 0)
        """(units, leases) that were freed and are not written yet, less those granted again."""
        self._taken_over = (0, 0)
        """How much of that the capacity has in it that was locked last."""
        self._drawn: dict[tuple[int, int], tuple[int, int]] = {}
        """(units, leases) by shard and era."""
        self._held: list[Allotment] | None = None
        """The allotments, while this transaction holds the pool and with it all of them."""

    def lock(self, total: int) -> Capacity:
        if self.is_shared:
            return self.lock_whole(total)
        capacity = _capacity_of(total, self._session.one("queue.lock_capacity"))
        units, leases = self._taken_over = self.freed
        if not leases:
            return capacity
        used, active = capacity.used - units, capacity.active - leases
        return msgspec.structs.replace(capacity, used=used, active=active)

    def lock_whole(self, total: int) -> Capacity:
        if self.has_gathered:
            # The pool before any allotment: whoever has the pool waits for these.
            self._session.one("queue.lock_capacity")
            self.flush()
        pool, rows = self._session.ask([("queue.lock_capacity", {}), ("queue.lock_allotments", {})])
        return self.bring_home(total, pool, rows)

    def bring_home(self, total: int, pool: list[Row], rows: Iterable[Row]) -> Capacity:
        """The capacity by the rows of the pool and of the allotments, all held."""
        self._held = [Allotment(*row) for row in rows]
        return gather(_capacity_of(total, pool[0] if pool else None), self._held)

    def look(self, total: int) -> Standing:
        return self.standing_of(
            total,
            *self._session.ask([("queue.get_pool", {}), ("queue.list_allotments", {})]),
        )

    def standing_of(self, total: int, pool: list[Row], rows: Iterable[Row]) -> Standing:
        """What stands in the pool and the allotments, less what this transaction has drawn."""
        drawn = {shard: units for (shard, _), (units, _) in self._drawn.items()}
        allotments = [Allotment(*row) for row in rows]
        if drawn:
            allotments = [
                msgspec.structs.replace(one, units=one.units - drawn.get(one.shard, 0))
                for one in allotments
            ]
        pool_of = _capacity_of(total, pool[0] if pool else None)
        return Standing(pool_of, allotments, self.freed[0])

    def read(self, total: int) -> Capacity:
        return _capacity_of(total, self._session.one("queue.get_capacity"))

    def list_held(self) -> list[Allotment]:
        return list(self._held or ())

    def write(self, capacity: Capacity, dealt: Mapping[int, int] | None = None) -> None:
        dealt, era = dealt or {}, new_token()
        units, leases = self._taken_over
        self.freed = self.freed[0] - units, self.freed[1] - leases
        self._taken_over = (0, 0)
        self._session.run_later(
            "queue.set_capacity",
            used=capacity.used + sum(dealt.values()),
            active=capacity.active,
            reserved_units=capacity.reserved_units,
            reserved_for=capacity.reserved_for,
            reserved_urgency=capacity.reserved_urgency,
            reserved_until=capacity.reserved_until,
        )
        held = {one.shard: one for one in self._held or ()}
        changed = [
            (
                shard,
                held[shard].instance if shard in held else self.instance,
                units,
                0,
                self._now,
                era,
            )
            for shard, units in sorted(dealt.items())
        ]
        gone: list[tuple[int]] = []
        for one in held.values():
            if one.shard in dealt:
                continue
            if one.seen_at <= self._now - GONE:
                gone.append((one.shard,))
            elif one.units or one.leases:
                changed.append((one.shard, one.instance, 0, 0, self._now, era))
        self._session.run_rows_later("queue.set_allotment", _ALLOTMENT, changed)
        self._session.run_rows_later("queue.delete_allotment", ("shard",), gone)

    def draw(self, drawn: Sequence[Draw], units: int, leases: int) -> None:
        self._session.wrote = self.has_gathered = True
        again = units - sum([one.units for one in drawn])
        if again:
            self.freed = self.freed[0] - again, self.freed[1] - leases
            leases = 0
        for one in drawn:
            before = self._drawn.get((one.shard, one.era), (0, 0))
            self._drawn[one.shard, one.era] = before[0] + one.units, before[1] + leases
            leases = 0  # all of them are counted with the first

    def free(self, units: int, leases: int) -> None:
        self._session.wrote = self.has_gathered = True
        self.freed = self.freed[0] + units, self.freed[1] + leases

    def flush(self) -> None:
        """Write what was gathered: at the end, because from here on others wait for us. Allotments
        in the order of their shards, as those do who hold the pool."""
        drawn, self._drawn, self.has_gathered = self._drawn, {}, False
        if drawn:
            rows = [(*taken, self._now, *key) for key, taken in sorted(drawn.items())]
            self._session.contend_rows("queue.draw_allotment", _DRAW, rows)
        (units, leases), self.freed, self._taken_over = self.freed, (0, 0), (0, 0)
        if not (units or leases):
            return
        if self.is_shared and self._held is None:
            row = (self.shard, self.instance, units, -leases, self._now, self._now)
            self._session.run_rows_later("queue.add_to_allotment", _ALLOTMENT, [row])
        else:
            self._session.run_later("queue.free_capacity", units=units, leases=leases)

    def forget(self) -> None:
        """Drop what was gathered."""
        self.has_gathered = False
        self.freed = self._taken_over = (0, 0)
        self._drawn = {}
        self._held = None

    def drop_reserve(self, job_id: str) -> None:
        self._session.run_later("queue.drop_reserve", job_id=job_id)

    def sum_of_addon(self, addon_id: str) -> int:
        row = self._session.one("queue.sum_active_of_addon", addon_id=addon_id)
        return 0 if row is None else int(row[0])

    def sum_active(self) -> tuple[int, int]:
        row = self._session.one("queue.sum_active")
        assert row is not None
        return int(row[0]), int(row[1])


def _capacity_of(total: int, row: Row | None) -> Capacity:
    assert row is not None, "the capacity row is missing: the migration writes it"
    used, active, *reserved = row
    return Capacity(total, int(used), int(active), *reserved)
