"""How each database finds what governance asks for: by an index range, never by a scan or a sort of
what waits."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.governance.jobs import decide_enqueue
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.ground.governance import SECOND, Governing
from tests.store.plans import analyze, assert_index_range, explain

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
    analyze(database, "governance_jobs")
    for name, index in PLANS.items():
        plan = await filled.transact(explain, name, database.kind, VALUES)
        assert_index_range(plan, index, "governance_jobs", name)
