"""Upkeep of the queue: old finished jobs and counts are removed in small batches, counts of past
minutes are packed, and the figures for /metrics are read now and then. One instance at a time does
each; it would be safe with more, only wasteful."""

from collections.abc import Awaitable, Callable
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from ksana.engine.core.pump import AGAIN, Pump
from ksana.ports.queue.tables import QueueTx
from ksana.ports.store import Store

EVERY: Final[Micros] = MINUTE
SAMPLE_EVERY: Final[Micros] = 15 * SECOND
BATCH: Final = 200
LOCK: Final = "queue-purge"
PACK_EVERY: Final[Micros] = 5 * MINUTE
"""So many minutes at most are read count by count, whatever a series asks for."""
PACK: Final = 500
"""Counts packed in one transaction: a few milliseconds of the lane's time."""
PACK_LOCK: Final = "queue-pack"
BREATH: Final[Micros] = 10 * MILLISECOND
"""Pause between two batches of a backlog: what serves callers goes first."""


class QueueChores:
    """The loop, on the pump. `sample` is called each time round."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        owner: str,
        retention_us: Micros,
        sample: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._retention_us = retention_us
        self._sample = sample
        self._purge_at: Instant = 0
        self._pack_at: Instant = 0
        self.pump = Pump("queue-chores", clock, self._step, SAMPLE_EVERY)

    async def _step(self) -> Instant | None:
        now = self._clock.now()
        if now >= self._purge_at:
            removed = await self._store.transact(purge, self._owner, self._retention_us, BATCH)
            if removed >= BATCH:
                return AGAIN
            self._purge_at = now + EVERY
        if now >= self._pack_at:
            if await self._store.transact(pack, self._owner, PACK) >= PACK:
                return now + BREATH
            self._pack_at = now + PACK_EVERY
        await self._sample()
        return now + SAMPLE_EVERY


def purge(tx: QueueTx, owner: str, retention_us: Micros, limit: int) -> int:
    """Remove up to `limit` finished jobs older than the retention; say how many."""
    if not tx.locks.take(LOCK, owner, EVERY):
        return 0
    tx.counts.purge(tx.now - retention_us, limit)
    removed: int = tx.queue.purge(tx.now - retention_us, limit)
    return removed


def pack(tx: QueueTx, owner: str, limit: int) -> int:
    """Pack up to `limit` counts of minutes that are over; say how many."""
    return tx.counts.pack_minutes(limit) if tx.locks.take(PACK_LOCK, owner, EVERY) else 0
