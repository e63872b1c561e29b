"""What the store keeps of Idempotency-Keys: facts, no rule (X21)."""

from typing import Any

import pytest

from ksana.base.instant import DAY, SECOND
from ksana.ports.store import RememberedAnswer
from ksana.store.sql import SqlStore

KEY, OTHER = "k" * 64, "o" * 64
BODY = "b" * 64
SCOPE = "tasks.create:" + "c" * 147
"""As long as a scope may be."""


def remember(tx: Any, ttl_us: int, scope: str = SCOPE, key: str = KEY) -> bool:
    return bool(tx.idempotency.remember(scope, key, BODY, '{"a":"🌍"}', ttl_us))


async def find(store: SqlStore, scope: str = SCOPE, key: str = KEY) -> RememberedAnswer | None:
    found: RememberedAnswer | None = await store.read(
        lambda tx: tx.idempotency.find_answer(scope, key)
    )
    return found


@pytest.mark.spec("X21")
async def test_an_answer_is_remembered_until_it_expires(store: SqlStore) -> None:
    assert len(SCOPE) == 160
    assert await find(store) is None
    assert await store.transact(remember, 60 * SECOND)
    assert await find(store) == RememberedAnswer(body_hash=BODY, answer='{"a":"🌍"}')
    assert not await store.transact(remember, 60 * SECOND), "the first answer counts"
    assert await store.transact(lambda tx: tx.idempotency.purge(tx.now, 10)) == 0
    assert await store.transact(lambda tx: tx.idempotency.purge(tx.now + DAY, 10)) == 1
    assert await store.transact(remember, 0)
    assert await find(store) is None
    assert await store.transact(remember, 60 * SECOND), "an expired answer makes room"


@pytest.mark.spec("X21")
async def test_scopes_and_keys_do_not_share_answers(store: SqlStore) -> None:
    assert await store.transact(remember, 60 * SECOND)
    assert await find(store, scope="tasks.create:other") is None
    assert await find(store, key=OTHER) is None
    assert await store.transact(remember, 60 * SECOND, "tasks.create:other")
    assert await store.transact(remember, 60 * SECOND, SCOPE, OTHER)
    assert await store.transact(remember, 0, "expired", OTHER)
    assert await store.transact(remember, 60 * SECOND, "expired", KEY)
    assert await store.transact(remember, 60 * SECOND, "expired", OTHER)
    assert await find(store, "expired", KEY) is not None, "only its own key made room"


@pytest.mark.spec("X13")
async def test_a_purge_removes_so_many_and_the_oldest_first(store: SqlStore) -> None:
    def fill(tx: Any) -> None:
        for n in range(10):
            assert remember(tx, n * SECOND, f"s{n}")

    await store.transact(fill)
    assert await store.transact(lambda tx: tx.idempotency.purge(tx.now + 8 * SECOND, 6)) == 6
    assert await store.transact(lambda tx: tx.idempotency.purge(tx.now + 8 * SECOND, 6)) in (2, 3)
    assert await find(store, "s9") is not None
