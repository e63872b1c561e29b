"""Pages, groups and counts of dead letters in the store, to the letter."""

from typing import Any

import pytest

from ksana.domain.dead_letters import LetterFilter
from ksana.service.core import letter_pages
from ksana.service.core.letter_pages import (
    COUNT_ALL_TO,
    COUNT_TO,
    MAX_PAGE,
    WINDOWS,
    count_matching,
    find_some,
    read_groups,
    read_page,
)
from ksana.service.core.outside_letters import group_letters
from tests.unit.letters_ground import ANY, FakeTx, ids_of, letter

pytestmark = pytest.mark.spec("B12")


def test_a_page_is_the_newest_of_all_surfaces_and_goes_on_where_it_ended() -> None:
    rows = [letter(at, "queue" if at % 2 else "tasks") for at in range(1, 6)]
    tx: Any = FakeTx(rows)
    page = read_page(tx, ["queue", "tasks"], ANY, None, 2)
    assert (ids_of(page.letters), page.next_place, page.away) == ([5, 4], (4, 4), {})
    page = read_page(tx, ["queue", "tasks"], ANY, page.next_place, 3)
    assert (ids_of(page.letters), page.next_place) == ([3, 2, 1], None)
    assert tx.dead_letters.asked[-1] == ("tasks", (4, 4), 4)
    assert read_page(tx, [], ANY, None, 3).letters == []
    assert ids_of(read_page(tx, ["tasks"], LetterFilter(since=3), None, 9).letters) == [4]
    assert ids_of(read_page(tx, ["tasks"], LetterFilter(source="s"), None, 9).letters) == [4, 2]
    assert ids_of(read_page(tx, ["tasks"], LetterFilter(error_key=7), None, 9).letters) == [4, 2]


def test_letters_are_found_by_id_in_the_surfaces_asked_for() -> None:
    tx: Any = FakeTx([letter(1), letter(2, "tasks")])
    assert ids_of(find_some(tx, ["queue"], [1, 2, 3])) == [1]


def test_letters_of_a_source_with_one_error_are_looked_for_in_windows() -> None:
    wanted = LetterFilter(error_key=1, source="s")
    rows = [letter(at, key=at % 2) for at in range(1, 2 * MAX_PAGE + 4)]
    tx: Any = FakeTx(rows)
    page = read_page(tx, ["queue"], wanted, None, 2)
    assert (ids_of(page.letters), page.next_place) == ([1003, 1001], (1001, 1001))
    page = read_page(tx, ["queue"], wanted, (5, 5), 2)
    # The limit was reached at the last: there may be more.
    assert (ids_of(page.letters), page.next_place) == ([3, 1], (1, 1))
    page = read_page(tx, ["queue"], wanted, (5, 5), 3)
    assert (ids_of(page.letters), page.next_place) == ([3, 1], None)
    whole = read_page(tx, ["queue"], wanted, None, 10**6)
    assert (len(whole.letters), whole.next_place) == (MAX_PAGE + 2, None)
    assert {one.error_key for one in whole.letters} == {1}
    read_page(tx, ["queue", "tasks"], wanted, None, 2)
    assert tx.dead_letters.asked[-1][0] == "queue"


def test_a_search_that_finds_too_little_ends_and_can_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(letter_pages, "MAX_PAGE", 2)
    wanted = LetterFilter(error_key=1, source="s")
    tx: Any = FakeTx([letter(at, key=1 if at == 1 else 0) for at in range(1, 2 * WINDOWS + 2)])
    page = read_page(tx, ["queue"], wanted, None, 5)
    assert (page.letters, page.next_place) == ([], (2, 2))
    assert len(tx.dead_letters.asked) == WINDOWS
    page = read_page(tx, ["queue"], wanted, page.next_place, 5)
    assert (ids_of(page.letters), page.next_place) == ([1], None)


def test_groups_go_by_surface_and_key_and_a_page_shows_the_largest_first() -> None:
    rows = [letter(1, "b", 5), letter(2, "b", 5), letter(3, "a", 9), letter(4, "a", 3)]
    tx: Any = FakeTx(rows)
    page = read_groups(tx, ["b", "a"], None, 3, {})
    # The largest first, then by surface and key.
    shown = [(one.surface, one.error_key, one.count) for one in page.groups]
    assert shown == [("b", 5, 2), ("a", 3, 1), ("a", 9, 1)]
    assert page.next_group is None
    assert tx.dead_letters.asked == [("a", None, 4, COUNT_TO), ("b", None, 2, COUNT_TO)]
    page = read_groups(tx, ["b", "a"], None, 2, {})
    assert [one.error_key for one in page.groups] == [3, 9]
    assert page.next_group == ("a", 9)
    page = read_groups(tx, ["b", "a"], ("a", 3), 5, {})
    assert sorted(one.error_key for one in page.groups) == [5, 9]
    page = read_groups(tx, ["b", "a"], ("b", 4), 5, {})
    assert [one.error_key for one in page.groups] == [5]
    assert tx.dead_letters.asked[-1] == ("b", 4, 6, COUNT_TO)


def test_a_full_page_of_groups_asks_no_other_surface() -> None:
    tx: Any = FakeTx([letter(1, "a", 1), letter(2, "a", 2), letter(3, "b", 3)])
    page = read_groups(tx, ["a", "b"], None, 1, {})
    assert ([one.error_key for one in page.groups], page.next_group) == ([1], ("a", 1))
    assert [one[0] for one in tx.dead_letters.asked] == ["a"]


def test_groups_outside_are_cut_like_those_in_the_store() -> None:
    tx: Any = FakeTx()
    outside = {"n": group_letters([letter(at, "n", at) for at in (1, 2, 3)])}
    page = read_groups(tx, ["n"], None, 2, outside)
    assert ([one.error_key for one in page.groups], page.next_group) == ([1, 2], ("n", 2))
    page = read_groups(tx, ["n"], ("n", 2), 2, outside)
    assert ([one.error_key for one in page.groups], page.next_group) == ([3], None)
    assert tx.dead_letters.asked == []


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (ANY, 4),
        (LetterFilter(error_key=1), 3),
        (LetterFilter(source="s"), 3),
        (LetterFilter(error_key=1, source="s"), 2),
    ],
)
def test_what_matches_is_counted(wanted: LetterFilter, count: int) -> None:
    rows = [letter(1, key=1), letter(2, key=1), letter(3, key=2), letter(4, key=1, source="t")]
    tx: Any = FakeTx(rows)
    found = count_matching(tx, ["queue"], wanted)
    assert (found.count, found.is_capped) == (count, False)


def test_a_count_that_was_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tx: Any = FakeTx([letter(at, key=1) for at in range(1, 10)])
    monkeypatch.setattr(letter_pages, "COUNT_ALL_TO", 9)
    assert count_matching(tx, ["queue", "tasks"], ANY).is_capped
    monkeypatch.setattr(letter_pages, "COUNT_ALL_TO", 10)
    found = count_matching(tx, ["queue", "tasks"], ANY)
    assert (found.count, found.is_capped) == (9, False)


def test_a_narrow_count_is_bounded_by_what_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_pages, "MAX_PAGE", 3)
    monkeypatch.setattr(letter_pages, "WINDOWS", 2)
    monkeypatch.setattr(letter_pages, "COUNT_ALL_TO", 12)
    wanted = LetterFilter(error_key=1, source="s")
    tx: Any = FakeTx([letter(at, key=1) for at in range(1, 20)])
    found = count_matching(tx, ["queue"], wanted)
    assert (found.count, found.is_capped) == (12, True)
    tx = FakeTx([letter(at, key=1) for at in range(1, 12)])
    found = count_matching(tx, ["queue"], wanted)
    assert (found.count, found.is_capped) == (11, False)


def test_a_narrow_count_looks_at_as_many_as_a_wide_one_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(letter_pages, "MAX_PAGE", 5)
    monkeypatch.setattr(letter_pages, "WINDOWS", 2)
    monkeypatch.setattr(letter_pages, "COUNT_ALL_TO", 30)
    tx: Any = FakeTx([letter(at, key=1) for at in range(1, 51)])
    for wanted in (LetterFilter(error_key=1, source="s"), LetterFilter(source="s")):
        found = count_matching(tx, ["queue"], wanted)
        assert (found.count, found.is_capped) == (30, True)


def test_the_bounds_are_those_that_the_documents_name() -> None:
    assert (MAX_PAGE, letter_pages.MAX_GROUPS, COUNT_TO, COUNT_ALL_TO) == (500, 200, 1000, 100_000)
