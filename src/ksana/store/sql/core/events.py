"""The event log in SQL: `event_packs`, and `scheduler_events` as a view of it. `event_rows` says
what lies in a row."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.ports.events import Event, EventPack, EventRow, EventText
from ksana.ports.pages import PageRows
from ksana.store.sql.core.event_rows import (
    MAX_PACK,
    PLACES,
    Names,
    open_row,
    row_of,
    share,
    split,
    split_large,
)
from ksana.store.sql.core.packages import find_event_rows
from ksana.store.sql.core.session import Session

_encode = msgspec.json.Encoder().encode

_COLUMNS: Final = ("ts", "entity_type", "entity_id", "event_type", "data_json")

_SINGLE_TO: Final = "events.single_to"

_GAP_WINDOW: Final = 1000
"""Newest rows that are looked through for a gap; more if all of these are young."""

_PURGE_WINDOWS: Final = 20
"""Windows of the oldest rows one purge looks through for something to remove."""


class SqlEvents:
    """Gathers the events of a batch and writes them in one go."""

    __slots__ = ("_names", "_now", "_rows", "_session")

    def __init__(self, session: Session, now: Instant) -> None:
        self._session = session
        self._now = now
        self._rows: list[EventRow] = []
        self._names: list[Names] = []
        """The types of the events of each row."""

    def append(
        self,
        entity_type: str,
        entity_id: str | int,
        event_type: str,
        data: dict[str, Any] | None = None,
    ) -> None:
        text = _encode(data).decode() if data else "{}"
        self.append_texts([(entity_type, str(entity_id), event_type, text)])

    def append_texts(self, events: Iterable[EventText]) -> None:
        self._session.wrote = True
        now, rows, names = self._now, self._rows, self._names
        last_type, last_id = rows[-1][1:3] if rows else ("", "")
        for event in events:
            entity_type, entity_id, name, data = event
            if entity_id == last_id and entity_type == last_type and self._add_to_last(name, data):
                continue
            rows.append((now, entity_type, entity_id, name, data))
            names.append((name,))
            last_type, last_id = entity_type, entity_id

    def _add_to_last(self, name: str, data: str) -> bool:
        """Put an event of the same entity into the last row, if there is room."""
        now, entity_type, entity_id, first, text = self._rows[-1]
        if len(self._names[-1]) >= PLACES or len(text) + len(data) > MAX_PACK:
            return False
        before = f'[["{first}",{text}]' if first else text[:-1]
        self._rows[-1] = (now, entity_type, entity_id, "", f'{before},["{name}",{data}]]')
        self._names[-1] += (name,)
        return True

    def append_packs(self, packs: Sequence[EventPack]) -> None:
        now = self._now
        rows = [(now, kind, id_, "", text) for kind, id_, _, text in packs]
        self._add_rows(rows, [names for _, _, names, _ in packs])

    def append_dated(self, packs: Sequence[EventPack]) -> None:
        if len(packs) > 1:
            self._add_rows(*share(packs, self._now))
        elif packs:
            self.append_packs(packs)

    def _add_rows(self, rows: list[EventRow], names: list[Names]) -> None:
        self._session.wrote = True
        if max(map(len, [row[4] for row in rows])) > MAX_PACK:
            rows = [part for row in rows for part in split_large(row)]
            names = [tuple(one[3] for one in split(row)) for row in rows]
        self._rows += rows
        self._names += names

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
        with_parts: bool = False,
    ) -> PageRows[Event]:
        wanted = _Wanted(entity_type, entity_id, event_type, after, before, with_parts)
        span = {"since": since, "until": until}
        if entity_id is None:
            return self._list(wanted, None, limit, span, max_bytes, is_newest_first)
        own = None if entity_type is None else (entity_type, entity_id)
        pages = [self._list(wanted, own, limit, span, max_bytes, is_newest_first)]
        for kind, (row_type, find) in find_event_rows().items():
            ids = find(self._session, entity_id) if entity_type in (None, kind) else ()
            if ids:
                place = (row_type, tuple(ids))
                pages.append(self._list(wanted, place, limit, span, max_bytes, is_newest_first))
        return _merge(pages, limit, is_newest_first) if len(pages) > 1 else pages[0]

    def _list(
        self,
        wanted: "_Wanted",
        place: tuple[str, str | tuple[str, ...]] | None,
        limit: int,
        span: dict[str, Instant | None],
        max_bytes: int | None,
        is_newest_first: bool,
    ) -> PageRows[Event]:
        """Events in the log's order: of all rows, of one entity's, or of several ids'."""
        single_to = self._find_single_to()
        low = row_of(wanted.after + 1, single_to)
        high = None if wanted.before is None else row_of(wanted.before - 1, single_to)
        filters: dict[str, Any] = {**span, **wanted.row_filters(is_anywhere=place is None)}
        params: dict[str, Any] = {
            "limit": limit,
            "with_entity_type": f'%,"{wanted.entity_type}","%',
            "with_event_type": f'%["{wanted.event_type}",%',
        }
        statement, whole_id = "core.list_events", None
        if place is not None and isinstance(place[1], str):
            statement = "core.list_entity_events"
            params |= {"entity_type": place[0], "entity_id": place[1]}
        elif place is not None:
            statement, whole_id = "core.list_dated_events", wanted.entity_id
            named = f'%,"{wanted.entity_id}"%'
            params |= {"entity_type": place[0], "ids": place[1], "with_entity_id": named}
        statement += "_back" if is_newest_first else ""
        events: PageRows[Event] = PageRows()
        while True:
            rows = self._session.paged(
                statement, filters | {"high": high}, max_bytes, low=low, **params
            )
            for row in rows:
                opened = open_row(row, single_to, whole_id)
                found = [event for event in opened if wanted.matches(event)]
                events += reversed(found) if is_newest_first else found
            if len(events) >= limit:
                del events[limit:]
                return events
            if (events and rows.is_cut) or (len(rows) < limit and not rows.is_cut):
                events.is_cut = rows.is_cut
                return events
            # All that was read is wanted by the statement's rough words only: go on behind it.
            if is_newest_first:
                high = rows[-1][0] - 1
            else:
                low = rows[-1][0] + 1

    def find_id_at(self, at: Instant) -> int:
        low, high = 0, self._find_latest_row()
        while low < high:
            middle = (low + high) // 2
            found = self._session.one("core.first_event_after", after=middle)
            if found is None or found[1] >= at:
                high = middle
            else:
                low = int(found[0])
        return self._last_id_of(low)

    def latest_id(self) -> int:
        return self._last_id_of(self._find_latest_row())

    def settled_id(self, since: Instant) -> int:
        latest, window = self._find_latest_row(), _GAP_WINDOW
        while True:
            after = max(0, latest - window)
            first = self._session.one("core.first_event_after", after=after)
            if first is None:
                return self._last_id_of(latest)
            if not after or first[1] <= since:
                break
            window *= 4
        gap = self._session.one("core.find_gap", after=after, since=since)
        return self._last_id_of(latest if gap is None else int(gap[0]))

    def find_settled(self, events: Sequence[Event], after: int, since: Instant) -> int:
        single_to = self._find_single_to()
        last, last_row = after, row_of(after, single_to)
        for event in events:
            row = row_of(event.id, single_to)
            if row > last_row + 1 and event.ts > since:
                break
            last, last_row = event.id, row
        return last

    def purge(self, before: Instant, limit: int) -> int:
        # Rows come in the order of time, so the oldest stand at one end. Rows stamped by a clock
        # that ran ahead may stand there too: look past some of them, or they would stop the purge
        # for ever.
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
        """Drop what was gathered."""
        self._rows, self._names = [], []

    def flush(self, types: frozenset[str] = frozenset()) -> list[EventRow]:
        """Write what was gathered; answer the events of these types."""
        rows, names = self._rows, self._names
        if not rows:
            return []
        self._session.run_rows_later("core.append_events", _COLUMNS, rows)
        self._rows, self._names = [], []
        if types.isdisjoint(chain.from_iterable(names)):
            return []
        told = [row for row, of in zip(rows, names, strict=True) if not types.isdisjoint(of)]
        return [event for row in told for event in split(row) if event[3] in types]

    def _find_single_to(self) -> int:
        """Up to which row an event's id is the number of its row."""
        known = self._session.facts.get(_SINGLE_TO)
        if known is None:
            row = self._session.one("core.get_fact", name=_SINGLE_TO)
            known = self._session.facts[_SINGLE_TO] = "0" if row is None else str(row[0])
        return int(known)

    def _find_latest_row(self) -> int:
        row = self._session.one("core.latest_event_row")
        return int(row[0]) if row else 0

    def _last_id_of(self, number: int) -> int:
        """The id of a row's last event, or the greatest it could have if it is not there."""
        single_to = self._find_single_to()
        if number <= single_to:
            return number
        row = self._session.one("core.get_event_row", id=number)
        return number * PLACES + PLACES - 1 if row is None else open_row(row, single_to)[-1].id


class _Wanted(msgspec.Struct, frozen=True):
    """Which events are wanted, by what each of them is."""

    entity_type: str | None
    entity_id: str | None
    event_type: str | None
    after: int
    before: int | None
    with_parts: bool

    def row_filters(self, *, is_anywhere: bool) -> dict[str, Any]:
        """The filters of rows that may have such events: of packs those whose text has the name."""
        if not is_anywhere:
            return {"event_type": self.event_type}
        names = {"event_type": self.event_type, "entity_id": self.entity_id}
        return names if self.entity_id is not None else {**names, "entity_type": self.entity_type}

    def matches(self, event: Event) -> bool:
        """Whether an event of a row that was read is one of these."""
        if event.id <= self.after or (self.before is not None and event.id >= self.before):
            return False
        if self.event_type is not None and event.type != self.event_type:
            return False
        return self.with_parts or (
            (self.entity_type is None or event.entity_type == self.entity_type)
            and (self.entity_id is None or event.entity_id == self.entity_id)
        )


def _merge(pages: Sequence[PageRows[Event]], limit: int, is_newest_first: bool) -> PageRows[Event]:
    """One page of several: as far as all of them were read."""
    sign = -1 if is_newest_first else 1
    ends = [sign * page[-1].id for page in pages if page and (page.is_cut or len(page) == limit)]
    events = sorted((event for page in pages for event in page), key=lambda one: sign * one.id)
    merged = PageRows(one for one in events if not ends or sign * one.id <= min(ends))
    merged.is_cut = any(page.is_cut for page in pages) or len(merged) > limit
    del merged[limit:]
    return merged
