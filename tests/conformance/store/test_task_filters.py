"""Filters of the list of tasks match wildcards as themselves, on every SQL store."""

from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import HOUR, SECOND, Instant
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition
from ksana.ports.tasks.tables import TaskFilter
from ksana.service.tasks.definitions import NewTask, TaskService
from ksana.store.sql import SqlStore


class NoHints:
    def due(self, at: Instant | None) -> None: ...

    def made(self, tasks: Any) -> None: ...

    def ready(self, host: str) -> None: ...

    def canceled(self, run_id: int) -> None: ...


@pytest.mark.spec("X2", "C2")
async def test_names_and_tags_match_wildcards_as_themselves(store: SqlStore) -> None:
    tasks = TaskService(store, SystemClock(), NoHints(), SECOND)
    for name, tag in (("a_b", "x_y"), ("axb", "xay"), ("50%", "9%"), ("50!", "9!"), ("c\\d", "\\")):
        definition = Definition(name, "", Every(HOUR, 0, False), tags=(tag,))
        await tasks.create(NewTask("C", definition, "ENABLED"))

    async def found(name: str | None = None, tag: str | None = None) -> list[str]:
        page, total = await tasks.list_page(TaskFilter(name=name, tag=tag), page=1, page_size=9)
        assert (len(page), True) == (total.count, total.is_exact)
        return [task.definition.name for task in page]

    for part, wanted in (
        ("_", ["a_b"]),
        ("a_b", ["a_b"]),
        ("%", ["50%"]),
        ("!", ["50!"]),
        ("\\", ["c\\d"]),
        ("50", ["50%", "50!"]),
    ):
        assert await found(name=part) == wanted, part
    for tag, wanted in (("x_y", ["a_b"]), ("9%", ["50%"]), ("9!", ["50!"]), ("\\", ["c\\d"])):
        assert await found(tag=tag) == wanted, tag
    assert await found(tag="%") == []


@pytest.mark.spec("X2", "C2")
async def test_tasks_are_found_by_what_happened_last(store: SqlStore) -> None:
    tasks = TaskService(store, SystemClock(), NoHints(), SECOND)
    made = [
        await tasks.create(NewTask("C", Definition(name, "", Every(HOUR, 0, False)), "ENABLED"))
        for name in ("a", "b", "c", "d")
    ]
    facts = [(made[0].id, "failed", "x"), (made[1].id, "success", ""), (made[2].id, "failed", "y")]
    await store.transact(lambda tx: tx.tasks.note_last(facts, tx.now))

    async def found(last: str, name: str | None = None) -> list[str]:
        wanted = TaskFilter(last_status=last, name=name)
        page, total = await tasks.list_page(wanted, page=1, page_size=9)
        assert (len(page), True) == (total.count, total.is_exact)
        return [task.definition.name for task in page]

    assert await found("failed") == ["a", "c"]
    assert await found("failed", "c") == ["c"]
    assert await found("") == ["d"]
    assert await found("timeout") == []
