"""Signals by LISTEN and NOTIFY between instances on one PostgreSQL, and what their loss costs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from ksana.store.sql.core import postgres_signals
from ksana.store.sql.core.postgres_signals import LONGEST, MOST_WAITING, PostgresSignals
from tests.ground.postgres import Postgres

Heard = asyncio.Queue[str]


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.heal()
    postgres.drop_database(name)


@contextlib.asynccontextmanager
async def running(*signals: PostgresSignals) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.run()) for one in signals]
    async with asyncio.timeout(20):
        while not all(one.is_live for one in signals):
            await asyncio.sleep(0.01)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not any(one.is_live for one in signals)


def hears(signals: PostgresSignals, name: str) -> Heard:
    heard: Heard = asyncio.Queue()
    signals.subscribe(name, heard.put_nowait)
    return heard


async def tell_until_heard(teller: PostgresSignals, name: str, heard: Heard) -> str:
    """A signal may be lost while a listener connects: tell it until it is heard."""
    async with asyncio.timeout(30):
        while heard.empty():
            teller.publish(name, "detail")
            await asyncio.sleep(0.05)
    return heard.get_nowait()


def end_connections(server: Postgres, url: str) -> int:
    """Have the server end every connection of signals; how many there were."""
    name = url.rpartition("/")[2].partition("?")[0]
    with (
        contextlib.closing(server.connect(name)) as connection,
        contextlib.closing(connection.cursor()) as cursor,
    ):
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'ksana signals' AND datname = current_database()"
        )
        return len(cursor.fetchall())


@pytest.mark.spec("X3", "X4")
async def test_a_signal_is_heard_by_the_others_by_its_name_and_not_by_its_sender(url: str) -> None:
    one, other = PostgresSignals(url, "one"), PostgresSignals(url, "other")
    async with running(one, other):
        heard, strange, own = hears(other, "tasks.due"), hears(other, "x"), hears(one, "tasks.due")
        one.publish("tasks.due", "17")
        await one.flush()
        async with asyncio.timeout(10):
            assert await heard.get() == "17"
        assert strange.empty()
        assert own.empty()


@pytest.mark.spec("X3", "X4")
async def test_signals_are_heard_again_after_every_connection_was_ended(
    postgres: Postgres, url: str
) -> None:
    one, other = PostgresSignals(url, "one"), PostgresSignals(url, "other")
    async with running(one, other):
        heard = hears(other, "queue.ready")
        await tell_until_heard(one, "queue.ready", heard)
        assert await asyncio.to_thread(end_connections, postgres, url) == 4
        await tell_until_heard(one, "queue.ready", heard)


@pytest.mark.spec("X3")
async def test_signals_that_nobody_delivers_do_not_count_as_live(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf(self: PostgresSignals, connection: object, is_over: object) -> None:
        """A pooler: LISTEN is answered, and nothing ever comes."""
        is_over.wait(60)  # type: ignore[attr-defined]

    monkeypatch.setattr(PostgresSignals, "_listen", deaf)
    monkeypatch.setattr(postgres_signals, "ECHO_EVERY_S", 0.05)
    signals = PostgresSignals(url, "one")
    task = asyncio.create_task(signals.run())
    signals.publish("queue.ready")
    await signals.flush()  # so the teller is connected, and has echoed
    await asyncio.sleep(0.3)
    assert not signals.is_live
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_what_cannot_be_told_is_dropped_and_nobody_waits() -> None:
    signals = PostgresSignals("postgresql://nobody@127.0.0.1:1/x", "one")
    signals.publish("x", "d" * LONGEST)
    assert signals.dropped == 1
    for _ in range(MOST_WAITING + 5):
        signals.publish("queue.ready")
    assert signals.dropped == 6
    assert not signals.is_live
