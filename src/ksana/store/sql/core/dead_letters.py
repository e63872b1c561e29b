"""Dead letters of every surface, in one table."""

from collections.abc import Sequence
from typing import Any, Final

from ksana.base.instant import Instant
from ksana.domain.dead_letters import (
    MAX_ERROR,
    MAX_SOURCE,
    LetterFilter,
    LetterGroup,
    LetterPlace,
    LetterRecord,
    NewLetter,
    group_key,
)
from ksana.store.sql.core.session import Session

_COLUMNS: Final = (
    "surface",
    "entity_id",
    "source",
    "status",
    "error",
    "error_key",
    "died_at",
)


class SqlDeadLetters:
    """`dead_letters`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def add(self, surface: str, letters: Sequence[NewLetter]) -> None:
        rows = [
            (
                surface,
                letter.entity_id,
                letter.source[:MAX_SOURCE],
                letter.status,
                letter.error[:MAX_ERROR],
                group_key(letter.error),
                self._now,
            )
            for letter in letters
        ]
        self._session.run_rows_later("dead_letters.insert_letter", _COLUMNS, rows)

    def settle(self, surface: str, entity_ids: Sequence[str]) -> int:
        rows = [(surface, entity_id) for entity_id in sorted(entity_ids)]
        return self._session.run_rows("dead_letters.delete_letter", ("surface", "entity_id"), rows)

    def find(self, ids: Sequence[int]) -> list[LetterRecord]:
        rows = self._session.all("dead_letters.find_letters", ids=sorted(ids))
        return [LetterRecord(*row) for row in rows]

    def lock(self, ids: Sequence[int]) -> list[LetterRecord]:
        rows = self._session.all("dead_letters.lock_letters", ids=sorted(ids))
        return [LetterRecord(*row) for row in rows]

    def list_letters(
        self, surface: str, wanted: LetterFilter, before: LetterPlace | None, limit: int
    ) -> list[LetterRecord]:
        before_at, before_id = (None, None) if before is None else before
        statement, params = _by_index("list", wanted)
        rows = self._session.filtered(
            statement,
            {"since": wanted.since, "until": wanted.until, "before_at": before_at},
            surface=surface,
            before_id=before_id,
            limit=limit,
            **params,
        )
        return [LetterRecord(*row) for row in rows]

    def count_letters(self, surface: str, wanted: LetterFilter, limit: int) -> int:
        statement, params = _by_index("count", wanted)
        span = {"since": wanted.since, "until": wanted.until}
        rows = self._session.filtered(statement, span, surface=surface, limit=limit, **params)
        return int(rows[0][0])

    def list_groups(
        self, surface: str, after: int | None, limit: int, count_to: int
    ) -> list[LetterGroup]:
        groups: list[LetterGroup] = []
        key = -1 if after is None else after
        while len(groups) < limit:
            row = self._session.one("dead_letters.next_error", surface=surface, after=key)
            if row is None:
                break
            key = row[0]
            groups.append(self._read_group(surface, key, count_to))
        return groups

    def _read_group(self, surface: str, key: int, count_to: int) -> LetterGroup:
        wanted = LetterFilter(error_key=key)
        oldest = self._session.one("dead_letters.oldest_of_error", surface=surface, error_key=key)
        assert oldest is not None
        return LetterGroup(
            surface=surface,
            error_key=key,
            count=self.count_letters(surface, wanted, count_to),
            newest=self.list_letters(surface, wanted, None, 1)[0],
            oldest_at=oldest[0],
        )

    def list_surplus(self, surface: str, source: str, keep: int, limit: int) -> list[str]:
        rows = self._session.all(
            "dead_letters.list_surplus", surface=surface, source=source, keep=keep, limit=limit
        )
        return [row[0] for row in rows]

    def purge(self, surface: str, before: Instant, limit: int) -> int:
        rows = self._session.all(
            "dead_letters.list_old", surface=surface, before=before, limit=limit
        )
        return self.settle(surface, [row[0] for row in rows])


def _by_index(verb: str, wanted: LetterFilter) -> tuple[str, dict[str, Any]]:
    """The statement whose index has what is wanted, and its values."""
    if wanted.source is not None:
        if wanted.error_key is not None:
            raise ValueError("letters are found by an error or by a source, not by both")
        return f"dead_letters.{verb}_of_source", {"source": wanted.source}
    if wanted.error_key is not None:
        return f"dead_letters.{verb}_of_error", {"error_key": wanted.error_key}
    return f"dead_letters.{verb}_letters", {}
