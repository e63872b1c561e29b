"""Upkeep of the queue: old finished jobs and remembered answers are removed in small batches, and the figures for /metrics
are read now and then. One instance at a time does the removing; it would be safe with more, only wasteful."""

from collections.abc import Awaitable, Callable
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.engine.pump import AGAIN, Pump
from ksana.ports.store import Store, Tx

EVERY: Final[Micros] = MINUTE
SAMPLE_EVERY: Final[Micros] = 15 * SECOND
BATCH: Final = 200
LOCK: Final = "queue-purge"


class QueueChores:
    """The loop, on the pump. `sample` is called each time round."""

    def __init__(
        self, store: Store, clock: Clock, owner: str, retention_us: Micros, sample: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._retention_us = retention_us
        self._sample = sample
        self._purge_at: Instant = 0
        self.pump = Pump("queue-chores", clock, self._step, SAMPLE_EVERY)

    async def _step(self) -> Instant | None:
        now = self._clock.now()
        if now >= self._purge_at:
            removed = await self._store.transact(purge, self._owner, self._retention_us, BATCH)
            if removed >= BATCH:
                return AGAIN
            self._purge_at = now + EVERY
        await self._sample()
        return now + SAMPLE_EVERY


def purge(tx: Tx, owner: str, retention_us: Micros, limit: int) -> int:
    """Remove up to `limit` finished jobs older than the retention, and answers that no longer count; say how many jobs."""
    if not tx.locks.take(LOCK, owner, EVERY):
        return 0
    tx.idempotency.purge(tx.now, limit)
    removed: int = tx.queue.purge(tx.now - retention_us, limit)
    return removed
