"""What time does to the queue: leases and claims that run out, scheduled jobs that come due.

    worker ──claim──▶ CLAIMED ──lease──▶ RUNNING ──release──▶ ended, or QUEUED again
                         │ 60 s               │ ttl
                         ▼                    ▼
                       QUEUED            TIMEOUT / QUEUED again    written here, by the store's time

The store is authoritative. A lease that ran out is refused by every statement from that instant on,
whether or not the sweep has come; the sweep only writes down what is true already and frees the
units. It parks until the first lease, claim or scheduled job is due, on every instance: rows are
taken with SKIP LOCKED and guarded, so sweeps on many instances share the work and none waits for a
dead one. The units a lease holds and its state change in one transaction, so a crash at any point
leaks nothing. Who takes units holds the capacity row from the start; who gives some back only
touches it at the end.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.domain.queue.attempt_ends import expire_lease, take_back
from ksana.domain.queue.changes import JobChange, promote_jobs
from ksana.domain.queue.effects import Wake, wake_after
from ksana.domain.queue.jobs import LeaseWithJob
from ksana.domain.queue.turns import Turns
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.queue.claims import ClaimPoll, notify_of
from ksana.engine.queue.job_writer import write_held
from ksana.ports.queue.tables import QueueDue, QueueTx
from ksana.ports.store import Store

SWEEP: Final = 200
"""Rows of each kind one sweep deals with before others get their turn."""

POLL: Final[Micros] = 2 * SECOND
RECOUNT_EVERY: Final[Micros] = 60 * MINUTE


def expire_leases(tx: QueueTx, held: Sequence[LeaseWithJob]) -> list[JobChange]:
    """Leases that were locked and have run out become EXPIRED; their jobs time out or are queued
    again."""
    turns = Turns(tx.job_order)
    changes = [expire_lease(one, tx.now, turns) for one in held]
    write_held(tx, changes)
    return changes


def expire_claims(tx: QueueTx, limit: int) -> list[JobChange]:
    """Jobs whose claim ran out are QUEUED again, at the front of their priority."""
    turns = Turns(tx.job_order)
    changes = [take_back(claim, turns) for claim in tx.job_order.list_expired_claims(limit)]
    write_held(tx, changes)
    return changes


def promote_due(tx: QueueTx, limit: int) -> list[JobChange]:
    """Scheduled jobs whose time has come, by the store's clock, become ready."""
    due = tx.job_order.list_due(limit)
    changes = promote_jobs(due, Turns(tx.job_order)) if due else []
    write_held(tx, changes)
    return changes


class Swept(msgspec.Struct, frozen=True):
    """What one sweep did."""

    changes: Sequence[JobChange]
    is_full: bool
    due: QueueDue

    @property
    def wake(self) -> Wake:
        """Whom it concerns."""
        return wake_after(self.changes)


def sweep(tx: QueueTx, limit: int) -> Swept:
    """Write down everything whose time is over, by the store's clock."""
    due, now = tx.jobs.next_due(), tx.now
    done: list[list[JobChange]] = []
    if due.lease_at is not None and due.lease_at <= now:
        done.append(expire_leases(tx, tx.leases.list_expired(limit)))
    if due.claim_at is not None and due.claim_at <= now:
        done.append(expire_claims(tx, limit))
    if due.job_at is not None and due.job_at <= now:
        done.append(promote_due(tx, limit))
    is_full = any(len(changes) == limit for changes in done)
    return Swept([change for changes in done for change in changes], is_full, tx.jobs.next_due())


def recount(tx: QueueTx, total: int) -> tuple[int, int]:
    """Compare the counters with what they count and put them right; answer how far the used units
    were off, and by how many leases. Both are 0 unless somebody changed the tables by hand."""
    capacity = tx.capacity.lock_whole(total)
    active, used = tx.capacity.sum_active()
    off = (capacity.used - used, capacity.active - active)
    if off == (0, 0) and tx.capacity.list_held() and not tx.capacity.is_shared:
        tx.capacity.write(capacity)  # set aside on another store, before its rows were copied
    if off != (0, 0):
        tx.capacity.write(msgspec.structs.replace(capacity, used=used, active=active))
        tx.events.append(
            "LEASE",
            "capacity",
            "CAPACITY_RECOUNTED",
            {"used": capacity.used, "counted": used, "leases": active, "alert": True},
        )
    tx.gauges.recount()
    return off


class Leasing:
    """The loop that sweeps, on the pump."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        total: int,
        poll: ClaimPoll,
        on_changed: Callable[[Sequence[JobChange]], None] = lambda _: None,
    ) -> None:
        """`on_changed` is told of what was written."""
        self._store = store
        self._clock = clock
        self._total = total
        self._poll = poll
        self._on_changed = on_changed
        self._next_at: Instant | None = None
        self._recounted_at: Micros | None = None
        self.pump = Pump("queue-leasing", clock, self._step, 10 * SECOND)

    def note_due(self, at: Instant) -> None:
        """Something will be due then: wake the loop if it does not know of anything as early."""
        if self._next_at is None or at < self._next_at:
            self.pump.signal()

    async def _step(self) -> Instant | None:
        if (
            self._recounted_at is None
            or self._clock.monotonic() - self._recounted_at > RECOUNT_EVERY
        ):
            await self._store.transact(recount, self._total)
            self._recounted_at = self._clock.monotonic()
        due, now = await self._store.read(_read_due)
        soonest = due.soonest()
        if soonest is not None and soonest <= now:
            swept = await self._store.transact(sweep, SWEEP)
            notify_of(self._poll, swept.wake)
            self._on_changed(swept.changes)
            if swept.is_full:
                return AGAIN
            soonest = swept.due.soonest()
        self._next_at = soonest
        # Leases of other instances end too, and only the store tells; where we are the only server
        # we know of each.
        look_at = None if self._store.sole else self._clock.now() + POLL
        return soonest if look_at is None else min(look_at, soonest or look_at)


def _read_due(tx: QueueTx) -> tuple[QueueDue, Instant]:
    return tx.jobs.next_due(), tx.now
