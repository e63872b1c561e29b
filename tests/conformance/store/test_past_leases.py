"""A job's last lease lies in the job's row, the earlier ones by themselves; whoever asks for a
lease does not see where it lies. So do leases of before that was so."""

from collections.abc import Sequence
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import KsanaError
from ksana.base.ids import new_numbered_uuids, new_ordered_uuid, number_of
from ksana.base.instant import DAY, SECOND, Instant
from ksana.domain.leases import Proof
from ksana.domain.queue.attempt_ends import RETURNED, Release
from ksana.domain.queue.jobs import Lease, LeasedJob
from ksana.engine.queue.leasing import sweep
from ksana.service.queue.jobs import read_events
from ksana.service.queue.leases import Heartbeat, extend_leases
from ksana.service.queue.releases import release_compactly, release_leases
from ksana.store.sql import SqlStore, migrate, open_store
from ksana.store.sql.core import migrate as migrations
from tests.conformance.store.ground import Database
from tests.conformance.store.test_queue_store import claim, new_job, submit

IN_JOBS = 23
"""The migration that moved leases into the rows of jobs."""

COLUMNS = (
    "lease_id, job_id, addon_id, worker_id, cost_units, ttl_sec, state, granted_at, "
    "last_heartbeat_at, expires_at, released_at, release_status, release_digest, lease_token"
)


def leases_in_sql(database: Database) -> list[Lease]:
    order = "ORDER BY granted_at, lease_id"
    return [
        Lease(*row) for row in database.ask(f"SELECT {COLUMNS} FROM scheduler_lease_runs {order}")
    ]


async def find(store: SqlStore, lease_id: str) -> Lease | None:
    found: Lease | None = await store.read(lambda tx: tx.leases.find_lease(lease_id))
    return found


async def list_of(store: SqlStore, job_id: str) -> list[Lease]:
    found: list[Lease] = await store.read(
        lambda tx: tx.leases.list_of_job(tx.jobs.find_job(job_id))
    )
    return found


async def release(store: SqlStore, lease: Lease, status: str, **more: Any) -> Any:
    item = Release(lease.lease_id, status, proof=Proof(lease.lease_token), **more)
    return (await store.transact(release_leases, [item])).answers[0]


async def started(store: SqlStore, **more: Any) -> Lease:
    await claim(store, **more, has_lease=True)
    (lease,) = await store.read(lambda tx: tx.leases.list_active(10))
    assert isinstance(lease, Lease)
    return lease


@pytest.mark.spec("Q11", "Q13", "X12")
async def test_the_leases_of_a_job_that_was_queued_again_are_all_there(
    store: SqlStore, database: Database
) -> None:
    (job_id,) = await submit(store, new_job(max_attempts=3))
    first = await started(store, ttl_sec=20.0)
    assert (await find(store, first.lease_id), await list_of(store, job_id)) == (first, [first])
    beat = Heartbeat(first.lease_id, proof=Proof(first.lease_token), ttl_sec=40.0)
    (beaten,) = await store.transact(extend_leases, [beat])
    returned = await release(store, first, RETURNED)
    assert (returned.job.state, returned.lease.state) == ("QUEUED", "RELEASED")
    assert (returned.lease.ttl_sec, returned.lease.expires_at) == (40.0, beaten.lease.expires_at)
    assert returned.lease.last_heartbeat_at == beaten.lease.last_heartbeat_at
    second = await started(store, worker="v")
    assert second.lease_id != first.lease_id
    database.ask("UPDATE scheduler_job_runs SET lease_expires_at = 1000")
    swept = await store.transact(sweep, 10)
    assert [change.move for change in swept.changes] == ["requeue"]
    third = await started(store, worker="u")
    done = await release(store, third, "SUCCEEDED")
    assert done.job.state == "DONE"
    whole = await list_of(store, job_id)
    assert [(one.lease_id, one.state, one.worker_id) for one in whole] == [
        (first.lease_id, "RELEASED", "w"),
        (second.lease_id, "EXPIRED", "v"),
        (third.lease_id, "RELEASED", "u"),
    ]
    assert whole[0] == returned.lease and whole[2] == done.lease
    assert [await find(store, one.lease_id) for one in whole] == whole == leases_in_sql(database)
    assert {number_of(one.lease_id) for one in whole} == {done.job.seq}
    told = await store.read(read_events, job_id)
    granted = [event.entity_id for event in told if event.type == "LEASE_GRANTED"]
    assert granted == [one.lease_id for one in whole]
    # What was said of the first is answered the same, and nobody else is let near the third.
    for end in (release_leases, release_compactly):
        item = Release(first.lease_id, RETURNED, proof=Proof(first.lease_token))
        (again,) = (await store.transact(end, [item])).answers
        assert (again.job.state if isinstance(again, LeasedJob) else again.state) == "DONE"
    for said in (release(store, first, "SUCCEEDED"), release(store, second, "SUCCEEDED")):
        refused = await said
        assert isinstance(refused, KsanaError) and refused.code == "LEASE_LOST"
    (late,) = await store.transact(extend_leases, [beat])
    assert isinstance(late, KsanaError) and late.code == "LEASE_LOST"
    stranger = Heartbeat(new_numbered_uuids([done.job.seq])[0])
    (unknown,) = await store.transact(extend_leases, [stranger])
    assert isinstance(unknown, KsanaError) and unknown.code == "NOT_FOUND"
    assert await find(store, stranger.lease_id) is None
    old = await store.read(lambda tx: tx.jobs.find_old(tx.now + DAY, (0, 0), 10))
    assert await store.transact(lambda tx: tx.jobs.remove(old.keys)) == 1
    assert leases_in_sql(database) == [] == database.ask("SELECT * FROM past_leases")


@pytest.mark.spec("Q9", "Q12")
async def test_what_is_kept_of_leases_agrees_whatever_became_of_them(
    store: SqlStore, database: Database
) -> None:
    await submit(store, *(new_job(max_attempts=2) for _ in range(6)), is_batch=True)
    await claim(store, 6, has_lease=True)
    active = await store.read(lambda tx: tx.leases.list_active(10))
    assert [one.lease_id for one in leases_in_sql(database)] == sorted(
        one.lease_id for one in active
    )
    ends = ("SUCCEEDED", "FAILED", "CANCELED", "TIMEOUT", RETURNED)
    items = [
        Release(lease.lease_id, status, proof=Proof(lease.lease_token))
        for lease, status in zip(active, ends, strict=False)
    ]
    answers = (await store.transact(release_leases, items)).answers
    for lease, answer in zip(active, answers, strict=False):
        assert await find(store, lease.lease_id) == answer.lease
    states = {one.lease_id: one.state for one in leases_in_sql(database)}
    assert [states[one.lease_id] for one in active] == ["RELEASED"] * 5 + ["ACTIVE"]
    assert await store.read(lambda tx: tx.capacity.sum_active()) == (1, 1)


async def test_earlier_leases_go_with_their_own_job_and_not_before_it_has_gone(
    store: SqlStore, database: Database
) -> None:
    await submit(store, *(new_job(max_attempts=2) for _ in range(2)), is_batch=True)
    for _ in range(2):
        lease = await started(store)
        assert (await release(store, lease, "FAILED")).job.state == "QUEUED"
    [(first,), (second,)] = database.ask("SELECT seq FROM scheduler_job_runs ORDER BY seq")
    assert await store.transact(lambda tx: tx.jobs.remove([first])) == 0, "it has not ended"
    assert database.ask("SELECT COUNT(*) FROM past_leases") == [(2,)]
    database.ask(
        f"UPDATE scheduler_job_runs SET position = NULL, finished_at = 1 WHERE seq = {first}"
    )
    assert await store.transact(lambda tx: tx.jobs.remove([first])) == 1
    assert database.ask("SELECT job_seq FROM past_leases") == [(second,)]


# Leases of before


def enter(database: Database, table: str, **values: Any) -> None:
    names, given = ", ".join(values), ", ".join(map(_literal, values.values()))
    database.ask(f"INSERT INTO {table} ({names}) VALUES ({given})")


def _literal(value: Any) -> str:
    return "NULL" if value is None else repr(value)


def enter_job_of_before(
    database: Database, seq: int, now: Instant, state: str, lease_state: str
) -> tuple[str, str]:
    """A job with a lease as the version before wrote them."""
    job_id, lease_id = new_ordered_uuid(now), new_ordered_uuid(now)
    ends = {"RUNNING": (4, None), "DONE": (None, now), "QUEUED": (1, None)}
    position, finished_at = ends[state]
    enter(
        database,
        "scheduler_job_runs",
        seq=seq,
        job_id=job_id,
        addon_id="a",
        job_type="t",
        priority="NORMAL",
        cost_units=1,
        constraints_json="{}",
        payload_json="{}",
        state=state,
        attempts=1,
        max_attempts=2,
        created_at=now,
        updated_at=now,
        claimed_by="w",
        lease_id=None if state == "QUEUED" else lease_id,
        cancel_requested=0,
        started_at=now,
        finished_at=finished_at,
        position=position,
        urgency=2,
        class_id=1,
        turn=0,
        due_at=now,
        claim_token=8,
        claims=1,
    )
    enter(
        database,
        "scheduler_lease_runs",
        lease_id=lease_id,
        job_id=job_id,
        job_seq=seq,
        addon_id="a",
        worker_id="w",
        cost_units=1,
        ttl_sec=30.0,
        state=lease_state,
        granted_at=now,
        last_heartbeat_at=now,
        expires_at=now + 30 * SECOND,
        released_at=None if lease_state == "ACTIVE" else now,
        release_status="SUCCEEDED" if lease_state == "RELEASED" else None,
        lease_token=9 + seq,
    )
    return job_id, lease_id


async def open_from_before(
    store_url: str,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kinds: Sequence[tuple[str, str]],
) -> tuple[SqlStore, list[tuple[str, str]]]:
    """A store that the version before wrote, with jobs and leases of these states."""
    clock = SystemClock()
    known = migrations.list_migrations()
    with monkeypatch.context() as patch:
        before = [one for one in known if one.version < IN_JOBS]
        patch.setattr(migrations, "list_migrations", lambda: before)
        await migrate(store_url, clock)
    now = clock.now()
    ids = [enter_job_of_before(database, seq, now, *kind) for seq, kind in enumerate(kinds, 1)]
    told = leases_in_sql(database)
    store = await open_store(store_url, clock)
    assert leases_in_sql(database) == told
    assert [await find(store, one.lease_id) for one in told] == told
    return store, ids


async def check_all_agree(store: SqlStore, database: Database) -> None:
    """Whoever asks for a lease sees what SQL says of it."""
    told = leases_in_sql(database)
    assert [await find(store, one.lease_id) for one in told] == told


@pytest.mark.spec("Q10", "Q11", "X2")
async def test_leases_of_an_earlier_version_go_on_and_are_found(
    store_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = (
        *(("RUNNING", "ACTIVE"), ("RUNNING", "ACTIVE"), ("RUNNING", "ACTIVE")),
        *(("DONE", "RELEASED"), ("QUEUED", "EXPIRED")),
    )
    store, ids = await open_from_before(store_url, database, monkeypatch, kinds)
    try:
        for job_id, lease_id in ids:
            assert [one.lease_id for one in await list_of(store, job_id)] == [lease_id]
        running = await store.read(lambda tx: tx.leases.list_active(10))
        assert {one.lease_id for one in running} == {lease_id for _, lease_id in ids[:3]}
        by_id = {one.lease_id: one for one in running}
        goes_on, tries_again, runs_out = (by_id[lease_id] for _, lease_id in ids[:3])
        beat = Heartbeat(goes_on.lease_id, proof=Proof(goes_on.lease_token), ttl_sec=60.0)
        (beaten,) = await store.transact(extend_leases, [beat])
        assert (beaten.lease.ttl_sec, beaten.lease.state) == (60.0, "ACTIVE")
        assert await find(store, goes_on.lease_id) == beaten.lease
        assert (await release(store, goes_on, "SUCCEEDED")).job.state == "DONE"
        assert (await release(store, goes_on, "SUCCEEDED")).job.state == "DONE", "sent again"
        assert (await release(store, tries_again, RETURNED)).job.state == "QUEUED"
        late = f"UPDATE scheduler_job_runs SET lease_expires_at = 1000 WHERE job_id = '{ids[2][0]}'"
        database.ask(late)
        refused = await release(store, runs_out, "SUCCEEDED")
        assert isinstance(refused, KsanaError) and refused.code == "LEASE_LOST"
        ended = {one.lease_id: one.state for one in leases_in_sql(database)}
        assert [ended[lease_id] for _, lease_id in ids] == [
            *("RELEASED", "RELEASED", "EXPIRED"),
            *("RELEASED", "EXPIRED"),
        ]
        await check_all_agree(store, database)
        assert await store.read(lambda tx: tx.capacity.sum_active()) == (0, 0)
    finally:
        await store.close()


@pytest.mark.spec("Q10", "Q13", "X2")
async def test_what_became_of_leases_of_an_earlier_version_is_kept_whole(
    store_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [("RUNNING", "ACTIVE")] * 6
    store, _ = await open_from_before(store_url, database, monkeypatch, kinds)
    try:
        leases = await store.read(lambda tx: tx.leases.list_active(10))
        beats = [
            Heartbeat(one.lease_id, proof=Proof(one.lease_token), ttl_sec=60) for one in leases
        ]
        beaten = {
            one.lease.lease_id: one.lease for one in await store.transact(extend_leases, beats)
        }
        assert all(one.expires_at < beaten[one.lease_id].expires_at for one in leases)
        ends = (RETURNED, RETURNED, "SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELED")
        items = [
            Release(lease.lease_id, status, proof=Proof(lease.lease_token))
            for lease, status in zip(leases, ends, strict=True)
        ]
        answers = (await store.transact(release_leases, items)).answers
        for answer in answers:
            before = beaten[answer.lease.lease_id]
            assert answer.lease.expires_at == before.expires_at
            assert answer.lease.last_heartbeat_at == before.last_heartbeat_at
            assert answer.lease.ttl_sec == 60
            assert await find(store, before.lease_id) == answer.lease
        await check_all_agree(store, database)
    finally:
        await store.close()
