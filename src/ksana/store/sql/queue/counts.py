"""What the queue counted over time. Minutes are counted in `rollups`, with what they count; a chore
moves those that are over into `queue_hours`, an hour in one row. A count stands in one of the two,
never in both: they are read in one snapshot and moved in one transaction, so it does not matter
when the chore comes, or that a late commit counts in a minute long over.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from ksana.base.instant import HOUR, MINUTE, Instant, Micros
from ksana.domain.histogram import BUCKET_BITS
from ksana.store.sql.core import hours
from ksana.store.sql.core.session import Row, Session

METRICS: Final = (
    "canceled",
    "done",
    "expired",
    "failed",
    "leases",
    "queued",
    "run",
    "running",
    "submitted",
    "timeout",
    "units",
    "wait",
)
"""All that is counted. A metric that were missing here would be told right, and read slowly."""


@lru_cache(maxsize=1024)
def _shift_of(entry: str) -> int:
    """Where a count stands in its metric's number: a histogram's entries are called bucket.shard,
    all others shard."""
    bucket, is_histogram, _ = entry.partition(".")
    return int(bucket) * BUCKET_BITS if is_histogram else 0


class SqlCounts:
    """`queue_hours`, and the queue's rows of `rollups`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def sum_stretches(
        self, metric: str, since: Instant, until: Instant, width_us: Micros
    ) -> dict[Instant, int]:
        sums: dict[Instant, int] = {}
        span = {"metric": f"queue.{metric}", "until": until}
        for hour_at, packed in self._session.all("queue.list_hours", since=since - HOUR, **span):
            hours.add_stretches(sums, hour_at, packed, since, until, width_us)
        for at, entry, count in self._session.all("queue.list_minutes", since=since, **span):
            start = at - at % width_us
            sums[start] = sums.get(start, 0) + (count << _shift_of(entry))
        return sums

    def sum_since(self, metric: str, since: Instant) -> int:
        until = self._now + MINUTE
        return sum(self.sum_stretches(metric, since, until, until - until % MINUTE).values())

    def pack_minutes(self, limit: int) -> int:
        before = self._now - self._now % MINUTE
        moved = 0
        for name in METRICS:
            while moved < limit:
                row = self._session.one(
                    "queue.first_past_minute", metric=f"queue.{name}", before=before
                )
                if row is None or row[0] is None:
                    break
                found = self._pack_hour(
                    f"queue.{name}", row[0] - row[0] % HOUR, before, limit - moved
                )
                if not found:  # another instance was faster
                    break
                moved += found
        return moved

    def _pack_hour(self, metric: str, hour_at: Instant, before: Instant, limit: int) -> int:
        """Move minutes of one hour. Its row is entered and held first: of two that come at once,
        one waits here."""
        self._session.run("queue.enter_hour", metric=metric, hour_at=hour_at)
        row = self._session.one("queue.lock_hour", metric=metric, hour_at=hour_at)
        assert row is not None
        until = min(before, hour_at + HOUR)
        rows = self._session.all(
            "queue.lock_minutes", metric=metric, since=hour_at, until=until, limit=limit
        )
        if not rows:
            return 0
        self._session.run(
            "queue.set_hour",
            metric=metric,
            hour_at=hour_at,
            sums=_with_minutes(row[0], hour_at, rows),
        )
        # By their keys: another commit may count in one of these minutes under another name
        # meanwhile.
        self._session.run_many(
            "core.delete_bucket",
            [
                {"metric": metric, "minutes": 1, "bucket_at": at, "entry": entry}
                for at, entry, _ in rows
            ],
        )
        return len(rows)

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("queue.list_old_hours", before=before - HOUR, limit=limit)
        return self._session.run_many(
            "queue.delete_hour", [{"metric": row[0], "hour_at": row[1]} for row in rows]
        )


def _with_minutes(packed: bytes | None, hour_at: Instant, rows: Sequence[Row]) -> bytes:
    minutes = hours.unpack(packed)
    for at, entry, count in rows:
        minutes[(at - hour_at) // MINUTE] += count << _shift_of(entry)
    return hours.pack(minutes)
