"""How SQLite finds what the queue asks for: by an index, in the index's order, never by a scan or a
sort."""

import re
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql import open_store
from ksana.store.sql.core.bulk import widen
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.statements import load_statements

PLANS = {
    "queue.take_ready": "job_runs_ready",
    "queue.take_class": "job_runs_class",
    "queue.peek_ready": "job_runs_ready",
    "queue.peek_class": "job_runs_class",
    "queue.list_due": "job_runs_scheduled",
    "queue.key_turn": "job_runs_key",
    "queue.head_turn": "job_runs_ready",
    "queue.tail_turn": "job_runs_ready",
    "queue.count_ready_ahead": "job_runs_class",
    "job_lists.count_ready_of": "job_runs_ready",
    "job_lists.count_scheduled": "job_runs_scheduled",
    "job_lists.count_of_state": "job_runs_state",
    "queue.list_expired_claims": "job_runs_claim",
    "queue.list_expired_leases": "job_runs_leased",
    "queue.list_active_leases": "job_runs_leased",
    "queue.list_finished": "job_runs_finished",
    "queue.find_job_by_request": "job_runs_request",
    "queue.lock_jobs": "job_runs_id",
    "queue.lock_leased_jobs": "INTEGER PRIMARY KEY",
    "queue.lock_leases_with_jobs": "INTEGER PRIMARY KEY",
    "queue.find_past_lease": "PRIMARY KEY",
    "queue.list_past_leases": "PRIMARY KEY",
    "queue.list_past_with_jobs": "PRIMARY KEY",
    "queue.delete_leases": "lease_runs_job",
    "series.list_hours": "sqlite_autoindex_queue_hours_1",
    "series.list_minutes": "sqlite_autoindex_rollups_1",
    "series.first_past_minute": "sqlite_autoindex_rollups_1",
    "series.lock_minutes": "sqlite_autoindex_rollups_1",
    "series.list_old_hours": "queue_hours_age",
}

CHANGES = {
    "queue.promote_job": "INTEGER PRIMARY KEY",
    "queue.claim_job": "INTEGER PRIMARY KEY",
    "queue.start_job": "INTEGER PRIMARY KEY",
    "queue.finish_job": "INTEGER PRIMARY KEY",
    "queue.requeue_job": "INTEGER PRIMARY KEY",
    "queue.take_back_job": "INTEGER PRIMARY KEY",
    "queue.extend_lease": "INTEGER PRIMARY KEY",
    "queue.note_running_job": "INTEGER PRIMARY KEY",
}
"""Statements that change many rows in one: each row is found by its key."""

GIVEN = re.compile(r"SCAN (CONSTANT ROW|\d+ CONSTANT ROWS|v|ahead|looked|json_each.*)")
"""What may be scanned: what was handed in (the clock, rows, ids), and what was found (`ahead`,
`looked`)."""


@pytest.mark.fault("F35")
@pytest.mark.spec("Q2", "Q12")
@pytest.mark.parametrize("name", sorted({**PLANS, **CHANGES}))
async def test_what_the_queue_asks_for_is_found_by_its_index(tmp_path: Path, name: str) -> None:
    clock = SystemClock()
    path = tmp_path / "ksana.db"
    await (await open_store(f"sqlite:///{path}", clock)).close()
    statements = load_statements(SqliteDialect.macros)
    connection = SqliteDialect(str(path), clock).connect(read_only=True)
    try:
        sql = statements[name].sql
        if name in CHANGES:
            sql = widen(sql, 8) or ""
        places = max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0)
        values = ("[1]",) * (places or sql.count("?"))
        plan: list[Any] = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    finally:
        connection.close()
    told = " / ".join(row[3] for row in plan if not GIVEN.match(row[3]))
    assert "SEARCH" in told
    assert {**PLANS, **CHANGES}[name] in told
    assert "SCAN" not in told
    assert "TEMP B-TREE" not in told
