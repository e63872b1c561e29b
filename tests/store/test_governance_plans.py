"""How each database finds what governance asks for: by an index range, never by a scan or a sort of
what waits."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.ground.governance import SECOND, Governing

PLANS = {
    "governance.take_due": "governance_jobs_due",
    "governance.take_class": "governance_jobs_class",
    "governance.peek_class": "governance_jobs_class",
    "governance.next_due": "governance_jobs_due",
    "governance.next_lease": "governance_jobs_lease",
    "governance.lock_expired": "governance_jobs_lease",
    "governance.lock_deferred": "governance_jobs_deferred",
    "governance.first_deferred": "governance_jobs_deferred",
}

VALUES: dict[str, Any] = {
    "sec": 1_000,
    "now_at": 1_000 * SECOND,
    "limit": 100,
    "class_no": 3,
    "gate_key": "persona/",
}
FUTURE = 20_000


@pytest.fixture
async def filled(store_url: str) -> AsyncIterator[SqlStore]:
    """A store with many jobs that are not due."""
    store = await open_store(store_url, SystemClock())
    governing = Governing(store)
    far = governing.clock.now() + 365 * 86_400 * SECOND
    news = [
        governing.new_job(f"m{number}", run_at=far + number, action="decay")
        for number in range(FUTURE)
    ]

    def fill(tx: Any, part: list[Any]) -> None:
        from ksana.domain.governance.jobs import decide_enqueue

        tx.governance.write([(None, decide_enqueue(new, tx.now).new) for new in part])

    for start in range(0, FUTURE, 2_000):
        await store.transact(fill, news[start : start + 2_000])
    yield store
    await store.close()


@pytest.mark.spec("G8")
async def test_what_a_pull_reads_is_an_index_range_on_every_database(
    filled: SqlStore, store_url: str
) -> None:
    database = Database(store_url)
    if database.kind != "sqlite":  # as the servers do by themselves, now and then
        database.ask("ANALYZE governance_jobs" if database.kind == "postgresql" else _ANALYZE)
    for name, index in PLANS.items():
        text = await filled.transact(_explain, name, database.kind)
        assert index in text, (name, text)
        assert not re.search(r"\bSCAN governance_jobs\b(?! USING)", text), (name, text)
        for word in ("Seq Scan", "TEMP B-TREE", "filesort", "Sort Key", '"access_type": "ALL"'):
            assert word not in text, (name, text)


_ANALYZE = "ANALYZE TABLE governance_jobs"


def _explain(tx: Any, name: str, kind: str) -> str:
    """The plan as text, by the very statement that runs."""
    session = tx._session
    statement = session._statements[name]
    values = statement.bind({key: VALUES[key] for key in _names(session, name)})
    words = {
        "sqlite": "EXPLAIN QUERY PLAN",
        "postgresql": "EXPLAIN",
        "mysql": "EXPLAIN FORMAT=JSON",
    }
    session._cursor.execute(f"{words[kind]} {statement.sql}", values)
    rows = session._cursor.fetchall()
    return json.dumps([list(map(str, row)) for row in rows]).replace('\\"', '"')


def _names(session: Any, name: str) -> list[str]:
    return [key for key in VALUES if f":{key}" in SOURCES[name]]


def _sources() -> dict[str, str]:
    from ksana.store.sql.core.packages import list_statement_files

    text = next(
        file.read_text("utf-8") for file in list_statement_files() if file.name == "governance.sql"
    )
    parts = re.split(r"^-- name: (\w+)\s*$", text, flags=re.MULTILINE)
    return {f"governance.{name}": body for name, body in zip(parts[1::2], parts[2::2], strict=True)}


SOURCES = _sources()
