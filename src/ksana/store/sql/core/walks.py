"""Walks over rows that ended, for retention: bounded stretches of the index of their ends."""

from typing import Final

from ksana.base.instant import Instant
from ksana.ports.retention import OldRows, WalkPlace
from ksana.store.sql.core.session import Session

_WINDOWS: Final = 20
"""Windows that one stretch looks through for something that may go."""


def walk_ended(
    session: Session, statement: str, before: Instant, after: WalkPlace, limit: int
) -> OldRows:
    """Find rows that ended before. The statement reads (number, end, whether it stays) in the order
    of ends and numbers, after an end and a number."""
    for _ in range(_WINDOWS):
        rows = session.all(
            statement, before=before, after_at=after[0], after_seq=after[1], limit=limit
        )
        if rows:
            after = rows[-1][1], rows[-1][0]
        keys = [seq for seq, _, stays in rows if not stays]
        if keys or len(rows) < limit:
            return OldRows(keys, after, is_end=len(rows) < limit)
    return OldRows([], after, is_end=False)
