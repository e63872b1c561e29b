"""Upkeep of the queue: counts of past minutes are packed, the figures for /metrics are read now and
then, and what grows old is registered with the core's retention. One instance at a time packs; it
would be safe with more, only wasteful."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from ksana.domain.queue.classes import JobClass, class_of, kept_until, needs_of
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
HEAL_EVERY: Final[Micros] = 5 * MINUTE
HEAL: Final = 200
"""Classes of ready jobs that are looked up at a time."""
BACKLOG: Final[Micros] = MINUTE
"""Scheduled jobs that should have been ready so long ago: after an outage. No class goes before
they are."""
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
        self._heal_at: Instant = 0
        self._healed_to = -1
        self.pump = Pump("queue-chores", clock, self._step, SAMPLE_EVERY)

    async def _step(self) -> Instant | None:
        now = self._clock.now()
        if now >= self._pack_at:
            if await self._store.transact(pack, self._owner, PACK) >= PACK:
                return now + PAUSE
            self._pack_at = now + PACK_EVERY
        if now >= self._heal_at:
            await self._heal()
            self._heal_at = now + HEAL_EVERY
        await self._sample()
        return now + SAMPLE_EVERY

    async def _heal(self) -> None:
        """Look at the classes of ready jobs, some at a time, and enter those that are missing: the
        net under who relied on one for too long, a machine that slept or an instance of an earlier
        version. No claim would find their jobs."""
        lost, self._healed_to = await self._store.read(find_lost, self._healed_to, HEAL)
        if lost:
            count = await self._store.transact(enter_lost, lost)
            log.warning("classes of queue jobs were missing", count=count)


def pack(tx: QueueTx, owner: str, limit: int) -> int:
    """Pack up to `limit` counts of minutes that are over; say how many."""
    if not tx.locks.take(PACK_LOCK, owner, PACK_LOCK_US):
        return 0
    return tx.series.pack_minutes(METRICS, limit)


def find_lost(tx: QueueTx, after: int, limit: int) -> tuple[list[str], int]:
    """Jobs that are ready and of a class that is not entered, one of each, among the next classes;
    and where to go on."""
    jobs: dict[int, str] = {}
    while len(jobs) < limit and (found := tx.job_order.next_ready_class(after)) is not None:
        after, jobs[found[0]] = found
    known = tx.job_classes.find_known(list(jobs)) if jobs else set()
    lost = [job_id for class_id, job_id in jobs.items() if class_id not in known]
    return lost, after if len(jobs) == limit else -1


def enter_lost(tx: QueueTx, job_ids: list[str]) -> int:
    """Enter the classes of jobs; say how many."""
    classes: dict[int, JobClass] = {}
    for job in tx.jobs.find_jobs(job_ids).values():
        needs = needs_of(msgspec.json.decode(job.constraints_json))
        kind = class_of(job.addon_id, job.job_type, job.cost_units, needs)
        classes[kind.id] = kind
    tx.job_classes.enter(list(classes.values()), kept_until(tx.now))
    return len(classes)


def add_queue_rows(retention: Retention, keep_us: Micros) -> None:
    """Have finished jobs with their leases, and hours of counts, removed once they are old, and
    classes that nobody uses any more."""
    retention.add_walk("queue_jobs", keep_us, find_old_jobs, remove_jobs)
    retention.add_walk("job_classes", 0, find_unused_classes, remove_classes)
    retention.add("series", keep_us, purge_hours)


def find_old_jobs(tx: QueueTx, before: Instant, after: WalkPlace, limit: int) -> OldRows:
    """Find up to `limit` jobs that ended before; dead letters stay."""
    return tx.jobs.find_old(before, after, limit)


def remove_jobs(tx: QueueTx, seqs: list[int]) -> int:
    """Remove jobs that ended, with their leases; say how many."""
    return tx.jobs.remove(seqs)


def find_unused_classes(tx: QueueTx, before: Instant, after: WalkPlace, limit: int) -> OldRows:
    """Find up to `limit` classes that may go."""
    if tx.job_order.has_overdue(before - BACKLOG):
        return OldRows([], after, is_end=True)
    return tx.job_classes.find_old(before, after, limit)


def remove_classes(tx: QueueTx, class_ids: list[int]) -> int:
    """Remove classes that nobody has used since they were found; say how many."""
    return tx.job_classes.remove(class_ids, tx.now)


def purge_hours(tx: QueueTx, before: Instant, limit: int) -> int:
    """Remove up to `limit` hours of counts that ended before; say how many."""
    return tx.series.purge(before, limit)
