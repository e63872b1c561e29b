"""The event log's table and its store in memory, on the virtual clock."""

from itertools import pairwise
from typing import Any

import msgspec

from ksana.base.clock import VirtualClock
from ksana.ports.events import Event
from ksana.ports.pages import PageRows

KIND = "JOB_CREATED"


def an_event(event_id: int, ts: int = 0, **members: str) -> Event:
    given = {"entity_type": "JOB", "entity_id": str(event_id), "type": KIND} | members
    return Event(id=event_id, ts=ts, data=msgspec.Raw(b"{}"), **given)


def ids_of(events: list[Event]) -> list[int]:
    return [event.id for event in events]


class EventRows:
    """`tx.events` over a dict; `most` is how many rows its pages have room for."""

    def __init__(self) -> None:
        self.rows: dict[int, Event] = {}
        self.most = 10**9
        self.asked: list[dict[str, Any]] = []

    def list_after(
        self,
        after: int,
        limit: int,
        entity_type: str | None = None,
        entity_id: str | None = None,
        event_type: str | None = None,
        *,
        before: int | None = None,
        since: int | None = None,
        until: int | None = None,
        max_bytes: int | None = None,
        is_newest_first: bool = False,
    ) -> PageRows[Event]:
        self.asked.append({"after": after, "before": before, "max_bytes": max_bytes})
        found = [
            row
            for key, row in sorted(self.rows.items(), reverse=is_newest_first)
            if key > after
            and (before is None or key < before)
            and entity_type in (None, row.entity_type)
            and entity_id in (None, row.entity_id)
            and event_type in (None, row.type)
            and (since is None or row.ts >= since)
            and (until is None or row.ts < until)
        ]
        page = PageRows(found[: min(limit, self.most)])
        page.is_cut = len(found) > self.most
        return page

    def find_id_at(self, at: int) -> int:
        return max((key for key, row in self.rows.items() if row.ts < at), default=0)

    def latest_id(self) -> int:
        return max(self.rows, default=0)

    def settled_id(self, since: int) -> int:
        gaps = (
            low
            for low, high in pairwise([0, *sorted(self.rows)])
            if high != low + 1 and self.rows[high].ts > since
        )
        return next(gaps, self.latest_id())

    def find_settled(self, events: list[Event], after: int, since: int) -> int:
        """As the port says: among events of which none was left out."""
        before = after
        for event in events:
            if event.id != before + 1 and event.ts > since:
                return before
            before = event.id
        return before


class EventStore:
    """The store port as far as the log uses it. `sole`: nobody else writes to it."""

    def __init__(self, clock: VirtualClock, *, sole: bool = True) -> None:
        self._clock = clock
        self.sole = sole
        self.events = EventRows()
        self.error: Exception | None = None
        self.read_at: list[int] = []

    @property
    def now(self) -> int:
        return self._clock.now()

    def commit(self, *ids: int, **members: str) -> None:
        for one in ids:
            self.events.rows[one] = an_event(one, self.now, **members)

    async def read(self, fn: Any, *args: Any) -> Any:
        self.read_at.append(self._clock.monotonic())
        if self.error is not None:
            raise self.error
        return fn(self, *args)

    async def read_list(self, fn: Any, *args: Any) -> Any:
        return fn(self, *args)
