"""Classes of queue jobs on every SQL store: they go when nobody uses them, stay while somebody
does, and there is a bound."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError
from ksana.base.ids import new_uuid
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.engine.core.retention import Retention
from ksana.engine.queue.chores import (
    add_queue_rows,
    enter_lost,
    find_lost,
    find_unused_classes,
    remove_classes,
)
from ksana.ports.queue.tables import QueueTx
from ksana.ports.retention import START
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store
from ksana.store.sql.core import migrate
from tests.conformance.store.ground import Database

pytestmark = pytest.mark.spec("X13", "Q2")

CLOCK = SystemClock()


def a_job(kind: str = "t", cost: int = 1, **more: Any) -> NewJob:
    values: dict[str, Any] = {
        "job_id": new_uuid(),
        "priority": "NORMAL",
        "job_class": class_of("a", kind, cost, ()),
        "constraints_json": "{}",
        "payload_json": "{}",
        "client_request_id": None,
        "max_attempts": 1,
        "run_at": None,
        "fairness_key": None,
        **more,
    }
    return NewJob(**values)


def a_service(store: SqlStore, **limits: Any) -> QueueService:
    """The queue of one instance."""
    return QueueService(store, CLOCK, Limits(100, **limits))


def by_type(*kinds: str, **more: Any) -> Claim:
    return Claim("w", Wants(job_types=frozenset(kinds)), **more)


async def kinds_of(store: SqlStore) -> set[str]:
    classes = await store.read(lambda tx: tx.job_classes.list_classes())
    return {kind.job_type for kind in classes}


def let_time_pass(database: Database) -> None:
    """Nobody has entered a class for longer than one stays."""
    database.ask("UPDATE job_classes SET used_until = 1")


async def remove_unused(store: SqlStore) -> int:
    retention = Retention(store, CLOCK, new_uuid())
    add_queue_rows(retention, HOUR)
    await retention.step()
    return retention.removed["job_classes"]


async def test_a_class_goes_when_its_time_is_over_and_comes_again_with_the_next_job(
    store: SqlStore, database: Database
) -> None:
    service = a_service(store)
    job = await service.submit(a_job("once"))
    await service.cancel(job.job_id, None)
    assert (await remove_unused(store), await kinds_of(store)) == (0, {"once"}), "too soon"
    let_time_pass(database)
    database.ask("UPDATE scheduler_locks SET expires_at = 1")
    assert (await remove_unused(store), await kinds_of(store)) == (1, set())
    other = a_service(store)
    again = await other.submit(a_job("once"))
    for one in (service, other):  # one remembers the class from before
        claimed = await one.claim(by_type("once"))
        assert [job.job_id for job in claimed.taken] in ([again.job_id], [])
    assert (await other.get_job(again.job_id)).state == "CLAIMED"


@pytest.mark.parametrize("state", ["ready", "claimed", "running", "scheduled", "retried"])
async def test_a_class_stays_while_a_job_of_it_waits_or_is_held(
    store: SqlStore, database: Database, state: str
) -> None:
    service = a_service(store)
    run_at = CLOCK.now() + HOUR if state == "scheduled" else None
    job = await service.submit(a_job("kept", max_attempts=2, run_at=run_at))
    gone = await service.submit(a_job("gone"))
    await service.cancel(gone.job_id, None)
    if state != "scheduled":  # whose class knows how long it is needed
        let_time_pass(database)
    else:
        database.ask(f"UPDATE job_classes SET used_until = 1 WHERE id = {gone.class_id}")
    if state in ("claimed", "running", "retried"):
        claimed = await service.claim(by_type("kept", has_lease=state != "claimed"))
        assert len(claimed.taken) == 1
        if state == "retried":
            lease = claimed.leases[0]
            release = Release(lease_id=lease.lease_id, status="FAILED", error="no")
            await service.release(release)
            assert (await service.get_job(job.job_id)).state == "QUEUED"
    assert (await remove_unused(store), await kinds_of(store)) == (1, {"kept"})


async def test_a_class_that_was_found_unused_stays_if_a_job_comes_before_it_is_removed(
    store: SqlStore, database: Database
) -> None:
    service = a_service(store)
    await service.submit(a_job("ready"))
    for kind in ("entered", "trusted", "gone"):
        await service.cancel((await service.submit(a_job(kind))).job_id, None)
    let_time_pass(database)
    found = await store.read(lambda tx: find_unused_classes(tx, tx.now, START, 100))
    assert (len(found.keys), found.is_end) == (3, True), "all but the one with a ready job"
    # Another instance enters it anew, with a job that is not ready for long.
    await a_service(store).submit(a_job("entered", run_at=CLOCK.now() + HOUR))
    await service.submit(a_job("trusted"))  # one that relied on it for too long
    assert await store.transact(remove_classes, found.keys) == 1
    assert await kinds_of(store) == {"ready", "entered", "trusted"}


async def test_no_class_goes_while_scheduled_jobs_are_overdue_as_after_an_outage(
    store: SqlStore, database: Database
) -> None:
    service = a_service(store)
    await service.submit(a_job("late", run_at=CLOCK.now() + HOUR))
    let_time_pass(database)
    database.ask(f"UPDATE scheduler_job_runs SET due_at = {CLOCK.now() - 2 * MINUTE}")
    assert await remove_unused(store) == 0
    assert len((await service.claim(by_type("late"))).taken) == 1


async def test_a_class_that_is_missing_is_entered_again(
    store: SqlStore, database: Database
) -> None:
    service = a_service(store)
    made = [await service.submit(a_job(f"k{number}")) for number in range(5)]
    lost = made[1::2]
    for job in lost:
        database.ask(f"DELETE FROM job_classes WHERE id = {job.class_id}")
    found: list[str] = []
    after = -1
    for _ in range(3):  # two at a time, then from the start again
        some, after = await store.read(find_lost, after, 2)
        found += some
    assert (sorted(found), after) == (sorted(job.job_id for job in lost), -1)
    assert await store.transact(enter_lost, found) == 2
    assert await store.read(find_lost, -1, 9) == ([], -1)
    claimed = await a_service(store).claim(by_type("k1", "k3", limit=9))
    assert {job.job_id for job in claimed.taken} == {job.job_id for job in lost}


async def test_a_job_of_one_kind_too_many_is_refused_and_no_other(
    store: SqlStore, database: Database
) -> None:
    service = a_service(store, classes=3)
    for number in range(3):
        await service.submit(a_job(f"k{number}"))
    with pytest.raises(ConflictError, match="payload") as refused:
        await service.submit(a_job("more"))
    assert (refused.value.code, refused.value.status) == ("QUEUE_FULL", 409)
    with pytest.raises(ConflictError) as refused:
        await service.submit_batch([a_job("k0"), a_job("more")])
    assert (refused.value.code, refused.value.extra["index"]) == ("QUEUE_FULL", 1)
    other = a_service(store, classes=3)
    await other.submit_batch([a_job("k0"), a_job("k1")])  # those that are there
    assert await kinds_of(store) == {"k0", "k1", "k2"}
    claimed = await service.claim(by_type("k2"))
    await service.cancel(claimed.taken[0].job_id, None)
    let_time_pass(database)
    assert await remove_unused(store) == 1
    await service.submit(a_job("more"))
    assert await kinds_of(store) == {"k0", "k1", "more"}


async def test_a_class_is_entered_again_before_it_may_go_and_not_with_every_job(
    store: SqlStore, database: Database
) -> None:
    service = a_service(store)
    await service.submit(a_job())
    [(until, entered)] = database.ask(
        "SELECT used_until, (SELECT SUM(classes) FROM queue_gauges) FROM job_classes"
    )
    for _ in range(3):
        await service.submit(a_job())
    assert database.ask("SELECT used_until FROM job_classes") == [(until,)]
    run_at = CLOCK.now() + 5 * HOUR
    for _ in range(3):
        await service.submit(a_job(run_at=run_at))
    [(later, now_entered)] = database.ask(
        "SELECT used_until, (SELECT SUM(classes) FROM queue_gauges) FROM job_classes"
    )
    assert later == run_at + HOUR
    assert int(now_entered) == int(entered) + 1, "once for all that wait for about then"
    await a_service(store).submit(a_job(run_at=CLOCK.now() + SECOND))
    assert database.ask("SELECT used_until FROM job_classes") == [(later,)], "never shorter"


async def test_who_folds_the_gauges_loses_no_count_of_classes(
    store: SqlStore, database: Database
) -> None:
    service = a_service(store)
    await service.submit(a_job())
    database.ask("INSERT INTO queue_gauges VALUES (77, 0, 0, 0, 5)")  # of a connection that is gone
    await store.transact(lambda tx: tx.gauges.recount())
    assert database.ask("SELECT COUNT(*), SUM(classes) FROM queue_gauges") == [(1, 6)]


@pytest.mark.spec("X4")
async def test_instances_that_submit_while_another_removes_lose_no_job(
    store: SqlStore, store_url: str, database: Database
) -> None:
    stores = [store] if store.sole else [store, *[await open_store(store_url, CLOCK)] * 2]
    worker = a_service(store)
    for number in range(15):
        kind = f"k{number % 3}"
        await worker.cancel((await a_service(store).submit(a_job(kind))).job_id, None)
        let_time_pass(database)
        found = await store.read(lambda tx: find_unused_classes(tx, tx.now, START, 100))
        assert found.keys
        *made, _ = await asyncio.gather(
            *[a_service(one).submit(a_job(kind)) for one in stores],
            store.transact(remove_classes, found.keys),
        )
        claimed = await worker.claim(by_type(kind, limit=9))
        assert {job.job_id for job in claimed.taken} == {job.job_id for job in made}
        for job in made:
            await worker.cancel(job.job_id, None)
    for one in set(stores) - {store}:
        await one.close()


@pytest.mark.spec("X2")
async def test_classes_of_an_earlier_version_stay_for_their_scheduled_jobs(
    store_url: str, database: Database
) -> None:
    store = await open_store(store_url, CLOCK)
    service = a_service(store)
    due_at = CLOCK.now() + 5 * HOUR
    await service.submit_batch([a_job("ready"), a_job("later", run_at=due_at), a_job("none")])
    database.ask("DELETE FROM scheduler_job_runs WHERE job_type = 'none'")
    await store.close()
    # As a store of the version before: without the columns, and with the step not yet taken.
    [step] = [one for one in migrate.list_migrations() if one.name == "class_ends"]
    on = " ON job_classes" if database.kind == "mysql" else ""
    for text in (
        f"DROP INDEX job_classes_end{on}",
        "ALTER TABLE job_classes DROP COLUMN used_until",
        "ALTER TABLE queue_gauges DROP COLUMN classes",
        f"DELETE FROM schema_migrations WHERE version = {step.version}",
    ):
        database.ask(text)
    store = await open_store(store_url, CLOCK)
    try:
        rows = dict(database.ask("SELECT job_type, used_until FROM job_classes"))
        assert rows == {"ready": 0, "later": due_at + HOUR, "none": 0}
        assert (await remove_unused(store), await kinds_of(store)) == (1, {"ready", "later"})
    finally:
        await store.close()


async def test_of_several_that_keep_a_class_in_one_commit_the_longest_counts(
    store: SqlStore, database: Database
) -> None:
    await a_service(store).submit(a_job())
    [(seq,)] = database.ask("SELECT seq FROM scheduler_job_runs")

    def keep(tx: QueueTx) -> None:
        tx.job_classes.keep([seq], 9 * HOUR, 8 * HOUR)
        tx.job_classes.keep([seq], 3 * HOUR, 2 * HOUR)

    database.ask(f"UPDATE job_classes SET used_until = {7 * HOUR}")
    await store.transact(keep)
    assert database.ask("SELECT used_until FROM job_classes") == [(9 * HOUR,)]


async def test_a_class_that_does_not_end_soon_is_left_as_it_is(
    store: SqlStore, database: Database
) -> None:
    await a_service(store).submit(a_job())
    [(seq,)] = database.ask("SELECT seq FROM scheduler_job_runs")

    def keep(tx: QueueTx) -> None:
        tx.job_classes.keep([seq], 10 * HOUR, 8 * HOUR)

    for used_until, kept_until in ((8 * HOUR, 8 * HOUR), (8 * HOUR - 1, 10 * HOUR)):
        database.ask(f"UPDATE job_classes SET used_until = {used_until}")
        await store.transact(keep)
        assert database.ask("SELECT used_until FROM job_classes") == [(kept_until,)]
