"""How SQLite finds what the queue asks for: by an index, in the index's order, never by a scan or a
sort."""

import re
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql import open_store
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.statements import load_statements

PLANS = {
    "queue.take_ready": "job_runs_ready",
    "queue.take_line": "job_runs_line",
    "queue.peek_ready": "job_runs_ready",
    "queue.peek_line": "job_runs_line",
    "queue.list_due": "job_runs_scheduled",
    "queue.key_turn": "job_runs_key",
    "queue.head_turn": "job_runs_ready",
    "queue.tail_turn": "job_runs_ready",
    "queue.list_expired_claims": "job_runs_claim",
    "queue.list_expired_leases": "lease_runs_active",
    "queue.list_finished": "job_runs_finished",
    "queue.find_job_by_request": "job_runs_request",
    "queue.lock_jobs_among": "job_runs_id",
    "queue.lock_leases_among": "PRIMARY KEY",
    "queue.lock_holds_among": "PRIMARY KEY",
    "queue.delete_leases": "lease_runs_job",
    "queue.end_jobs_among": "INTEGER PRIMARY KEY",
    "queue.run_ready_jobs_among": "INTEGER PRIMARY KEY",
    "queue.release_leases_among": "PRIMARY KEY",
    "queue.list_hours": "sqlite_autoindex_queue_hours_1",
    "queue.list_minutes": "sqlite_autoindex_rollups_1",
    "queue.first_past_minute": "sqlite_autoindex_rollups_1",
    "queue.lock_minutes": "sqlite_autoindex_rollups_1",
    "queue.list_old_hours": "queue_hours_age",
}


@pytest.mark.spec("Q2", "Q12")
@pytest.mark.parametrize("name", sorted(PLANS))
async def test_what_the_queue_asks_for_is_found_by_its_index(tmp_path: Path, name: str) -> None:
    clock = SystemClock()
    path = tmp_path / "ksana.db"
    await (await open_store(f"sqlite:///{path}", clock)).close()
    statements = load_statements(SqliteDialect.macros)
    connection = SqliteDialect(str(path), clock).connect(read_only=True)
    try:
        sql = statements[name].sql
        places = max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0)
        plan: list[Any] = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * places).fetchall()
    finally:
        connection.close()
    told = " / ".join(
        row[3] for row in plan if row[3] != "SCAN CONSTANT ROW"
    )  # the clock, asked once
    assert "SEARCH" in told
    assert PLANS[name] in told
    assert "SCAN" not in told
    assert "TEMP B-TREE" not in told
