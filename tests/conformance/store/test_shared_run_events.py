"""Runs that are made or that end in one commit share rows of the event log, and are found there by
the instants that their own rows keep (X11)."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import HOUR, SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.records import Definition
from ksana.engine.tasks.run_writer import write_changes, write_runs
from ksana.ports.events import Event
from ksana.service.tasks.explain import explain_run
from ksana.store.sql import SqlStore
from ksana.store.sql.core.event_rows import PLACES
from tests.conformance.store.ground import Database
from tests.conformance.store.test_history import new_run
from tests.ground.task_rows import a_finish, a_task

pytestmark = pytest.mark.spec("X11", "X13")

TOKEN = 7


async def start(store: SqlStore, count: int) -> list[int]:
    """Runs of one task, all under way."""

    def write(tx: Any) -> list[int]:
        definition = Definition(
            f"t{tx.now}", "", Every(HOUR, tx.now, False), target_url="http://h/"
        )
        [task_id] = tx.tasks.insert([a_task(f"j{tx.now}", definition, tx.now, tx.now + HOUR)])
        runs = [
            new_run(task_id, tx.now, "RUNNING", token=TOKEN, held_by="i1") for _ in range(count)
        ]
        return write_runs(tx, runs)

    return await store.transact(write)


async def end(store: SqlStore, run_ids: list[int], **members: Any) -> None:
    """End an attempt of each of these runs."""

    def write(tx: Any) -> None:
        task_id = tx.runs.find(run_ids[0]).task_id
        changes: list[RunChange] = [
            a_finish(run_id, TOKEN, task_id, **members) for run_id in run_ids
        ]
        assert all(write_changes(tx, changes).done)

    await store.transact(write)


async def find(store: SqlStore, **filters: Any) -> list[Event]:
    return await store.read(lambda tx: tx.events.list_after(0, 1000, **filters))


async def of_run(store: SqlStore, run_id: int, **filters: Any) -> list[Event]:
    return await find(store, entity_type="RUN", entity_id=str(run_id), **filters)


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


async def test_events_of_many_runs_are_few_rows_and_each_run_finds_its_own(
    store: SqlStore, database: Database
) -> None:
    ids = await start(store, 3 * PLACES)
    await end(store, ids)
    [(rows, longest)] = database.ask("SELECT COUNT(*), MAX(LENGTH(data_json)) FROM event_packs")
    assert rows < len(ids) / 2 and longest <= 1_900
    events = await find(store)
    assert types(events) == ["RUN_STARTED"] * len(ids) + ["RUN_SUCCESS"] * len(ids)
    columns = "id, entity_type, entity_id, event_type"
    seen = database.ask(f"SELECT {columns} FROM scheduler_events ORDER BY id")
    assert seen == [(one.id, one.entity_type, one.entity_id, one.type) for one in events]
    for run_id in ids:
        own = await of_run(store, run_id)
        assert own == [event for event in events if event.entity_id == str(run_id)]
        assert types(own) == ["RUN_STARTED", "RUN_SUCCESS"]
        assert await find(store, entity_id=str(run_id)) == own
        assert await of_run(store, run_id, is_newest_first=True) == own[::-1]
        assert await of_run(store, run_id, event_type="RUN_SUCCESS") == own[1:]
        explained = await store.read(explain_run, run_id)
        assert [fact.type for fact in explained.why.timeline] == types(own)


async def test_a_run_finds_what_happened_between_its_making_and_its_end(
    store: SqlStore, database: Database
) -> None:
    ids = await start(store, 5)
    retrying = {"old": "RUNNING", "new": "RETRYING", "event": "RUN_RETRYING"}
    await end(store, ids, **retrying, wake_at=SECOND, next_retry_time=SECOND)
    # Its row is changed again later, so this one is not found by an instant.
    between = database.ask("SELECT entity_id FROM event_packs WHERE event_type = 'RUN_RETRYING'")
    assert sorted(int(one) for (one,) in between) == ids
    await end(store, ids, old="RETRYING", new="CANCELED", event="RUN_CANCELED")
    for run_id in ids:
        own = await of_run(store, run_id)
        assert types(own) == ["RUN_STARTED", "RUN_RETRYING", "RUN_CANCELED"]


async def test_runs_of_several_commits_are_kept_apart(store: SqlStore) -> None:
    first, second = await start(store, 4), await start(store, 4)
    await end(store, [first[0], second[0]])
    await end(store, [first[1], second[1]], new="FAILED", event="RUN_FAILED")
    for run_id, last in ((first[0], "RUN_SUCCESS"), (second[1], "RUN_FAILED")):
        assert types(await of_run(store, run_id)) == ["RUN_STARTED", last]
    assert types(await of_run(store, first[2])) == ["RUN_STARTED"]


async def test_events_of_one_run_lie_under_its_own_id(store: SqlStore, database: Database) -> None:
    [run_id] = await start(store, 1)
    await end(store, [run_id])
    rows = database.ask("SELECT entity_id, event_type FROM event_packs ORDER BY id")
    assert rows == [(str(run_id), "RUN_STARTED"), (str(run_id), "RUN_SUCCESS")]
    assert types(await of_run(store, run_id)) == ["RUN_STARTED", "RUN_SUCCESS"]


async def test_long_reasons_do_not_make_long_rows(store: SqlStore, database: Database) -> None:
    ids = await start(store, 3)
    data = msgspec.json.encode({"error": "e" * 1_500}).decode()
    await end(store, ids, new="FAILED", event="RUN_FAILED", data=data)
    [(longest,)] = database.ask("SELECT MAX(LENGTH(data_json)) FROM event_packs")
    assert 1_500 < longest <= 1_900
    for run_id in ids:
        assert len((await of_run(store, run_id))[1].data) == len(data)


async def test_strange_ids_of_runs_find_nothing_and_break_nothing(store: SqlStore) -> None:
    [first, *_] = await start(store, 3)
    for strange in (
        "",
        "-1",
        f"0{first}",
        "1.5",
        "9" * 18,
        "9" * 19,
        "9" * 400,
        "\u0661",
        "²",
        "%",
    ):
        assert await find(store, entity_id=strange) == []
        assert await find(store, entity_type="RUN", entity_id=strange) == []
