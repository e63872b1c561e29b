"""Which tasks fire and how long their runs took, on every SQL store."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.schedule import Every, make_cron
from ksana.domain.tasks.records import Definition, Options
from ksana.store.sql import SqlStore
from tests.conformance.store.test_history import new_run
from tests.ground.task_rows import a_finish, a_task


@pytest.mark.spec("X2", "B8")
async def test_armed_tasks_are_read_by_page_with_their_hosts_and_durations(store: SqlStore) -> None:

    def fill(tx: Any) -> tuple[list[int], int]:
        now = tx.now
        definitions = [
            Definition("a", "", Every(MINUTE, now, False), target_url="https://Host:8080/x"),
            Definition("b", "", make_cron("0 3 * * *"), options=Options(max_runs=5)),
            Definition("c", "", Every(MINUTE, now, False), target_url="http://h/"),
            Definition("d", "", Every(MINUTE, now, False), target_url="http://h/"),
        ]
        rows = [
            a_task(f"j{at}", definition, now, now + MINUTE)
            for at, definition in enumerate(definitions)
        ]
        rows[2] = msgspec.structs.replace(rows[2], status="DISABLED", fire_at=None)
        ids = tx.tasks.insert(rows)
        tx.tasks.delete_if_living(tx.tasks.find(ids[3]), definitions[3])
        runs = [new_run(ids[0], now, "RUNNING", token=at, held_by="i") for at in range(4)]
        made = tx.run_changes.insert(runs)
        tx.run_changes.finish(
            [
                a_finish(run, at, ids[0], start_time=now, end_time=now + at * SECOND)
                for at, run in enumerate(made[:3])
            ]
        )
        return ids, now

    ids, now = await store.transact(fill)

    def look(tx: Any) -> Any:
        tables = tx.armed_tasks
        return (
            tables.list_armed(0, 10),
            tables.list_armed(0, 1),
            tables.list_armed(ids[-1], 10),
            tables.list_durations(ids[0], 20),
            tables.list_durations(ids[0], 2),
            tables.list_durations(ids[1], 20),
        )

    whole, first, none, durations, newest, unknown = await store.read(look)
    assert whole[1] is None
    assert [(task.id, task.host, task.runs_left) for task in whole[0]] == [
        (ids[0], "host:8080", None),
        (ids[1], "@http", 5),
    ]
    assert whole[0][0].next_slot_at == now + MINUTE < now + HOUR
    assert ([task.id for task in first[0]], first[1]) == ([ids[0]], ids[0])
    assert none == ([], None)
    assert (len(durations), len(newest), unknown) == (3, 1, [])
