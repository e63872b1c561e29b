"""Dead letters of every surface, on every SQL store: entered with the failure, and found."""

from typing import Any

import pytest

from ksana.domain.dead_letters import LetterFilter, LetterRecord, NewLetter, group_key
from ksana.service.core import letter_pages
from ksana.store.sql import SqlStore
from tests.ground.dead_letters import Failing

EVERYTHING = LetterFilter()


@pytest.fixture
def failing(store: SqlStore) -> Failing:
    return Failing(store)


async def list_all(
    failing: Failing, wanted: LetterFilter = EVERYTHING, *surfaces: str
) -> list[LetterRecord]:
    page = await failing.letters.list_letters(surfaces or failing.surfaces, wanted, None, 100)
    assert page.next_place is None
    return page.letters


async def add_letters(store: SqlStore, count: int, error: str = "e", source: str = "s") -> None:
    def add(tx: Any) -> None:
        first = tx._session.raw("SELECT COUNT(*) FROM dead_letters")[0]
        numbers = range(first, first + count)
        tx.dead_letters.add("queue", [NewLetter(f"j{n}", source, "FAILED", error) for n in numbers])

    await store.transact(add)


@pytest.mark.spec("B12", "X2")
async def test_whatever_fails_for_good_is_a_dead_letter_newest_first(failing: Failing) -> None:
    task_id = await failing.add_task()
    runs = [
        await failing.fail_run(task_id, f"{status} 1", status)
        for status in ("FAILED", "TIMEOUT", "FAILED_TIMEOUT")
    ]
    job_id = await failing.fail_job("addon", None)
    governance_id = await failing.fail_governance_job("m1", "bad")
    found = await list_all(failing)
    assert [(one.surface, one.entity_id, one.source, one.status, one.error) for one in found] == [
        ("governance", governance_id, "memory", "dead_letter", "bad"),
        ("queue", job_id, "addon", "FAILED", "FAILED"),
        ("tasks", str(runs[2]), str(task_id), "FAILED_TIMEOUT", "FAILED_TIMEOUT 1"),
        ("tasks", str(runs[1]), str(task_id), "TIMEOUT", "TIMEOUT 1"),
        ("tasks", str(runs[0]), str(task_id), "FAILED", "FAILED 1"),
    ]
    await failing.fail_run(task_id, status="CANCELED")
    assert len(await list_all(failing)) == 5


@pytest.mark.spec("B12")
async def test_letters_are_found_by_error_by_source_and_by_time(failing: Failing) -> None:
    one, two = await failing.add_task("one"), await failing.add_task("two")
    first = await failing.fail_run(one, "connection to 10.0.0.1:80 refused")
    await failing.fail_run(one, "answered 500")
    third = await failing.fail_run(two, "connection to 10.0.0.2:8080 refused")
    job_id = await failing.fail_job(error="connection to 10.9.9.9:1 refused")
    refused = LetterFilter(error_key=group_key("connection to #.#.#.#:# refused"))
    assert {letter.entity_id for letter in await list_all(failing, refused)} == {
        str(first),
        str(third),
        job_id,
    }
    of_one = await list_all(failing, LetterFilter(source=str(one)), "tasks")
    assert [letter.error for letter in of_one] == [
        "answered 500",
        "connection to 10.0.0.1:80 refused",
    ]
    both = LetterFilter(error_key=refused.error_key, source=str(one))
    [narrowed] = await list_all(failing, both, "tasks")
    assert narrowed.entity_id == str(first)
    counted = [await failing.letters.count(["tasks"], wanted) for wanted in (refused, both)]
    assert [(one.count, one.is_capped) for one in counted] == [(2, False), (1, False)]
    newest, *older = await list_all(failing)
    since = LetterFilter(since=newest.died_at)
    assert [letter.id for letter in await list_all(failing, since)] == [newest.id]
    until = LetterFilter(until=newest.died_at)
    assert await list_all(failing, until) == older
    assert (await failing.letters.count(failing.surfaces, until)).count == 3


@pytest.mark.spec("B12")
async def test_pages_go_on_where_they_ended_whatever_comes_or_goes(
    failing: Failing, store: SqlStore
) -> None:
    await add_letters(store, 5)  # all of one instant
    await add_letters(store, 4)
    task_id = await failing.add_task()
    await failing.fail_run(task_id)
    whole = [letter.id for letter in await list_all(failing)]
    seen: list[int] = []
    place = None
    while True:
        page = await failing.letters.list_letters(failing.surfaces, EVERYTHING, place, 2)
        seen += [letter.id for letter in page.letters]
        place = page.next_place
        if place is None:
            break
        await failing.fail_run(task_id)  # newer than everything seen
    assert seen == whole
    assert len(seen) == 10


@pytest.mark.spec("B12")
async def test_letters_are_grouped_by_error_with_counts_up_to_a_limit(
    failing: Failing, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_pages, "COUNT_TO", 5)
    await add_letters(store, 7, "row 17 is bad")
    await add_letters(store, 2, "row 4711 is bad")
    await add_letters(store, 3, "no such table")
    task_id = await failing.add_task()
    await failing.fail_run(task_id, "row 1 is bad")
    page = await failing.letters.list_groups(failing.surfaces, None, 10)
    assert page.next_group is None
    assert [(one.surface, one.newest.error, one.count) for one in page.groups] == [
        ("queue", "row 4711 is bad", 5),
        ("queue", "no such table", 3),
        ("tasks", "row 1 is bad", 1),
    ]
    assert page.groups[0].oldest_at < page.groups[0].newest.died_at
    seen: set[tuple[str, int]] = set()
    after = None
    while True:
        page = await failing.letters.list_groups(failing.surfaces, after, 1)
        seen |= {(one.surface, one.error_key) for one in page.groups}
        after = page.next_group
        if after is None:
            break
    assert len(seen) == 3


@pytest.mark.spec("X13", "B12")
async def test_a_task_has_so_many_letters_and_age_settles_if_it_is_asked_to(
    failing: Failing, store: SqlStore
) -> None:
    await add_letters(store, 3, source="a")
    await add_letters(store, 4, source="a")
    await add_letters(store, 1, source="b")
    surplus = await store.read(lambda tx: tx.dead_letters.list_surplus("queue", "a", 5, 10))
    assert sorted(surplus) == ["j0", "j1"]
    assert await store.read(lambda tx: tx.dead_letters.list_surplus("queue", "a", 7, 10)) == []
    everything = await store.read(
        lambda tx: tx.dead_letters.list_letters("queue", EVERYTHING, None, 100)
    )
    young = everything[0].died_at
    assert await store.transact(lambda tx: tx.dead_letters.purge("queue", young, 4)) == 4
    assert await store.transact(lambda tx: tx.dead_letters.purge("queue", young, 100)) == 3
    assert await store.transact(lambda tx: tx.dead_letters.purge("queue", young, 100)) == 0


@pytest.mark.spec("B12")
async def test_an_entity_has_one_letter(failing: Failing, store: SqlStore) -> None:
    def add(tx: Any, error: str) -> None:
        tx.dead_letters.add("queue", [NewLetter("j", "a", "FAILED", error)])

    await store.transact(add, "first")
    await store.transact(add, "second")
    assert [letter.error for letter in await list_all(failing)] == ["first"]
    assert await store.transact(lambda tx: tx.dead_letters.settle("tasks", ["j"])) == 0
    assert await store.transact(lambda tx: tx.dead_letters.settle("queue", ["j"])) == 1
