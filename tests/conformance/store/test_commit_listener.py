"""Who listens to commits is told of each once, when it is durable, and never of what was undone."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from ksana.ports.store import Committed
from ksana.store.sql import SqlStore
from tests.conformance.store import checks
from tests.conformance.store.checks import BugError, batched, enter_key
from tests.conformance.store.ground import Database


class Listener:
    def __init__(self, store: SqlStore, *event_types: str) -> None:
        self.told: list[Committed] = []
        store.watch_commits(self.told.append, frozenset(event_types))

    @property
    def counts(self) -> dict[str, tuple[int, float]]:
        sums: dict[str, tuple[int, float]] = {}
        for committed in self.told:
            for (metric, _), (count, total) in committed.counts.items():
                before = sums.get(metric, (0, 0.0))
                sums[metric] = before[0] + count, before[1] + total
        return sums

    @property
    def events(self) -> Counter[tuple[str, str]]:
        return Counter(
            (event[3], event[2]) for committed in self.told for event in committed.events
        )


def count_key(tx: Any, name: str) -> None:
    enter_key(tx, name)
    tx.rollups.add("entered", count=2, total=0.5)


def count_and_stumble(tx: Any, name: str) -> None:
    count_key(tx, name)
    raise BugError(name)


async def test_counts_and_the_events_asked_for_are_told(store: SqlStore) -> None:
    listener = Listener(store, "KEY_REVOKED")
    await asyncio.gather(*(store.transact(count_key, f"k{n}") for n in range(5)))
    await store.transact(checks.revoke_key, "k1")
    assert listener.counts == {"entered": (10, 2.5)}
    assert listener.events == {("KEY_REVOKED", "k1"): 1}


async def test_what_a_failed_function_counted_is_not_told_its_neighbours_is(
    store: SqlStore,
) -> None:
    listener = Listener(store, "KEY_CREATED")
    await batched(store, (count_key, "a"), (count_and_stumble, "b"), (count_key, "c"))
    assert listener.counts == {"entered": (4, 1.0)}
    assert listener.events == {("KEY_CREATED", "a"): 1, ("KEY_CREATED", "c"): 1}


async def test_a_commit_that_is_run_again_is_told_once(store: SqlStore, database: Database) -> None:
    if not database.can_sever:
        pytest.skip("an embedded database has no connection to lose")
    listener = Listener(store, "KEY_CREATED")
    runs = 0

    def lose_the_connection_once(tx: Any) -> None:
        nonlocal runs
        runs += 1
        count_key(tx, "a")
        if runs == 1:
            database.sever(database.connection_of(tx))

    await store.transact(lose_the_connection_once)
    assert runs == 2
    assert listener.counts == {"entered": (2, 0.5)}
    assert listener.events == {("KEY_CREATED", "a"): 1}


async def test_reads_and_writes_without_counts_tell_nothing_of_them(store: SqlStore) -> None:
    listener = Listener(store)
    await store.transact(enter_key, "a")
    await store.read(checks.key_names)
    assert not listener.counts and not listener.events


async def test_a_listener_that_fails_costs_nobody_his_answer(store: SqlStore) -> None:
    def fail(_: Committed) -> None:
        raise BugError("listener")

    store.watch_commits(fail, frozenset())
    assert await store.transact(enter_key, "a") == "a"
    assert await store.read(checks.key_names) == {"a"}
