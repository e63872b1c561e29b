"""The event log over HTTP: pages, the live stream, resuming, and slow or leaving readers (X11)."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ksana.api.core.app import Application
from ksana.base.clock import VirtualClock
from ksana.base.errors import RateLimitedError
from ksana.base.instant import SECOND
from ksana.domain.events import KINDS
from ksana.ports.events import Event
from ksana.service.core import events as service
from ksana.service.core.events import EventFilter, EventLog
from tests.api.ground import CoreServices, append_events, client_of, open_house
from tests.api.test_refusals import check_refusal

EVERYTHING = EventFilter()


@pytest.mark.spec("X11")
async def test_events_are_listed_in_pages_with_filters(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    await core.store.transact(append_events, "a", "b", "c")
    first = (await client.get("/api/v1/events?limit=2")).json()
    assert [event["entity_id"] for event in first["events"]] == ["a", "b"]
    event = first["events"][0]
    assert set(event) == {"id", "ts", "entity_type", "entity_id", "type", "data"}
    assert (event["entity_type"], event["type"], event["data"]) == (
        "JOB",
        "JOB_CREATED",
        {"name": "a"},
    )
    assert event["ts"].endswith("Z")
    assert first["next_after"] == first["events"][1]["id"]
    second = (await client.get(f"/api/v1/events?limit=2&after={first['next_after']}")).json()
    assert [event["entity_id"] for event in second["events"]] == ["c"]
    last = (await client.get(f"/api/v1/events?after={second['next_after']}")).json()
    assert last == {"events": [], "next_after": second["next_after"]}
    found = (await client.get("/api/v1/events?entity_type=JOB&entity_id=b&type=JOB_CREATED")).json()
    assert [event["entity_id"] for event in found["events"]] == ["b"]
    assert (await client.get("/api/v1/events?type=OTHER")).json()["events"] == []


@pytest.mark.spec("X11")
async def test_events_are_listed_newest_first_and_paged_back(
    core: CoreServices, client: httpx.AsyncClient
) -> None:
    await core.store.transact(append_events, "a", "b", "c", "d", "e")

    async def page(query: str) -> tuple[str, Any, Any]:
        found = (await client.get(f"/api/v1/events?order=desc&{query}")).json()
        names = "".join(event["entity_id"] for event in found["events"])
        return names, found["next_after"], found["next_before"]

    found = (await client.get("/api/v1/events")).json()["events"]
    a, b, c, d, e = (event["id"] for event in found)
    assert await page("limit=2") == ("ed", e, d)
    assert await page(f"limit=2&before={d}") == ("cb", c, b)
    assert await page(f"limit=2&before={b}") == ("a", a, None)
    assert await page(f"limit=2&before={a}") == ("", 0, None)
    assert await page(f"after={c}") == ("ed", e, None)
    assert await page("type=JOB_CREATED&entity_id=b") == ("b", b, None)
    told = check_refusal(await client.get("/api/v1/events?before=2"), 400, "INVALID_ARGUMENT")
    assert told["field"] == "before"
    check_refusal(await client.get("/api/v1/events?order=up"), 400, "INVALID_ARGUMENT")


@pytest.mark.spec("X11")
async def test_events_are_listed_by_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core, client_of(core.app()) as client:
        for name in "abcdef":
            await core.store.transact(append_events, name)
            await clock.advance(3600 * 1_000_000)

        async def names(query: str) -> str:
            found = (await client.get(f"/api/v1/events?{query}")).json()
            return "".join(event["entity_id"] for event in found["events"])

        assert await names("from=2026-01-01T02:00:00Z") == "cdef"
        assert await names("to=2026-01-01T02:00:00Z") == "ab"
        assert await names("from=2026-01-01T01:00:00Z&to=2026-01-01T03:00:01Z") == "bcd"
        assert await names("from=2026-01-01T02:00:00Z&order=desc&limit=2") == "fe"
        fourth = (await client.get("/api/v1/events")).json()["events"][3]["id"]
        assert await names(f"from=2026-01-01T02:00:00Z&after={fourth}") == "ef"
        assert await names("from=2026-01-01T09:00:00Z") == ""
        assert await names("to=2026-01-01T03:00:00%2B01:00") == "ab"
        for query, field in (("from=yesterday", "from"), ("to=2026-01-01T00:00:00", "to")):
            answer = await client.get(f"/api/v1/events?{query}")
            assert check_refusal(answer, 400, "INVALID_ARGUMENT")["field"] == field


@pytest.mark.spec("X11", "X19")
async def test_the_events_of_keys_are_as_declared(core: CoreServices) -> None:
    made = await core.keys.create_key("ops", ("*:read",))
    await core.keys.revoke_key(made.key.id)
    events = await core.store.read(lambda tx: tx.events.list_after(0, 10))
    assert [event.type for event in events] == ["KEY_CREATED", "KEY_REVOKED"]
    declared = {kind.name: kind for kind in KINDS}
    for event in events:
        kind = declared[event.type]
        assert event.entity_type == kind.entity
        assert kind.allows(msgspec.json.decode(event.data))


@pytest.mark.spec("X11", "X13")
@pytest.mark.parametrize(
    "query", ["limit=501", "limit=0", "limit=x", "after=-1", "after=99999999999999999999"]
)
async def test_a_page_is_bounded(client: httpx.AsyncClient, query: str) -> None:
    told = check_refusal(await client.get(f"/api/v1/events?{query}"), 400, "INVALID_ARGUMENT")
    assert told["field"] == query.partition("=")[0]


class LiveReader:
    """A reader of the stream at the ASGI seam, which can stop reading and hang up as it likes."""

    def __init__(
        self, app: Application, query: str = "", headers: dict[bytes, bytes] | None = None
    ) -> None:
        self.chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self.status = 0
        self.ended = False
        self._gone = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events/stream",
            "raw_path": b"/api/v1/events/stream",
            "query_string": query.encode(),
            "headers": list((headers or {}).items()),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.may_read.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.ended = not message.get("more_body", False)
            self.chunks.put_nowait(message["body"])

    async def next_events(self, count: int) -> list[dict[str, Any]]:
        """Wait for that many events; comments are passed over."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(10):
            while len(found) < count:
                for block in (await self.chunks.get()).split(b"\n\n"):
                    lines = dict(
                        line.split(b": ", 1) for line in block.split(b"\n") if b": " in line
                    )
                    if b"data" in lines:
                        event = msgspec.json.decode(lines[b"data"])
                        assert int(lines[b"id"]) == event["id"]
                        found.append(event)
        return found

    async def next_comment(self) -> bytes:
        async with asyncio.timeout(10):
            return await self.chunks.get()

    async def hang_up(self) -> None:
        self._gone.set()
        async with asyncio.timeout(10):
            await self.task


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["entity_id"] for event in events]


@pytest.mark.spec("X11")
async def test_the_stream_shows_events_as_they_are_committed_and_resumes(
    core: CoreServices,
) -> None:
    await core.store.transact(append_events, "before")
    app = core.app()
    reader = LiveReader(app)
    assert b": connected" in await reader.next_comment()
    await listening(core.events, 1)
    await core.store.transact(append_events, "a", "b")
    core.events.wake()
    seen = await reader.next_events(2)
    assert names(seen) == ["a", "b"]
    await reader.hang_up()
    await core.store.transact(append_events, "missed")
    again = LiveReader(app, "after=0", {b"last-event-id": str(seen[0]["id"]).encode()})
    assert names(await again.next_events(2)) == ["b", "missed"]
    await again.hang_up()
    whole = LiveReader(app, "after=0&entity_id=before")
    assert names(await whole.next_events(1)) == ["before"]
    await whole.hang_up()
    assert core.events.listeners == 0


async def listening(log: EventLog, count: int) -> None:
    """Wait until that many listen and the tail knows where it stands."""
    async with asyncio.timeout(10):
        while log.listeners != count or not log._positioned.is_set():
            await asyncio.sleep(0.001)


@pytest.mark.spec("X11")
async def test_a_bad_last_event_id_and_one_listener_too_many_are_refused(
    core: CoreServices,
) -> None:
    core.events = EventLog(core.store, core.clock, max_listeners=1)
    app = core.app()
    async with client_of(app) as client:
        bad = await client.get("/api/v1/events/stream", headers={"last-event-id": "x"})
        check_refusal(bad, 400, "INVALID_ARGUMENT")
        reader = LiveReader(app)
        await listening(core.events, 1)
        check_refusal(await client.get("/api/v1/events/stream"), 429, "RATE_LIMITED")
        await reader.hang_up()
    with pytest.raises(RateLimitedError):
        EventLog(core.store, core.clock, max_listeners=0).ensure_room()


@pytest.mark.spec("X14")
async def test_closing_ends_every_stream(core: CoreServices) -> None:
    app = core.app()
    readers = [LiveReader(app) for _ in range(3)]
    await listening(core.events, 3)
    await core.events.close()
    async with asyncio.timeout(10):
        await asyncio.gather(*(reader.task for reader in readers))
    assert all(reader.ended for reader in readers)
    assert core.events.listeners == 0


@pytest.mark.spec("X11", "X13")
async def test_a_reader_that_falls_behind_costs_no_memory_and_misses_nothing(
    core: CoreServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RING", 100)
    app = core.app()
    slow, quick = LiveReader(app), LiveReader(app)
    await slow.next_comment()
    await listening(core.events, 2)
    slow.may_read.clear()
    total = 1500
    for start in range(0, total, 300):
        await core.store.transact(
            append_events, *(str(number) for number in range(start, start + 300))
        )
        core.events.wake()
    assert names(await quick.next_events(total)) == [str(number) for number in range(total)]
    assert len(core.events._ring) <= 100
    assert slow.chunks.qsize() == 0
    slow.may_read.set()
    assert names(await slow.next_events(total)) == [str(number) for number in range(total)]
    await slow.hang_up()
    await quick.hang_up()


async def test_a_quiet_stream_sends_heartbeats_and_hears_other_processes_by_polling(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        reader = LiveReader(core.app())
        await reader.next_comment()
        await listening(core.events, 1)
        await clock.advance(16 * SECOND)
        assert await reader.next_comment() == b": heartbeat\n\n"
        await core.store.transact(append_events, "elsewhere")  # and nobody wakes the tail
        await clock.advance(SECOND)
        assert names(await reader.next_events(1)) == ["elsewhere"]
        await reader.hang_up()


def event(event_id: int, ts: int = 0) -> Event:
    return Event(event_id, ts, "JOB", str(event_id), "JOB_CREATED", msgspec.Raw(b"{}"))


class ScriptedEvents:
    """Events of a store with several writers, where a lower id may appear after a higher one."""

    def __init__(self) -> None:
        self.rows: dict[int, Event] = {}

    def list_after(self, after: int, limit: int, **filters: Any) -> list[Event]:
        wanted = {name: value for name, value in filters.items() if value is not None}
        rows = [self.rows[key] for key in sorted(self.rows) if key > after]
        return [row for row in rows if wanted.get("entity_id") in (None, row.entity_id)][:limit]

    def latest_id(self) -> int:
        return max(self.rows, default=0)

    def settled_id(self, since: int) -> int:
        ids = sorted(self.rows)
        gaps = [
            low
            for low, high in pairwise([0, *ids])
            if high != low + 1 and self.rows[high].ts > since
        ]
        return gaps[0] if gaps else self.latest_id()

    def find_settled(self, events: list[Event], after: int, since: int) -> int:
        return min(self.settled_id(since), max([after, *(one.id for one in events)]))


class ManyWriters:
    """The store port as far as the log uses it."""

    url = "postgresql://x"
    sole = False

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.events = ScriptedEvents()

    @property
    def now(self) -> int:
        return self._clock.now()

    def commit(self, *ids: int) -> None:
        self.events.rows.update({one: event(one, self._clock.now()) for one in ids})

    async def read(self, fn: Any, *args: Any) -> Any:
        return fn(self, *args)

    read_list = read


async def collect(batches: AsyncIterator[list[Event]], seen: list[int]) -> None:
    async for batch in batches:
        seen.extend(one.id for one in batch)


@pytest.mark.spec("X4", "X11")
async def test_ids_that_commit_out_of_order_are_neither_skipped_nor_repeated() -> None:
    clock = VirtualClock()
    store = ManyWriters(clock)
    log = EventLog(store, clock)  # type: ignore[arg-type]
    seen: list[int] = []
    task = asyncio.create_task(collect(log.listen(EVERYTHING, None, 60 * SECOND), seen))
    await clock.advance(SECOND)
    store.commit(1, 3)  # 2 is still on its way
    await clock.advance(SECOND)
    assert seen == [1]
    page = await log.list_events(EVERYTHING, 0, 10)
    assert ([one.id for one in page.events], page.next_after) == ([1], 1)
    filtered = await log.list_events(EventFilter(entity_id="3"), 0, 10)
    assert (filtered.events, filtered.next_after) == ([], 0)
    store.commit(2)
    await clock.advance(SECOND)
    assert seen == [1, 2, 3]
    store.commit(4, 6)  # 5 was rolled back and never comes
    await clock.advance(SECOND)
    assert seen == [1, 2, 3, 4]
    await clock.advance(3 * SECOND)
    assert seen == [1, 2, 3, 4, 6]
    assert (await log.list_events(EVERYTHING, 0, 10)).next_after == 6
    await log.close()
    await task
