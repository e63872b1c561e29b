"""Tokens of claims and leases, on every SQL store: a zombie is refused by the statement itself."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, KsanaError
from ksana.base.ids import new_uuid
from ksana.domain.leases import Proof
from ksana.domain.queue import admission, changes
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import LeasedJob
from ksana.engine.queue.job_writer import write_changes
from ksana.engine.queue.leasing import sweep
from ksana.service.queue.claims import Claim, Claimed, JobClassCache, claim_jobs
from ksana.service.queue.jobs import Report, report_status
from ksana.service.queue.leases import Heartbeat, LeaseRequest, extend_leases, request_lease
from ksana.service.queue.releases import release_compactly, release_leases
from ksana.store.sql import SqlStore
from tests.conformance.store.test_queue_store import LIMITS, new_job, submit

SHORT = Limits(100, (), 1)
"""A claim runs out at once."""


async def claim_as(store: SqlStore, worker: str, limits: Limits = LIMITS) -> Claimed:
    return await store.transact(claim_jobs, Claim(worker, Wants()), JobClassCache(), limits)


async def claimed_by_a_and_b(store: SqlStore) -> tuple[str, int, int]:
    """A job that A claimed and lost and B holds: its id and both tokens."""
    (job_id,) = await submit(store, new_job(max_attempts=3))
    first = await claim_as(store, "a", SHORT)
    await store.transact(sweep, 10)
    second = await claim_as(store, "b")
    assert [job.job_id for job in (*first.jobs, *second.jobs)] == [job_id, job_id]
    return job_id, first.changes[0].claim_token, second.changes[0].claim_token


@pytest.mark.fault("F12")
@pytest.mark.spec("Q3", "Q9", "X12")
async def test_who_lost_its_claim_gets_no_lease_of_who_has_it(store: SqlStore) -> None:
    job_id, old, new = await claimed_by_a_and_b(store)
    zombies = (Proof(), Proof(old), Proof(worker_id="a"), Proof(old, "b"), Proof(0))
    for proof in zombies:
        request = LeaseRequest(job_id, 30, proof)
        with pytest.raises(ConflictError) as refused:
            await store.transact(request_lease, request, LIMITS)
        assert refused.value.code == "CLAIM_LOST"
        with pytest.raises(ConflictError) as refused:
            await store.transact(report_status, Report(job_id, "PREPARING", proof=proof), LIMITS)
        assert refused.value.code == "CLAIM_LOST"
    granted = await store.transact(request_lease, LeaseRequest(job_id, 30, Proof(new)), LIMITS)
    assert isinstance(granted, LeasedJob)
    lease = granted.lease
    for proof in zombies:
        (beaten,) = await store.transact(extend_leases, [Heartbeat(lease.lease_id, proof=proof)])
        item = Release(lease.lease_id, "SUCCEEDED", proof=proof)
        outcomes = [
            beaten,
            *(await store.transact(release_compactly, [item])).answers,
            *(await store.transact(release_leases, [item])).answers,
        ]
        assert all(isinstance(one, KsanaError) and one.code == "LEASE_LOST" for one in outcomes)
    item = Release(lease.lease_id, "SUCCEEDED", proof=Proof(lease.lease_token))
    (ended,) = (await store.transact(release_compactly, [item])).answers
    assert ended.state == "DONE"


@pytest.mark.fault("F12")
@pytest.mark.spec("X12")
async def test_the_statement_itself_refuses_another_token(store: SqlStore) -> None:
    """Whatever was decided before: no write of a holder happens under another's token."""
    job_id, old, _ = await claimed_by_a_and_b(store)
    job = await store.read(lambda tx: tx.jobs.find_job(job_id))
    stale = msgspec.structs.replace(job, claim_token=old)
    until = job.claim_expires_at
    for change in (
        admission.grant_lease(stale, new_uuid(), 7, 30, until),
        admission.deny_lease(stale, until, until, {}),
        changes.report_state(stale, "PREPARING", 0.5, None, until),
    ):
        assert not await store.transact(write_and_undo, change)

    def run(tx: Any) -> Any:
        return claim_jobs(tx, Claim("w", Wants(), 1, True), JobClassCache(), LIMITS)

    await submit(store, new_job())
    taken = await store.transact(run)
    lease, running = taken.leases[0], taken.jobs[0]
    wrong = msgspec.structs.replace(lease, lease_token=old)
    for one, count in ((wrong, 0), (lease, 1)):
        held = LeasedJob(one, running)
        assert await store.transact(lambda tx, held: tx.leases.extend([held]), held) == count

    def end(tx: Any, token: int) -> int:
        change = changes.JobChange(
            move="finish",
            seq=running.seq,
            job_id=lease.job_id,
            old="RUNNING",
            new="DONE",
            lease_id=lease.lease_id,
            lease_token=token,
            lease_end="RELEASED",
        )
        return int(tx.job_changes.finish([change]))

    assert await store.transact(end, old) == 0
    assert await store.transact(end, lease.lease_token) == 1


def write_and_undo(tx: Any, change: changes.JobChange) -> bool:
    return write_changes(tx, [change])
