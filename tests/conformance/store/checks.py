"""What every store must do, as plain functions of an open store: the suite calls them, and so do
the proofs that they bite."""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ksana.base.errors import ConflictError
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import LEASE, Database

PATIENCE_S = 3.0


class BugError(Exception):
    """A mistake in a transaction function: not one of our own errors."""


def enter_key(tx: Any, name: str) -> str:
    """Write one row and one event."""
    tx.keys.insert(name, name, "0" * 64, ("read",))
    tx.events.append("KEY", name, "KEY_CREATED")
    return name


def revoke_key(tx: Any, name: str) -> bool:
    """Revoke a key that is live, with an event."""
    if not tx.keys.revoke_if_live(name):
        return False
    tx.events.append("KEY", name, "KEY_REVOKED")
    return True


def key_names(tx: Any) -> set[str]:
    return {key.name for key in tx.keys.list_keys()}


def event_types(tx: Any) -> list[str]:
    return [f"{event.type}:{event.entity_id}" for event in tx.events.list_after(0, 500)]


def refuse(tx: Any) -> None:
    raise ConflictError("not in this state")


def refuse_after_write(tx: Any, name: str) -> None:
    enter_key(tx, name)
    tx.rollups.add("refused")
    raise ConflictError("too late")


def stumble_after_write(tx: Any, name: str) -> None:
    enter_key(tx, name)
    raise BugError(name)


def append_only_then_refuse(tx: Any) -> None:
    tx.events.append("TASK", "gone", "NEVER")
    raise ConflictError("on second thoughts")


def append_what_no_table_takes(tx: Any, name: str) -> None:
    enter_key(tx, name)
    tx.events.append("TASK", "\ud800", "LONE_SURROGATE")


class Plug:
    """A transaction function that holds a writer until told, so that what is sent meanwhile waits
    together."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()

    def __call__(self, tx: Any) -> None:
        self.entered.set()
        assert self.gate.wait(30)


async def hold_writers(
    store: SqlStore, count: int, make: Callable[[], Plug] = Plug
) -> tuple[list[Plug], list["asyncio.Task[None]"]]:
    """Occupy every writer of the store with a function that waits."""
    plugs, tasks = [], []
    for _ in range(count):
        plug = make()
        tasks.append(asyncio.ensure_future(store.transact(plug)))
        assert await asyncio.to_thread(plug.entered.wait, 10), "no writer took the function"
        plugs.append(plug)
    return plugs, tasks


def writer_count(store: SqlStore) -> int:
    return len(store._writes._threads)  # type: ignore[attr-defined]


async def batched(
    store: SqlStore, *calls: tuple[Callable[..., Any], *tuple[Any, ...]]
) -> list[Any]:
    """Let the calls wait together, so that one writer finds them all; answer what came of each."""
    plugs, tasks = await hold_writers(store, writer_count(store))
    waiting = [asyncio.ensure_future(store.transact(fn, *args)) for fn, *args in calls]
    await asyncio.sleep(0)  # each has put itself into the queue
    plugs[0].gate.set()
    await tasks[0]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    for plug in plugs:
        plug.gate.set()
    await asyncio.gather(*tasks)
    return answers


FAILURES: dict[str, tuple[tuple[Callable[..., Any], ...], str]] = {
    "refused before a write": ((refuse,), "ConflictError"),
    "refused after a write": ((refuse_after_write, "undone"), "ConflictError"),
    "refused after an event": ((append_only_then_refuse,), "ConflictError"),
    "a bug after a write": ((stumble_after_write, "undone"), "BugError"),
    "a broken constraint": ((enter_key, "taken"), "IntegrityError|UniqueViolation"),
    "an event that cannot be stored": (
        (append_what_no_table_takes, "undone"),
        "UnicodeEncodeError",
    ),
}


async def check_failures_stay_with_their_function(store: SqlStore) -> None:
    """Each kind of failure between two neighbours, then all kinds in one batch: each sees its own
    and leaves nothing."""
    await store.transact(enter_key, "taken")
    expected = {"taken"}
    for number, (what, (call, error)) in enumerate(FAILURES.items()):
        before, after = f"before{number}", f"after{number}"
        answers = await batched(store, (enter_key, before), call, (enter_key, after))
        assert (answers[0], answers[2]) == (before, after), (
            f"{what}: a neighbour suffered, {answers}"
        )
        assert re.fullmatch(error, type(answers[1]).__name__), f"{what}: got {answers[1]!r}"
        expected |= {before, after}
        assert await store.read(key_names) == expected, f"{what}: something of it stayed"
    calls = [call for call, _ in FAILURES.values()]
    mixed = [part for n, call in enumerate(calls) for part in ((enter_key, f"mixed{n}"), call)]
    answers = await batched(store, *mixed)
    assert answers[::2] == [f"mixed{n}" for n in range(len(calls))]
    assert all(isinstance(answer, Exception) for answer in answers[1::2])
    expected |= set(answers[::2])
    assert await store.read(key_names) == expected
    assert sorted(await store.read(event_types)) == sorted(
        f"KEY_CREATED:{name}" for name in expected
    )
    assert await store.read(lambda tx: tx.rollups.list_buckets("refused", "", 0, 2**53)) == []


async def check_guards_answer_whether_it_happened(store: SqlStore) -> None:
    """A guarded write on a state that does not hold answers False and changes nothing."""

    def revoke(tx: Any) -> bool:
        return bool(tx.keys.revoke_if_live("k"))

    await store.transact(enter_key, "k")
    assert await store.transact(revoke) is True
    revoked = (await store.read(lambda tx: tx.keys.list_keys()))[0].revoked_at
    assert await store.transact(revoke) is False
    assert (await store.read(lambda tx: tx.keys.list_keys()))[0].revoked_at == revoked
    assert (
        await store.transact(lambda tx: tx.instances.renew_if_registered("nobody", LEASE)) is False
    )
    await store.transact(lambda tx: tx.instances.register("i", "h", "1", LEASE, False))
    assert await store.transact(lambda tx: tx.instances.renew_if_registered("i", LEASE)) is True
    await store.transact(lambda tx: tx.instances.stop("i"))
    assert await store.transact(lambda tx: tx.instances.renew_if_registered("i", LEASE)) is False
    assert await store.transact(lambda tx: tx.locks.take("chore", "one", LEASE)) is True
    assert await store.transact(lambda tx: tx.locks.take("chore", "two", LEASE)) is False


async def check_deadlocks_are_retried(store: SqlStore) -> None:
    """Two functions that lock the same rows in opposite order both succeed, once each."""
    for name in ("a", "b"):
        await store.transact(lambda tx, name=name: tx.locks.take(name, "me", LEASE))
    met = {"ab": threading.Event(), "ba": threading.Event()}

    def cross(tx: Any, path: str) -> str:
        assert tx.locks.take(path[0], "me", LEASE)
        met[path].set()
        if not store.sole:  # with one writer the other cannot come meanwhile
            met[path[::-1]].wait(PATIENCE_S)
        assert tx.locks.take(path[1], "me", LEASE)
        tx.events.append("LOCK", path, "CROSSED")
        return path

    first = asyncio.ensure_future(store.transact(cross, "ab"))
    assert await asyncio.to_thread(met["ab"].wait, PATIENCE_S)
    assert await asyncio.gather(first, store.transact(cross, "ba")) == ["ab", "ba"]
    assert sorted(await store.read(event_types)) == ["CROSSED:ab", "CROSSED:ba"]
    assert store.sole or store.health().retries >= 1


async def check_a_connection_lost_before_commit_is_replaced(
    store: SqlStore, database: Database
) -> None:
    """The server ends the connection in the middle of a function: it runs again on a new one and
    takes effect once."""
    severed: list[int] = []

    def write_through_a_cut(tx: Any) -> int:
        enter_key(tx, "before")
        if not severed:
            severed.append(database.connection_of(tx))
            database.sever(severed[0])
        enter_key(tx, "after")
        return database.connection_of(tx)

    used = await store.transact(write_through_a_cut)
    assert used != severed[0]
    assert await store.read(key_names) == {"before", "after"}
    assert await store.read(event_types) == ["KEY_CREATED:before", "KEY_CREATED:after"]
    assert store.health().ok


async def check_a_busy_database_is_waited_for(store: SqlStore, database: Database) -> None:
    """Another program holds the only write lock for longer than SQLite waits by itself: the write
    is tried again."""
    if not store.sole:
        pytest.skip("a network database has no lock on the whole of it")
    holder = database.connect()
    holder.execute("BEGIN IMMEDIATE")
    retries = store.health().retries
    task = asyncio.ensure_future(store.transact(enter_key, "patient"))
    while store.health().retries == retries and not task.done():
        await asyncio.sleep(0.01)
    holder.execute("ROLLBACK")
    holder.close()
    assert await task == "patient"


async def check_writers_share_commits(store: SqlStore) -> None:
    """Functions that wait are committed together; one alone is committed at once."""
    before = store.health()
    await store.transact(enter_key, "alone")
    alone = store.health()
    assert (alone.commits - before.commits, alone.transactions - before.transactions) == (1, 1)
    names = [f"k{n:03}" for n in range(100)]
    assert await batched(store, *((enter_key, name) for name in names)) == names
    after = store.health()
    assert after.transactions - alone.transactions == 100
    assert after.commits - alone.commits <= 1
    assert await store.read(key_names) == {"alone", *names}


async def check_the_writer_syncs_every_commit(store: SqlStore) -> None:
    """The settings of the writer's own connection: a log, synced at every commit."""
    if not store.sole:
        pytest.skip("a network database syncs by its own settings: see SqlStore.warnings")
    assert await store.transact(lambda tx: tx._session.raw("PRAGMA synchronous")) == (2,)
    assert await store.transact(lambda tx: tx._session.raw("PRAGMA journal_mode")) == ("wal",)
