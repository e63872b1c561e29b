"""How each database finds what governance asks for: by an index range, in the index's order, never
by a scan or a sort of what waits. On a table that is empty, that was just filled, and that the
database has looked over."""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.governance.jobs import decide_enqueue
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.ground.governance import SECOND, Governing
from tests.store.plans import analyze, assert_searched, explain

PLANS = {
    "governance.take_due": ("governance_jobs_due", "due_sec"),
    "governance.take_class": ("governance_jobs_class", "class_no"),
    "governance.peek_class": ("governance_jobs_class", "class_no"),
    "governance.peek_due": ("governance_jobs_due", "due_sec"),
    "governance.next_due": ("governance_jobs_due", ""),
    "governance.next_lease": ("governance_jobs_lease", ""),
    "governance.lock_expired": ("governance_jobs_lease", "lease_expires_at"),
    "governance.lock_deferred": ("governance_jobs_deferred", "gate_key"),
    "governance.first_deferred": ("governance_jobs_deferred", "gate_key"),
    "governance.count_due": ("governance_jobs_due", "due_sec"),
}
"""The index, and the column by which it is searched; "" where its first entry is all there is to
read."""

FUTURE, DUE = 20_000, 2_000
DUE_SEC = 1_000
NO_CLASS = 44
"""A class of which no job waits."""
VALUES: dict[str, Any] = {
    "sec": DUE_SEC,
    "now_at": DUE_SEC * SECOND,
    "limit": 100,
    "class_no": 7,
    "gate_key": "persona/",
}


@pytest.fixture(params=["empty", "fresh", "analysed"])
async def filled(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[SqlStore]:
    """A store with nothing, or with many jobs of which some are due."""
    store = await open_store(store_url, SystemClock())
    if request.param != "empty":
        await _fill(store)
    if request.param == "analysed":
        analyze(Database(store_url), "governance_jobs")
    yield store
    await store.close()


async def _fill(store: SqlStore) -> None:
    governing = Governing(store)
    news = [
        governing.new_job(
            f"m{number}",
            run_at=(2 * DUE_SEC if number < FUTURE else 1) * SECOND + number,
            action="decay" if number % 2 else "verify",
        )
        for number in range(FUTURE + DUE)
    ]

    def write(tx: Any, part: list[Any]) -> None:
        tx.governance.write([(None, decide_enqueue(new, tx.now).new) for new in part])

    for start in range(0, len(news), 2_000):
        await store.transact(write, news[start : start + 2_000])


@pytest.mark.spec("G8")
async def test_what_a_pull_reads_is_an_index_range_on_every_database(
    filled: SqlStore, store_url: str
) -> None:
    kind = Database(store_url).kind
    for name, (index, column) in PLANS.items():
        plan = await filled.transact(explain, name, kind, VALUES)
        assert_searched(plan, kind, index, column, name)


@pytest.fixture(params=["mariadb", "postgres"])
def counting_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store on a database that counts what it touches."""
    server = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.mark.spec("G8")
async def test_a_pull_with_nothing_due_touches_next_to_nothing(counting_url: str) -> None:
    """By the database's own count: a search that walks an index looks like one that does not."""
    store = await open_store(counting_url, SystemClock())
    await _fill(store)
    for name in ("governance.take_class", "governance.peek_class", "governance.first_deferred"):
        touched = await store.transact(_count_touched, name, Database(counting_url).kind)
        assert touched < 20, f"{name} touched {touched}"
    await store.close()


def _count_touched(tx: Any, name: str, kind: str) -> int:
    """Pages, or steps along an index, that a statement needs while nothing is due for it."""
    statement = tx._session._statements[name]
    given = {key: value for key, value in VALUES.items() if key in statement.sql}
    values = statement.bind({**given, "class_no": NO_CLASS})
    if kind == "postgresql":
        text = _ask(tx, f"EXPLAIN (ANALYZE, BUFFERS) {statement.sql}", values)
        executed = text.split("Planning")[0]
        return max(map(int, re.findall(r"(?:hit|read)=(\d+)", executed)), default=0)
    _ask(tx, "FLUSH STATUS")
    _ask(tx, statement.sql, values)
    return sum(map(int, re.findall(r"\d+", _ask(tx, "SHOW SESSION STATUS LIKE 'Handler_read%'"))))


def _ask(tx: Any, sql: str, *values: Any) -> str:
    cursor = tx._session._cursor
    cursor.execute(sql, *values)
    rows = cursor.fetchall() if cursor.description else ()
    return "\n".join(" ".join(map(str, row)) for row in rows)
