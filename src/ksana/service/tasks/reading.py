"""Lists of tasks and runs: read functions for the service, each page bounded by rows, bytes, what
it looks through, and depth."""

import msgspec

from ksana.base.errors import InvalidError, NotFoundError
from ksana.domain.tasks.records import Run, Task
from ksana.ports.pages import MAX_DEPTH, PageRows, Place, Total
from ksana.ports.tasks.runs import RunFilter
from ksana.ports.tasks.tables import TaskFilter, TasksTx


class RunPage(msgspec.Struct, frozen=True):
    """One page of runs, newest first."""

    runs: PageRows[Run]
    total: Total
    tasks: dict[int, Task]
    """The tasks they belong to, deleted ones included."""


def list_tasks(
    tx: TasksTx, wanted: TaskFilter, page: int, page_size: int, after: int | None
) -> tuple[PageRows[Task], Total]:
    """One page of living tasks, by its number or after an id, and how many there are."""
    total = tx.task_lists.count(wanted)
    skip = 0 if after is not None else _skip_to(page, page_size, total)
    if skip is None:
        return PageRows(), total
    return tx.task_lists.list_page(wanted, after or 0, page_size, skip), total


def list_timers(tx: TasksTx, after: int, limit: int) -> PageRows[Task]:
    """Living SYNC tasks that call a target, after an id."""
    return tx.task_lists.list_page(TaskFilter(is_timer=True), after, limit)


def list_runs(
    tx: TasksTx, wanted: RunFilter, page: int, page_size: int, after: Place | None
) -> RunPage:
    """One page of runs, by its number or after a place; an unknown task is NOT_FOUND."""
    if wanted.task_id is not None and tx.tasks.find(wanted.task_id) is None:
        raise NotFoundError(f"no task has the id {wanted.task_id}")
    total = tx.run_lists.count(wanted)
    skip = 0 if after is not None else _skip_to(page, page_size, total)
    if skip is None:
        return RunPage(PageRows(), total, {})
    runs = tx.run_lists.list_page(wanted, after, page_size, skip)
    return RunPage(runs, total, tx.task_lists.find_tasks({run.task_id for run in runs}))


def _skip_to(page: int, page_size: int, total: Total) -> int | None:
    """The rows before a page; None if it lies behind the last one. Raise InvalidError for a page
    that is too deep to walk to."""
    skip = (page - 1) * page_size
    if total.is_exact and skip and skip >= total.count:
        return None
    if skip > MAX_DEPTH:
        raise InvalidError(
            f"page {page} begins behind row {MAX_DEPTH:,}: pages are numbered up to there. "
            "Go on from page to page with cursor=next_cursor, or narrow the filters",
            field="page",
        )
    return skip
