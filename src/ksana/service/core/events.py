"""The event log as callers read it: page by page, and live.

Live: one tail reader per process, alive only while somebody listens. It keeps the newest events in
a ring of fixed size; a listener is only a position. One that falls behind the ring reads pages from
the store until it is back, so a slow reader costs no memory.

Out of order: with several writers a lower id may commit after a higher one. A gap below an event
younger than `SETTLE_US` may still be filled, so the tail waits in front of it, and a page ends
before it. What follows the gap is shown once it is filled or old. Ids are therefore delivered in
order, each once, and a reader that goes on after the last id it saw misses nothing and sees nothing
twice.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import RateLimitedError, UnavailableError
from ksana.base.instant import MILLISECOND, MINUTE, SECOND, Instant
from ksana.ports.events import Event
from ksana.ports.pages import MAX_PAGE_BYTES, PageRows
from ksana.ports.store import Store

MAX_PAGE: Final = 500
RING: Final = 2000
"""Events kept for listeners that keep up."""
MAX_LISTENERS: Final = 200
POLL_US: Final = 500 * MILLISECOND
"""The net under the wake-up signal, and the only way to notice other processes."""
CLOCK_SLACK: Final = 10 * MINUTE
"""By how much events may be out of the order of time, because a clock was set."""
SETTLE_US: Final = 2 * SECOND
"""How long a transaction may take from drawing an event's id to its commit."""


class EventFilter(msgspec.Struct, frozen=True):
    """Which events are wanted; None means any."""

    entity_type: str | None = None
    entity_id: str | None = None
    type: str | None = None

    def matches(self, event: Event) -> bool:
        """Whether the event is wanted."""
        return (
            (self.type is None or event.type == self.type)
            and (self.entity_type is None or event.entity_type == self.entity_type)
            and (self.entity_id is None or event.entity_id == self.entity_id)
        )


EVERYTHING: Final = EventFilter()


class EventSpan(msgspec.Struct, frozen=True):
    """Events of [since, until); None has no bound."""

    since: Instant | None = None
    until: Instant | None = None


ALL_TIME: Final = EventSpan()


class EventPage(msgspec.Struct, frozen=True):
    """Some events, and where to go on: after an id in their order, before one from the newest
    back."""

    events: list[Event]
    next_after: int
    next_before: int | None = None


class EventLog:
    """Reads `scheduler_events` for callers. `wake` hints that something was written."""

    def __init__(self, store: Store, clock: Clock, *, max_listeners: int = MAX_LISTENERS) -> None:
        self._store = store
        self._clock = clock
        self._max_listeners = max_listeners
        self._written = asyncio.Event()
        self._listeners: set[asyncio.Event] = set()
        self._ring: list[Event] = []
        self._base = 0
        """Everything after this id that the tail has seen is in the ring."""
        self._head = 0
        self._tail: asyncio.Task[None] | None = None
        self._positioned: asyncio.Event = asyncio.Event()
        self._closed = False

    async def list_events(
        self, wanted: EventFilter, after: int, limit: int, span: EventSpan = ALL_TIME
    ) -> EventPage:
        """Read one page in the order of ids."""
        events = await self._store.read_list(
            _read_page, wanted, after, limit, self._store.sole, span, MAX_PAGE_BYTES
        )
        return EventPage(events=events, next_after=events[-1].id if events else after)

    async def list_newest(
        self,
        wanted: EventFilter,
        before: int | None,
        after: int,
        limit: int,
        span: EventSpan = ALL_TIME,
    ) -> EventPage:
        """Read one page from the newest back, below `before` and above `after`."""
        events = await self._store.read_list(_read_back, wanted, before, after, limit, span)
        newest = events[0].id if events else after
        has_more = len(events) == limit or events.is_cut
        oldest = events[-1].id if events and has_more else None
        return EventPage(events=events, next_after=newest, next_before=oldest)

    def wake(self) -> None:
        """Hint that events were committed. Costs nothing while nobody listens."""
        if self._listeners:
            self._written.set()

    @property
    def listeners(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    async def listen(
        self, wanted: EventFilter, after: int | None, heartbeat_us: int
    ) -> AsyncIterator[list[Event]]:
        """Yield events as they are committed, an empty list when nothing came for a heartbeat,
        until `close`.

        From the id `after` on, or from now on if it is None. Raise when too many listen.
        """
        fresh = self._enter()
        try:
            await self._wait_positioned()
            cursor = self._head if after is None else after
            while not self._closed:
                fresh.clear()
                events, cursor, more = await self._next_batch(wanted, cursor)
                if events:
                    yield events
                elif not more and not await self._clock.wait(
                    fresh, self._clock.now() + heartbeat_us
                ):
                    yield []
        finally:
            self._leave(fresh)

    async def close(self) -> None:
        """End every listener and the tail."""
        self._closed = True
        self._positioned.set()
        for fresh in self._listeners:
            fresh.set()
        await self._stop_tail()

    def ensure_room(self) -> None:
        """Raise if another listener would be refused: lets an edge refuse before its answer has
        begun."""
        if self._closed:
            raise UnavailableError("the server is going down")
        if len(self._listeners) >= self._max_listeners:
            raise RateLimitedError(
                f"at most {self._max_listeners} live streams are served at a time"
            )

    def _enter(self) -> asyncio.Event:
        self.ensure_room()
        fresh = asyncio.Event()
        self._listeners.add(fresh)
        if self._tail is None:
            self._positioned.clear()
            self._tail = asyncio.create_task(self._follow(), name="event-tail")
        return fresh

    def _leave(self, fresh: asyncio.Event) -> None:
        self._listeners.discard(fresh)
        if not self._listeners and self._tail is not None:
            self._tail.cancel()
            self._tail = None
            self._ring = []

    async def _wait_positioned(self) -> None:
        if not self._positioned.is_set():
            await self._positioned.wait()

    async def _stop_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)

    async def _next_batch(self, wanted: EventFilter, cursor: int) -> tuple[list[Event], int, bool]:
        """What lies after the cursor: (events, new cursor, whether more may follow at once)."""
        if cursor >= self._base:
            start = bisect_right(self._ring, cursor, key=_id_of)
            batch = self._ring[start : start + MAX_PAGE]
            if not batch:
                return [], cursor, False
            return [event for event in batch if wanted.matches(event)], batch[-1].id, True
        base = self._base  # all ids up to it are settled
        events = await self._store.read(_read_page, wanted, cursor, MAX_PAGE, True)
        if len(events) == MAX_PAGE and events[-1].id <= base:
            return events, events[-1].id, True
        return [event for event in events if event.id <= base], base, True

    async def _follow(self) -> None:
        """The tail: read what is new, wake the listeners, park."""
        backoff_us = POLL_US
        while True:
            try:
                if not self._positioned.is_set():
                    self._base = self._head = await self._store.read(
                        _settled_head, self._store.sole
                    )
                    self._ring = []
                    self._positioned.set()
                full = await self._read_on()
                backoff_us = POLL_US
            except (
                Exception
            ) as error:  # the tail outlives everything; its listeners only wait longer
                if not isinstance(error, UnavailableError):
                    log.error("the event tail failed", exc_info=error)
                full = False
                backoff_us = min(backoff_us * 2, 10 * SECOND)
            if not full:
                await self._clock.wait(self._written, self._clock.now() + backoff_us)
                self._written.clear()

    async def _read_on(self) -> bool:
        """Move the head over the next settled page; answer whether there is more."""
        events = await self._store.read(
            _read_page, EVERYTHING, self._head, MAX_PAGE, self._store.sole
        )
        if not events:
            return False
        self._ring += events
        self._head = events[-1].id
        if len(self._ring) > RING:
            surplus = len(self._ring) - RING
            self._base = self._ring[surplus - 1].id
            del self._ring[:surplus]
        for fresh in self._listeners:
            fresh.set()
        return len(events) == MAX_PAGE


def _id_of(event: Event) -> int:
    return event.id


def _read_page(
    tx: Any,
    wanted: EventFilter,
    after: int,
    limit: int,
    sole: bool,
    span: EventSpan = ALL_TIME,
    max_bytes: int | None = None,
) -> list[Event]:
    """Read a page that ends before the first gap which may still be filled."""
    low, high = _find_bounds(tx, span)
    events: list[Event] = tx.events.list_after(
        max(after, low),
        limit,
        entity_type=wanted.entity_type,
        entity_id=wanted.entity_id,
        event_type=wanted.type,
        before=high,
        since=span.since,
        until=span.until,
        max_bytes=max_bytes,
    )
    if not events or sole or events[-1].ts <= tx.now - SETTLE_US:
        return events
    if wanted == EVERYTHING and span == ALL_TIME:
        settled = tx.events.find_settled(events, after, tx.now - SETTLE_US)
    else:
        settled = _settled_head(tx, sole)
    return [event for event in events if event.id <= settled]


def _read_back(
    tx: Any, wanted: EventFilter, before: int | None, after: int, limit: int, span: EventSpan
) -> PageRows[Event]:
    """Read a page of all that is committed, the newest first."""
    low, high = _find_bounds(tx, span)
    tops = [top for top in (before, high) if top is not None]
    events: PageRows[Event] = tx.events.list_after(
        max(after, low),
        limit,
        entity_type=wanted.entity_type,
        entity_id=wanted.entity_id,
        event_type=wanted.type,
        before=min(tops, default=None),
        since=span.since,
        until=span.until,
        max_bytes=MAX_PAGE_BYTES,
        is_newest_first=True,
    )
    return events


def _find_bounds(tx: Any, span: EventSpan) -> tuple[int, int | None]:
    """The ids between which the events of a span lie, so that no more is read than these."""
    low = 0 if span.since is None else tx.events.find_id_at(span.since - CLOCK_SLACK)
    high = None if span.until is None else tx.events.find_id_at(span.until + CLOCK_SLACK) + 1
    return low, high


def _settled_head(tx: Any, sole: bool) -> int:
    head: int = tx.events.latest_id() if sole else tx.events.settled_id(tx.now - SETTLE_US)
    return head
