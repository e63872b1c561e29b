"""Which runs must be looked at now: reads by partial index, each bounded."""

from collections.abc import Sequence
from typing import Any

from ksana.base.instant import Instant
from ksana.domain.tasks.records import Run, Task
from ksana.store.sql.core.session import Session
from ksana.store.sql.tasks.definitions import list_tasks_as
from ksana.store.sql.tasks.runs import list_runs_as


class SqlRunDue:
    """The runs of one transaction that wait for somebody."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def list_ready_hosts(self) -> list[str]:
        return [str(row[0]) for row in self._session.all("runs.list_ready_hosts")]

    def list_ready(self, host: str, limit: int) -> list[tuple[Run, Task]]:
        runs = list_runs_as(self._session, "runs.list_ready", host=host, limit=limit)
        if not runs:
            return []
        ids = list({run.task_id for run in runs})
        found = {task.id: task for task in list_tasks_as(self._session, "tasks.list_of", ids=ids)}
        return [(run, found[run.task_id]) for run in runs]

    def list_waiting(self, task_id: int, limit: int) -> list[Run]:
        return list_runs_as(self._session, "runs.list_waiting", task_id=task_id, limit=limit)

    def list_held_back(self, task_id: int, limit: int) -> list[Run]:
        return list_runs_as(self._session, "runs.list_held_back", task_id=task_id, limit=limit)

    def count_unfinished(self, task_id: int, limit: int) -> int:
        row = self._session.one("runs.count_unfinished", task_id=task_id, limit=limit)
        return 0 if row is None else int(row[0])

    def list_stalled(self, limit: int) -> list[int]:
        return [int(row[0]) for row in self._session.all("runs.list_stalled", limit=limit)]

    def list_wakes(self, now: Instant, limit: int) -> list[Run]:
        return list_runs_as(self._session, "runs.list_wakes", now=now, limit=limit)

    def next_wake_at(self) -> Instant | None:
        row = self._session.one("runs.next_wake_at")
        return None if row is None else row[0]

    def list_orphans(self, me: str, limit: int) -> list[Run]:
        return list_runs_as(self._session, "runs.list_orphans", me=me, limit=limit)

    def list_held(self, me: str, before: Instant) -> list[int]:
        return [int(row[0]) for row in self._session.all("runs.list_held", me=me, before=before)]

    def list_void(self, claims: Sequence[tuple[int, int]]) -> list[int]:
        if not claims:
            return []
        ids = [run_id for run_id, _ in claims]
        current = {row[0]: row[1] for row in self._session.all("runs.list_current", ids=ids)}
        return [run_id for run_id, token in claims if current.get(run_id) != token]
