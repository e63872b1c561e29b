"""`rollups`: counts per minute, gathered per batch so that a busy minute costs one row write each
per commit."""

from typing import Final

from ksana.base.instant import MINUTE, Instant
from ksana.store.sql.core.session import Session

_COLUMNS: Final = ("metric", "minutes", "bucket_at", "entry", "count", "total")


class SqlRollups:
    """Gathers counts and adds them to their buckets."""

    __slots__ = ("_gathered", "_now", "_session")

    def __init__(self, session: Session, now: Instant) -> None:
        self._session = session
        self._now = now
        self._gathered: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, metric: str, key: str = "", count: int = 1, total: float = 0.0) -> None:
        self._session.wrote = True
        before = self._gathered.get((metric, key))
        self._gathered[metric, key] = (
            (count, total) if before is None else (before[0] + count, before[1] + total)
        )

    def list_buckets(
        self, metric: str, key: str, since: Instant, until: Instant
    ) -> list[tuple[Instant, int, float]]:
        rows = self._session.all(
            "core.list_buckets", metric=metric, entry=key, since=since, until=until
        )
        return [(row[0], int(row[1]), float(row[2])) for row in rows]

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("core.list_old_buckets", before=before, limit=limit)
        return self._session.run_rows("core.delete_bucket", _COLUMNS[:4], rows)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._gathered = {}

    def flush(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Add what was gathered to the buckets, in one order everywhere so that two writers cannot
        deadlock on them; answer it."""
        gathered = self._gathered
        if gathered:
            start = self._now - self._now % MINUTE
            rows = [
                (metric, 1, start, key, count, total)
                for (metric, key), (count, total) in sorted(gathered.items())
            ]
            self._session.run_rows_later("core.add_to_bucket", _COLUMNS, rows)
            self._gathered = {}
        return gathered
