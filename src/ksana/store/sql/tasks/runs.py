"""`task_runs` and `async_callbacks` as they are read."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import Run
from ksana.ports.tasks.runs import Callback, TokenRun
from ksana.store.sql.core.session import Row, Session

RunRow: Final = msgspec.defstruct(
    "RunRow", [(f"column{n}", Any) for n in range(35)], array_like=True, gc=False
)
"""The columns every run statement selects, for reading many rows in one step."""


class SqlRuns:
    """The runs of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def find(self, run_id: int, *, lock: bool = False) -> Run | None:
        row = self._session.one("runs.lock_run" if lock else "runs.get_run", id=run_id)
        return None if row is None else read_run(row)

    def find_id(self, uid: str) -> int | None:
        row = self._session.one("runs.find_id", uid=uid)
        return None if row is None else int(row[0])

    def find_by_token(self, callback_hash: str) -> TokenRun | None:
        row = self._session.one("runs.find_by_token", callback_token=callback_hash)
        # PostgreSQL fills the column up.
        return None if row is None else TokenRun(row[0], row[1], row[2].rstrip(), row[3])

    def measure_callbacks(self, run_id: int) -> tuple[int, int, bool]:
        row = self._session.one("runs.measure_callbacks", run_id=run_id)
        assert row is not None
        return int(row[0]), int(row[1]), bool(row[2])

    def list_runs(
        self,
        *,
        task_id: int | None = None,
        slot_at: Instant | None = None,
        is_open: bool = False,
        limit: int = 20,
    ) -> list[Run]:
        filters = {
            "task_id": None if is_open else task_id,
            "open_task": task_id if is_open else None,
            "slot_at": slot_at,
        }
        rows = self._session.filtered("runs.list_runs", filters, limit=limit)
        return [read_run(row) for row in rows]

    def count_open(self, task_ids: Sequence[int]) -> dict[int, Counts]:
        if not task_ids:
            return {}
        rows = self._session.all("runs.count_open", task_ids=list(task_ids))
        return {int(row[0]): Counts(int(row[1]) - int(row[2]), int(row[2])) for row in rows}

    def list_slots(self, task_id: int, after: Instant, until: Instant, limit: int) -> list[Instant]:
        rows = self._session.all(
            "runs.list_slots", task_id=task_id, after=after, until=until, limit=limit
        )
        return [int(row[0]) for row in rows]

    def list_claimed(
        self, task_ids: Sequence[int], since: Instant, until: Instant
    ) -> set[tuple[int, Instant]]:
        rows = self._session.all(
            "runs.list_claimed", task_ids=list(task_ids), since=since, until=until
        )
        return {(int(row[0]), int(row[1])) for row in rows}

    def count_pending_callbacks(self) -> int:
        row = self._session.one("runs.count_pending_callbacks")
        return int(row[0]) if row else 0

    def list_callbacks(self, run_id: int) -> list[Callback]:
        rows = self._session.all("runs.list_callbacks", task_run_id=run_id)
        return [Callback(*row) for row in rows]


def read_run(row: Row) -> Run:
    """Read a row of the columns every run statement selects."""
    values = list(row)
    values[11], values[20], values[31] = bool(values[11]), bool(values[20]), values[31] or "[]"
    return Run(*values)


def list_runs_as(session: Session, name: str, **params: Any) -> list[Run]:
    """Read the runs a statement selects."""
    rows = session.all_as(RunRow, name, **params)
    return [read_run(msgspec.structs.astuple(row)) for row in rows]
