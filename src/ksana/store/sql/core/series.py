"""Counts over time. Minutes are counted in `rollups`, with what they count; a chore moves those
that are over into `queue_hours`, an hour in one row. A count stands in one of the two, never in
both: they are read in one snapshot and moved in one transaction, so it does not matter when the
chore comes, or that a late commit counts in a minute long over.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ksana.base.instant import HOUR, MINUTE, Instant, Micros
from ksana.domain.histogram import BUCKET_BITS
from ksana.store.sql.core import hours
from ksana.store.sql.core.session import Row, Session


@lru_cache(maxsize=1024)
def _shift_of(entry: str) -> int:
    """Where a count stands in its metric's number. A histogram's entries are called bucket.0, all
    others 0, each with the share it is; older ones have other numbers than 0."""
    bucket, is_histogram, _ = entry.partition(".")
    return int(bucket) * BUCKET_BITS if is_histogram else 0


class SqlSeries:
    """`queue_hours`, and the rows of `rollups` that belong to a series."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._rollups = tx.rollups
        self._now: Instant = tx.now

    def add(self, metric: str, count: int = 1) -> None:
        if count:
            self._rollups.add(metric, "0", count)

    def observe(self, metric: str, spans: Mapping[int, int], total: float = 0.0) -> None:
        for bucket, count in spans.items():
            self._rollups.add(metric, f"{bucket}.0", count, total)
            total = 0.0  # the sum of all stands with the first

    def sum_stretches(
        self, metric: str, since: Instant, until: Instant, width_us: Micros
    ) -> dict[Instant, int]:
        sums: dict[Instant, int] = {}
        span = {"metric": metric, "until": until}
        for hour_at, packed in self._session.all("series.list_hours", since=since - HOUR, **span):
            hours.add_stretches(sums, hour_at, packed, since, until, width_us)
        for at, entry, count in self._session.all("series.list_minutes", since=since, **span):
            start = at - at % width_us
            sums[start] = sums.get(start, 0) + (count << _shift_of(entry))
        return sums

    def sum_since(self, metric: str, since: Instant) -> int:
        until = self._now + MINUTE
        return sum(self.sum_stretches(metric, since, until, until - until % MINUTE).values())

    def pack_minutes(self, metrics: Sequence[str], limit: int) -> int:
        before = self._now - self._now % MINUTE
        moved = 0
        for metric in metrics:
            while moved < limit:
                row = self._session.one("series.first_past_minute", metric=metric, before=before)
                if row is None or row[0] is None:
                    break
                found = self._pack_hour(metric, row[0] - row[0] % HOUR, before, limit - moved)
                if not found:  # another instance was faster
                    break
                moved += found
        return moved

    def _pack_hour(self, metric: str, hour_at: Instant, before: Instant, limit: int) -> int:
        """Move minutes of one hour. Its row is entered and held first: of two that come at once,
        one waits here."""
        self._session.run("series.enter_hour", metric=metric, hour_at=hour_at)
        row = self._session.one("series.lock_hour", metric=metric, hour_at=hour_at)
        assert row is not None
        until = min(before, hour_at + HOUR)
        rows = self._session.all(
            "series.lock_minutes", metric=metric, since=hour_at, until=until, limit=limit
        )
        if not rows:
            return 0
        self._session.run(
            "series.set_hour",
            metric=metric,
            hour_at=hour_at,
            sums=_with_minutes(row[0], hour_at, rows),
        )
        # By their keys: another commit may count in one of these minutes under another name
        # meanwhile.
        columns = ("metric", "minutes", "bucket_at", "entry")
        keys = [(metric, 1, at, entry) for at, entry, _ in rows]
        self._session.run_rows("core.delete_bucket", columns, keys)
        return len(rows)

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("series.list_old_hours", before=before - HOUR, limit=limit)
        return self._session.run_rows("series.delete_hour", ("metric", "hour_at"), rows)


def _with_minutes(packed: bytes | None, hour_at: Instant, rows: Sequence[Row]) -> bytes:
    minutes = hours.unpack(packed)
    for at, entry, count in rows:
        minutes[(at - hour_at) // MINUTE] += count << _shift_of(entry)
    return hours.pack(minutes)
