"""Pages that end early because their rows are large, the same on every database."""

from typing import Any

import pytest

from ksana.store.sql import SqlStore

pytestmark = pytest.mark.spec("X13", "X2")

MEBIBYTE = 1024 * 1024


def append_large(tx: Any, count: int) -> None:
    for number in range(count):
        tx.events.append("TASK", number, "TASK_CREATED", {"noise": "ü" * (MEBIBYTE // 2)})


async def test_a_page_ends_where_its_bytes_do_and_goes_on_after_it(store: SqlStore) -> None:
    await store.transact(append_large, 12)
    page = lambda tx, after: tx.events.list_after(after, 500, max_bytes=8 * MEBIBYTE)  # noqa: E731
    first = await store.read(page, 0)
    rest = await store.read(page, first[-1].id)
    assert [len(first), first.is_cut, len(rest), rest.is_cut] == [7, True, 5, False]
    assert [int(event.entity_id) for event in [*first, *rest]] == list(range(12))


async def test_the_newest_first_end_there_too(store: SqlStore) -> None:
    await store.transact(append_large, 9)
    page = await store.read(
        lambda tx: tx.events.list_after(0, 500, max_bytes=3 * MEBIBYTE, is_newest_first=True)
    )
    assert [int(event.entity_id) for event in page] == [8, 7]
    assert page.is_cut


@pytest.mark.parametrize("max_bytes", [0, 1])
async def test_a_row_larger_than_the_page_comes_alone(store: SqlStore, max_bytes: int) -> None:
    await store.transact(append_large, 2)
    page = await store.read(lambda tx: tx.events.list_after(0, 500, max_bytes=max_bytes))
    assert [len(page), page.is_cut] == [1, True]


async def test_a_page_that_fits_or_is_empty_is_not_cut(store: SqlStore) -> None:
    await store.transact(append_large, 2)
    page = await store.read(lambda tx: tx.events.list_after(0, 2, max_bytes=8 * MEBIBYTE))
    none = await store.read(lambda tx: tx.events.list_after(page[-1].id, 2, max_bytes=1))
    assert [len(page), page.is_cut, len(none), none.is_cut] == [2, False, 0, False]
