"""Dead letters of every surface in one table: `tx.dead_letters`. A surface names itself; the core
names none."""

from collections.abc import Sequence
from typing import Protocol

from ksana.base.instant import Instant
from ksana.domain.dead_letters import (
    LetterFilter,
    LetterGroup,
    LetterPlace,
    LetterRecord,
    NewLetter,
)
from ksana.ports.store import Tx


class DeadLetterTable(Protocol):
    """Letters that nobody has settled yet. Reads go by an index and are bounded by their limit, or
    by the number of groups asked for."""

    def add(self, surface: str, letters: Sequence[NewLetter]) -> None:
        """Enter letters that died at `tx.now`. One whose entity has a letter is passed over."""
        ...

    def settle(self, surface: str, entity_ids: Sequence[str]) -> int:
        """Take out the letters of these entities; answer how many had one."""
        ...

    def find(self, ids: Sequence[int]) -> list[LetterRecord]:
        """Letters by id, in the order of ids."""
        ...

    def lock(self, ids: Sequence[int]) -> list[LetterRecord]:
        """Letters by id, held until the end of the transaction, in the order of ids. Those settled
        meanwhile are missing."""
        ...

    def list_letters(
        self, surface: str, wanted: LetterFilter, before: LetterPlace | None, limit: int
    ) -> list[LetterRecord]:
        """Newest first, older than the place `before`. `wanted` may have an error or a source, not
        both: each has its index."""
        ...

    def count_letters(self, surface: str, wanted: LetterFilter, limit: int) -> int:
        """How many match, counted up to a limit. The same holds for `wanted`."""
        ...

    def list_groups(
        self, surface: str, after: int | None, limit: int, count_to: int
    ) -> list[LetterGroup]:
        """Groups by their keys, those after one. Each is counted up to `count_to`."""
        ...

    def list_surplus(self, surface: str, source: str, keep: int, limit: int) -> list[str]:
        """Entities of the letters of a source beyond its newest, up to a limit."""
        ...

    def purge(self, surface: str, before: Instant, limit: int) -> int:
        """Settle up to `limit` letters that died before; answer how many."""
        ...


class DeadLetterTx(Tx, Protocol):
    """A transaction with dead letters."""

    @property
    def dead_letters(self) -> DeadLetterTable: ...
