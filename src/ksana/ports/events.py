"""The event log: what happened, and what was decided against, in one order for all instances."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from ksana.base.instant import Instant
from ksana.ports.pages import PageRows

EventRow = tuple[Instant, str, str, str, str]
"""(ts, entity_type, entity_id, event_type, data as JSON)."""

EventText = tuple[str, str, str, str]
"""(entity type, entity id, event type, a JSON object as text)."""


EventPack = tuple[str, str, tuple[str, ...], str]
"""(entity type, entity id, event types, the events as JSON): a few facts of one entity, as
`[[type, data], …]`. One of a part of it is `[type, data, entity type, entity id]`."""


class Event(msgspec.Struct, frozen=True):
    """One row of `scheduler_events`: a state change, or a decision not to act with its reason."""

    id: int
    ts: Instant
    entity_type: str
    entity_id: str
    type: str
    data: msgspec.Raw
    """A JSON object."""


class Events(Protocol):
    """The append-only log. Rows are written in bulk at the end of the transaction, in the order of
    the calls."""

    def append(
        self,
        entity_type: str,
        entity_id: str | int,
        event_type: str,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Record a fact of this transaction, at `tx.now`."""
        ...

    def append_texts(self, events: Iterable[EventText]) -> None:
        """Record facts made ready by the caller: for many at once."""
        ...

    def append_packs(self, packs: Sequence[EventPack]) -> None:
        """Record facts of many entities, and with them those of the entities' parts, which are
        found by the entity too."""
        ...

    def append_dated(self, packs: Sequence[EventPack]) -> None:
        """The same of entities of one type whose rows keep this instant, `tx.now`: by it they are
        found among the events of others. Every event names its entity; one of a part names the
        entity behind it: `[type, data, entity type, entity id, id of the whole]`."""
        ...

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
        """Read events of [since, until) after an id and before one, in order or the newest first;
        fewer where they have more than `max_bytes`. Those of this very transaction are not seen.
        `with_parts`: also those that were recorded of an entity's parts along with it."""
        ...

    def find_id_at(self, at: Instant) -> int:
        """The id of the last event before an instant, 0 if there is none, found by halving."""
        ...

    def latest_id(self) -> int:
        """The greatest id, 0 if there is none."""
        ...

    def settled_id(self, since: Instant) -> int:
        """The id before the first gap among the events younger than `since`; without such a gap the
        greatest id. A transaction under way may still fill a gap."""
        ...

    def find_settled(self, events: Sequence[Event], after: int, since: Instant) -> int:
        """The same among events that were read after an id without leaving any out."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` rows of events older than `before`; answer how many."""
        ...
