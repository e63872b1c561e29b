"""The gauges of the queue, on every SQL store: a recount puts them right, whatever others commit
meanwhile."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.engine.queue.leasing import recount
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.conformance.store.test_queue_store import LIMITS, new_job, submit


@pytest.mark.spec("Q14", "X4")
async def test_a_recount_counts_nothing_away_that_others_commit_meanwhile(
    store: SqlStore, store_url: str
) -> None:
    if store.sole:
        pytest.skip("an embedded store has one writer: nobody commits meanwhile")
    other = await open_store(store_url, SystemClock())
    loop = asyncio.get_running_loop()
    submitted = 0

    def recount_among_others(tx: Any) -> None:
        session = tx._session
        one, rows = session.one, session.all

        def meanwhile(run: Any, *args: Any, **params: Any) -> Any:
            """After each statement of the recount somebody else commits a job."""
            nonlocal submitted
            found = run(*args, **params)
            asyncio.run_coroutine_threadsafe(submit(other, new_job()), loop).result(20)
            submitted += 1
            return found

        tx.gauges._session = tx.jobs._raw = Between(session, meanwhile, one, rows)
        tx.gauges.recount()

    await store.transact(recount_among_others)
    assert submitted >= 2
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert gauges.queued == submitted
    await other.close()


class Between:
    """A session that lets something happen after each reading."""

    def __init__(self, session: Any, meanwhile: Any, one: Any, rows: Any) -> None:
        self._session, self._meanwhile = session, meanwhile
        self._one, self._rows = one, rows

    def one(self, *args: Any, **params: Any) -> Any:
        return self._meanwhile(self._one, *args, **params)

    def all(self, *args: Any, **params: Any) -> Any:
        return self._meanwhile(self._rows, *args, **params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


@pytest.mark.spec("Q14")
async def test_a_recount_puts_right_what_was_changed_by_hand(
    store: SqlStore, database: Database
) -> None:
    await submit(store, *(new_job() for _ in range(3)), is_batch=True)
    database.ask("UPDATE queue_gauges SET queued = queued - 4, running = running + 2")
    await store.transact(recount, LIMITS.total)
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert (gauges.queued, gauges.running) == (3, 0)
