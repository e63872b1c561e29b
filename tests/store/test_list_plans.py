"""Pages of lists are read from an index, in its order, on every database, whatever it knows of the
table: empty, just filled, analysed, or bloated by rows that were written again and again."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.ids import new_ordered_uuids
from ksana.base.instant import HOUR, SECOND
from ksana.domain.queue.classes import class_of
from ksana.domain.queue.jobs import NewJob
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition
from ksana.service.queue.jobs import submit_jobs
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.conformance.store.test_history import new_run
from tests.ground.task_rows import a_task
from tests.store.plans import analyze, explain

ROWS = 3_000
TABLES = ("tasks", "task_runs", "scheduler_job_runs")

PRIMARY = "primary key"

READS = {
    "task_lists.read_runs": ("task_runs", PRIMARY),
    "task_lists.read_runs_by_time": ("task_runs", PRIMARY),
    "task_lists.read_tasks": ("tasks", PRIMARY),
    "queue.list_jobs": ("scheduler_job_runs", PRIMARY),
}
"""Rows by id: each is looked up, and they are sorted after."""

PLANS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "task_lists.find_runs": ("task_runs", PRIMARY, ()),
    "task_lists.find_runs_of_status": ("task_runs", "task_runs_status", ()),
    "task_lists.find_of_task": ("task_runs", "task_runs_of_task", ()),
    "task_lists.count_of_task": ("task_runs", "task_runs_of_task", ()),
    "task_lists.find_in_task": ("task_runs", "task_runs_of_task", ("status", "since", "until")),
    "task_lists.count_in_task": ("task_runs", "task_runs_of_task", ("status",)),
    "task_lists.edge_in_task": ("task_runs", "task_runs_of_task", ()),
    "task_lists.find_in_time": ("task_runs", "task_runs_time", ()),
    "task_lists.count_in_time": ("task_runs", "task_runs_time", ()),
    "task_lists.find_status_in_time": ("task_runs", "task_runs_time", ()),
    "task_lists.count_status_in_time": ("task_runs", "task_runs_time", ()),
    "task_lists.edge_in_time": ("task_runs", "task_runs_time", ()),
    "task_lists.find_living": ("tasks", "tasks_status", ()),
    "task_lists.find_of_status": ("tasks", "tasks_status", ()),
    "task_lists.find_among_tasks": ("tasks", PRIMARY, ("name", "exec_type", "no_url")),
    "task_lists.count_among_tasks": ("tasks", PRIMARY, ("tag",)),
    "task_lists.edge_among_tasks": ("tasks", PRIMARY, ()),
    "job_lists.find_all": ("scheduler_job_runs", PRIMARY, ()),
    "job_lists.find_of_state": ("scheduler_job_runs", "job_runs_state", ()),
    "job_lists.find_of_addon": ("scheduler_job_runs", "job_runs_addon", ()),
    "job_lists.find_among_all": ("scheduler_job_runs", PRIMARY, ("job_type",)),
    "job_lists.edge_among_all": ("scheduler_job_runs", PRIMARY, ()),
    "job_lists.find_in_state": ("scheduler_job_runs", "job_runs_state", ("created_after",)),
    "job_lists.edge_in_state": ("scheduler_job_runs", "job_runs_state", ()),
    "job_lists.find_in_addon": ("scheduler_job_runs", "job_runs_addon", ("job_type",)),
    "job_lists.edge_in_addon": ("scheduler_job_runs", "job_runs_addon", ()),
    "job_lists.count_ready_of": ("scheduler_job_runs", "job_runs_ready", ()),
    "job_lists.count_scheduled": ("scheduler_job_runs", "job_runs_scheduled", ()),
    "job_lists.count_of_state": ("scheduler_job_runs", "job_runs_state", ()),
    "job_lists.job_from": ("scheduler_job_runs", PRIMARY, ()),
}
"""The table, the index that is read, and the filters given."""

_PRIMARY = {
    "sqlite": "USING INTEGER PRIMARY KEY",
    "postgresql": "{table}_pkey",
    "mysql": '"key": "PRIMARY"',
}


_LOOKED = ("in", "among", "living")
"""In the names of statements that look through some rows, or put two short lists together."""


def fill(tx: Any) -> None:
    definition = Definition("n", "", Every(HOUR, tx.now, False), target_url="http://t/")
    tx.tasks.insert([a_task(f"j{n}", definition, tx.now, None, "T") for n in range(ROWS)])
    tx.run_changes.insert(
        [
            new_run(1 + n % 3, n * SECOND, "FAILED" if n % 100 == 0 else "SUCCESS")
            for n in range(ROWS)
        ]
    )
    one = class_of("a", "x", 1, ())
    jobs = [
        NewJob(
            job_id=job_id,
            priority="NORMAL",
            job_class=one,
            constraints_json="{}",
            payload_json="{}",
            client_request_id=None,
            max_attempts=1,
            run_at=None,
            fairness_key=None,
        )
        for job_id in new_ordered_uuids(tx.now, ROWS)
    ]
    submit_jobs(tx, jobs, [one], True)


def bloat(database: Database) -> None:
    """Leave dead versions of every row behind."""
    for _ in range(5):
        for table in TABLES:
            database.ask(f"UPDATE {table} SET updated_at = updated_at + 1")


@pytest.fixture(params=["empty", "fresh", "analysed", "bloated"])
async def filled(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[SqlStore]:
    store = await open_store(store_url, SystemClock())
    database = Database(store_url)
    if request.param != "empty":
        await store.transact(fill)
    if request.param == "analysed":
        for table in TABLES:
            analyze(database, table)
    if request.param == "bloated":
        bloat(database)
    yield store
    await store.close()


@pytest.mark.spec("C2", "C5", "Q7", "T2")
async def test_pages_of_lists_are_read_from_an_index_in_its_order(
    filled: SqlStore, store_url: str
) -> None:
    kind = Database(store_url).kind
    values = {
        "before": 2_000,
        "after": 1_000,
        "floor": 1,
        "limit": 50,
        "skip": 100,
        "look": 500,
        "status": "SUCCESS",
        "task_id": 1,
        "since": 5 * SECOND,
        "until": 9 * SECOND,
        "at": 900 * SECOND,
        "name": "%n%",
        "tag": "%,x,%",
        "exec_type": "SYNC",
        "no_url": "",
        "state": "QUEUED",
        "addon_id": "a",
        "job_type": "x",
        "created_after": 1,
        "from_id": 7,
        "urgency": 1,
        "enabled": "ENABLED",
        "disabled": "DISABLED",
    }

    def read_plans(tx: Any) -> dict[str, str]:
        tx._session.avoid_sorts()  # as the lists do
        tx._session.raw("SELECT 1")
        return {
            name: explain(tx, name, kind, values, filters)
            for name, (_, _, filters) in PLANS.items()
        }

    def read_row_plans(tx: Any) -> dict[str, str]:
        tx._session.avoid_sorts()
        tx._session.raw("SELECT 1")
        ids = {"ids": [3, 5, 7], "seqs": [3, 5, 7]}
        return {name: explain(tx, name, kind, ids) for name in READS}

    for name, plan in (await filled.read_list(read_row_plans)).items():
        wanted = _PRIMARY[kind].format(table=READS[name][0])
        assert wanted in plan, (name, plan)
        assert "Index Cond" in plan or "SEARCH" in plan or '"access_type": "range"' in plan, (
            name,
            plan,
        )

    for name, plan in (await filled.read_list(read_plans)).items():
        table, index, _ = PLANS[name]
        wanted = _PRIMARY[kind].format(table=table) if index == PRIMARY else index
        assert wanted in plan, (name, plan)
        assert "Seq Scan" not in plan, (name, plan)
        assert f"SCAN {table}" not in plan or f"SCAN {table} USING COVERING INDEX" in plan, (
            name,
            plan,
        )
        if not set(_LOOKED) & set(name.split(".")[1].split("_")):
            # What was looked through is small and may be sorted; the rows of a table never are.
            for word in ("TEMP B-TREE", "filesort", "Sort Key"):
                assert word not in plan, (name, plan)
