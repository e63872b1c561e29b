"""Upkeep of the queue: counts of past minutes are packed, the figures for /metrics are read now and
then, and what grows old is registered with the core's retention. One instance at a time packs; it
would be safe with more, only wasteful."""

from collections.abc import Awaitable, Callable
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from ksana.domain.queue.effects import METRICS
from ksana.engine.core.pump import Pump
from ksana.engine.core.retention import Retention
from ksana.ports.queue.tables import QueueTx
from ksana.ports.retention import OldRows, WalkPlace
from ksana.ports.store import Store

SAMPLE_EVERY: Final[Micros] = 15 * SECOND
PACK_EVERY: Final[Micros] = 5 * MINUTE
"""So many minutes at most are read count by count, whatever a series asks for."""
PACK: Final = 500
"""Counts packed in one transaction: a few milliseconds of the writer's time."""
PACK_LOCK: Final = "queue-pack"
PACK_LOCK_US: Final[Micros] = MINUTE
PAUSE: Final[Micros] = 10 * MILLISECOND
"""Between two batches of a backlog: what serves callers goes first."""


class QueueChores:
    """The loop, on the pump. `sample` is called each time round."""

    def __init__(
        self, store: Store, clock: Clock, owner: str, sample: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._sample = sample
        self._pack_at: Instant = 0
        self.pump = Pump("queue-chores", clock, self._step, SAMPLE_EVERY)

    async def _step(self) -> Instant | None:
        now = self._clock.now()
        if now >= self._pack_at:
            if await self._store.transact(pack, self._owner, PACK) >= PACK:
                return now + PAUSE
            self._pack_at = now + PACK_EVERY
        await self._sample()
        return now + SAMPLE_EVERY


def pack(tx: QueueTx, owner: str, limit: int) -> int:
    """Pack up to `limit` counts of minutes that are over; say how many."""
    if not tx.locks.take(PACK_LOCK, owner, PACK_LOCK_US):
        return 0
    return tx.series.pack_minutes(METRICS, limit)


def add_queue_rows(retention: Retention, keep_us: Micros) -> None:
    """Have finished jobs with their leases, and hours of counts, removed once they are old."""
    retention.add_walk("queue_jobs", keep_us, find_old_jobs, remove_jobs)
    retention.add("series", keep_us, purge_hours)


def find_old_jobs(tx: QueueTx, before: Instant, after: WalkPlace, limit: int) -> OldRows:
    """Find up to `limit` jobs that ended before; dead letters stay."""
    return tx.jobs.find_old(before, after, limit)


def remove_jobs(tx: QueueTx, seqs: list[int]) -> int:
    """Remove jobs that ended, with their leases; say how many."""
    return tx.jobs.remove(seqs)


def purge_hours(tx: QueueTx, before: Instant, limit: int) -> int:
    """Remove up to `limit` hours of counts that ended before; say how many."""
    return tx.series.purge(before, limit)
