"""What is asked for with every firing, claim and release is found by its index, on every database,
whatever it knows of the table: empty, just filled, analysed, bloated by rows that were written
again and again, or that and analysed. No plan walks through what waits, and none sorts it."""

import re
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
from ksana.store.sql.core.bulk import list_names
from tests.conformance.store.ground import Database
from tests.conformance.store.test_history import new_run
from tests.ground.task_rows import a_task
from tests.store.plans import analyze, explain

ROWS = 2_000
TABLES = ("tasks", "task_runs", "scheduler_job_runs", "past_leases", "event_packs")
CLASSES = [class_of("a", kind, 1, ()) for kind in ("x", "y")]

PLANS: dict[str, tuple[str, ...]] = {
    "tasks.list_due": ("tasks_due",),
    "tasks.next_fire_at": ("tasks_due",),
    "tasks.list_due_share": ("tasks_due",),
    "tasks.next_fire_at_share": ("tasks_due",),
    "tasks.list_of": ("tasks",),
    "runs.list_ready": ("task_runs_ready",),
    "runs.list_wakes": ("task_runs_wake",),
    "runs.next_wake_at": ("task_runs_wake",),
    "runs.list_waiting": ("task_runs_open",),
    "runs.count_open": ("task_runs_open",),
    "runs.list_claimed": ("task_runs_slot",),
    "runs.list_slots": ("task_runs_slot",),
    "runs.list_held": ("task_runs_open",),
    "runs.list_orphans": ("task_runs_open",),
    "runs.list_stalled": ("task_runs_open",),
    "runs.list_current": ("task_runs",),
    "runs.put_off_runs": ("task_runs_open",),
    "history.count_waiting_before": ("task_runs_open",),
    "history.count_ready_before": ("task_runs_ready",),
    "queue.take_ready": ("job_runs_ready",),
    "queue.take_class": ("job_runs_class",),
    "queue.peek_ready": ("job_runs_ready",),
    "queue.peek_class": ("job_runs_class",),
    "queue.next_ready_class": ("job_runs_class",),
    "queue.has_overdue": ("job_runs_scheduled",),
    "queue.head_turn": ("job_runs_ready",),
    "queue.tail_turn": ("job_runs_ready",),
    "queue.key_turn": ("job_runs_key",),
    "queue.best_pending_urgency": ("job_runs_pending",),
    "queue.count_ready": ("job_runs_ready", "job_runs_class"),
    "queue.lock_jobs": ("job_runs_id",),
    "queue.find_job_by_request": ("job_runs_request",),
    "queue.lock_leased_jobs": ("scheduler_job_runs",),
    "queue.lock_leases_with_jobs": ("scheduler_job_runs",),
    "queue.list_active_leases": ("job_runs_leased",),
    "queue.list_expired_leases": ("job_runs_leased",),
    "queue.find_leased_job": ("scheduler_job_runs",),
    "queue.find_job_id": ("scheduler_job_runs",),
    "queue.find_past_lease": ("past_leases",),
    "queue.find_job_of_lease": ("past_leases",),
    "core.list_events": ("event_packs",),
    "core.list_events_back": ("event_packs",),
    "core.list_entity_events": ("scheduler_events_entity",),
    "core.list_entity_events_back": ("scheduler_events_entity",),
    "core.list_dated_events": ("scheduler_events_entity",),
    "core.list_dated_events_back": ("scheduler_events_entity",),
    "core.get_event_row": ("event_packs",),
    "core.first_event_after": ("event_packs",),
    "core.list_oldest_events": ("event_packs",),
    "core.list_bucket_shares": ("rollups_age",),
}
"""The indexes that will do; a table's name stands for its primary key."""

SPANS = ("job_lists.job_span", "core.latest_event_row")
"""The ends of a table."""

VALUES: dict[str, Any] = {
    "now": 900 * SECOND,
    "now_at": 900 * SECOND,
    "limit": 50,
    "mine": 1,
    "of": 3,
    "left_since": 800 * SECOND,
    "ids": [3, 5, 7],
    "task_ids": [1, 2],
    "task_id": 1,
    "host": "h",
    "id": 500,
    "me": "me",
    "before": 9 * SECOND,
    "since": 1,
    "by_us": 1,
    "after": 1,
    "until": 9 * SECOND,
    "class_id": CLASSES[0].id,
    "urgency": 2,
    "fairness_key": "k1",
    "job_id": "00000000-0000-7000-8000-000000000000",
    "lease_id": "00000000-0000-7000-8000-000000000000",
    "addon_id": "a",
    "client_request_id": "r5",
    "low": 900,
    "shares": "%@%",
    "seq": 5,
    "seqs": [3, 5, 7],
    "entity_type": "JOB",
    "entity_id": "00000000-0000-7000-8000-000000000000",
    "with_entity_id": "%0000%",
}
TEXT_IDS = ["00000000-0000-7000-8000-000000000000"]


def fill(tx: Any) -> None:
    """Tasks to come; runs that ended, wait, run and are about to; jobs that are ready."""
    definition = Definition("n", "", Every(HOUR, tx.now, False), target_url="http://t/")
    tx.tasks.insert(
        [a_task(f"j{n}", definition, tx.now, tx.now + n * SECOND, "T") for n in range(ROWS)]
    )
    kinds: list[dict[str, Any]] = [
        *[{"status": "SUCCESS"}] * 47,
        {"status": "SCHEDULED"},
        {"status": "SCHEDULED", "is_ready": True},
        {"status": "RUNNING", "held_by": "me"},
    ]
    tx.run_changes.insert(
        [
            new_run(
                1 + n % 7,
                n * SECOND,
                **{"slot_at": n * SECOND, "host": f"h{n % 5}", **kinds[n % len(kinds)]},
            )
            for n in range(ROWS)
        ]
    )
    for n in range(2 * ROWS):
        tx.events.append("TASK", n, "TASK_CREATED")
    submit_jobs(
        tx,
        [
            NewJob(
                job_id=job_id,
                priority="NORMAL",
                job_class=CLASSES[n % 2],
                constraints_json="{}",
                payload_json="{}",
                client_request_id=f"r{n}",
                max_attempts=1,
                run_at=None,
                fairness_key=f"k{n % 9}" if n % 3 == 0 else None,
            )
            for n, job_id in enumerate(new_ordered_uuids(tx.now, ROWS))
        ],
        CLASSES,
        True,
    )


@pytest.fixture(params=["empty", "fresh", "analysed", "bloated", "used"])
async def filled(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[SqlStore]:
    store = await open_store(store_url, SystemClock())
    database = Database(store_url)
    if request.param != "empty":
        await store.transact(fill)
        database.ask(
            "INSERT INTO past_leases (lease_id, job_id, job_seq, addon_id, cost_units, "
            "ttl_sec, state, granted_at, last_heartbeat_at, expires_at, lease_token) "
            "SELECT job_id, job_id, seq, addon_id, 1, 30, CASE WHEN seq % 9 = 0 THEN 'ACTIVE' "
            "ELSE 'RELEASED' END, 1, 1, seq, 1 FROM scheduler_job_runs"
        )
    if request.param in ("bloated", "used"):
        for _ in range(5):
            for table in TABLES[:3]:
                database.ask(f"UPDATE {table} SET updated_at = updated_at + 1")
    if request.param in ("analysed", "used"):
        for table in TABLES:
            analyze(database, table)
    yield store
    await store.close()


_CONST = (
    "Select tables optimized away",
    "No matching min/max row",
    "Impossible WHERE noticed after reading const tables",
)
"""MySQL looked into a unique index, or at its end, while it made the plan."""


def is_found_by(plan: str, kind: str, index: str) -> bool:
    """Whether the plan reads this index; of a table, its primary key."""
    if index not in TABLES:
        return index in plan or any(word in plan for word in _CONST)
    if any(word in plan for word in _CONST):
        return True
    return {"sqlite": "PRIMARY KEY", "postgresql": f"{index}_pkey", "mysql": '"PRIMARY"'}[
        kind
    ] in plan


@pytest.mark.spec("C11", "C19", "Q2", "Q9", "T16")
async def test_what_every_firing_claim_and_release_asks_for_is_found_by_its_index(
    filled: SqlStore, store_url: str
) -> None:
    kind = Database(store_url).kind

    def read_plans(tx: Any) -> dict[str, str]:
        return {
            name: explain(
                tx,
                name,
                kind,
                {**VALUES, "ids": TEXT_IDS} if ".lock_" in name or "dated" in name else VALUES,
            )
            for name in PLANS
        }

    def read_spans(tx: Any) -> dict[str, str]:
        return {name: explain(tx, name, kind, {}) for name in SPANS}

    faults = []
    for name, plan in (await filled.transact(read_spans)).items():
        if any(
            word in plan
            for word in ("SCAN sched", "SCAN event", "Seq Scan", '"ALL"', '"access_type": "index"')
        ):
            faults.append(f"{name} reads more than the ends: {plan}")
    for name, plan in (await filled.transact(read_plans)).items():
        if not any(is_found_by(plan, kind, index) for index in PLANS[name]):
            faults.append(f"{name} does not read {PLANS[name]}: {plan}")
        if "Seq Scan" in plan:
            faults.append(f"{name} scans: {plan}")
        if name not in SORTED and any(
            word in plan for word in ("TEMP B-TREE FOR ORDER", "filesort", "Sort Key")
        ):
            faults.append(f"{name} sorts: {plan}")
    assert not faults, "\n".join(faults)


ONE_ROW = ("queue.set_capacity", "queue.free_capacity", "queue.drop_reserve")
"""Changes of the one row of a table."""

ALL_ROWS = ("core.end_other_instances",)
"""A change of every row but one."""

ONE_BY_ONE = ("runs.put_off_runs",)
"""Changes of all that one task has, never made for several tasks at once: see `PLANS`."""


@pytest.mark.spec("Q2", "Q3", "G2", "T16")
async def test_many_rows_are_changed_by_their_keys_not_by_a_walk_over_all_that_wait(
    filled: SqlStore, store_url: str
) -> None:
    if Database(store_url).kind != "postgresql":
        pytest.skip("only PostgreSQL joins the rows of a change with the table")

    def read_plans(tx: Any) -> dict[str, str]:
        session, plans = tx._session, {}
        for name, statement in session._statements.items():
            sql, _ = statement.with_filters(())
            if not sql.lstrip().startswith("UPDATE") or name in (*ONE_ROW, *ALL_ROWS, *ONE_BY_ONE):
                continue
            rows = [(None,) * len(list_names(sql))] * 8
            wide = session._dialect._widen(session._cursor, sql, rows)
            if wide is not None:
                session._cursor.execute(f"EXPLAIN {wide[0]}", wide[1])
                plans[name] = " ".join(line for (line,) in session._cursor.fetchall())
        return plans

    plans = await filled.transact(read_plans)
    assert plans.keys() >= {"queue.start_job", "queue.finish_job", "tasks.change_task"}
    for name, plan in plans.items():
        assert re.search(r"Index Cond: \([^=]*= v\.", plan), (name, plan)
        assert "Hash Join" not in plan and "Merge Join" not in plan, (name, plan)


SORTED = {
    *("runs.list_held", "runs.list_orphans", "runs.count_open", "runs.list_stalled"),
    *("core.list_dated_events", "core.list_dated_events_back"),
}
"""Those over all unfinished runs: few, and asked for now and then; and what one entity has of the
rows of some instants."""


@pytest.mark.spec("X2")
async def test_tables_that_are_written_again_and_again_are_vacuumed_early(store_url: str) -> None:
    database = Database(store_url)
    if not database.leaves_dead_rows:
        pytest.skip("this database clears up after each transaction")
    await (await open_store(store_url, SystemClock())).close()
    rows = database.ask(
        "SELECT relname, array_to_string(reloptions, ' ') FROM pg_class "
        "WHERE relkind = 'r' AND reloptions IS NOT NULL"
    )
    options = {name: dict(one.split("=") for one in words.split()) for name, words in rows}
    for table in (*TABLES[:4], "governance_jobs"):
        assert float(options[table]["autovacuum_vacuum_scale_factor"]) <= 0.02, table
        assert float(options[table]["autovacuum_analyze_scale_factor"]) <= 0.02, table
    for table in ("queue_capacity", "queue_gauges", "row_counts", "commit_marks", "instances"):
        assert float(options[table]["autovacuum_vacuum_scale_factor"]) == 0, table
        assert int(options[table]["autovacuum_vacuum_threshold"]) <= 500, table
        assert int(options[table]["fillfactor"]) == 50, table


@pytest.mark.spec("X2")
async def test_the_end_of_a_run_writes_no_index_entry_of_its_task(store_url: str) -> None:
    if not Database(store_url).leaves_dead_rows:
        pytest.skip("this database changes rows where they are")
    store = await open_store(store_url, SystemClock())
    count, definition = 400, Definition("n", "", Every(HOUR, 0, False), target_url="http://t/")
    ids = await store.transact(
        lambda tx: tx.tasks.insert(
            [a_task(f"j{n}", definition, tx.now, tx.now + HOUR, "T") for n in range(count)]
        )
    )

    def note(tx: Any) -> Any:
        tx.tasks.note_last([(task_id, "success", "") for task_id in ids], tx.now)
        return tx._session.raw(
            "SELECT pg_stat_get_xact_tuples_updated('tasks'::regclass),"
            " pg_stat_get_xact_tuples_hot_updated('tasks'::regclass)"
        )

    written, hot = await store.transact(note)
    await store.close()
    assert written == count
    assert hot >= 0.9 * count, "without room on its page a row is written anew in every index"
