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

from ksana.base.errors import KsanaError, NotFoundError, UnavailableError
from ksana.base.instant import Instant, Micros
from ksana.domain.dead_letters import LetterFilter, LetterPlace, LetterRecord
from ksana.engine.core.retention import Retention
from ksana.ports.dead_letters import DeadLetterTx
from ksana.ports.store import Store
from ksana.service.core.letter_pages import (
    GroupPage,
    LetterCount,
    LetterPage,
    count_matching,
    find_some,
    read_groups,
    read_page,
)
from ksana.service.core.outside_letters import (
    OUTSIDE,
    OutsideSection,
    group_letters,
    index_letters,
    look_at,
    settle_outside,
)

BATCH: Final = 100
"""Letters settled in one transaction."""


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
    away: dict[str, str] = {}


class DeadLetterService:
    """The sections of all surfaces."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.sections: dict[str, LetterSection] = {}
        self.outside: dict[str, OutsideSection] = {}

    def add(self, section: LetterSection) -> None:
        """Add a surface's section. Raise ValueError if it has one."""
        self._check_new(section.surface)
        self.sections[section.surface] = section

    def add_outside(self, section: OutsideSection) -> None:
        """Add the section of a surface whose letters are not in the store."""
        self._check_new(section.surface)
        self.outside[section.surface] = section

    def _check_new(self, surface: str) -> None:
        if surface in self.list_surfaces():
            raise ValueError(f"two sections of dead letters for {surface}")

    def list_surfaces(self) -> list[str]:
        """The surfaces that have dead letters."""
        return [*self.sections, *self.outside]

    def get_section(self, surface: str) -> LetterSection | OutsideSection:
        """The section of a surface."""
        return self.sections.get(surface) or self.outside[surface]

    def _part(self, surfaces: Sequence[str]) -> tuple[list[str], list[OutsideSection]]:
        """Those in the store, and those outside."""
        inside = [one for one in surfaces if one in self.sections]
        return inside, [self.outside[one] for one in surfaces if one in self.outside]

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
        inside, outside = self._part(surfaces)
        page = LetterPage([], None)
        if inside:
            page = await self._store.read_list(read_page, inside, wanted, before, limit)
        if not outside:
            return page
        looked = await look_at(outside)
        found = looked.list_matching(wanted, before)
        merged = merge(page.letters, found, key=attrgetter("place"), reverse=True)
        letters = list(islice(merged, limit))
        has_more = page.next_place is not None or len(page.letters) + len(found) > limit
        return LetterPage(letters, letters[-1].place if has_more else None, looked.away)

    async def list_groups(
        self, surfaces: Sequence[str], after: tuple[str, int] | None, limit: int
    ) -> GroupPage:
        """Letters by error, surface by surface; of a page the largest groups come first."""
        inside, outside = self._part(surfaces)
        looked = await look_at(outside)
        known = {name: group_letters(view.letters) for name, view in looked.views.items()}
        page = await self._store.read_list(read_groups, [*inside, *known], after, limit, known)
        return msgspec.structs.replace(page, away=looked.away)

    async def count(self, surfaces: Sequence[str], wanted: LetterFilter) -> LetterCount:
        """How many letters match, up to COUNT_ALL_TO for each surface."""
        inside, outside = self._part(surfaces)
        inside_of = LetterCount(0, is_capped=False)
        if inside:
            inside_of = await self._store.read(count_matching, inside, wanted)
        looked = await look_at(outside)
        return LetterCount(
            inside_of.count + len(looked.list_matching(wanted, None)),
            inside_of.is_capped or looked.is_capped,
            looked.away,
        )

    async def find_letters(self, surfaces: Sequence[str], ids: Sequence[int]) -> list[LetterRecord]:
        """Those of these letters that are there."""
        inside, outside = self._part(surfaces)
        rows = [one for one in ids if one < OUTSIDE]
        found = await self._store.read(find_some, inside, rows) if rows else []
        by_id = index_letters(await look_at(outside if len(rows) < len(ids) else []))
        return [*found, *(by_id[one] for one in dict.fromkeys(ids) if one in by_id)]

    async def settle_some(
        self, surfaces: Sequence[str], ids: Sequence[int], who: Operator, *, replays: bool
    ) -> list[SettledLetter]:
        """Replay or dismiss letters by id. One that is not there, or not of these surfaces, is
        answered NOT_FOUND."""
        settled: list[SettledLetter] = []
        unique = list(dict.fromkeys(ids))
        inside, outside = self._part(surfaces)
        rows = [one for one in unique if one < OUTSIDE]
        for at in range(0, len(rows), BATCH):
            settled += await self._settle(inside, rows[at : at + BATCH], who, replays)
        others = [one for one in unique if one >= OUTSIDE]
        if others:
            settled += await self._settle_outside(outside, others, who, replays)
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
        mine = [one for one in settled if one.letter is not None]
        return SettledPage(mine, page.next_place, page.away)

    async def _settle_outside(
        self, outside: Sequence[OutsideSection], ids: Sequence[int], who: Operator, replays: bool
    ) -> list[SettledLetter]:
        looked = await look_at(outside)
        known = index_letters(looked)
        # Whose a letter is that cannot be looked at, nobody knows: the reason is told for each.
        reason = "; ".join(f"{name}: {why}" for name, why in looked.away.items())
        absent = {
            one: UnavailableError(reason)
            if reason
            else NotFoundError(f"there is no dead letter {one}")
            for one in ids
            if one not in known
        }
        settled = [SettledLetter(one, None, error=error) for one, error in absent.items()]
        for section in outside:
            letters = [known[one] for one in ids if one in known]
            mine = [letter for letter in letters if letter.surface == section.surface]
            for letter, told in await settle_outside(section, mine, who.actor, replays=replays):
                is_error = isinstance(told, KsanaError)
                is_gone = isinstance(told, NotFoundError)
                settled.append(
                    SettledLetter(
                        letter.id,
                        None if is_gone else letter,
                        replayed_as=None if is_error else str(told),
                        error=told if isinstance(told, KsanaError) else None,
                    )
                )
        return settled

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
