"""How many rows of a kind there are, kept as they come and go: lists show it without counting.

Every connection adds to a row of its own, so that writers hardly ever wait for each other; the rows
are added up when they are read. Counts are written with what they count, in one transaction.
"""

from typing import Any, Final

from ksana.base.ids import new_token
from ksana.store.sql.core.session import Session

SHARDS: Final = 64
"""Rows for each thing that is counted. Two connections that draw the same one take turns."""

CORRECTIONS: Final = SHARDS
"""The share that no connection adds to: what was found to be counted wrongly."""

_PROCESS: Final = new_token()
_COLUMNS: Final = ("kind", "entry", "shard", "n")


class SqlRowCounts:
    """`row_counts`."""

    flush_order = 2

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._shard = 0 if session.is_embedded else (_PROCESS ^ id(session) >> 6) % SHARDS
        self._added: dict[tuple[str, str], int] = {}

    def add(self, kind: str, entry: str, count: int) -> None:
        self._session.wrote = True
        added = self._added
        added[kind, entry] = added.get((kind, entry), 0) + count

    def read(self, kind: str) -> dict[str, int]:
        self.flush()
        rows = self._session.all("core.sum_row_counts", kind=kind)
        return {row[0]: int(row[1]) for row in rows}

    def flush(self) -> None:
        """Write one change for each entry, in one order everywhere."""
        added, self._added = self._added, {}
        rows = [
            (kind, entry, self._shard, count)
            for (kind, entry), count in sorted(added.items())
            if count
        ]
        if rows:
            self._session.run_rows_later("core.add_to_row_counts", _COLUMNS, rows)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._added = {}
