"""Pages, groups and counts of the dead letters in the store: what one read of it answers."""

from collections.abc import Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final

import msgspec

from ksana.domain.dead_letters import LetterFilter, LetterGroup, LetterPlace, LetterRecord
from ksana.ports.dead_letters import DeadLetterTx

MAX_PAGE: Final = 500
MAX_GROUPS: Final = 200
COUNT_TO: Final = 1000
"""A group is counted no further: a page of them takes milliseconds."""
COUNT_ALL_TO: Final = 100_000
"""Nor what a replay would take, for each surface."""
WINDOWS: Final = 20
"""Pages looked through for letters of a source with one error: each alone has an index."""


class LetterPage(msgspec.Struct, frozen=True):
    """Some letters, newest first, and the place to go on after. `away`: surfaces whose letters
    cannot be reached, and why."""

    letters: list[LetterRecord]
    next_place: LetterPlace | None
    away: dict[str, str] = {}


class GroupPage(msgspec.Struct, frozen=True):
    """Some groups, and the one to go on after."""

    groups: list[LetterGroup]
    next_group: tuple[str, int] | None
    away: dict[str, str] = {}


class LetterCount(msgspec.Struct, frozen=True):
    """How many letters match; `is_capped`: so many at least."""

    count: int
    is_capped: bool
    away: dict[str, str] = {}


def find_some(tx: DeadLetterTx, surfaces: Sequence[str], ids: Sequence[int]) -> list[LetterRecord]:
    """Letters of some surfaces by id."""
    return [letter for letter in tx.dead_letters.find(ids) if letter.surface in surfaces]


def read_page(
    tx: DeadLetterTx,
    surfaces: Sequence[str],
    wanted: LetterFilter,
    before: LetterPlace | None,
    limit: int,
) -> LetterPage:
    """One page over some surfaces, newest first."""
    if wanted.source is not None and wanted.error_key is not None:
        return _read_narrowed(tx, surfaces, wanted, before, limit)
    lists = [tx.dead_letters.list_letters(one, wanted, before, limit + 1) for one in surfaces]
    newest = merge(*lists, key=attrgetter("place"), reverse=True)
    letters = list(islice(newest, limit + 1))
    has_more = len(letters) > limit
    return LetterPage(letters[:limit], letters[limit - 1].place if has_more else None)


def _read_narrowed(
    tx: DeadLetterTx,
    surfaces: Sequence[str],
    wanted: LetterFilter,
    before: LetterPlace | None,
    limit: int,
) -> LetterPage:
    """Letters of one source with one error, by the index of sources. A source is of one surface."""
    of_source = msgspec.structs.replace(wanted, error_key=None)
    found: list[LetterRecord] = []
    for _ in range(WINDOWS):
        looked_at = tx.dead_letters.list_letters(surfaces[0], of_source, before, MAX_PAGE)
        for letter in looked_at:
            before = letter.place
            if letter.error_key == wanted.error_key:
                found.append(letter)
                if len(found) == limit:
                    return LetterPage(found, before)
        if len(looked_at) < MAX_PAGE:
            return LetterPage(found, None)
    return LetterPage(found, before)


def read_groups(
    tx: DeadLetterTx,
    surfaces: Sequence[str],
    after: tuple[str, int] | None,
    limit: int,
    outside: Mapping[str, Sequence[LetterGroup]],
) -> GroupPage:
    """Groups of surfaces in the order of their names, then by key; `outside` are those that are
    not in the store."""
    groups: list[LetterGroup] = []
    for surface in sorted(surfaces):
        if after is not None and surface < after[0]:
            continue
        key = after[1] if after is not None and surface == after[0] else None
        wanted = limit + 1 - len(groups)
        if surface in outside:
            later = [one for one in outside[surface] if key is None or one.error_key > key]
            groups += later[:wanted]
        else:
            groups += tx.dead_letters.list_groups(surface, key, wanted, COUNT_TO)
        if len(groups) > limit:
            break
    last = groups[limit - 1] if len(groups) > limit else None
    page = sorted(groups[:limit], key=lambda one: (-one.count, one.surface, one.error_key))
    return GroupPage(page, None if last is None else (last.surface, last.error_key))


def count_matching(tx: DeadLetterTx, surfaces: Sequence[str], wanted: LetterFilter) -> LetterCount:
    """How many letters match, up to a limit."""
    if wanted.source is None or wanted.error_key is None:
        counts = [tx.dead_letters.count_letters(one, wanted, COUNT_ALL_TO) for one in surfaces]
        return LetterCount(sum(counts), is_capped=COUNT_ALL_TO in counts)
    total, before = 0, None
    for _ in range(COUNT_ALL_TO // (WINDOWS * MAX_PAGE)):
        page = _read_narrowed(tx, surfaces, wanted, before, WINDOWS * MAX_PAGE)
        total, before = total + len(page.letters), page.next_place
        if before is None:
            return LetterCount(total, is_capped=False)
    return LetterCount(total, is_capped=True)
