"""A forgotten transaction holds an old snapshot, so the database can remove no row replaced
since. Work goes on at bounded cost, none of our own connections holds a snapshot, and when the
transaction ends the cost is what it was (F42).

The cost is what does not depend on the machine: pages the database looks at for each job.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.ground.child import wait_for
from tests.ground.tasks import note_figures

ROUND = 300
"""Jobs between two looks."""

MOST = 400
"""Pages for one job from submit to release. Measured: 50 to 240, for PostgreSQL counts late."""

DEARER = {"postgresql": 0.02, "mysql": 0.2}
"""Pages by which each job under the snapshot may make every later one dearer: what is over lies at
the head of the index that claims are read from. Measured: 0.009 and 0.1."""

PAGES = {
    "postgresql": "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = "
    "current_database()",
    "mysql": "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = "
    "'INNODB_BUFFER_POOL_READ_REQUESTS'",
}
IDLE_IN_TRANSACTION = {
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'",
    "mysql": "SELECT COUNT(*) FROM information_schema.INNODB_TRX",
}


@pytest.fixture(params=["mariadb", "postgres"])
async def ground(request: pytest.FixtureRequest) -> AsyncIterator[tuple[SqlStore, Database]]:
    server: Any = request.getfixturevalue(request.param)
    name = server.create_database()
    store = await open_store(server.url(name), SystemClock())
    yield store, Database(server.url(name))
    await store.close()
    server.drop_database(name)


@contextlib.contextmanager
def old_snapshot(database: Database) -> Iterator[None]:
    """Somebody's report that was forgotten: a transaction that has read, and stays open."""
    connection = database.connect()
    with contextlib.closing(connection):
        cursor = connection.cursor()
        if database.kind == "postgresql":
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        else:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT COUNT(*) FROM scheduler_job_runs")
        cursor.fetchall()
        yield


async def work_off(service: QueueService, count: int) -> None:
    """Submit jobs, claim and release them all."""
    line = class_of("a", "t", 1, ())
    ids = service.new_ids(count)
    await service.submit_batch(
        [NewJob(job_id, "NORMAL", line, "{}", "{}", None, 1, None, None) for job_id in ids]
    )
    done = 0
    while done < count:
        claimed = await service.claim(Claim("w", Wants(), 20, True))
        proof = Proof(worker_id="w")
        releases = [Release(one.lease_id, "SUCCEEDED", proof=proof) for one in claimed.leases]
        done += len(await service.release_batch(releases))


async def cost_of(database: Database, service: QueueService, jobs: int) -> float:
    """Pages looked at for each of so many jobs, one round after the other."""

    async def pages() -> float:
        if database.kind == "postgresql":  # a backend tells of its pages a second later
            await asyncio.sleep(1.2)
        return float(database.ask(PAGES[database.kind])[0][0])

    before = await pages()
    for _ in range(jobs // ROUND):
        await work_off(service, ROUND)
    return (await pages() - before) / jobs


def clean_up(database: Database) -> None:
    """Have the database remove what was kept for the snapshot, and wait until it has."""
    if database.leaves_dead_rows:
        database.ask("VACUUM")
        return
    length = "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'"
    wait_for(lambda: int(database.ask(length)[0][1]) < 50, "old rows are purged", within_s=60)


@pytest.mark.fault("F42")
@pytest.mark.spec("X4")
@pytest.mark.parametrize(
    "jobs", [1_500, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
async def test_an_old_snapshot_makes_jobs_dearer_by_a_bounded_share_and_not_for_good(
    ground: tuple[SqlStore, Database], jobs: int
) -> None:
    store, database = ground
    service = QueueService(store, SystemClock(), Limits(1_000))
    await work_off(service, ROUND)
    before = await cost_of(database, service, 3 * ROUND)
    with old_snapshot(database):
        under = await cost_of(database, service, jobs)
        held = int(database.ask(IDLE_IN_TRANSACTION[database.kind])[0][0])
        assert held == 1, "the forgotten one alone: none of ours stays in a transaction"
    assert under < MOST + DEARER[database.kind] * jobs, (before, under)
    await asyncio.to_thread(clean_up, database)
    after = await cost_of(database, service, 3 * ROUND)
    assert after < MOST, (before, under, after)
    counts = await store.read(lambda tx: tx.gauges.read())
    assert (counts.queued, counts.running) == (0, 0)
    note_figures(
        f"old snapshot on {database.kind}",
        f"{jobs} jobs; pages looked at for each: {before:.0f} before, {under:.0f} under it, "
        f"{after:.0f} afterwards",
    )
