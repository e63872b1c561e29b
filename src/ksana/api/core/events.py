"""The event log over HTTP: pages, and live as server-sent events (X11)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from ksana.api.core.auth import Authenticator
from ksana.api.core.routing import MAX_ID, AnyRoute, Call, Route, Stream
from ksana.api.core.services import Services
from ksana.base.clock import Clock
from ksana.base.errors import InvalidError, KsanaError, UnavailableError
from ksana.base.instant import SECOND, Instant, format_instant, parse_instant
from ksana.ports.events import Event
from ksana.service.core.events import MAX_PAGE, EventFilter, EventLog, EventSpan

HEARTBEAT_US: Final = 15 * SECOND
"""Below the idle limit of common proxies, so that a quiet stream stays open."""
RECONNECT_MS: Final = 2000
JUDGE_US: Final = 2 * SECOND
"""How often the key of a stream is judged again: one that was revoked ends its streams."""
SCOPE: Final = "*:read"

Text = Annotated[str, msgspec.Meta(max_length=255)]
When = Annotated[str, msgspec.Meta(max_length=64)]
EventId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
_encode = msgspec.json.Encoder().encode


EntityType = Literal[
    "TASK",
    "RUN",
    "JOB",
    "LEASE",
    "GOV_JOB",
    "OBJECT",
    "GATE",
    "NODE",
    "SESSION",
    "NODE_JOB",
    "KEY",
    "STORE",
]


class EventQuery(msgspec.Struct, frozen=True):
    """Filters of a page."""

    entity_type: EntityType | None = None
    entity_id: Text | None = None
    type: Text | None = None
    after: EventId = 0
    before: EventId | None = None
    since: When | None = msgspec.field(default=None, name="from")
    until: When | None = msgspec.field(default=None, name="to")
    order: Literal["asc", "desc"] = "asc"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 100


class StreamQuery(msgspec.Struct, frozen=True):
    """Filters of a stream. `after` starts it in the past; without it, it starts now."""

    entity_type: EntityType | None = None
    entity_id: Text | None = None
    type: Text | None = None
    after: EventId | None = None


class EventView(msgspec.Struct, frozen=True):
    """One event as it is answered."""

    id: int
    ts: str
    entity_type: str
    entity_id: str
    type: str
    data: Any


class EventList(msgspec.Struct, frozen=True):
    """A page. Ask again with `after` = `next_after`, or from the newest back with `before` =
    `next_before` while that is not null."""

    events: list[EventView]
    next_after: int
    next_before: int | msgspec.UnsetType | None = msgspec.UNSET


def routes(services: Services) -> list[AnyRoute]:
    """The page and the stream."""
    log, authenticator = services.events, Authenticator(services)

    async def list_events(call: Call) -> EventList:
        query: EventQuery = call.query
        span = EventSpan(_read_time(query.since, "from"), _read_time(query.until, "to"))
        wanted, after, limit = _filter(query), query.after, query.limit
        if query.order == "desc":
            page = await log.list_newest(wanted, query.before, after, limit, span)
            shown = [show_event(event) for event in page.events]
            return EventList(shown, page.next_after, page.next_before)
        if query.before is not None:
            raise InvalidError("'before' goes with order=desc", field="before")
        page = await log.list_events(wanted, after, limit, span)
        return EventList([show_event(event) for event in page.events], page.next_after)

    async def stream_events(call: Call) -> Stream:
        query: StreamQuery = call.query
        after = _last_event_id(call, query.after)
        log.ensure_room()

        async def judge() -> None:
            await authenticator.admit(call.headers, SCOPE)

        return Stream(
            _write_events(log, _filter(query), after, judge, services.clock), "text/event-stream"
        )

    return [
        Route(
            "GET",
            "/api/v1/events",
            list_events,
            scope="*:read",
            summary="List events in the order of their ids, or the newest first",
            tags=("events",),
            query=EventQuery,
            answers={200: EventList},
        ),
        Route(
            "GET",
            "/api/v1/events/stream",
            stream_events,
            scope="*:read",
            query=StreamQuery,
            tags=("events",),
            summary="Events live, as server-sent events; resumes by Last-Event-ID or after",
            media_types=("text/event-stream",),
            request_headers=("Last-Event-ID",),
        ),
    ]


def show_event(event: Event) -> EventView:
    """Render an event for callers."""
    return EventView(
        event.id,
        format_instant(event.ts),
        event.entity_type,
        event.entity_id,
        event.type,
        event.data,
    )


def _read_time(text: str | None, field: str) -> Instant | None:
    if text is None:
        return None
    try:
        return parse_instant(text)
    except ValueError as error:
        raise InvalidError(str(error), field=field) from None


def _filter(query: EventQuery | StreamQuery) -> EventFilter:
    return EventFilter(query.entity_type, query.entity_id, query.type)


def _last_event_id(call: Call, after: int | None) -> int | None:
    """The header is what a browser sends when it reconnects: it is newer than the query it began
    with."""
    text = call.header("last-event-id")
    if not text:
        return after
    if text.isdecimal() and text.isascii() and len(text) <= 16 and int(text) <= MAX_ID:
        return int(text)
    raise InvalidError("Last-Event-ID is the id of an event: a whole number", field="Last-Event-ID")


async def _write_events(
    log: EventLog,
    wanted: EventFilter,
    after: int | None,
    judge: Callable[[], Awaitable[None]],
    clock: Clock,
) -> AsyncIterator[bytes]:
    """Write events as they come, as long as the key that asked would still be let in."""
    yield b"retry: %d\n: connected\n\n" % RECONNECT_MS
    batches = log.listen(wanted, after, JUDGE_US)
    quiet_us, judged_at = 0, clock.monotonic()
    try:
        async for batch in batches:
            if clock.monotonic() - judged_at >= JUDGE_US:
                judged_at = clock.monotonic()
                try:
                    await judge()
                except UnavailableError:
                    pass  # the store is away: nothing is known, nothing is ended
                except KsanaError:
                    return
            if batch:
                quiet_us = 0
                yield b"".join(
                    b"id: %d\ndata: %s\n\n" % (event.id, _encode(show_event(event)))
                    for event in batch
                )
                continue
            quiet_us += JUDGE_US
            if quiet_us >= HEARTBEAT_US:
                quiet_us = 0
                yield b": heartbeat\n\n"
    finally:
        await batches.aclose()  # type: ignore[attr-defined]
