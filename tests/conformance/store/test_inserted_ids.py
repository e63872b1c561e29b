"""Rows that are inserted together get ids of their own, told in their order, whoever else inserts
at the same moment."""

import asyncio

import pytest

from ksana.base.ids import new_uid
from ksana.base.instant import HOUR
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition, Task
from ksana.ports.tasks.tables import TasksTx
from ksana.store.sql import SqlStore
from tests.ground.task_rows import a_task

pytestmark = pytest.mark.spec("X7")


def new_tasks(count: int) -> list[Task]:
    definition = Definition("n", "", Every(HOUR, 0, False), target_url="http://t/")
    return [a_task(new_uid(), definition, HOUR, None, "T") for _ in range(count)]


async def test_ids_are_those_of_the_rows_in_their_order(store: SqlStore) -> None:
    async def insert(count: int) -> dict[int, str]:
        tasks = new_tasks(count)
        ids = await store.transact(lambda tx: tx.tasks.insert(tasks))
        assert len(ids) == count
        return dict(zip(ids, [task.job_id for task in tasks], strict=True))

    # More than the writers there are, so that some share a commit and some run beside each other.
    parts = await asyncio.gather(*(insert(count) for count in (1, 2, 40, 130, 300, 7, 90, 1, 250)))
    told = {task_id: job_id for part in parts for task_id, job_id in part.items()}
    assert len(told) == sum(map(len, parts))

    def read(tx: TasksTx) -> dict[int, str]:
        return {task_id: task.job_id for task_id in told if (task := tx.tasks.find(task_id))}

    assert await store.read(read) == told
