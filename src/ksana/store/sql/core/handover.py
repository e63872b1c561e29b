"""`handover_ends`: a note for each job that ended while a run waited for it."""

from collections.abc import Sequence
from typing import Any

from ksana.ports.handover import NotedEnd
from ksana.store.sql.core.session import Session


class SqlHandoverEnds:
    """The notes of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def note(self, job_ids: Sequence[str]) -> None:
        self._session.run_rows("handover.note_end", ("job_id",), [(one,) for one in job_ids])

    def list_noted(self, limit: int) -> list[NotedEnd]:
        rows = self._session.all("handover.list_noted", limit=limit)
        return [NotedEnd(int(row[0]), str(row[1])) for row in rows]

    def remove(self, ends: Sequence[NotedEnd]) -> None:
        self._session.run_rows("handover.remove_end", ("id",), [(end.id,) for end in ends])

    def has_any(self) -> bool:
        return self._session.one("handover.has_any") is not None
