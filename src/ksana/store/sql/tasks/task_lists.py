"""Pages of living tasks: ids from an index first, then the rows."""

from collections.abc import Collection
from typing import Any

from ksana.domain.tasks.records import Task
from ksana.ports.pages import LOOK_THROUGH, MAX_PAGE_BYTES, PageRows, Total
from ksana.ports.tasks.tables import TaskFilter
from ksana.store.sql.core.looking import look_through
from ksana.store.sql.core.session import Session
from ksana.store.sql.tasks.definitions import KIND, read_task


class SqlTaskLists:
    """The lists of tasks of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._counts = tx.row_counts
        session.avoid_sorts()

    def list_page(
        self, wanted: TaskFilter, after: int, limit: int, skip: int = 0
    ) -> PageRows[Task]:
        session = self._session
        where = {"after": after, "limit": limit + 1, "skip": skip}
        edge = None
        if _is_sifted(wanted):
            sieve = _sieve(wanted)
            found, edge = look_through(
                lambda look: session.filtered(
                    "task_lists.find_among_tasks", sieve, look=look, **where
                ),
                lambda look: session.one("task_lists.edge_among_tasks", after=after, look=look),
                limit + 1,
                LOOK_THROUGH,
            )
        elif wanted.status is not None:
            found = session.all("task_lists.find_of_status", status=wanted.status, **where)
        else:
            found = session.all(
                "task_lists.find_living",
                enabled="ENABLED",
                disabled="DISABLED",
                look=limit + skip + 1,
                **where,
            )
        ids = [row[0] for row in found[:limit]]
        rows = (
            self._session.paged("task_lists.read_tasks", {}, MAX_PAGE_BYTES, ids=ids)
            if ids
            else PageRows()
        )
        tasks = PageRows(read_task(row) for row in rows)
        if rows.is_cut or len(found) > limit:
            tasks.next_place = (tasks[-1].id,)
        elif edge is not None:  # the edge itself is to be looked at next
            tasks.next_place = (edge[0] - 1,)
        return tasks

    def count(self, wanted: TaskFilter) -> Total:
        if not _is_sifted(wanted):
            counts = self.count_by_status()
            count = sum(counts.values()) if wanted.status is None else counts.get(wanted.status, 0)
            return Total(count, is_exact=True)
        looked = {"after": 0, "look": LOOK_THROUGH}
        rows = self._session.filtered("task_lists.count_among_tasks", _sieve(wanted), **looked)
        edge = self._session.one("task_lists.edge_among_tasks", **looked)
        return Total(int(rows[0][0]), is_exact=edge is None)

    def count_by_status(self) -> dict[str, int]:
        counts: dict[str, int] = self._counts.read(KIND)
        return {status: count for status, count in counts.items() if count}

    def find_tasks(self, task_ids: Collection[int]) -> dict[int, Task]:
        if not task_ids:
            return {}
        rows = self._session.all("task_lists.read_tasks", ids=sorted(task_ids))
        return {row[0]: read_task(row) for row in rows}


def _is_sifted(wanted: TaskFilter) -> bool:
    sifted = (wanted.name, wanted.tag, wanted.last_status)
    return wanted.is_timer or any(value is not None for value in sifted)


def _sieve(wanted: TaskFilter) -> dict[str, str | None]:
    """What is compared task by task."""
    return {
        "status": wanted.status,
        "name": None if wanted.name is None else f"%{_like(wanted.name)}%",
        "tag": None if wanted.tag is None else f"%,{_like(wanted.tag)},%",
        "last_status": wanted.last_status,
        "exec_type": "SYNC" if wanted.is_timer else None,
        "no_url": "" if wanted.is_timer else None,
    }


def _like(text: str) -> str:
    """A part that LIKE … ESCAPE '!' matches as it stands. `!` and not a backslash, which the three
    databases read differently."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
