"""A database server that stops, crashes, freezes, or is set to be forgetful."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError, StoreDownError
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.checks import (
    Plug,
    enter_key,
    event_types,
    hold_writers,
    key_names,
    writer_count,
)
from tests.conformance.store.ground import Database
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres

AnyServer = MariaDB | Postgres


async def read_when_back(store: SqlStore) -> set[str]:
    """A reader tries again after a pause of its own."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await store.read(key_names)
            except StoreDownError:
                await asyncio.sleep(0.05)


async def write_when_back(store: SqlStore, name: str) -> None:
    """Write as soon as the store lets us; failing to within twenty seconds is an error."""
    give_up_at = time.monotonic() + 20
    while True:
        try:
            await store.transact(enter_key, name)
            return
        except StoreDownError:
            assert time.monotonic() < give_up_at, "the store did not come back by itself"
            await asyncio.sleep(0.05)


async def test_a_stopped_server_is_told_soon_and_resumed_by_itself(
    server_store: tuple[str, AnyServer],
) -> None:
    url, server = server_store
    store = await open_store(url, SystemClock())
    await store.transact(enter_key, "before")
    assert await store.read(key_names) == {"before"}
    await asyncio.to_thread(server.stop)
    begun = time.monotonic()
    for attempt in range(3):
        with pytest.raises(StoreDownError, match="away"):
            await store.transact(enter_key, f"lost-{attempt}")
        with pytest.raises(StoreDownError, match="away"):
            await store.read(key_names)
    assert time.monotonic() - begun < 5
    assert not store.health().ok
    assert store.health().reason
    server.start()
    await write_when_back(store, "after")
    assert store.health().ok
    assert await read_when_back(store) == {"before", "after"}
    await store.close()


async def test_a_server_that_is_away_at_the_start_is_no_setup_mistake(
    server_store: tuple[str, AnyServer],
) -> None:
    url, server = server_store
    await asyncio.to_thread(server.stop)
    with pytest.raises(StoreDownError, match="away"):
        await open_store(url, SystemClock())
    server.start()
    store = await open_store(url, SystemClock())
    await store.close()


@pytest.mark.fault("F26")
async def test_a_crash_of_the_server_loses_nothing_acknowledged(
    server_store: tuple[str, AnyServer],
) -> None:
    url, server = server_store
    store = await open_store(url, SystemClock())
    acknowledged: set[str] = set()
    enough = asyncio.Event()

    async def write(worker: int) -> None:
        for n in range(10_000):
            try:
                acknowledged.add(await store.transact(enter_key, f"w{worker}-{n}"))
            except StoreDownError:
                return
            if len(acknowledged) > 50:
                enough.set()

    writers = [asyncio.ensure_future(write(n)) for n in range(8)]
    await asyncio.wait_for(enough.wait(), 30)
    await asyncio.to_thread(server.kill)
    server.start()
    await write_when_back(store, "after")
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    kept = await store.read(key_names)
    assert acknowledged <= kept
    events = [row[0] for row in Database(url).ask("SELECT entity_id FROM scheduler_events")]
    assert sorted(events) == sorted(kept), "a row without its event, or one of them twice"
    await store.close()


async def test_a_silent_server_holds_what_was_begun_and_refuses_the_rest(
    server_store: tuple[str, AnyServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ksana.store.sql.core.call_queue.STALE_SECONDS", 1.0)
    url, server = server_store
    store = await open_store(url, SystemClock())
    count = writer_count(store)
    plugs, held = await hold_writers(store, count)  # each has its connection now
    for plug in plugs:
        plug.gate.set()
    await asyncio.gather(*held)
    server.pause()
    begun = []
    for n in range(count):  # one for each writer, taken before the next is sent
        begun.append(asyncio.ensure_future(store.transact(enter_key, f"begun{n}")))
        await asyncio.sleep(0)  # it has put itself into the queue
        while not store._writes._waiting.is_empty():  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
    waiting = [asyncio.ensure_future(store.transact(enter_key, f"waiting{n}")) for n in range(5)]
    answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(answer) for answer in answers] == [StoreDownError] * 5
    assert not any(task.done() for task in begun)
    server.resume()
    assert await asyncio.gather(*begun) == [f"begun{n}" for n in range(count)]
    kept = await store.read(key_names)
    assert {f"begun{n}" for n in range(count)} <= kept
    assert not any(name.startswith("waiting") for name in kept)
    assert await store.transact(enter_key, "after") == "after"
    await store.close()


async def writer_connections(store: SqlStore, database: Database) -> set[int]:
    """The server's number for the connection of every writer."""
    found: list[int] = []

    class Asking(Plug):
        def __call__(self, tx: Any) -> None:
            found.append(database.connection_of(tx))
            super().__call__(tx)

    plugs, held = await hold_writers(store, writer_count(store), Asking)
    for plug in plugs:
        plug.gate.set()
    await asyncio.gather(*held)
    return set(found)


async def test_an_idle_connection_that_was_ended_is_replaced_unseen(
    server_store: tuple[str, AnyServer],
) -> None:
    url, _ = server_store
    store = await open_store(url, SystemClock())
    database = Database(url)
    numbers = await writer_connections(store, database)
    numbers.add(await store.read(database.connection_of))
    assert len(numbers) == writer_count(store) + 1
    for number in numbers:
        database.sever(number)
    assert not numbers & await writer_connections(store, database)
    for n in range(4):
        assert await store.transact(enter_key, f"k{n}") == f"k{n}"
        assert f"k{n}" in await store.read(key_names)
    assert len(await store.read(event_types)) == 4
    await store.close()


@contextmanager
def forgetful(database: Database) -> Iterator[str]:
    """Set the server so that it may lose acknowledged writes, and back again; the name of the
    setting."""
    if database.kind == "mysql":
        setting, weaken, restore = (
            "innodb_flush_log_at_trx_commit",
            ["SET GLOBAL innodb_flush_log_at_trx_commit = 2"],
            ["SET GLOBAL innodb_flush_log_at_trx_commit = 1"],
        )
    else:
        reload = "SELECT pg_reload_conf()"
        name = database.ask("SELECT current_database()")[0][0]
        setting, weaken, restore = (
            "synchronous_commit",
            [f"ALTER DATABASE {name} SET synchronous_commit = off", reload],
            [f"ALTER DATABASE {name} RESET synchronous_commit", reload],
        )
    for statement in weaken:
        database.ask(statement)
    try:
        yield setting
    finally:
        for statement in restore:
            database.ask(statement)


@pytest.mark.fault("F26")
async def test_a_forgetful_server_is_warned_of_and_refused_if_so_told(
    server_store: tuple[str, AnyServer],
) -> None:
    url, _ = server_store
    store = await open_store(url, SystemClock(), durability="strict")
    assert store.warnings == []
    await store.close()
    with forgetful(Database(url)) as setting:
        store = await open_store(url, SystemClock())
        assert [setting in warning for warning in store.warnings] == [True]
        await store.close()
        with pytest.raises(SetupError, match=setting):
            await open_store(url, SystemClock(), durability="strict")


async def test_our_own_writes_are_synchronous_whatever_the_server_is_set_to(
    postgres: Postgres,
) -> None:
    url = postgres.url(postgres.create_database())
    with forgetful(Database(url)):
        store = await open_store(url, SystemClock())
        setting = await store.transact(lambda tx: tx._session.raw("SHOW synchronous_commit"))
        assert setting == ("on",)
        await store.close()
