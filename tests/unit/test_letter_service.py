"""Dead letters in the store and outside it, as callers list, count and settle them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, KsanaError, NotFoundError, UnavailableError
from ksana.domain.dead_letters import LetterFilter, LetterRecord
from ksana.service.core import outside_letters
from ksana.service.core.dead_letters import (
    BATCH,
    DeadLetterService,
    LetterSection,
    Operator,
    ReplayedLetter,
    purge_letters,
)
from ksana.service.core.letter_pages import COUNT_TO
from ksana.service.core.outside_letters import OUTSIDE, OutsideView, group_letters, make_id, matches
from tests.unit.letters_ground import ANY, FakeStore, ids_of, letter

pytestmark = pytest.mark.spec("B12")

WHO = Operator("me", "r-1")


@pytest.mark.parametrize(
    ("wanted", "is_one"),
    [
        (ANY, True),
        (LetterFilter(error_key=7), True),
        (LetterFilter(error_key=8), False),
        (LetterFilter(source="s"), True),
        (LetterFilter(source="t"), False),
        (LetterFilter(since=5), True),
        (LetterFilter(since=6), False),
        (LetterFilter(until=5), False),
        (LetterFilter(until=6), True),
        (LetterFilter(error_key=7, source="s", since=5, until=6), True),
    ],
)
def test_a_letter_matches_by_error_source_and_time(wanted: LetterFilter, is_one: bool) -> None:
    assert matches(letter(5), wanted) is is_one


def test_letters_of_one_error_are_a_group_counted_to_a_limit() -> None:
    rows = [letter(2, key=1), letter(9, key=1), letter(5, key=1), letter(4, key=0)]
    one, two = group_letters(rows)
    assert (one.error_key, one.count, one.newest.id, one.oldest_at) == (0, 1, 4, 4)
    assert (two.error_key, two.count, two.newest.id, two.oldest_at) == (1, 3, 9, 2)
    [many] = group_letters([letter(at) for at in range(COUNT_TO + 1)])
    assert many.count == COUNT_TO


def test_ids_outside_are_the_same_everywhere_and_never_those_of_rows() -> None:
    ids = {make_id("n", str(at)) for at in range(200)}
    assert len(ids) == 200
    assert all(OUTSIDE <= one < 2 * OUTSIDE for one in ids)
    assert make_id("a", "bc") != make_id("ab", "c")
    assert make_id("n", "1") == OUTSIDE + make_id("n", "1") % OUTSIDE
    assert OUTSIDE == 2**52
    assert make_id("n", "1") == 6456881680159787  # another version of the program finds it too


class Outside:
    """Letters that are not in the store."""

    entity_type = "NODE_JOB"
    settle_level = "admin"

    def __init__(self, surface: str = "nodes", rows: Sequence[LetterRecord] = ()) -> None:
        self.surface = surface
        self.view = OutsideView(list(rows))
        self.away: UnavailableError | None = None
        self.gone: set[int] = set()
        self.asked: list[Any] = []
        self.looks = 0

    async def look(self) -> OutsideView:
        self.looks += 1
        if self.away:
            raise self.away
        return self.view

    async def settle(
        self, letters: Sequence[LetterRecord], actor: str, *, replays: bool
    ) -> list[str | None]:
        self.asked.append((ids_of(letters), actor, replays))
        if self.away:
            raise self.away
        return [None if one.id in self.gone else f"j{one.id - OUTSIDE}" for one in letters]


def outer(at: int, surface: str = "nodes", **how: Any) -> LetterRecord:
    return letter(at, surface, row=OUTSIDE + at, **how)


class Replays:
    """A section of a surface in the store, and what was asked of it."""

    def __init__(self, surface: str) -> None:
        self.refused: dict[str, KsanaError] = {}
        self.replayed: list[Any] = []
        self.notified: list[Any] = []
        self.section = LetterSection(surface, "JOB", self.replay, self.notify, "JOB_DISMISSED")

    def notify(self, told: Sequence[Any]) -> None:
        self.notified.append(list(told))

    def replay(
        self, tx: Any, letters: Sequence[LetterRecord], who: Operator
    ) -> list[ReplayedLetter | KsanaError]:
        self.replayed.append((ids_of(letters), who.actor))
        return [
            self.refused.get(one.entity_id) or ReplayedLetter(f"new {one.entity_id}", one.id)
            for one in letters
        ]


def house(
    *rows: LetterRecord, outside: Outside | None = None
) -> tuple[DeadLetterService, FakeStore, Replays]:
    store = FakeStore(rows)
    service, replays = DeadLetterService(store), Replays("queue")  # type: ignore[arg-type]
    service.add(replays.section)
    if outside is not None:
        service.add_outside(outside)
    return service, store, replays


def test_a_surface_has_one_section() -> None:
    outside = Outside()
    service, _, replays = house(outside=outside)
    assert service.list_surfaces() == ["queue", "nodes"]
    assert service.get_section("queue") is replays.section
    assert service.get_section("nodes") is outside
    with pytest.raises(ValueError, match="queue"):
        service.add_outside(Outside("queue"))
    with pytest.raises(ValueError, match="nodes"):
        service.add(Replays("nodes").section)


@pytest.mark.parametrize("keep_us", [0, 5])
def test_letters_of_the_store_are_kept_so_long_or_for_ever(keep_us: int) -> None:
    service, _, _ = house(outside=Outside())
    added: list[Any] = []
    retention: Any = SimpleNamespace(add=lambda *how: added.append(how))
    service.add_retention(retention, keep_us)
    assert [one[:2] for one in added] == ([("dead letters of queue", 5)] if keep_us else [])


async def test_a_page_merges_what_is_outside_and_goes_on_while_there_is_more() -> None:
    outside = Outside(rows=[outer(2), outer(4)])
    service, store, _ = house(letter(1), letter(3), letter(5), outside=outside)
    both = ["queue", "nodes"]
    page = await service.list_letters(both, ANY, None, 3)
    assert [one.died_at for one in page.letters] == [5, 4, 3]
    assert page.next_place == (3, 3)
    page = await service.list_letters(both, ANY, page.next_place, 3)
    assert ([one.died_at for one in page.letters], page.next_place) == ([2, 1], None)
    page = await service.list_letters(both, ANY, (3, 3), 2)
    assert ([one.died_at for one in page.letters], page.next_place) == ([2, 1], None)
    page = await service.list_letters(both, ANY, outer(4).place, 1)
    assert ([one.died_at for one in page.letters], page.next_place) == ([3], (3, 3))
    calls = store.calls
    page = await service.list_letters(["nodes"], ANY, None, 9)
    assert [one.died_at for one in page.letters] == [4, 2]
    assert store.calls == calls  # nothing of it is there
    assert [one.id for one in (await service.list_letters(["queue"], ANY, None, 1)).letters] == [5]


async def test_what_is_away_is_told_and_keeps_nothing_back() -> None:
    outside = Outside(rows=[outer(2)])
    outside.away = UnavailableError("redis is away")
    service, _, _ = house(letter(1), outside=outside)
    both = ["queue", "nodes"]
    away = {"nodes": "redis is away"}
    page = await service.list_letters(both, ANY, None, 3)
    assert (ids_of(page.letters), page.next_place, page.away) == ([1], None, away)
    groups = await service.list_groups(both, None, 5)
    assert ([one.surface for one in groups.groups], groups.away) == (["queue"], away)
    count = await service.count(both, ANY)
    assert (count.count, count.is_capped, count.away) == (1, False, away)


@pytest.mark.parametrize("is_capped", [False, True])
async def test_counts_and_groups_of_both_places_are_added(is_capped: bool) -> None:
    outside = Outside(rows=[outer(2), outer(3), outer(4, key=8)])
    outside.view = OutsideView(outside.view.letters, is_capped)
    service, _, _ = house(letter(1), outside=outside)
    both = ["queue", "nodes"]
    count = await service.count(both, LetterFilter(error_key=7))
    assert (count.count, count.is_capped, count.away) == (3, is_capped, {})
    nodes = await service.count(["nodes"], ANY)
    assert (nodes.count, nodes.is_capped) == (3, is_capped)
    assert (await service.count(["queue"], ANY)).count == 1
    groups = (await service.list_groups(both, None, 5)).groups
    shown = [(one.surface, one.error_key, one.count) for one in groups]
    assert shown == [("nodes", 7, 2), ("nodes", 8, 1), ("queue", 7, 1)]


async def test_letters_of_both_places_are_found_by_id() -> None:
    service, store, _ = house(letter(1), letter(2), outside=(nodes := Outside(rows=[outer(0)])))
    both = ["queue", "nodes"]
    ids = [OUTSIDE, 2, 3, OUTSIDE, OUTSIDE + 9]
    assert ids_of(await service.find_letters(both, ids)) == [2, OUTSIDE]
    calls = store.calls
    assert ids_of(await service.find_letters(both, [OUTSIDE])) == [OUTSIDE]
    assert store.calls == calls
    looks = nodes.looks
    assert ids_of(await service.find_letters(both, [1])) == [1]
    assert nodes.looks == looks  # they need not be there
    assert await service.find_letters(["queue"], [OUTSIDE + 1]) == []


async def test_letters_are_settled_in_the_order_asked_for_each_once() -> None:
    outside = Outside(rows=[outer(1), outer(2)])
    outside.gone = {OUTSIDE + 2}
    service, store, replays = house(letter(1), letter(2), outside=outside)
    replays.refused["e2"] = ConflictError("no", current={}, code="NO")
    ids = [OUTSIDE + 2, 2, 9, 1, OUTSIDE + 1, 2, OUTSIDE + 5]
    settled = await service.settle_some(["queue", "nodes"], ids, WHO, replays=True)
    assert [one.letter_id for one in settled] == [OUTSIDE + 2, 2, 9, 1, OUTSIDE + 1, OUTSIDE + 5]
    by_id = {one.letter_id: one for one in settled}
    assert isinstance(by_id[9].error, NotFoundError)
    assert by_id[9].letter is None
    assert isinstance(by_id[OUTSIDE + 5].error, NotFoundError)
    assert isinstance(by_id[OUTSIDE + 2].error, NotFoundError)
    assert by_id[OUTSIDE + 2].letter is None
    assert by_id[OUTSIDE + 2].replayed_as is None
    assert (by_id[OUTSIDE + 1].replayed_as, by_id[OUTSIDE + 1].error) == ("j1", None)
    assert by_id[OUTSIDE + 1].letter == outer(1)
    assert (by_id[1].replayed_as, by_id[1].error) == ("new e1", None)
    assert by_id[2].error is replays.refused["e2"]
    assert by_id[2].letter == letter(2)
    assert by_id[2].replayed_as is None
    assert ids_of(store.tx.dead_letters.rows) == [2]  # one that is refused stays
    assert replays.replayed == [([1, 2], "me")]
    assert replays.notified == [[1]]
    assert outside.asked == [([OUTSIDE + 2, OUTSIDE + 1], "me", True)]


async def test_the_first_id_outside_is_settled_there_and_asks_nothing_of_the_store() -> None:
    outside = Outside(rows=[outer(0)])
    service, store, _ = house(letter(1), outside=outside)
    calls = store.calls
    [settled] = await service.settle_some(["queue", "nodes"], [OUTSIDE], WHO, replays=True)
    assert (settled.letter, settled.replayed_as) == (outer(0), "j0")
    assert store.calls == calls


async def test_letters_are_dismissed_with_an_event_and_wake_nobody() -> None:
    outside = Outside(rows=[outer(0)])
    service, store, replays = house(letter(1), outside=outside)
    ids = [1, OUTSIDE]
    settled = await service.settle_some(["queue", "nodes"], ids, WHO, replays=False)
    assert [one.error for one in settled] == [None, None]
    assert store.tx.dead_letters.rows == []
    data = {"reason": "DISMISSED_BY_CALLER", "actor": "me"}
    assert store.tx.told == [("JOB", "e1", "JOB_DISMISSED", data)]
    assert (replays.replayed, replays.notified) == ([], [])
    assert outside.asked == [([OUTSIDE], "me", False)]


async def test_a_caller_settles_only_letters_of_surfaces_it_may() -> None:
    outside = Outside(rows=[outer(1)])
    service, store, replays = house(letter(1), outside=outside)
    [one] = await service.settle_some(["nodes"], [1], WHO, replays=True)
    assert isinstance(one.error, NotFoundError)
    [one] = await service.settle_some(["queue"], [OUTSIDE + 1], WHO, replays=True)
    assert isinstance(one.error, NotFoundError)
    assert (replays.replayed, outside.asked) == ([], [])
    assert ids_of(store.tx.dead_letters.rows) == [1]


async def test_many_letters_are_settled_in_batches() -> None:
    service, store, replays = house(*(letter(at) for at in range(1, BATCH + 2)))
    settled = await service.settle_some(["queue"], range(1, BATCH + 2), WHO, replays=True)
    assert [one.letter_id for one in settled] == list(range(1, BATCH + 2))
    assert store.calls == 2
    assert [len(ids) for ids, _ in replays.replayed] == [BATCH, 1]


async def test_letters_whose_place_is_away_are_refused_with_the_reason() -> None:
    outside = Outside(rows=[outer(1)])
    service, _, _ = house(outside=outside)
    outside.away = UnavailableError("redis is away")
    [one] = await service.settle_some(["queue", "nodes"], [OUTSIDE + 1], WHO, replays=True)
    assert isinstance(one.error, UnavailableError)
    assert one.error.message == "nodes: redis is away"
    told = await outside_letters.settle_outside(outside, [outer(1)], "me", replays=True)
    assert told == [(outer(1), outside.away)]


async def test_all_that_match_are_settled_and_one_that_another_took_is_no_failure() -> None:
    outside = Outside(rows=[outer(1), outer(2)])
    outside.gone = {OUTSIDE + 2}
    service, _, replays = house(letter(3), letter(4, key=8), outside=outside)
    wanted = LetterFilter(error_key=7)
    page = await service.settle_matching(["queue", "nodes"], wanted, None, 2, WHO, replays=True)
    assert [one.letter_id for one in page.settled] == [3]
    assert page.next_place == (2, OUTSIDE + 2)
    assert replays.replayed == [([3], "me")]
    page = await service.settle_matching(
        ["queue", "nodes"], wanted, page.next_place, 2, WHO, replays=True
    )
    assert [one.letter_id for one in page.settled] == [OUTSIDE + 1]
    assert (page.next_place, page.away) == (None, {})


@pytest.mark.parametrize("answers", [0, 2])
async def test_a_surface_that_does_not_answer_for_each_letter_settles_none(answers: int) -> None:
    service, _, replays = house(letter(1), outside=(nodes := Outside(rows=[outer(1)])))
    replays.section = msgspec.structs.replace(
        replays.section, replay=lambda *_: [ReplayedLetter()] * answers
    )
    service.sections["queue"] = replays.section
    with pytest.raises(ValueError, match="zip"):
        await service.settle_some(["queue"], [1], WHO, replays=True)

    async def settle(*_: Any, **__: Any) -> list[str | None]:
        return [""] * answers

    nodes.settle = settle  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="zip"):
        await service.settle_some(["nodes"], [OUTSIDE + 1], WHO, replays=True)


def test_old_letters_are_purged_surface_by_surface() -> None:
    table: Any = SimpleNamespace(dead_letters=SimpleNamespace(purge=lambda *how: (how, 3)))
    assert purge_letters("queue", table, 5, 100) == (("queue", 5, 100), 3)
