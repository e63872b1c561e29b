"""Figures of the queue, from gauges and rollups that were written with what they count. Nothing
here scans history."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, MINUTE, Instant, Micros
from ksana.domain.histogram import quantile
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.explain import COUNT_TO
from ksana.domain.queue.jobs import PRIORITIES
from ksana.ports.queue.tables import QueueTx
from ksana.ports.store import Store

MAX_POINTS: Final = 2000
_GAUGES: Final = {
    "leases_active": "queue.leases",
    "capacity_used": "queue.units",
    "jobs_queued": "queue.queued",
    "jobs_running": "queue.running",
}
_COUNTS: Final = {
    "jobs_submitted": "queue.submitted",
    "jobs_done": "queue.done",
    "jobs_failed": "queue.failed",
    "jobs_timeout": "queue.timeout",
}
_SPANS: Final = {"wait_seconds_p95": "queue.wait", "run_seconds_p95": "queue.run"}
METRICS: Final = (*_GAUGES, *_COUNTS, *_SPANS)
_LAST_DAY: Final = ("queue.failed", "queue.expired", "queue.timeout")
"""What a snapshot counts of the last day."""


class Snapshot(msgspec.Struct, frozen=True):
    """The queue at this moment."""

    capacity: dict[str, int]
    jobs: dict[str, int]
    leases: dict[str, int]


class Series(msgspec.Struct, frozen=True):
    """A metric over time: a value for each bucket, the first of which begins at `first_at`."""

    metric: str
    bucket_us: Micros
    first_at: Instant
    values: Sequence[float | None]


class Depth(msgspec.Struct, frozen=True):
    """A count: exact, or with `more` at least so many."""

    count: int
    more: bool


class PriorityDepth(msgspec.Struct, frozen=True):
    """How many jobs of one priority wait, and for what, and are held."""

    priority: str
    ready: Depth
    scheduled: Depth
    claimed: Depth
    preparing: Depth
    lease_pending: Depth
    running: Depth


class QueueStats:
    """Reads the figures."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def snapshot(self) -> Snapshot:
        """The present."""
        return await self._store.read(read_snapshot, self._limits.total)

    async def depth(self) -> list[PriorityDepth]:
        """How many jobs wait and are held by priority, the most urgent first."""
        return await self._store.read_list(read_depth)

    async def count_ready(self) -> int:
        """How many jobs a worker could claim now, up to COUNT_TO."""
        return await self._store.read(_count_ready)

    async def series(self, metric: str, bucket_us: Micros, range_us: Micros) -> Series:
        """The past, in buckets up to now."""
        if metric not in METRICS:
            raise InvalidError(
                f"there is no metric {metric!r}; allowed: {', '.join(METRICS)}", field="metric"
            )
        if bucket_us < MINUTE or bucket_us % MINUTE:
            raise InvalidError("'bucket' is a whole number of minutes, 1m or more", field="bucket")
        if range_us < bucket_us:
            raise InvalidError("'range' must not be shorter than 'bucket'", field="range")
        if -(-range_us // bucket_us) > MAX_POINTS:
            raise InvalidError(
                f"that makes more than {MAX_POINTS} points: take a longer bucket", field="bucket"
            )
        return await self._store.read(read_series, metric, bucket_us, range_us)


def _count_ready(tx: QueueTx) -> int:
    return tx.job_order.count_ready(COUNT_TO)


def read_snapshot(tx: QueueTx, total: int) -> Snapshot:
    """What is so now, and two counts of the last day."""
    capacity, gauges = tx.capacity.read(total), tx.gauges.read()
    sums = tx.series.sum_since(_LAST_DAY, tx.now - DAY)
    return Snapshot(
        {"total": total, "used": capacity.used, "reserved": capacity.reserved(tx.now)},
        {
            "queued": gauges.queued,
            "running": gauges.running,
            "failed_last_24h": sums["queue.failed"],
            "timeout_last_24h": sums["queue.timeout"],
        },
        {"active": capacity.active, "expired_last_24h": sums["queue.expired"]},
    )


def read_depth(tx: QueueTx) -> list[PriorityDepth]:
    """What is so now, in counts that stop where they would get long."""
    found = tx.job_lists.count_depth()
    return [
        PriorityDepth(
            priority,
            **{
                state.lower(): Depth(totals[urgency].count, not totals[urgency].is_exact)
                for state, totals in found.items()
            },
        )
        for urgency, priority in enumerate(PRIORITIES)
    ]


def read_series(tx: QueueTx, metric: str, bucket_us: Micros, range_us: Micros) -> Series:
    """One metric's buckets, aligned to the clock, the last one holding now."""
    count = -(-range_us // bucket_us)
    last = tx.now - tx.now % bucket_us
    first = last - (count - 1) * bucket_us
    starts = range(first, last + bucket_us, bucket_us)
    if metric in _GAUGES:
        return Series(metric, bucket_us, first, _gauge_values(tx, metric, starts, bucket_us))
    name = _COUNTS.get(metric) or _SPANS[metric]
    sums = tx.series.sum_stretches(name, first, last + bucket_us, bucket_us)
    if metric in _COUNTS:
        return Series(metric, bucket_us, first, [sums.get(start, 0) for start in starts])
    return Series(
        metric, bucket_us, first, [quantile(sums.get(start, 0), 0.95) for start in starts]
    )


def _gauge_values(
    tx: QueueTx, metric: str, starts: Sequence[Instant], bucket_us: Micros
) -> list[int]:
    """A gauge's value at the end of each bucket: the present value, less every change since."""
    changes = tx.series.sum_stretches(_GAUGES[metric], starts[0], starts[-1] + bucket_us, bucket_us)
    capacity, gauges = tx.capacity.read(0), tx.gauges.read()
    value = {
        "queue.leases": capacity.active,
        "queue.units": capacity.used,
        "queue.queued": gauges.queued,
        "queue.running": gauges.running,
    }[_GAUGES[metric]]
    values: list[int] = []
    for start in reversed(starts):
        values.append(value)
        value -= changes.get(start, 0)
    return values[::-1]
