"""How the secrets of tasks are stored, and storing them another way."""

from typing import Any

from ksana.domain.tasks.records import Definition, Task
from ksana.store.sql.core.session import Session
from ksana.store.sql.tasks.definitions import list_tasks_as
from ksana.store.sql.tasks.task_rows import write_secrets


class SqlTaskSeals:
    """The seals of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def list_seals(self) -> list[str]:
        found: list[str] = []
        while True:
            row = self._session.one("seals.next_seal", after=found[-1] if found else "")
            if row is None or row[0] is None:
                return found
            found.append(str(row[0]))

    def count(self, sealed_by: str) -> int:
        row = self._session.one("seals.count_seal", sealed_by=sealed_by)
        return 0 if row is None else int(row[0])

    def list_sealed(self, sealed_by: str, after: int, limit: int) -> list[Task]:
        return list_tasks_as(
            self._session, "seals.list_sealed", sealed_by=sealed_by, after=after, limit=limit
        )

    def reseal_if_version(self, task: Task, definition: Definition) -> bool:
        resealed = self._session.run(
            "seals.reseal_task", id=task.id, version=task.version, **write_secrets(definition)
        )
        return resealed == 1

    def drop_override_bodies(self, task_id: int) -> int:
        return self._session.run("seals.drop_override_bodies", task_id=task_id)
