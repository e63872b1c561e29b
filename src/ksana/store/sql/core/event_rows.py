"""The rows of the event log: what lies in one, and how it is put together and opened. Pure.

A row holds the events of one entity and one commit that follow each other: a single one as it is,
several as a pack, with an empty `event_type` and a JSON array in `data_json`. An event of a part of
the entity (a lease of a job) lies in the entity's pack and names its own entity there:

    [["JOB_CLAIMED",{…}],["LEASE_GRANTED",{…},"LEASE","0192…"],["JOB_RUNNING",{…}]]

Entities whose rows keep the instant of a commit share rows of it, with `@` and the instant for an
id; every event names its entity there, and one of a part the entity behind it:

    [["LEASE_RELEASED",{…},"LEASE","0193…","0192…"],["JOB_DONE",{…},"JOB","0192…"],…]

An event's id is its row's number times `PLACES` plus its place in the row. Rows up to the fact
`events.single_to` are older than packs: there the event's id is the row's number. Both grow
together, so whatever is said of the order of rows holds for events.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.instant import Instant
from ksana.ports.events import Event, EventPack, EventRow
from ksana.store.sql.core.session import Row

PLACES: Final = 16
"""Events that a row can have. The view counts by it too: it never changes."""

MAX_PACK: Final = 64 * 1024
"""Characters of a pack; larger events get rows of their own, so that a page stays bounded."""

MAX_SHARED: Final = 1_900
"""Characters of a row that entities share: SQLite fits two into a page, PostgreSQL does not pack
them."""

Names = tuple[str, ...]
"""The types of the events of a row."""

_encode = msgspec.json.Encoder().encode


class _Packed(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """An event in a pack."""

    type: str
    data: msgspec.Raw
    entity_type: str | None = None
    entity_id: str | None = None
    whole_id: str | None = None
    """Of a part's event among those of several entities: the id of what it is a part of."""

    @property
    def text(self) -> str:
        """Its data."""
        return bytes(self.data).decode()


_decode_pack = msgspec.json.Decoder(list[_Packed]).decode


def share(packs: Sequence[EventPack], now: Instant) -> tuple[list[EventRow], list[Names]]:
    """Rows for packs of one instant, several in each, and the names of the events of each."""
    rows: list[EventRow] = []
    names_of: list[Names] = []
    names: list[str] = []
    texts: list[str] = []
    size, entity_type, entity_id = 0, packs[0][0], dated_id(now)
    for _, _, types, text in packs:
        size += len(text)
        if size > MAX_SHARED or len(names) + len(types) > PLACES:
            if texts:
                rows.append((now, entity_type, entity_id, "", f"[{','.join(texts)}]"))
                names_of.append(tuple(names))
            names, texts, size = [], [], len(text)
        names += types
        texts.append(text[1:-1])
    rows.append((now, entity_type, entity_id, "", f"[{','.join(texts)}]"))
    names_of.append(tuple(names))
    return rows, names_of


def row_of(event_id: int, single_to: int) -> int:
    """The number of the row that has an event, or would have."""
    return event_id if event_id <= single_to else max(event_id // PLACES, single_to + 1)


def dated_id(at: Instant) -> str:
    """Under which id the rows of an instant lie that several entities share."""
    return f"@{at}"


def open_row(row: Row, single_to: int, whole_id: str | None = None) -> list[Event]:
    """The events of a row, in order; with `whole_id` those of that entity, its parts' included."""
    number, ts, entity_type, entity_id, event_type, text = row
    first = number * PLACES if number > single_to else number
    if event_type:
        return [Event(first, ts, entity_type, entity_id, event_type, msgspec.Raw(text.encode()))]
    return [
        Event(
            place,
            ts,
            one.entity_type or entity_type,
            entity_id if one.entity_id is None else one.entity_id,
            one.type,
            one.data.copy(),
        )
        for place, one in enumerate(_decode_pack(text), first)
        if whole_id is None or whole_id in (one.entity_id, one.whole_id)
    ]


def split(row: EventRow) -> list[EventRow]:
    """The events of a row that was not written yet."""
    now, entity_type, entity_id, event_type, text = row
    if event_type:
        return [row]
    return [
        (now, one.entity_type or entity_type, one.entity_id or entity_id, one.type, one.text)
        for one in _decode_pack(text)
    ]


def split_large(row: EventRow) -> list[EventRow]:
    """A pack that is too large as several, each with one event."""
    if len(row[4]) <= MAX_PACK:
        return [row]
    own = row[:4]
    return [(*own, f"[{_encode(one).decode()}]") for one in _decode_pack(row[4])]
