"""How many rows of a kind there are, kept as they come and go: lists show it without counting.

Every connection adds to a row of its own, so that writers never wait for each other; the rows are
added up when they are read, and now and then folded into one. Counts are written with what they
count, in one transaction.
"""

from collections import Counter
from typing import Any, Final

from ksana.store.sql.core.session import MANY_SHARES, Session

FOLDED: Final = 0
"""The share into which those of connections are folded."""

CORRECTIONS: Final = 64
"""The share that no connection adds to: what was found to be counted wrongly."""

_COLUMNS: Final = ("kind", "entry", "shard", "n")


class SqlRowCounts:
    """`row_counts`."""

    flush_order = 2

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._shard = session.writer
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

    def fold(self, limit: int) -> int:
        """Fold up to `limit` shares of connections; one that is alive begins a new one when it next
        counts. Those that are being written are left for the next time."""
        rows = self._session.all("core.list_count_shares", above=MANY_SHARES, limit=limit)
        sums: Counter[tuple[str, str]] = Counter()
        for kind, entry, _, count in rows:
            sums[kind, entry] += count
        keys = [row[:3] for row in rows]
        self._session.run_rows("core.delete_count_share", _COLUMNS[:3], keys)
        folded = [(*key, FOLDED, count) for key, count in sorted(sums.items())]
        self._session.run_rows("core.add_to_row_counts", _COLUMNS, folded)
        return len(rows)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._added = {}
