"""Lists of tasks: read functions for the service, each page bounded by rows and bytes."""

from ksana.domain.tasks.records import Task
from ksana.ports.pages import MAX_PAGE_BYTES, PageRows
from ksana.ports.tasks.tables import TasksTx


def list_page(
    tx: TasksTx,
    status: str | None,
    name: str | None,
    tag: str | None,
    page: int,
    page_size: int,
    after: int | None,
) -> tuple[PageRows[Task], int]:
    """One page of living tasks, and how many there are."""
    tasks = tx.tasks.list_tasks(
        status=status,
        name=name,
        tag=tag,
        after=after or 0,
        limit=page_size,
        skip=0 if after is not None else (page - 1) * page_size,
        max_bytes=MAX_PAGE_BYTES,
    )
    counts = tx.tasks.count_by_status(status=status, name=name, tag=tag)
    return tasks, sum(counts.values())


def list_timers(tx: TasksTx, after: int, limit: int) -> PageRows[Task]:
    """Living SYNC tasks that call a target, after an id."""
    return tx.tasks.list_tasks(
        exec_type="SYNC", makes_calls=True, after=after, limit=limit, max_bytes=MAX_PAGE_BYTES
    )
