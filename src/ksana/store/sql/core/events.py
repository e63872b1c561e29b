"""`scheduler_events`: appended in bulk, read by id."""

from collections.abc import Iterable
from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.ports.pages import PageRows
from ksana.ports.store import Event, EventRow
from ksana.store.sql.core.session import Row, Session

_encode = msgspec.json.Encoder().encode

_COLUMNS = ("ts", "entity_type", "entity_id", "event_type", "data_json")

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
    ) -> PageRows[Event]:
        filters: dict[str, str | int | None] = {
            "entity_type": entity_type,
            "entity_id": entity_id,
            "event_type": event_type,
        }
        filters |= {"before": before, "since": since, "until": until}
        return _events_of(
            self._session.paged("core.list_events", filters, max_bytes, after=after, limit=limit)
        )

    def list_before(
        self,
        before: int,
        limit: int,
        entity_type: str | None = None,
        entity_id: str | None = None,
        event_type: str | None = None,
        *,
        after: int | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        max_bytes: int | None = None,
    ) -> PageRows[Event]:
        filters: dict[str, str | int | None] = {
            "entity_type": entity_type,
            "entity_id": entity_id,
            "event_type": event_type,
        }
        filters |= {"after": after, "since": since, "until": until}
        return _events_of(
            self._session.paged(
                "core.list_events_back", filters, max_bytes, before=before, limit=limit
            )
        )

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
        self._session.run_rows_later("core.append_event", _COLUMNS, rows)
        self._rows = []
        return [row for row in rows if row[3] in types] if types else []


def _events_of(rows: PageRows[Row]) -> PageRows[Event]:
    events = PageRows(_event_of(row) for row in rows)
    events.is_cut = rows.is_cut
    return events


def _event_of(row: Row) -> Event:
    return Event(row[0], row[1], row[2], row[3], row[4], msgspec.Raw(row[5].encode()))
