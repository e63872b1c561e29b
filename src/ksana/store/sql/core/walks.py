"""Walks over rows that ended, for retention: bounded stretches of the index of their ends. And the
search by time among rows whose numbers grow with time."""

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


def find_last_at(session: Session, span: str, probe: str, at: Instant) -> int:
    """The number up to which rows are not later than an instant; 0 without rows. `span` reads the
    least and the greatest number, `probe` the first (number, instant) from a number on. Takes as
    many probes as the greatest number has bits."""
    row = session.one(span)
    if row is None or row[0] is None:
        return 0
    low, high = int(row[0]) - 1, int(row[1])
    # Everything up to `low` is not later than `at`; everything after `high` is.
    while low < high:
        middle = (low + high + 1) // 2
        found = session.one(probe, from_id=middle)
        if found is not None and found[1] <= at:
            low = max(middle, min(int(found[0]), high))
        else:
            high = middle - 1
    return low
