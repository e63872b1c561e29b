"""How each database finds dead letters, and what is old beside them: by a range of an index, in its
order, whatever the filters are."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.dead_letters import NewLetter, group_key
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.store.plans import analyze, assert_index_range, explain

LETTERS = 20_000
VALUES: dict[str, Any] = {
    "surface": "queue",
    "error_key": group_key("a broke"),
    "source": "addon1",
    "after": 3,
    "before": 5,
    "keep": 1000,
    "limit": 10,
    "since": 1,
    "until": 4_000_000_000_000_000,
    "before_at": 4_000_000_000_000_000,
    "before_id": 9,
}
SPAN = ("since", "until")
PAGE = (*SPAN, "before_at")
PLANS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "list_letters": ("dead_letters_age", ((), SPAN, PAGE)),
    "list_of_error": ("dead_letters_error", ((), SPAN, PAGE)),
    "list_of_source": ("dead_letters_source", ((), SPAN, PAGE)),
    "count_letters": ("dead_letters_age", ((), SPAN)),
    "count_of_error": ("dead_letters_error", ((), SPAN)),
    "count_of_source": ("dead_letters_source", ((), SPAN)),
    "next_error": ("dead_letters_error", ((),)),
    "oldest_of_error": ("dead_letters_error", ((),)),
    "list_surplus": ("dead_letters_source", ((),)),
    "list_old": ("dead_letters_age", ((),)),
}


@pytest.fixture
async def filled(store_url: str) -> AsyncIterator[SqlStore]:
    """A store with many letters: five errors, five sources, two surfaces."""
    store = await open_store(store_url, SystemClock())

    def fill(tx: Any, numbers: range) -> None:
        letters = [
            NewLetter(f"j{n}", f"addon{n % 5}", "FAILED", f"{'abcde'[n % 5]} broke")
            for n in numbers
        ]
        tx.dead_letters.add("queue", letters[: len(letters) // 2])
        tx.dead_letters.add("tasks", letters[len(letters) // 2 :])

    for start in range(0, LETTERS, 1000):
        await store.transact(fill, range(start, start + 1000))
    yield store
    await store.close()


@pytest.mark.spec("B12", "X13")
async def test_what_lists_and_counts_read_is_an_index_range_on_every_database(
    filled: SqlStore, store_url: str
) -> None:
    database = Database(store_url)
    analyze(database, "dead_letters")
    for name, (index, variants) in PLANS.items():
        for filters in variants:
            statement = f"dead_letters.{name}"
            plan = await filled.transact(explain, statement, database.kind, VALUES, filters)
            assert_index_range(plan, index, "dead_letters", f"{name} {filters}")
