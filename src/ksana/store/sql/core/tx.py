"""The transaction as a function sees it: typed tables over one session, with events and counts
gathered for one bulk write before COMMIT."""

from operator import attrgetter
from typing import Any, Final

from ksana.base.instant import HOUR, MINUTE, Instant
from ksana.ports.store import Committed
from ksana.store.sql.core.events import SqlEvents
from ksana.store.sql.core.packages import find_tables
from ksana.store.sql.core.session import Session

_BUCKET_COLUMNS: Final = ("metric", "minutes", "bucket_at", "entry", "count", "total")


_SHARE: Final = "@"
"""Stands in a bucket's entry between what is counted and whose share it is."""

_FOLD_BACK: Final = HOUR
"""How far back shares are looked for. Older ones are read like all others, and go with age."""


class SqlRollups:
    """Gathers counts per minute: a busy minute costs one row write each per commit, in a row that
    no other connection writes."""

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
        rows = self._session.all("core.list_buckets", metric=metric, since=since, until=until)
        sums: dict[Instant, tuple[int, float]] = {}
        for at, entry, count, total in rows:
            if entry.partition(_SHARE)[0] == key:
                before = sums.get(at, (0, 0.0))
                sums[at] = before[0] + int(count), before[1] + float(total)
        return [(at, *counted) for at, counted in sums.items()]

    def fold(self, before: Instant, limit: int) -> int:
        found = self._session.all(
            "core.list_bucket_shares",
            since=before - _FOLD_BACK,
            before=before,
            shares=f"%{_SHARE}%",
            limit=limit,
        )
        sums: dict[tuple[str, int, Instant, str], tuple[int, float]] = {}
        for metric, minutes, at, entry, count, total in found:
            key = metric, minutes, at, entry.partition(_SHARE)[0]
            before_it = sums.get(key, (0, 0.0))
            sums[key] = before_it[0] + count, before_it[1] + total
        self._session.run_rows(
            "core.delete_bucket", _BUCKET_COLUMNS[:4], [row[:4] for row in found]
        )
        folded = [(*key, *counted) for key, counted in sorted(sums.items())]
        self._session.run_rows("core.add_to_bucket", _BUCKET_COLUMNS, folded)
        return len(found)

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("core.list_old_buckets", before=before, limit=limit)
        return self._session.run_rows("core.delete_bucket", _BUCKET_COLUMNS[:4], rows)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._gathered = {}

    def flush(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Add what was gathered to the buckets, each connection to its own share of them; answer
        it."""
        gathered = self._gathered
        if gathered:
            start = self._now - self._now % MINUTE
            writer = self._session.writer
            share = f"{_SHARE}{writer:x}" if writer else ""
            rows = [
                (metric, 1, start, key + share, count, total)
                for (metric, key), (count, total) in sorted(gathered.items())
            ]
            self._session.run_rows_later("core.add_to_bucket", _BUCKET_COLUMNS, rows)
            self._gathered = {}
        return gathered


_FLUSH_ORDER: Final = attrgetter("flush_order")


class SqlTx:
    """One transaction; tables of the surfaces are made when first used. They keep no reference to
    it: it goes with the last one who uses it, and leaves nothing to the garbage collector.

    A table that gathers writes has `flush()`, `forget()` and a `flush_order`: the least is written
    first. Rows that many transactions write (capacity, counts) come in one order for everybody, or
    two of them would wait for each other.
    """

    def __init__(self, session: Session, now: Instant) -> None:
        self._session = session
        self._gathering: list[Any] = []
        self.now = now
        self.events = SqlEvents(session, now)
        self.rollups = SqlRollups(session, now)

    def __getattr__(self, name: str) -> Any:
        """Make a table on first use and keep it on the instance."""
        factory = find_tables().get(name)
        if factory is None:
            raise AttributeError(name)
        made = factory(self._session, self)
        setattr(self, name, made)
        if hasattr(made, "flush"):
            self._gathering.append(made)
            self._gathering.sort(key=_FLUSH_ORDER)
        return made

    def forget(self) -> None:
        """Drop what was gathered: its function failed."""
        for table in self._gathering:
            table.forget()
        self.events.forget()
        self.rollups.forget()

    def flush(self, types: frozenset[str] = frozenset()) -> Committed:
        """Write what was gathered; called before COMMIT. Events come last: between drawing their
        ids and COMMIT nothing may wait for a lock, or readers would wait for the ids. Answer what
        a listener to events of these types is to be told once it is committed."""
        for table in self._gathering:
            table.flush()
        counts = self.rollups.flush()
        return Committed(counts, self.events.flush(types))
