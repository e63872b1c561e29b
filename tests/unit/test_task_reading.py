"""Pages of tasks and runs: what a page number or a place asks of the store."""

from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.errors import InvalidError, NotFoundError
from ksana.ports.pages import PageRows, Total
from ksana.ports.tasks.runs import RunFilter
from ksana.ports.tasks.tables import TaskFilter
from ksana.service.tasks import reading
from ksana.service.tasks.reading import RunPage
from tests.unit.task_ground import a_run, a_task

TASKS = PageRows([a_task(id=3)])
RUNS = PageRows([a_run(id=60, task_id=7), a_run(id=61, task_id=8)])


class Lists:
    """The tables of lists, with one page and a total; what they are asked for is remembered."""

    def __init__(self, rows: PageRows[Any], total: Total) -> None:
        self.rows = rows
        self.total = total
        self.asked: list[tuple[Any, ...]] = []

    def count(self, wanted: Any) -> Total:
        return self.total

    def list_page(self, *asked: Any) -> PageRows[Any]:
        self.asked.append(asked)
        return self.rows

    def find_tasks(self, ids: set[int]) -> dict[int, Any]:
        return {one: a_task(id=one) for one in ids}


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_DEPTH", 20)


PAGES = [
    (1, 10, Total(0, True), 0),
    (1, 10, Total(50, True), 0),
    (2, 10, Total(50, True), 10),
    (3, 7, Total(50, True), 14),
    (3, 10, Total(50, True), 20),
    (2, 10, Total(11, True), 10),
    (3, 10, Total(20, True), None),
    (9, 10, Total(50, True), None),
    (3, 10, Total(5, False), 20),
]
"""(page, its size, how many there are, how many are skipped; None: there is no such page)."""


@pytest.mark.spec("X13")
@pytest.mark.parametrize(("page", "size", "total", "skip"), PAGES)
def test_a_page_of_tasks_by_its_number(
    bounded: None, page: int, size: int, total: Total, skip: int | None
) -> None:
    lists, wanted = Lists(TASKS, total), TaskFilter(status="ENABLED")
    tx: Any = SimpleNamespace(task_lists=lists)
    rows = TASKS if skip is not None else []
    assert reading.list_tasks(tx, wanted, page, size, None) == (rows, total)
    assert lists.asked == ([(wanted, 0, size, skip)] if skip is not None else [])


@pytest.mark.spec("X13")
@pytest.mark.parametrize(("page", "size", "total", "skip"), PAGES)
def test_a_page_of_runs_by_its_number(
    bounded: None, page: int, size: int, total: Total, skip: int | None
) -> None:
    lists, wanted = Lists(RUNS, total), RunFilter()
    tx: Any = SimpleNamespace(run_lists=lists, task_lists=lists)
    found = reading.list_runs(tx, wanted, page, size, None)
    tasks = {7: a_task(id=7), 8: a_task(id=8)}
    assert found == (RunPage(RUNS, total, tasks) if skip is not None else RunPage([], total, {}))
    assert lists.asked == ([(wanted, None, size, skip)] if skip is not None else [])


@pytest.mark.spec("X13")
@pytest.mark.parametrize("total", [Total(50, True), Total(5, False)])
def test_a_page_that_lies_too_deep_is_refused(bounded: None, total: Total) -> None:
    lists = Lists(TASKS, total)
    tx: Any = SimpleNamespace(task_lists=lists, run_lists=lists)
    with pytest.raises(InvalidError) as refused:
        reading.list_tasks(tx, TaskFilter(), 4, 7, None)
    assert refused.value.field == "page"
    with pytest.raises(InvalidError):
        reading.list_runs(tx, RunFilter(), 4, 7, None)
    assert lists.asked == []


@pytest.mark.spec("X13")
def test_after_a_place_the_number_of_the_page_does_not_count(bounded: None) -> None:
    lists = Lists(RUNS, Total(50, True))
    tx: Any = SimpleNamespace(task_lists=lists, run_lists=lists)
    reading.list_tasks(tx, TaskFilter(), 9, 10, 33)
    reading.list_runs(tx, RunFilter(), 9, 10, (5, 33))
    assert lists.asked == [(TaskFilter(), 33, 10, 0), (RunFilter(), (5, 33), 10, 0)]


@pytest.mark.spec("T2")
def test_timers_are_what_calls_a_target_and_waits_for_it() -> None:
    lists = Lists(TASKS, Total(1, True))
    tx: Any = SimpleNamespace(task_lists=lists)
    assert reading.list_timers(tx, 5, 20) is TASKS
    assert lists.asked == [(TaskFilter(is_timer=True), 5, 20)]


@pytest.mark.spec("C5")
def test_runs_of_a_task_that_never_was_are_not_found() -> None:
    lists = Lists(RUNS, Total(2, True))
    tx: Any = SimpleNamespace(run_lists=lists, task_lists=lists)
    tx.tasks = SimpleNamespace(find=lambda task_id: a_task() if task_id == 7 else None)
    assert reading.list_runs(tx, RunFilter(task_id=7), 1, 10, None).runs is RUNS
    with pytest.raises(NotFoundError):
        reading.list_runs(tx, RunFilter(task_id=8), 1, 10, None)
