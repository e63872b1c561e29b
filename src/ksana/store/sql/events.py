"""`scheduler_events`: appended in bulk, read by id."""

from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.ports.store import Event
from ksana.store.sql.session import Session

_encode = msgspec.json.Encoder().encode


class SqlEvents:
    """Gathers the events of a batch and writes them in one go."""

    __slots__ = ("_now", "_rows", "_session")

    def __init__(self, session: Session, now: Instant) -> None:
        self._session = session
        self._now = now
        self._rows: list[dict[str, Any]] = []

    def append(self, entity_type: str, entity_id: str | int, event_type: str, data: dict[str, Any] | None = None) -> None:
        self._rows.append(
            {
                "ts": self._now,
                "entity_type": entity_type,
                "entity_id": str(entity_id),
                "event_type": event_type,
                "data_json": _encode(data).decode() if data else "{}",
            }
        )

    def list_after(
        self,
        after: int,
        limit: int,
        entity_type: str | None = None,
        entity_id: str | None = None,
        event_type: str | None = None,
    ) -> list[Event]:
        filters = {"entity_type": entity_type, "entity_id": entity_id, "event_type": event_type}
        return [
            Event(row[0], row[1], row[2], row[3], row[4], msgspec.Raw(row[5].encode()))
            for row in self._session.filtered("house.list_events", filters, after=after, limit=limit)
        ]

    def latest_id(self) -> int:
        row = self._session.one("house.latest_event_id")
        return int(row[0]) if row else 0

    def purge(self, before: Instant, limit: int) -> int:
        ids = [row[0] for row in self._session.all("house.list_old_events", before=before, limit=limit)]
        if not ids:
            return 0
        return self._session.run("house.delete_events_to", first=ids[0], last=ids[-1], before=before)

    def mark(self) -> int:
        """How many rows are gathered."""
        return len(self._rows)

    def reset(self, mark: int) -> None:
        """Forget the rows gathered since."""
        del self._rows[mark:]

    def flush(self) -> None:
        """Write the gathered rows."""
        if self._rows:
            self._session.run_many("house.append_event", self._rows)
            self._rows = []
