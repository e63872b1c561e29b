"""Dead letters of every surface in one place: list, group by error, replay, dismiss.

Each surface hands in a section: what its letters are called and how some of them are replayed. A
letter is held while it is replayed and taken out in the same transaction, so it is replayed once,
whoever else tries. One that its surface refuses stays.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final

import msgspec

from ksana.base.errors import KsanaError, NotFoundError
from ksana.base.instant import Instant, Micros
from ksana.domain.dead_letters import LetterFilter, LetterGroup, LetterPlace, LetterRecord
from ksana.engine.core.retention import Retention
from ksana.ports.dead_letters import DeadLetterTx
from ksana.ports.store import Store

MAX_PAGE: Final = 500
MAX_GROUPS: Final = 200
COUNT_TO: Final = 1000
"""A group is counted no further: a page of them takes milliseconds."""
COUNT_ALL_TO: Final = 100_000
"""Nor what a replay would take, for each surface."""
BATCH: Final = 100
"""Letters settled in one transaction."""
WINDOWS: Final = 20
"""Pages looked through for letters of a source with one error: each alone has an index."""


class Operator(msgspec.Struct, frozen=True):
    """Who replays or dismisses."""

    actor: str
    request_id: str
    trace_id: str | None = None


class ReplayedLetter(msgspec.Struct, frozen=True):
    """What became of a letter: the run or job that does its work now, if any."""

    entity_id: str | None = None
    wakes: Any = None
    """What `notify` is told once it is committed."""


ReplayLetters = Callable[
    [Any, Sequence[LetterRecord], Operator], Sequence[ReplayedLetter | KsanaError]
]
"""A transaction function: replay letters that are held, each or its refusal in order. A refusal is
answered before anything is written for that letter."""


class LetterSection(msgspec.Struct, frozen=True):
    """The dead letters of one surface."""

    surface: str
    entity_type: str
    replay: ReplayLetters
    notify: Callable[[Sequence[Any]], None]
    """Wake those who wait for what was replayed."""
    dismissed: str
    """The event of a letter that is dismissed."""


class LetterPage(msgspec.Struct, frozen=True):
    """Some letters, newest first, and the place to go on after."""

    letters: list[LetterRecord]
    next_place: LetterPlace | None


class GroupPage(msgspec.Struct, frozen=True):
    """Some groups, and the one to go on after."""

    groups: list[LetterGroup]
    next_group: tuple[str, int] | None


class LetterCount(msgspec.Struct, frozen=True):
    """How many letters match; `is_capped`: so many at least."""

    count: int
    is_capped: bool


class SettledLetter(msgspec.Struct, frozen=True):
    """What became of one letter: replayed as another entity, dismissed, or refused."""

    letter_id: int
    letter: LetterRecord | None
    replayed_as: str | None = None
    error: KsanaError | None = None


class SettledPage(msgspec.Struct, frozen=True):
    """What became of some letters, and where to go on."""

    settled: list[SettledLetter]
    next_place: LetterPlace | None


class DeadLetterService:
    """The sections of all surfaces."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.sections: dict[str, LetterSection] = {}

    def add(self, section: LetterSection) -> None:
        """Add a surface's section. Raise ValueError if it has one."""
        if section.surface in self.sections:
            raise ValueError(f"two sections of dead letters for {section.surface}")
        self.sections[section.surface] = section

    def add_retention(self, retention: Retention, keep_us: Micros) -> None:
        """Have letters settled that nobody settled for so long; 0 keeps them for ever."""
        for surface in self.sections if keep_us else ():
            retention.add(f"dead letters of {surface}", keep_us, partial(purge_letters, surface))

    async def list_letters(
        self,
        surfaces: Sequence[str],
        wanted: LetterFilter,
        before: LetterPlace | None,
        limit: int,
    ) -> LetterPage:
        """One page over some surfaces. A letter that comes or goes moves no other from page to
        page. It may end early; it goes on as long as it has a next place."""
        return await self._store.read_list(read_page, surfaces, wanted, before, limit)

    async def list_groups(
        self, surfaces: Sequence[str], after: tuple[str, int] | None, limit: int
    ) -> GroupPage:
        """Letters by error, surface by surface; of a page the largest groups come first."""
        return await self._store.read_list(read_groups, surfaces, after, limit)

    async def count(self, surfaces: Sequence[str], wanted: LetterFilter) -> LetterCount:
        """How many letters match, up to COUNT_ALL_TO for each surface."""
        return await self._store.read(count_matching, surfaces, wanted)

    async def find_letters(self, surfaces: Sequence[str], ids: Sequence[int]) -> list[LetterRecord]:
        """Those of these letters that are there."""
        return await self._store.read(find_some, surfaces, ids)

    async def settle_some(
        self, surfaces: Sequence[str], ids: Sequence[int], who: Operator, *, replays: bool
    ) -> list[SettledLetter]:
        """Replay or dismiss letters by id. One that is not there, or not of these surfaces, is
        answered NOT_FOUND."""
        settled: list[SettledLetter] = []
        unique = list(dict.fromkeys(ids))
        for at in range(0, len(unique), BATCH):
            settled += await self._settle(surfaces, unique[at : at + BATCH], who, replays)
        by_id = {one.letter_id: one for one in settled}
        return [by_id[letter_id] for letter_id in unique]

    async def settle_matching(
        self,
        surfaces: Sequence[str],
        wanted: LetterFilter,
        before: LetterPlace | None,
        limit: int,
        who: Operator,
        *,
        replays: bool,
    ) -> SettledPage:
        """Replay or dismiss the newest letters that match, up to a limit; go on from the place
        answered."""
        page = await self.list_letters(surfaces, wanted, before, limit)
        ids = [letter.id for letter in page.letters]
        settled = await self.settle_some(surfaces, ids, who, replays=replays)
        # A letter that another caller settled meanwhile is no failure of this one.
        return SettledPage([one for one in settled if one.letter is not None], page.next_place)

    async def _settle(
        self, surfaces: Sequence[str], ids: Sequence[int], who: Operator, replays: bool
    ) -> list[SettledLetter]:
        allowed = {name: self.sections[name] for name in surfaces}
        settled, wakes = await self._store.transact(settle_letters, allowed, ids, who, replays)
        for surface, told in wakes.items():
            self.sections[surface].notify(told)
        return settled


def purge_letters(surface: str, tx: DeadLetterTx, before: Instant, limit: int) -> int:
    """Settle letters that died before; answer how many."""
    return tx.dead_letters.purge(surface, before, limit)


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
    tx: DeadLetterTx, surfaces: Sequence[str], after: tuple[str, int] | None, limit: int
) -> GroupPage:
    """Groups of surfaces in the order of their names, then by key."""
    groups: list[LetterGroup] = []
    for surface in sorted(surfaces):
        if after is not None and surface < after[0]:
            continue
        key = after[1] if after is not None and surface == after[0] else None
        wanted = limit + 1 - len(groups)
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


def settle_letters(
    tx: DeadLetterTx,
    sections: dict[str, LetterSection],
    ids: Sequence[int],
    who: Operator,
    replays: bool,
) -> tuple[list[SettledLetter], dict[str, list[Any]]]:
    """Replay or dismiss letters in one transaction. Answer what became of each, and by surface what
    to tell those who wait."""
    held = [letter for letter in tx.dead_letters.lock(ids) if letter.surface in sections]
    missing = set(ids) - {letter.id for letter in held}
    settled = [
        SettledLetter(letter_id, None, error=NotFoundError(f"there is no dead letter {letter_id}"))
        for letter_id in missing
    ]
    wakes: dict[str, list[Any]] = {}
    for surface, some in groupby(sorted(held, key=_by_surface), _by_surface):
        section, letters = sections[surface], list(some)
        if replays:
            outcomes = section.replay(tx, letters, who)
        else:
            outcomes = _dismiss(tx, section, letters, who)
        done = list(_pair(letters, outcomes))
        gone = [one.letter.entity_id for one in done if one.letter and one.error is None]
        tx.dead_letters.settle(surface, gone)
        settled += done
        told = [one.wakes for one in outcomes if isinstance(one, ReplayedLetter)]
        if replays and told:
            wakes[surface] = told
    return settled, wakes


def _pair(
    letters: Sequence[LetterRecord], outcomes: Sequence[ReplayedLetter | KsanaError]
) -> Iterable[SettledLetter]:
    for letter, outcome in zip(letters, outcomes, strict=True):
        if isinstance(outcome, KsanaError):
            yield SettledLetter(letter.id, letter, error=outcome)
        else:
            yield SettledLetter(letter.id, letter, replayed_as=outcome.entity_id)


def _dismiss(
    tx: DeadLetterTx, section: LetterSection, letters: Sequence[LetterRecord], who: Operator
) -> list[ReplayedLetter | KsanaError]:
    for letter in letters:
        data = {"reason": "DISMISSED_BY_CALLER", "actor": who.actor}
        tx.events.append(section.entity_type, letter.entity_id, section.dismissed, data)
    return [ReplayedLetter() for _ in letters]


def _by_surface(letter: LetterRecord) -> str:
    return letter.surface
