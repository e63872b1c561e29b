"""The event log with several instances writing: whoever follows `next_after` sees every event once,
in order (X11)."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.service.core.events import EventFilter, EventLog
from ksana.store.sql import SqlStore, open_store

EVERYTHING = EventFilter()


@pytest.fixture(params=["mariadb", "postgres"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[list[SqlStore]]:
    """Three instances on one database."""
    server: Any = request.getfixturevalue(request.param)
    name = server.create_database()
    opened = [await open_store(server.url(name), SystemClock()) for _ in range(3)]
    yield opened
    for store in opened:
        await store.close()
    server.drop_database(name)


def append(tx: Any, *names: str) -> None:
    for name in names:
        tx.events.append("JOB", name, "JOB_CREATED")


def _draw_ids(tx: Any) -> None:
    tx.events.flush()
    tx.events.latest_id()  # a question: what was written before it is sent with it


def append_and_wait(tx: Any, name: str, has_id: threading.Event, may_end: threading.Event) -> None:
    """Draw an event's id and stay open."""
    append(tx, name)
    _draw_ids(tx)
    has_id.set()
    assert may_end.wait(30)


def leave_gap(tx: Any) -> None:
    """Draw ids that never appear: what a rolled back transaction leaves, and MariaDB's INSERT …
    SELECT, which draws more than it needs."""
    append(tx, "gone")
    _draw_ids(tx)
    raise ZeroDivisionError


async def follow(log: EventLog, wanted: EventFilter, count: int, limit: int = 7) -> list[int]:
    """Page until so many were shown, and once more."""
    shown: list[int] = []
    after = 0
    while len(shown) < count:
        page = await log.list_events(wanted, after, limit)
        shown += [event.id for event in page.events]
        after = page.next_after
        if not page.events:
            await asyncio.sleep(0.01)
    page = await log.list_events(wanted, after, limit)
    return shown + [event.id for event in page.events]


async def stream(log: EventLog, wanted: EventFilter, count: int) -> list[int]:
    shown: list[int] = []
    async for batch in log.listen(wanted, 0, 1_000_000):
        shown += [event.id for event in batch]
        if len(shown) >= count:
            break
    return shown


@pytest.mark.spec("X4", "X11")
async def test_an_event_behind_a_transaction_under_way_is_shown_after_it(
    stores: list[SqlStore],
) -> None:
    slow, quick, reading = stores
    log = EventLog(reading, SystemClock())
    has_id, may_end = threading.Event(), threading.Event()
    under_way = asyncio.ensure_future(slow.transact(append_and_wait, "first", has_id, may_end))
    assert await asyncio.to_thread(has_id.wait, 30)
    await quick.transact(append, "second")
    try:
        page = await log.list_events(EVERYTHING, 0, 10)
        filtered = await log.list_events(EventFilter(entity_id="second"), 0, 10)
    finally:
        may_end.set()
    await under_way
    assert page.events == [] and page.next_after == 0
    assert filtered.events == [] and filtered.next_after == 0
    whole = await log.list_events(EVERYTHING, 0, 10)
    assert [event.entity_id for event in whole.events] == ["first", "second"]
    found = await log.list_events(EventFilter(entity_id="second"), 0, 10)
    assert [event.entity_id for event in found.events] == ["second"]
    await log.close()


@pytest.mark.spec("X4", "X11")
@pytest.mark.timeout(60)
async def test_following_the_pages_or_the_stream_shows_every_event_once(
    stores: list[SqlStore],
) -> None:
    log = EventLog(stores[2], SystemClock())
    rounds, each = 12, 30

    async def write(store: SqlStore, writer: int) -> None:
        for turn in range(rounds):
            names = [f"{'even' if n % 2 else 'odd'}" for n in range(each)]
            await store.transact(append, *names)
            if turn % 4 == 0:
                with pytest.raises(ZeroDivisionError):
                    await store.transact(leave_gap)

    total = 3 * 2 * rounds * each
    async with asyncio.TaskGroup() as group:
        for writer, store in enumerate(stores * 2):
            group.create_task(write(store, writer))
        pages = group.create_task(follow(log, EVERYTHING, total, limit=100))
        evens = group.create_task(follow(log, EventFilter(entity_id="even"), total // 2))
        live = group.create_task(stream(log, EVERYTHING, total))
    rows = await stores[0].read(lambda tx: tx.events.list_after(0, 10 * total))
    assert pages.result() == live.result() == [event.id for event in rows]
    assert evens.result() == [event.id for event in rows if event.entity_id == "even"]
    await log.close()


async def test_a_gap_is_found_however_many_young_events_follow_it(stores: list[SqlStore]) -> None:
    slow, quick, reading = stores
    await quick.transact(append, "before")
    has_id, may_end = threading.Event(), threading.Event()
    under_way = asyncio.ensure_future(slow.transact(append_and_wait, "late", has_id, may_end))
    assert await asyncio.to_thread(has_id.wait, 30)
    await quick.transact(append, *("after" for _ in range(2500)))
    first = (await reading.read(lambda tx: tx.events.list_after(0, 1)))[0].id
    try:
        settled = await reading.read(lambda tx: tx.events.settled_id(0))
        later = await reading.read(lambda tx: tx.events.settled_id(tx.now))
    finally:
        may_end.set()
    await under_way
    latest = await reading.read(lambda tx: tx.events.latest_id())
    assert settled == first
    assert later == latest == await reading.read(lambda tx: tx.events.settled_id(0))
