"""Many callers on two stores over one database: one winner, whole transactions, the right answer
for each, no deadlock left."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.checks import (
    BugError,
    enter_key,
    event_types,
    key_names,
    refuse_after_write,
    revoke_key,
    stumble_after_write,
)
from tests.conformance.store.ground import LEASE


@pytest.fixture
async def stores(store_url: str) -> AsyncIterator[list[SqlStore]]:
    """Two instances on one database."""
    stores = [await open_store(store_url, SystemClock()) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()


@pytest.mark.fault("F01")
@pytest.mark.spec("X12")
async def test_of_many_who_change_one_state_one_wins(stores: list[SqlStore]) -> None:
    for round_number in range(5):
        name = f"k{round_number}"
        await stores[0].transact(enter_key, name)
        answers = await asyncio.gather(
            *(stores[n % 2].transact(revoke_key, name) for n in range(40))
        )
        assert sum(answers) == 1
    events = await stores[1].read(event_types)
    assert sum(event.startswith("KEY_REVOKED") for event in events) == 5


@pytest.mark.fault("F36")
async def test_functions_that_lock_many_rows_in_any_order_all_succeed_once(
    stores: list[SqlStore],
) -> None:
    rows = [f"lock{n}" for n in range(6)]
    await stores[0].transact(lambda tx: [tx.locks.take(row, "all", LEASE) for row in rows])
    dice = random.Random(7)

    def touch(tx: Any, order: list[str], number: int) -> int:
        for row in order:
            assert tx.locks.take(row, "all", LEASE)
        tx.events.append("LOCK", number, "TOUCHED")
        return number

    calls = [stores[n % 2].transact(touch, dice.sample(rows, 4), n) for n in range(60)]
    assert await asyncio.gather(*calls) == list(range(60))
    assert sorted(await stores[0].read(event_types)) == sorted(f"TOUCHED:{n}" for n in range(60))


async def test_readers_beside_writers_see_whole_transactions(stores: list[SqlStore]) -> None:
    def enter_pair(tx: Any, number: int) -> None:
        enter_key(tx, f"a{number}")
        enter_key(tx, f"b{number}")

    def look(tx: Any) -> tuple[set[str], set[str]]:
        return key_names(tx), {event.removeprefix("KEY_CREATED:") for event in event_types(tx)}

    async def read_on() -> int:
        looks = 0
        while not written.done():
            names, told = await stores[1].read(look)
            assert names == told, "a row without its event, or an event without its row"
            assert {name[1:] for name in names if name[0] == "a"} == {
                name[1:] for name in names if name[0] == "b"
            }
            looks += 1
        return looks

    written = asyncio.gather(*(stores[n % 2].transact(enter_pair, n) for n in range(100)))
    looks = await asyncio.gather(read_on(), read_on())
    await written
    assert all(looks)


async def test_each_of_many_mixed_callers_gets_its_own_answer(stores: list[SqlStore]) -> None:
    dice = random.Random(3)
    kinds = [dice.choice(("good", "good", "good", "refused", "bug", "twice")) for _ in range(200)]
    await stores[0].transact(enter_key, "twice")

    async def call(number: int, kind: str) -> str:
        store, name = stores[number % 2], f"k{number}"
        try:
            if kind == "refused":
                await store.transact(refuse_after_write, name)
            elif kind == "bug":
                await store.transact(stumble_after_write, name)
            elif kind == "twice":
                await store.transact(enter_key, "twice")
            else:
                assert await store.transact(enter_key, name) == name
                return "good"
        except ConflictError:
            return "refused"
        except BugError as error:
            return "bug" if str(error) == name else "another's"
        except Exception as error:
            return (
                "twice"
                if type(error).__name__ in ("IntegrityError", "UniqueViolation")
                else repr(error)
            )
        return "no error"

    assert await asyncio.gather(*(call(n, kind) for n, kind in enumerate(kinds))) == kinds
    expected = {"twice", *(f"k{n}" for n, kind in enumerate(kinds) if kind == "good")}
    assert await stores[0].read(key_names) == expected
    assert sorted(await stores[1].read(event_types)) == sorted(
        f"KEY_CREATED:{name}" for name in expected
    )
