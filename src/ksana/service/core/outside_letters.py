"""Dead letters of surfaces that keep them outside the store: they are few enough to be looked
through, and the place where they are may be away while the others are there.

Their ids begin where those of rows never come to: `OUTSIDE` and above.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec

from ksana.base.errors import KsanaError, NotFoundError, UnavailableError
from ksana.domain.dead_letters import LetterFilter, LetterGroup, LetterPlace, LetterRecord
from ksana.service.core.letter_pages import COUNT_TO

OUTSIDE: Final = 1 << 52
"""The least id. All are below 2^53, which JSON can carry."""


class OutsideView(msgspec.Struct, frozen=True):
    """All letters of one surface, newest first; `is_capped`: the oldest are left out."""

    letters: list[LetterRecord]
    is_capped: bool = False


class OutsideSection(Protocol):
    """The dead letters of a surface that are not in the store. Each method raises UnavailableError
    while they cannot be reached, within seconds."""

    surface: str
    entity_type: str
    settle_level: str
    """The level of the scope that settling needs."""

    async def look(self) -> OutsideView:
        """All of them, up to a limit, without what is in them."""
        ...

    async def settle(
        self, letters: Sequence[LetterRecord], actor: str, *, replays: bool
    ) -> list[str | None]:
        """Replay or dismiss letters, each once whoever else tries: where it is handled now, or None
        if it was not there any more."""
        ...


class LettersOutside(msgspec.Struct, frozen=True):
    """What was found outside: by surface the letters, or why they are away."""

    views: dict[str, OutsideView]
    away: dict[str, str]

    def list_matching(self, wanted: LetterFilter, before: LetterPlace | None) -> list[LetterRecord]:
        """Letters of all surfaces that match, newest first."""
        found = [
            letter
            for view in self.views.values()
            for letter in view.letters
            if matches(letter, wanted) and (before is None or letter.place < before)
        ]
        return sorted(found, key=lambda letter: letter.place, reverse=True)

    @property
    def is_capped(self) -> bool:
        """Whether there are more than were looked at."""
        return any(view.is_capped for view in self.views.values())


async def look_at(sections: Sequence[OutsideSection]) -> LettersOutside:
    """Look at all of them at once; one that is away keeps none of the others back."""
    answers = await asyncio.gather(*(_look(section) for section in sections))
    pairs = list(zip(sections, answers, strict=True))
    return LettersOutside(
        {one.surface: found for one, found in pairs if isinstance(found, OutsideView)},
        {one.surface: found for one, found in pairs if isinstance(found, str)},
    )


async def _look(section: OutsideSection) -> OutsideView | str:
    try:
        return await section.look()
    except UnavailableError as error:
        return error.message


def matches(letter: LetterRecord, wanted: LetterFilter) -> bool:
    """Whether a letter is one of those wanted."""
    return (
        (wanted.error_key is None or letter.error_key == wanted.error_key)
        and (wanted.source is None or letter.source == wanted.source)
        and (wanted.since is None or letter.died_at >= wanted.since)
        and (wanted.until is None or letter.died_at < wanted.until)
    )


def group_letters(letters: Sequence[LetterRecord]) -> list[LetterGroup]:
    """The groups of one surface's letters, in the order of their keys."""
    ordered = sorted(letters, key=lambda one: (one.error_key, one.died_at, one.id))
    groups: list[LetterGroup] = []
    for key, some in groupby(ordered, lambda one: one.error_key):
        of_key = list(some)
        newest, oldest = of_key[-1], of_key[0]
        groups.append(
            LetterGroup(newest.surface, key, min(len(of_key), COUNT_TO), newest, oldest.died_at)
        )
    return groups


def make_id(*parts: str) -> int:
    """The id of a letter by what names it outside: the same on every instance."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return OUTSIDE + int.from_bytes(digest, "big") % OUTSIDE


SettledOutside = tuple[LetterRecord, str | KsanaError]
"""A letter, and where it is handled now (empty: dismissed) or why it stays."""


async def settle_outside(
    section: OutsideSection, letters: Sequence[LetterRecord], actor: str, *, replays: bool
) -> list[SettledOutside]:
    """Settle letters of one section; what cannot be reached is a refusal of each."""
    try:
        done = await section.settle(letters, actor, replays=replays)
    except UnavailableError as error:
        return [(letter, error) for letter in letters]
    return [
        (letter, NotFoundError(f"there is no dead letter {letter.id}") if where is None else where)
        for letter, where in zip(letters, done, strict=True)
    ]


def index_letters(looked: LettersOutside) -> Mapping[int, LetterRecord]:
    """Letters by id."""
    return {one.id: one for view in looked.views.values() for one in view.letters}
