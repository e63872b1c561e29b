"""Dead letters and their table in memory."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ksana.domain.dead_letters import LetterFilter, LetterGroup, LetterPlace, LetterRecord
from ksana.service.core.outside_letters import group_letters, matches

ANY = LetterFilter()


def letter(
    at: int, surface: str = "queue", key: int = 7, source: str = "s", row: int | None = None
) -> LetterRecord:
    return LetterRecord(
        at if row is None else row, surface, f"e{at}", source, "FAILED", "broken", key, at
    )


class Letters:
    """`tx.dead_letters` over a list."""

    def __init__(self, rows: Sequence[LetterRecord] = ()) -> None:
        self.rows = list(rows)
        self.asked: list[Any] = []

    def find(self, ids: Sequence[int]) -> list[LetterRecord]:
        return sorted((row for row in self.rows if row.id in ids), key=lambda row: row.id)

    lock = find

    def list_letters(
        self, surface: str, wanted: LetterFilter, before: LetterPlace | None, limit: int
    ) -> list[LetterRecord]:
        assert wanted.source is None or wanted.error_key is None
        self.asked.append((surface, before, limit))
        found = [
            row
            for row in self.rows
            if row.surface == surface
            and matches(row, wanted)
            and (before is None or row.place < before)
        ]
        return sorted(found, key=lambda row: row.place, reverse=True)[:limit]

    def count_letters(self, surface: str, wanted: LetterFilter, limit: int) -> int:
        self.asked.append((surface, limit))
        return min(limit, len(self.list_letters(surface, wanted, None, 10**9)))

    def list_groups(
        self, surface: str, after: int | None, limit: int, count_to: int
    ) -> list[LetterGroup]:
        self.asked.append((surface, after, limit, count_to))
        groups = group_letters([row for row in self.rows if row.surface == surface])
        return [one for one in groups if after is None or one.error_key > after][:limit]

    def settle(self, surface: str, entity_ids: Sequence[str]) -> int:
        gone = [row for row in self.rows if row.surface == surface and row.entity_id in entity_ids]
        self.rows = [row for row in self.rows if row not in gone]
        return len(gone)


class FakeTx:
    def __init__(self, rows: Sequence[LetterRecord] = ()) -> None:
        self.dead_letters = Letters(rows)
        self.told: list[tuple[Any, ...]] = []
        self.events = SimpleNamespace(append=lambda *fact: self.told.append(fact))


class FakeStore:
    """The store port as far as the service uses it."""

    def __init__(self, rows: Sequence[LetterRecord] = ()) -> None:
        self.tx = FakeTx(rows)
        self.calls = 0

    async def transact(self, fn: Any, *args: Any) -> Any:
        self.calls += 1
        return fn(self.tx, *args)

    read = read_list = transact


def ids_of(letters: Sequence[LetterRecord]) -> list[int]:
    return [one.id for one in letters]
