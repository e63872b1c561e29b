"""What is due in the queue is searched by time on every database: none of them walks through all
that waits to ask each row whether its time has come."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.ids import new_ordered_uuids
from ksana.base.instant import HOUR
from ksana.domain.queue.classes import class_of
from ksana.domain.queue.jobs import NewJob
from ksana.service.queue.jobs import submit_jobs
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.store.plans import analyze, assert_searched, explain

PLANS = {
    "queue.list_due": ("job_runs_scheduled", "due_at"),
    "queue.claim_outlook": ("job_runs_scheduled", "due_at"),
    "queue.list_expired_claims": ("job_runs_claim", "claim_expires_at"),
    "queue.list_expired_leases": ("job_runs_leased", "lease_expires_at"),
}
OF_MYSQL = {
    "queue.list_due": "scheduled_at",
    "queue.claim_outlook": "scheduled_at",
    "queue.list_expired_leases": "leased_until",
}
"""The columns that its indexes have in the place of partial ones."""

WAITING = 3_000
CLASS = class_of("plans", "noop", 1, ())


@pytest.fixture(params=["empty", "fresh", "analysed"])
async def filled(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[SqlStore]:
    """A store with nothing, or with many jobs that wait for their time."""
    clock = SystemClock()
    store = await open_store(store_url, clock)
    if request.param != "empty":
        jobs = [
            NewJob(
                job_id=job_id,
                priority="NORMAL",
                job_class=CLASS,
                constraints_json="{}",
                payload_json="{}",
                client_request_id=None,
                max_attempts=1,
                run_at=clock.now() + HOUR,
                fairness_key=None,
            )
            for job_id in new_ordered_uuids(clock.now(), WAITING)
        ]
        await store.transact(submit_jobs, jobs, [CLASS], True)
    if request.param == "analysed":
        analyze(Database(store_url), "scheduler_job_runs")
    yield store
    await store.close()


@pytest.mark.fault("F35")
@pytest.mark.spec("Q2", "Q12")
async def test_what_is_due_is_searched_by_its_time(filled: SqlStore, store_url: str) -> None:
    kind = Database(store_url).kind

    def read_plans(tx: Any) -> dict[str, str]:
        values = {"now_at": tx.now, "limit": 100}
        return {name: explain(tx, name, kind, values) for name in PLANS}

    plans = await filled.transact(read_plans)
    for name, (index, own) in PLANS.items():
        column = OF_MYSQL.get(name, own) if kind == "mysql" else own
        if name == "queue.claim_outlook":  # it also adds up gauges and allotments, which are few
            assert index in plans[name] and column in plans[name], (name, plans[name])
            assert "job_classes" not in plans[name], "a claim does not count the classes"
        else:
            assert_searched(plans[name], kind, index, column, name)
