"""Instances that grant, end and move units of one capacity, step by step, with a crash between any
two steps. The decisions are those of `domain.queue.escrow`; the store is a model of what SQL does:
rows as last committed, locks, guarded writes, nothing of a transaction that crashed.

A claim looks without a lock, and is committed a step later or never. One that must hold the pool
locks it, then the allotments, and is committed a step later or never. Who ends a lease does so in
one step, on any instance, or grants its units again in the same transaction.
"""

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ksana.base.instant import SECOND, Instant
from ksana.domain.queue import escrow
from ksana.domain.queue.admission import AdmissionRequest, Capacity, find_denial, may_reserve
from ksana.domain.queue.escrow import Allotment, Draw, Standing

TOTAL = 20
CONNECTIONS = {shard: shard // 10 for shard in (10, 11, 20, 21, 30)}
"""Whose connection has which row: two instances have two, one has one."""

SHARDS = st.sampled_from(sorted(CONNECTIONS))
COSTS = st.lists(st.integers(1, 8), min_size=1, max_size=4)


class Alone(msgspec.Struct):
    """A claim that grants what is set aside for its instance, not committed yet."""

    total: int
    costs: list[int]
    drawn: Sequence[Draw]
    ended: int | None = None
    """A lease that the same transaction ends. It is locked until then."""


class AtHome(msgspec.Struct):
    """A claim that holds the pool and the allotments that there were."""

    shard: int
    total: int
    costs: list[int]
    held: dict[int, Allotment]
    capacity: Capacity


class Rows:
    """The store: the pool, the allotments, the active leases. A fault may be planted in it."""

    fault = ""

    def __init__(self) -> None:
        self.pool = Capacity(TOTAL, 0, 0, 0, None, 0, 0)
        self.allotments: dict[int, Allotment] = {}
        self.leases: dict[int, int] = {}
        self.eras = 0

    def look(self, total: int) -> Standing:
        pool = msgspec.structs.replace(self.pool, total=total)
        return Standing(pool, list(self.allotments.values()))

    def draw(self, drawn: Sequence[Draw], leases: int, now: Instant) -> bool:
        """The guarded change of `draw_allotment`; False: the transaction is run again."""
        for one in drawn:
            row = self.allotments.get(one.shard)
            if row is None or (row.era != one.era and self.fault != "draws of any era"):
                return False
            if row.units < one.units and self.fault != "draws what is not there":
                return False
        for one in drawn:
            row = self.allotments[one.shard]
            self.allotments[one.shard] = msgspec.structs.replace(
                row, units=row.units - one.units, leases=row.leases + leases, seen_at=now
            )
            leases = 0
        return True

    def free(self, shard: int, units: int, now: Instant, leases: int = 1) -> None:
        """`add_to_allotment`: units and leases that were freed, less those granted again."""
        if not (units or leases):
            return
        self.eras += 1
        row = self.allotments.get(shard) or Allotment(
            shard, CONNECTIONS[shard], 0, 0, now, self.eras
        )
        if self.fault == "frees nothing":
            units = 0
        self.allotments[shard] = msgspec.structs.replace(
            row, units=row.units + units, leases=row.leases - leases, seen_at=now
        )
        if self.fault == "frees twice":
            self.pool = msgspec.structs.replace(self.pool, used=self.pool.used - units)

    def write(
        self, capacity: Capacity, dealt: dict[int, int], held: dict[int, Allotment], now: Instant
    ) -> None:
        """`set_capacity`, `set_allotment`, `delete_allotment`, under the locks."""
        self.eras += 1
        out = 0 if self.fault == "deals uncounted" else sum(dealt.values())
        self.pool = msgspec.structs.replace(capacity, used=capacity.used + out)
        for shard in {*held, *dealt}:
            row = held.get(shard) or Allotment(shard, CONNECTIONS[shard], 0, 0, now, 0)
            units = dealt.get(shard, 0)
            if self.fault == "leaves what it brought home" and shard not in dealt:
                units = row.units
            if shard not in dealt and row.seen_at <= now - escrow.GONE and not units:
                del self.allotments[shard]
            else:
                self.allotments[shard] = msgspec.structs.replace(
                    row, units=units, leases=0, era=self.eras
                )


class EscrowMachine(RuleBasedStateMachine):
    """Three instances on one store."""

    @initialize()
    def begin(self) -> None:
        self.rows = Rows()
        self.now: Instant = 1_000 * SECOND
        self.totals = dict.fromkeys(set(CONNECTIONS.values()), TOTAL)
        self.alone: dict[int, Alone] = {}
        self.holder: AtHome | None = None
        self.numbers = 0
        self.unheld: set[int] = set()
        """Rows that were first made while another held the pool, and not brought home since."""

    def _is_free(self, shard: int) -> bool:
        """Whether a connection has no transaction under way."""
        return shard not in self.alone and (self.holder is None or self.holder.shard != shard)

    def _is_locked(self, shard: int) -> bool:
        """Whether a row is held by whoever holds the pool: others wait."""
        if Rows.fault == "holds the pool alone":
            return False
        return self.holder is not None and shard in self.holder.held

    def _admit(self, capacity: Capacity, costs: list[int]) -> tuple[Capacity, list[int], bool]:
        granted, refused = [], False
        for cost in costs:
            request = AdmissionRequest(f"j{cost}", "a", cost, 2)
            if find_denial(capacity, request, self.now) is None:
                capacity, granted = capacity.with_grant(cost, request.job_id), [*granted, cost]
            else:
                refused = True
        return capacity, granted, refused

    def _start(self, costs: list[int]) -> None:
        for cost in costs:
            self.numbers += 1
            self.rows.leases[self.numbers] = cost

    @rule(shard=SHARDS, costs=COSTS, can_wait=st.booleans())
    def claim(self, shard: int, costs: list[int], can_wait: bool = False) -> None:
        """Look, and decide: alone, or at home."""
        if not self._is_free(shard):
            return
        instance = CONNECTIONS[shard]
        total = self.totals[instance]
        standing = self.rows.look(total)
        own = escrow.own_capacity(standing, instance, self.now)
        if own is not None:
            _, granted, refused = self._admit(own, costs)
            is_patient = bool(granted) and can_wait
            if not refused or not escrow.should_gather(
                standing, instance, self.now, is_patient=is_patient
            ):
                if granted:
                    drawn = escrow.draw(standing, instance, shard, sum(granted))
                    self.alone[shard] = Alone(total, granted, drawn)
                return
        if self.holder is None:
            held = dict(self.rows.allotments)
            pool = msgspec.structs.replace(self.rows.pool, total=total)
            capacity = escrow.gather(pool, held.values())
            self.holder = AtHome(shard, total, costs, held, capacity)

    def _list_unlocked(self) -> list[int]:
        """Leases that no transaction is about to end."""
        ended = {claim.ended for claim in self.alone.values()}
        return sorted(lease for lease in self.rows.leases if lease not in ended)

    @precondition(lambda self: self._list_unlocked())
    @rule(data=st.data(), shard=SHARDS, costs=COSTS)
    def exchange(self, data: st.DataObject, shard: int, costs: list[int]) -> None:
        """End a lease and grant what fits into its units and those that are set aside."""
        self.exchange_lease(data.draw(st.sampled_from(self._list_unlocked())), shard, costs)

    def exchange_lease(self, lease: int, shard: int, costs: list[int]) -> None:
        """The same, of one lease."""
        if not self._is_free(shard):
            return
        instance = CONNECTIONS[shard]
        total = self.totals[instance]
        looked = self.rows.look(total)
        standing = Standing(looked.pool, looked.allotments, self.rows.leases[lease])
        own = escrow.own_capacity(standing, instance, self.now)
        granted = [] if own is None else self._admit(own, costs)[1]
        assert not (granted and looked.pool.reserved(self.now)), "units are kept for somebody"
        drawn = escrow.draw(standing, instance, shard, sum(granted))
        self.alone[shard] = Alone(total, granted, drawn, lease)

    @precondition(lambda self: self.alone)
    @rule(data=st.data())
    def commit_alone(self, data: st.DataObject) -> None:
        """A claim that granted alone is committed, or was too late."""
        self.commit_alone_of(data.draw(st.sampled_from(sorted(self.alone))))

    def commit_alone_of(self, shard: int) -> None:
        """The same, of one connection."""
        claim = self.alone[shard]
        freed, leases, count = self._net_of(claim)
        is_written = bool(freed or leases)
        if is_written and self._is_locked(shard):
            return
        if any(self._is_locked(one.shard) for one in claim.drawn):
            return
        del self.alone[shard]
        if not self.rows.draw(claim.drawn, count, self.now):
            return
        if claim.ended is not None:
            if is_written and self.holder is not None and shard not in self.rows.allotments:
                self.unheld.add(shard)
            self.rows.leases.pop(claim.ended)
            self.rows.free(shard, freed, self.now, leases)
        self._start(claim.costs)
        if claim.costs:
            assert sum(self.rows.leases.values()) <= claim.total
        if claim.ended is None and not any(one.shard in self.unheld for one in claim.drawn):
            assert not self.rows.pool.reserved(self.now), "units are kept for somebody"

    def _net_of(self, claim: Alone) -> tuple[int, int, int]:
        """(units, leases) that the commit frees beyond those granted again, and the leases that are
        counted where units are drawn."""
        count = len(claim.costs)
        if claim.ended is None:
            return 0, 0, count
        freed = self.rows.leases[claim.ended]
        again = sum(claim.costs) - sum(one.units for one in claim.drawn)
        if Rows.fault == "grants again and frees too":
            again = 0
        if Rows.fault == "counts its leases twice":
            return freed - again, 1, count
        return (freed - again, 1 - count, 0) if again else (freed, 1, count)

    @precondition(lambda self: self.holder)
    @rule(keeps=st.booleans())
    def commit_at_home(self, keeps: bool) -> None:
        """A claim that holds the pool is committed: it grants, deals, or keeps units for one that
        was refused."""
        assert self.holder is not None
        claim, self.holder = self.holder, None
        capacity, granted, refused = self._admit(claim.capacity, claim.costs)
        request = AdmissionRequest("kept", "a", max(claim.costs), 2)
        if refused and keeps and may_reserve(capacity, request, self.now, None):
            capacity = capacity.with_reserve(request, self.now + 15 * SECOND)
        elif not granted:
            return
        instance = CONNECTIONS[claim.shard]
        dealt = escrow.deal(capacity, claim.held.values(), claim.shard, instance, self.now)
        self.rows.write(capacity, dealt, claim.held, self.now)
        self.unheld -= set(claim.held)
        assert self.rows.pool.used <= max(claim.total, claim.capacity.used)
        self._start(granted)
        if granted:
            assert sum(self.rows.leases.values()) <= claim.total

    @precondition(lambda self: self._list_unlocked())
    @rule(data=st.data(), shard=SHARDS)
    def end(self, data: st.DataObject, shard: int) -> None:
        """A lease is released, or ran out, on any instance."""
        self.end_lease(data.draw(st.sampled_from(self._list_unlocked())), shard)

    def end_lease(self, lease: int, shard: int) -> None:
        """The same, of one lease."""
        if self._is_free(shard) and not self._is_locked(shard):
            if self.holder is not None and shard not in self.rows.allotments:
                self.unheld.add(shard)
            self.rows.free(shard, self.rows.leases.pop(lease), self.now)

    @rule(instance=st.sampled_from(sorted(set(CONNECTIONS.values()))))
    def crash(self, instance: int) -> None:
        """An instance dies: what it has not committed is gone, its locks too, its rows stay."""
        self.alone = {
            shard: claim for shard, claim in self.alone.items() if CONNECTIONS[shard] != instance
        }
        if self.holder is not None and CONNECTIONS[self.holder.shard] == instance:
            self.holder = None

    @rule(total=st.sampled_from([TOTAL // 2, TOTAL]))
    def restart_with(self, total: int) -> None:
        """All instances come back with another total."""
        self.alone, self.holder = {}, None
        self.totals = dict.fromkeys(self.totals, total)

    @rule(seconds=st.sampled_from([0, 1, 20, 120]))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.now += seconds * SECOND

    @invariant()
    def every_unit_is_in_one_place(self) -> None:
        rows = getattr(self, "rows", None)
        if rows is None:
            return
        set_aside = list(rows.allotments.values())
        assert all(one.units >= 0 for one in set_aside)
        assert rows.pool.used == sum(rows.leases.values()) + sum(one.units for one in set_aside)
        assert rows.pool.active + sum(one.leases for one in set_aside) == len(rows.leases)
        assert sum(rows.leases.values()) <= TOTAL

    def teardown(self) -> None:
        """In the end a lone instance gets everything back."""
        rows = getattr(self, "rows", None)
        if rows is None:
            return
        for lease in sorted(rows.leases):
            rows.free(20, rows.leases.pop(lease), self.now)
        capacity = escrow.gather(
            msgspec.structs.replace(rows.pool, total=TOTAL), rows.allotments.values()
        )
        assert (capacity.used, capacity.active) == (0, 0)
