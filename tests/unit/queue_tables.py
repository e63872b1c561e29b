"""The queue's tables as a claim sees them, in memory: of one process alone, or shared by instances
with units set aside for each."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ksana.domain.queue import escrow
from ksana.domain.queue.admission import Capacity, Limits
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import JobClass, Wants, class_of
from ksana.domain.queue.escrow import Allotment, Draw, Standing
from ksana.domain.queue.jobs import URGENCY, DueJob, ReadyJob
from ksana.ports.queue.tables import ClaimOpening, ClaimOutlook
from ksana.service.queue.claims import Claim, Claimed, JobClassCache, claim_jobs, claim_together
from tests.unit.queue_rows import NOW, a_ready_job

OURS, THEIRS = 1, 2
"""Two instances; each has one connection, whose row has ten times its number."""


class CapacityRows:
    """`tx.capacity`."""

    def __init__(self, log: list[str], total: int, *, is_shared: bool) -> None:
        self._log = log
        self.is_shared = is_shared
        self.instance, self.shard = OURS, 10 * OURS
        self.now = NOW
        self.pool = Capacity(total, 0, 0, 0, None, 0, 0)
        self.allotments: dict[int, Allotment] = {}
        self.leased: list[JobChange] = []
        self._held: list[Allotment] = []
        self.freed = 0

    def set_aside(self, instance: int, units: int, seen_at: int = NOW) -> None:
        """Units that were set aside for an instance before."""
        shard = 10 * instance
        self.allotments[shard] = Allotment(shard, instance, units, 0, seen_at, era=7)
        self.pool = msgspec.structs.replace(self.pool, used=self.pool.used + units)

    def use(self, units: int) -> None:
        """Units that a lease of somebody holds."""
        pool = self.pool
        self.pool = msgspec.structs.replace(pool, used=pool.used + units, active=pool.active + 1)

    def read(self, total: int) -> Capacity:
        return self._of(total, escrow.gather(self.pool, self.allotments.values()))

    def lock(self, total: int) -> Capacity:
        self._log.append("lock")
        self._held = list(self.allotments.values())
        return self.read(total)

    def look(self, total: int) -> Standing:
        self._log.append("look")
        return Standing(self._of(total, self.pool), list(self.allotments.values()), self.freed)

    def list_held(self) -> list[Allotment]:
        return self._held

    def write(self, capacity: Capacity, dealt: Mapping[int, int] | None = None) -> None:
        assert "lock" in self._log, "the capacity is written by who holds it"
        self._log.append("write")
        self.pool = escrow.with_dealt(capacity, dealt or {})
        before, self.allotments = self.allotments, {}
        for shard, units in (dealt or {}).items():
            instance = before[shard].instance if shard in before else self.instance
            self.allotments[shard] = Allotment(shard, instance, units, 0, self.now, era=8)

    def free(self, units: int) -> None:
        """Units of a lease that this transaction has ended."""
        self.freed += units

    def draw(self, drawn: Sequence[Draw], units: int, leases: int) -> None:
        self._log.append("draw")
        self.freed -= units - sum(one.units for one in drawn)
        assert self.freed >= 0
        for one in drawn:
            row = self.allotments[one.shard]
            assert row.era == one.era and row.units >= one.units
            self.allotments[one.shard] = msgspec.structs.replace(
                row, units=row.units - one.units, leases=row.leases + leases
            )
            leases = 0

    def sum_of_addon(self, addon_id: str) -> int:
        return sum(one.cost_units for one in self.leased if one.addon_id == addon_id)

    def _of(self, total: int, capacity: Capacity) -> Capacity:
        return msgspec.structs.replace(capacity, total=total)


class OrderRows:
    """`tx.job_order` and `tx.job_classes`."""

    def __init__(self, log: list[str], capacity: CapacityRows) -> None:
        self._log = log
        self._capacity = capacity
        self.ready: list[ReadyJob] = []
        self.scheduled: list[ReadyJob] = []
        self.classes: dict[int, JobClass] = {}
        self.until: dict[int, int] = {}
        """How long a class stays, where that is not just long enough."""
        self.asked_due: list[int] = []

    def list_classes(self, since: int = 0) -> list[JobClass]:
        self._log.append("new classes" if since else "classes")
        return [kind for kind in self.classes.values() if self.until.get(kind.id, since) >= since]

    def outlook(self) -> ClaimOutlook:
        self._log.append("outlook")
        mark = sum(self.classes)
        used = self._capacity.read(0).used
        return ClaimOutlook(has_due=bool(self.scheduled), used=used, classes=mark)

    def open_claim(
        self, class_id: int | None, limit: int, total: int | None, is_held: bool
    ) -> ClaimOpening:
        self._log.append("open")
        capacity = standing = None
        if total is not None and (is_held or not self._capacity.is_shared):
            capacity = self._capacity.lock(total)
        elif total is not None:
            standing = self._capacity.look(total)
        classes = None if class_id is None else (class_id,)
        return ClaimOpening(self.outlook(), self.take_ready(classes, limit), capacity, standing)

    def has_ready(self, class_ids: Sequence[int]) -> bool:
        self._log.append("has_ready")
        return any(job.class_id in class_ids for job in self.ready)

    def take_ready(self, class_ids: Sequence[int] | None, limit: int) -> list[ReadyJob]:
        self._log.append("take")
        found = [job for job in self.ready if class_ids is None or job.class_id in class_ids]
        return sorted(found, key=lambda job: (job.urgency, job.turn, job.seq))[:limit]

    def list_due(self, limit: int) -> list[DueJob]:
        self.asked_due.append(limit)
        return [DueJob(job.seq, job.job_id, job.urgency, None) for job in self.scheduled[:limit]]

    def head_turn(self, urgency: int) -> int | None:
        return min((job.turn for job in self.ready if job.urgency == urgency), default=None)

    def tail_turn(self, urgency: int) -> int | None:
        return max((job.turn for job in self.ready if job.urgency == urgency), default=None)

    # `tx.job_changes`: the moves that a claim makes

    def promote(self, changes: Sequence[JobChange], is_held: bool) -> int:
        for change in changes:
            [job] = [one for one in self.scheduled if one.seq == change.seq]
            self.scheduled.remove(job)
            self.ready.append(msgspec.structs.replace(job, turn=change.turn))
        return len(changes)

    def claim(self, changes: Sequence[JobChange], is_held: bool) -> int:
        assert is_held
        gone = {change.seq for change in changes}
        assert len(gone) == len(changes) and gone <= {job.seq for job in self.ready}
        self.ready = [job for job in self.ready if job.seq not in gone]
        return len(changes)

    def start(self, changes: Sequence[JobChange], is_held: bool) -> int:
        self._capacity.leased.extend(changes)
        return self.claim(changes, is_held)


class Recorded:
    """`tx.events`, `tx.gauges` and `tx.series`: written, and not looked at here."""

    def append_packs(self, packs: Sequence[Any]) -> None: ...
    def append_dated(self, packs: Sequence[Any]) -> None: ...
    def add(self, *counts: Any) -> None: ...
    def observe(self, *counts: Any) -> None: ...


class ClaimTx:
    """A transaction. `log` tells what was asked, in order."""

    def __init__(self, total: int = 100, *, is_shared: bool = False) -> None:
        self.log: list[str] = []
        self.capacity = CapacityRows(self.log, total, is_shared=is_shared)
        self.job_order = OrderRows(self.log, self.capacity)
        self.job_classes = self.job_changes = self.job_order
        self.events = self.gauges = self.series = Recorded()
        self._now = NOW
        self._seq = 0

    @property
    def now(self) -> int:
        return self._now

    def pass_time(self, by_us: int) -> None:
        self._now = self.capacity.now = self._now + by_us

    def add(
        self,
        kind: str = "t",
        cost: int = 10,
        addon: str = "a",
        *,
        is_due: bool = True,
        priority: str = "NORMAL",
        **members: Any,
    ) -> ReadyJob:
        """A job that waits; one that is not `is_due` has just come due and is not ready yet."""
        job_class = class_of(addon, kind, cost, ())
        self.job_order.classes[job_class.id] = job_class
        waiting = self.job_order.ready if is_due else self.job_order.scheduled
        self._seq = seq = self._seq + 1
        given: dict[str, Any] = {
            "seq": seq,
            "job_id": f"j{seq}",
            "addon_id": addon,
            "job_type": kind,
            "priority": priority,
            "urgency": URGENCY[priority],
            "cost_units": cost,
            "class_id": job_class.id,
            "turn": 0,
            "due_at": self._now,
        }
        job = a_ready_job(**given | members)
        waiting.append(job)
        return job

    def take_log(self) -> list[str]:
        """What was asked since the last time."""
        log = list(self.log)
        self.log.clear()
        return log


LIMITS = Limits(100)
ANY = Wants()


def only(*kinds: str, **more: Any) -> Wants:
    return Wants(job_types=frozenset(kinds), **more)


class Claims:
    """Claims of one process, one set after the other."""

    def __init__(self, tx: ClaimTx | None = None, limits: Limits = LIMITS) -> None:
        self.tx = tx or ClaimTx()
        self.cache = JobClassCache()
        self.limits = limits

    def take(self, wants: Wants = ANY, limit: int = 1, **more: Any) -> Claimed:
        tx: Any = self.tx
        return claim_jobs(tx, Claim("w", wants, limit, **more), self.cache, self.limits)

    def lease(self, wants: Wants = ANY, limit: int = 1, **more: Any) -> Claimed:
        return self.take(wants, limit, has_lease=True, **more)

    def take_together(self, *claims: Claim) -> list[Claimed]:
        tx: Any = self.tx
        return claim_together(tx, claims, self.cache, self.limits)
