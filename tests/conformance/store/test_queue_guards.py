"""Every guard of the queue's writes, one at a time, on every SQL store: a row that differs from
what a write expects in one thing alone is left as it is."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError
from ksana.base.ids import new_uuid
from ksana.base.instant import SECOND
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import LeasedJob
from ksana.ports.queue.tables import JobFilter
from ksana.ports.retention import START
from ksana.service.queue.claims import Claim, JobClassCache, claim_jobs
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.conformance.store.test_queue_store import DAY, LIMITS, new_job, submit

LEASE, OTHER = new_uuid(), new_uuid()
FAR = 4_000_000_000 * SECOND
LONG_AGO = 1

HELD = {"position": 2, "state": "CLAIMED", "claim_token": 7, "claim_expires_at": FAR, "attempts": 3}
RUNS = {"position": 4, "state": "RUNNING", "lease_id": LEASE, "lease_token": 9}

FITTING: dict[str, dict[str, Any]] = {
    "promote": {"position": 0},
    "claim": {"position": 1},
    "start": {"position": 1, "attempts": 3},
    "grant": HELD,
    "deny": HELD,
    "report": HELD,
    "cancel": {"position": 2, "state": "CLAIMED"},
    "finish": RUNS,
    "requeue": RUNS,
    "take_back": HELD,
}
"""The row each move expects."""

UNFIT: dict[str, list[dict[str, Any]]] = {
    "promote": [{"position": 1}, {"position": 4}],
    "claim": [{"position": 0}, {"position": 2}, {"position": 4}],
    "start": [{"position": 0}, {"position": 2}, {"position": 4}, {"attempts": 4}],
    "grant": [
        {"position": 1},
        {"position": 4},
        {"claim_token": 8},
        {"claim_expires_at": LONG_AGO},
        {"attempts": 4},
    ],
    "deny": [{"position": 1}, {"position": 4}, {"claim_token": 8}, {"claim_expires_at": LONG_AGO}],
    "report": [
        {"position": 1},
        {"position": 4},
        {"state": "PREPARING"},
        {"claim_token": 8},
        {"claim_expires_at": LONG_AGO},
    ],
    "cancel": [{"position": 4}, {"state": "PREPARING"}],
    "finish": [{"position": 3}, {"lease_id": OTHER}, {"lease_token": 8}],
    "requeue": [{"position": 3}, {"lease_id": OTHER}, {"lease_token": 8}],
    "take_back": [{"position": 1}, {"position": 4}, {"claim_token": 8}],
}
"""What in it may be different; each alone."""

ENDS = {"report": "PREPARING", "cancel": "CANCELED", "finish": "DONE", "requeue": "QUEUED"}


def change_of(move: Any, seq: int, job_id: str) -> JobChange:
    return JobChange(
        move=move,
        seq=seq,
        job_id=job_id,
        old="CLAIMED",
        new=ENDS.get(move, "RUNNING"),
        position=3,
        claim_token=7,
        old_attempts=3,
        attempts=4,
        lease_id=LEASE,
        lease_token=9,
        worker_id="w",
        until=FAR,
    )


def set_row(database: Database, table: str, where: str, **values: Any) -> None:
    pairs = ", ".join(f"{name} = {value!r}" for name, value in values.items())
    database.ask(f"UPDATE {table} SET {pairs} WHERE {where}")


@pytest.mark.fault("F37")
@pytest.mark.spec("X12")
@pytest.mark.parametrize("move", FITTING)
async def test_a_move_happens_to_the_row_it_expects_and_to_no_other(
    store: SqlStore, database: Database, move: str
) -> None:
    (job_id,) = await submit(store, new_job())
    job = await store.read(lambda tx: tx.jobs.find_job(job_id))
    change = change_of(move, job.seq, job_id)

    def write(tx: Any) -> int:
        return int(getattr(tx.job_changes, move)([change]))

    for unfit in UNFIT[move]:
        set_row(database, "scheduler_job_runs", "1 = 1", **{**FITTING[move], **unfit})
        assert await store.transact(write) == 0, unfit
    set_row(database, "scheduler_job_runs", "1 = 1", **FITTING[move])
    assert await store.transact(write) == 1


@pytest.mark.spec("X12")
async def test_notes_and_requests_to_cancel_reach_a_running_job_alone(
    store: SqlStore, database: Database
) -> None:
    (job_id,) = await submit(store, new_job())

    job = await store.read(lambda tx: tx.jobs.find_job(job_id))

    def note(tx: Any, lease_id: str) -> bool:
        noted = msgspec.structs.replace(job, lease_id=lease_id, progress=0.5, note="n")
        return bool(tx.job_changes.note_running([noted]))

    def cancel(tx: Any) -> bool:
        return bool(tx.job_changes.request_cancel(job.seq, None))

    set_row(database, "scheduler_job_runs", "1 = 1", position=3, lease_id=LEASE)
    assert not await store.transact(note, LEASE)
    assert not await store.transact(cancel)
    set_row(database, "scheduler_job_runs", "1 = 1", position=4)
    assert not await store.transact(note, OTHER)
    assert await store.transact(note, LEASE)
    assert await store.transact(cancel)


@pytest.mark.fault("F13")
@pytest.mark.spec("X12")
async def test_a_lease_is_extended_while_it_is_active_and_under_its_token(
    store: SqlStore, database: Database
) -> None:
    await submit(store, new_job())
    claim = Claim("w", Wants(), 1, has_lease=True)
    claimed = await store.transact(claim_jobs, claim, JobClassCache(), LIMITS)
    (lease,), (job,) = claimed.leases, claimed.jobs
    fitting = {"position": 4, "lease_token": lease.lease_token}

    def extend(tx: Any) -> int:
        return int(tx.leases.extend([LeasedJob(lease, job)]))

    for unfit in ({"position": 3}, {"lease_token": lease.lease_token ^ 1}):
        set_row(database, "scheduler_job_runs", "1 = 1", **{**fitting, **unfit})
        assert await store.transact(extend) == 0, unfit
    set_row(database, "scheduler_job_runs", "1 = 1", **fitting)
    assert await store.transact(extend) == 1


@pytest.mark.spec("X13")
async def test_a_purge_leaves_jobs_that_wait_and_leases_that_hold_something(
    store: SqlStore, database: Database
) -> None:
    job_ids = await submit(store, *(new_job() for _ in range(2)), is_batch=True)
    claim = Claim("w", Wants(), 1, has_lease=True)
    await store.transact(claim_jobs, claim, JobClassCache(), LIMITS)
    set_row(database, "scheduler_job_runs", "1 = 1", finished_at=LONG_AGO)  # and not ended
    old = await store.read(lambda tx: tx.jobs.find_old(tx.now + DAY, START, 10))
    assert len(old.keys) == 2
    assert await store.transact(lambda tx: tx.jobs.remove(old.keys)) == 0
    assert database.ask("SELECT COUNT(*) FROM scheduler_lease_runs") == [(1,)]
    assert (await store.read(lambda tx: tx.jobs.find_jobs(job_ids))).keys() == set(job_ids)


@pytest.mark.spec("X13", "Q1")
async def test_of_a_job_that_was_removed_nothing_is_left_and_its_request_may_come_again(
    store: SqlStore, database: Database
) -> None:
    gone, stays = new_job(client_request_id="r"), new_job(client_request_id="s")
    await submit(store, gone, stays, is_batch=True)
    numbers = dict(database.ask("SELECT job_id, seq FROM scheduler_job_runs"))
    ended = "position = NULL, state = 'CANCELED', finished_at = 1"
    database.ask(f"UPDATE scheduler_job_runs SET {ended} WHERE seq = {numbers[gone.job_id]}")
    assert await store.transact(lambda tx: tx.jobs.remove(list(numbers.values()))) == 1
    found = await store.read(lambda tx: tx.jobs.find_jobs(list(numbers)))
    assert found.keys() == {stays.job_id}
    page = await store.read_list(
        lambda tx: tx.job_lists.list_page(JobFilter(addon_id="a"), None, 9)
    )
    assert [job.job_id for job in page] == [stays.job_id]
    (again,) = await submit(store, new_job(client_request_id="r"))
    with pytest.raises(ConflictError):
        await submit(store, new_job(client_request_id="s"))
    assert again not in numbers
    now = dict(database.ask("SELECT job_id, seq FROM scheduler_job_runs"))
    assert now[again] > max(numbers.values()), "a number is never given twice: leases carry it"


@pytest.mark.spec("Q9")
async def test_units_kept_for_one_job_are_not_given_up_by_another(
    store: SqlStore, database: Database
) -> None:
    set_row(database, "queue_capacity", "id = 1", reserved_units=5, reserved_for=LEASE)
    await store.transact(lambda tx: tx.capacity.drop_reserve(OTHER))
    assert database.ask("SELECT reserved_units FROM queue_capacity") == [(5,)]
    await store.transact(lambda tx: tx.capacity.drop_reserve(LEASE))
    assert database.ask("SELECT reserved_units FROM queue_capacity") == [(0,)]
