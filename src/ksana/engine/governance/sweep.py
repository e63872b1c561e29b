"""The sweep: leases that ran out are written down, and jobs that a gate kept are looked at again
once it is not closed any more.

Whoever sets a gate wakes what waited, as much as one transaction should; the sweep of any instance
does the rest, and all of it if that instance died. What it finds is in the store, so nothing has to
be told between instances.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.governance.audit import SYSTEM
from ksana.domain.governance.gates import list_opened
from ksana.domain.governance.jobs import wake
from ksana.domain.governance.records import Who
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.governance.ending import expire_leases
from ksana.engine.governance.writer import write_changes
from ksana.ports.governance.tables import GovernanceTx
from ksana.ports.store import Store

BATCH: Final = 500
"""Jobs in one transaction: a few milliseconds of the store's time."""
POLL: Final[Micros] = SECOND
"""How often leases and gates of other instances are looked for, on a store that is shared."""


class GovernanceSwept(msgspec.Struct, frozen=True):
    """What one sweep did."""

    requeued: int
    woken: int
    is_full: bool
    next_lease_at: Instant | None


def wake_deferred(tx: GovernanceTx, limit: int, who: Who | None = None) -> int:
    """Put deferred jobs back among those that wait for their time, if the setting that kept each is
    not closed any more."""
    woken = 0
    for gate_key in list_opened(tx.gates.list_gates()):
        if woken >= limit:
            break
        jobs = tx.governance_due.lock_deferred(gate_key, limit - woken)
        write_changes(tx, who or Who(actor=SYSTEM), [wake(job, tx.now) for job in jobs])
        woken += len(jobs)
    return woken


def sweep(tx: GovernanceTx, limit: int) -> GovernanceSwept:
    """Write down everything whose time is over, by the store's clock."""
    expired = expire_leases(tx, limit)
    woken = wake_deferred(tx, limit)
    return GovernanceSwept(
        requeued=sum(job.status == "queued" for job in expired),
        woken=woken,
        is_full=len(expired) == limit or woken == limit,
        next_lease_at=tx.governance_due.next_due()[1],
    )


class GovernanceSweep:
    """The loop, on the pump. `notify` is told when jobs became due."""

    def __init__(self, store: Store, clock: Clock, notify: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._notify = notify
        self._next_at: Instant | None = None
        self.pump = Pump("governance-sweep", clock, self._step, 10 * SECOND)

    def note_lease(self, expires_at: Instant) -> None:
        """A lease ends then: wake the loop if it does not know of one as early."""
        if self._next_at is None or expires_at < self._next_at:
            self.pump.signal()

    async def _step(self) -> Instant | None:
        is_due, next_at = await self._store.read(_look)
        if is_due:
            swept = await self._store.transact(sweep, BATCH)
            if swept.requeued or swept.woken:
                self._notify()
            if swept.is_full:
                return AGAIN
            next_at = swept.next_lease_at
        self._next_at = next_at
        look_at = None if self._store.sole else self._clock.now() + POLL
        return next_at if look_at is None else min(look_at, next_at or look_at)


def _look(tx: GovernanceTx) -> tuple[bool, Instant | None]:
    """Whether there is anything to do, and when the next lease ends: a read, for mostly there is
    not."""
    next_at = tx.governance_due.next_due()[1]
    if next_at is not None and next_at <= tx.now:
        return True, next_at
    opened = list_opened(tx.gates.list_gates())
    return any(tx.governance_due.has_deferred(key) for key in opened), next_at
