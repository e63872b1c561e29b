"""The transaction as a function sees it: typed tables over one session, with events and counts
gathered for one bulk write before COMMIT."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

import msgspec

from ksana.base.instant import MINUTE, Instant
from ksana.ports.pages import PageRows
from ksana.ports.store import Committed, Event, EventRow
from ksana.store.sql.core.packages import find_tables
from ksana.store.sql.core.session import Row, Session

_encode = msgspec.json.Encoder().encode

_EVENT_COLUMNS: Final = ("ts", "entity_type", "entity_id", "event_type", "data_json")

_GAP_WINDOW = 1000
"""Newest ids that are looked through for a gap; more if all of these are young."""

_PURGE_WINDOWS = 20
"""Windows of the oldest rows one purge looks through for something to remove."""


class SqlEvents:
    """Gathers the events of a batch and writes them in one go."""

    __slots__ = ("_now", "_rows", "_session")

    def __init__(self, session: Session, now: Instant) -> None:
        self._session = session
        self._now = now
        self._rows: list[EventRow] = []

    def append(
        self,
        entity_type: str,
        entity_id: str | int,
        event_type: str,
        data: dict[str, Any] | None = None,
    ) -> None:
        self._session.wrote = True
        self._rows.append(
            (
                self._now,
                entity_type,
                str(entity_id),
                event_type,
                _encode(data).decode() if data else "{}",
            )
        )

    def append_texts(self, events: Iterable[tuple[str, str, str, str]]) -> None:
        self._session.wrote = True
        now = self._now
        self._rows += [(now, kind, id_, name, data) for kind, id_, name, data in events]

    def list_after(
        self,
        after: int,
        limit: int,
        entity_type: str | None = None,
        entity_id: str | None = None,
        event_type: str | None = None,
        *,
        before: int | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        max_bytes: int | None = None,
        is_newest_first: bool = False,
    ) -> PageRows[Event]:
        filters: dict[str, str | int | None] = {
            "entity_type": entity_type,
            "entity_id": entity_id,
            "event_type": event_type,
        }
        filters |= {"before": before, "since": since, "until": until}
        statement = "core.list_events_back" if is_newest_first else "core.list_events"
        rows = self._session.paged(statement, filters, max_bytes, after=after, limit=limit)
        events = PageRows(_event_of(row) for row in rows)
        events.is_cut = rows.is_cut
        return events

    def find_id_at(self, at: Instant) -> int:
        low, high = 0, self.latest_id()
        while low < high:
            middle = (low + high) // 2
            row = self._session.one("core.first_event_after", after=middle)
            if row is None or row[1] >= at:
                high = middle
            else:
                low = int(row[0])
        return low

    def latest_id(self) -> int:
        row = self._session.one("core.latest_event_id")
        return int(row[0]) if row else 0

    def settled_id(self, since: Instant) -> int:
        latest, window = self.latest_id(), _GAP_WINDOW
        while True:
            after = max(0, latest - window)
            first = self._session.one("core.first_event_after", after=after)
            if first is None:
                return latest
            if not after or first[1] <= since:
                break
            window *= 4
        row = self._session.one("core.find_gap", after=after, since=since)
        return latest if row is None else int(row[0])

    def purge(self, before: Instant, limit: int) -> int:
        # Ids grow with time, so the oldest stand at one end. Rows stamped by a clock that ran ahead
        # may stand there too: look past some of them, or they would stop the purge for ever.
        after = 0
        for _ in range(_PURGE_WINDOWS):
            rows = self._session.all("core.list_oldest_events", after=after, limit=limit)
            old = [row[0] for row in rows if row[1] < before]
            if old:
                return self._session.run(
                    "core.delete_events_to", first=old[0], last=old[-1], before=before
                )
            if len(rows) < limit:
                return 0
            after = rows[-1][0]
        return 0

    def forget(self) -> None:
        """Drop the gathered rows."""
        self._rows = []

    def flush(self, types: frozenset[str] = frozenset()) -> list[EventRow]:
        """Write the gathered rows; answer those of these types."""
        rows = self._rows
        if not rows:
            return []
        self._session.run_rows_later("core.append_event", _EVENT_COLUMNS, rows)
        self._rows = []
        return [row for row in rows if row[3] in types] if types else []


def _event_of(row: Row) -> Event:
    return Event(row[0], row[1], row[2], row[3], row[4], msgspec.Raw(row[5].encode()))


_BUCKET_COLUMNS: Final = ("metric", "minutes", "bucket_at", "entry", "count", "total")


class SqlRollups:
    """Gathers counts per minute: a busy minute costs one row write each per commit."""

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
        return self._session.run_rows("core.delete_bucket", _BUCKET_COLUMNS[:4], rows)

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
