"""The transaction as a function sees it: typed tables over one session, with events and counts
gathered for one bulk write before COMMIT. And the tables that count: per minute, over time, rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from ksana.base.instant import HOUR, MINUTE, Instant, Micros
from ksana.domain.histogram import BUCKET_BITS
from ksana.ports.store import Committed
from ksana.store.sql.core import hours
from ksana.store.sql.core.events import SqlEvents
from ksana.store.sql.core.packages import TableFactory, find_tables
from ksana.store.sql.core.session import MANY_SHARES, Row, Session

_BUCKET: Final = ("metric", "entry", "minutes", "bucket_at", "count", "total")
_BUCKET_KEY: Final = ("metric", "minutes", "bucket_at", "entry")

_SHARE: Final = "@"
"""Stands in a bucket's entry between what is counted and whose share it is."""

_FOLD_BACK: Final = HOUR
"""How far back shares are looked for. Older ones are read like all others, and go with age."""

FOLDED: Final = 0
"""The share of a count of rows into which those of connections are folded."""

CORRECTIONS: Final = 64
"""The share that no connection adds to: what was found to be counted wrongly."""

_ROW_COUNT: Final = ("kind", "entry", "shard", "n")


class GatheredSums:
    """Numbers to be added to rows of one table, gathered so that a commit changes each row once,
    however many functions count in it. No other connection adds to the same rows."""

    __slots__ = ("added", "columns", "constants", "statement")

    def __init__(
        self, statement: str, columns: tuple[str, ...], constants: tuple[int, ...]
    ) -> None:
        """`columns` has those of a key, then those of the constants, then those of the numbers."""
        self.statement = statement
        self.columns = columns
        self.constants = constants
        self.added: dict[tuple[str, ...], tuple[Any, ...]] = {}


class SqlRollups:
    """Counts per minute: a busy minute costs one row write each per commit, in a row that no other
    connection writes."""

    __slots__ = ("_session", "_share", "sums")

    def __init__(self, session: Session, now: Instant) -> None:
        self._session = session
        self._share = f"{_SHARE}{session.writer:x}" if session.writer else ""
        self.sums = GatheredSums("core.add_to_bucket", _BUCKET, (1, now - now % MINUTE))

    def add(self, metric: str, key: str = "", count: int = 1, total: float = 0.0) -> None:
        self._session.wrote = True
        place, added = (metric, key + self._share), self.sums.added
        before = added.get(place)
        added[place] = (count, total) if before is None else (before[0] + count, before[1] + total)

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
        sums: dict[tuple[str, str, int, Instant], tuple[int, float]] = {}
        for metric, minutes, at, entry, count, total in found:
            key = metric, entry.partition(_SHARE)[0], minutes, at
            before_it = sums.get(key, (0, 0.0))
            sums[key] = before_it[0] + count, before_it[1] + total
        self._session.run_rows("core.delete_bucket", _BUCKET_KEY, [row[:4] for row in found])
        folded = [(*key, *counted) for key, counted in sorted(sums.items())]
        self._session.run_rows("core.add_to_bucket", _BUCKET, folded)
        return len(found)

    def purge(self, before: Instant, limit: int) -> int:
        rows = self._session.all("core.list_old_buckets", before=before, limit=limit)
        return self._session.run_rows("core.delete_bucket", _BUCKET_KEY, rows)


class SqlSeries:
    """`queue_hours`, and the rows of `rollups` that belong to a series.

    Minutes are counted in `rollups`, with what they count; a chore moves those that are over into
    `queue_hours`, an hour in one row. A count stands in one of the two, never in both: they are
    read in one snapshot and moved in one transaction, so it does not matter when the chore comes,
    or that a late commit counts in a minute long over.
    """

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

    def sum_since(self, metrics: Sequence[str], since: Instant) -> dict[str, int]:
        until = self._now + MINUTE
        span = {"metrics": list(metrics), "until": until}
        sums = dict.fromkeys(metrics, 0)
        packed_hours = self._session.all("series.list_hours_of", since=since - HOUR, **span)
        for metric, hour_at, packed in packed_hours:
            sums[metric] += hours.sum_between(hour_at, packed, since, until)
        for metric, entry, count in self._session.all(
            "series.list_minutes_of", since=since, **span
        ):
            sums[metric] += count << _shift_of(entry)
        return sums

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


@lru_cache(maxsize=1024)
def _shift_of(entry: str) -> int:
    """Where a count stands in its metric's number. A histogram's entries are called bucket.0, all
    others 0, each with the share it is; older ones have other numbers than 0."""
    bucket, is_histogram, _ = entry.partition(".")
    return int(bucket) * BUCKET_BITS if is_histogram else 0


def _with_minutes(packed: bytes | None, hour_at: Instant, rows: Sequence[Row]) -> bytes:
    minutes = hours.unpack(packed)
    for at, entry, count in rows:
        minutes[(at - hour_at) // MINUTE] += count << _shift_of(entry)
    return hours.pack(minutes)


class SqlRowCounts:
    """How many rows of a kind there are, kept as they come and go: lists show it without counting.

    Every connection adds to a row of its own, so that writers never wait for each other; the rows
    are added up when they are read, and now and then folded into one. Counts are written with what
    they count, in one transaction.
    """

    def __init__(self, session: Session, tx: "SqlTx") -> None:
        self._session = session
        self._sums = GatheredSums("core.add_to_row_counts", _ROW_COUNT, (session.writer,))
        tx.sums.append(self._sums)

    def add(self, kind: str, entry: str, count: int) -> None:
        self._session.wrote = True
        added = self._sums.added
        before = added.get((kind, entry))
        added[kind, entry] = (count,) if before is None else (before[0] + count,)

    def read(self, kind: str) -> dict[str, int]:
        rows = self._session.all("core.sum_row_counts", kind=kind)
        counts = {row[0]: int(row[1]) for row in rows}
        for (of_kind, entry), (count,) in self._sums.added.items():
            if of_kind == kind:
                counts[entry] = counts.get(entry, 0) + count
        return counts

    def fold(self, limit: int) -> int:
        """Fold up to `limit` shares of connections; one that is alive begins a new one when it next
        counts. Those that are being written are left for the next time."""
        rows = self._session.all("core.list_count_shares", above=MANY_SHARES, limit=limit)
        sums: Counter[tuple[str, str]] = Counter()
        for kind, entry, _, count in rows:
            sums[kind, entry] += count
        keys = [row[:3] for row in rows]
        self._session.run_rows("core.delete_count_share", _ROW_COUNT[:3], keys)
        folded = [(*key, FOLDED, count) for key, count in sorted(sums.items())]
        self._session.run_rows("core.add_to_row_counts", _ROW_COUNT, folded)
        return len(rows)


_FLUSH_ORDER: Final = attrgetter("flush_order")


class _Table:
    """A table of a surface as an attribute of transactions, where each finds its own from then on.
    To look for what is not there would make an exception, for each table of each transaction."""

    __slots__ = ("_factory", "_gathers", "_name")

    def __init__(self, name: str, factory: TableFactory) -> None:
        self._name, self._factory = name, factory
        self._gathers = hasattr(factory, "flush")

    def __get__(self, tx: "SqlTx | None", _: Any = None) -> Any:
        return self if tx is None else tx.make(self._name, self._factory, gathers=self._gathers)


class SqlTx:
    """One transaction; tables of the surfaces are made when first used. They keep no reference to
    it: it goes with the last one who uses it, and leaves nothing to the garbage collector.

    What a table only adds to is gathered in `sums`. A table that gathers other writes has
    `has_gathered`, `flush()`, `forget()` and a `flush_order`: the least is written first. Rows that
    many transactions write (capacity) come in one order for everybody, or two of them would wait
    for each other.
    """

    def __init__(self, session: Session, now: Instant, *, is_again: bool = False) -> None:
        self._session = session
        self._gathering: list[Any] = []
        self.now = now
        self.is_again = is_again
        self.events = SqlEvents(session, now)
        self.rollups = SqlRollups(session, now)
        self.sums = [self.rollups.sums]

    def __getattr__(self, name: str) -> Any:
        """The first time a table is asked for in this process: from now on all are known."""
        tables = find_tables()
        if name not in tables:
            raise AttributeError(name)
        for each, factory in tables.items():
            setattr(SqlTx, each, _Table(each, factory))
        return getattr(self, name)

    def make(self, name: str, factory: TableFactory, *, gathers: bool) -> Any:
        """Make a table and keep it on the instance."""
        made = self.__dict__[name] = factory(self._session, self)
        if gathers:
            self._gathering.append(made)
            self._gathering.sort(key=_FLUSH_ORDER)
        return made

    def forget(self) -> None:
        """Drop what was gathered: its function failed."""
        for table in self._gathering:
            table.forget()
        for sums in self.sums:
            sums.added = {}
        self.events.forget()

    def flush(self, types: frozenset[str] = frozenset()) -> Committed:
        """Write what was gathered; called before COMMIT. Events come last: between drawing their
        ids and COMMIT nothing may wait for a lock, or readers would wait for the ids. Answer what
        a listener to events of these types is to be told once it is committed."""
        for table in self._gathering:
            if table.has_gathered:
                table.flush()
        counts: Any = self.rollups.sums.added
        if self._session.writer:
            counts = {(key[0], key[1].partition(_SHARE)[0]): counts[key] for key in counts}
        for sums in self.sums:
            if sums.added:
                rows = [
                    (*key, *sums.constants, *numbers)
                    for key, numbers in sorted(sums.added.items())
                    if any(numbers)  # what came and went in one commit changes nothing
                ]
                self._session.run_rows_later(sums.statement, sums.columns, rows)
                sums.added = {}
        return Committed(counts, self.events.flush(types))
