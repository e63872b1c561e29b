"""Single releases and heartbeats that wait together: one transaction for all, and each is answered
as if it had come alone."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.ids import new_uuid
from ksana.base.instant import SECOND
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import Lease, LeasedJob
from ksana.service.queue.claims import Claim
from ksana.service.queue.leases import Heartbeat
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.conformance.store.test_queue_guards import set_row
from tests.conformance.store.test_round_trips import CLASS, new_jobs

COUNT = 40


async def start(store: SqlStore, count: int = COUNT) -> tuple[QueueService, list[Lease]]:
    """A queue with so many jobs that run."""
    service = QueueService(store, SystemClock(), Limits(1_000))
    await service.submit_batch(new_jobs(count))
    claimed = await service.claim(Claim("w", Wants(CLASS.addon_id), count, True, 30.0))
    assert len(claimed.leases) == count
    return service, claimed.leases


async def commits_of(store: SqlStore, calls: list[Any]) -> tuple[int, list[Any]]:
    before = store.health().commits
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return store.health().commits - before, answers


def release_of(lease: Lease, **members: Any) -> Release:
    return Release(lease.lease_id, "SUCCEEDED", lease.job_id, Proof(worker_id="w"), **members)


@pytest.mark.spec("Q11")
async def test_single_releases_share_commits_and_each_is_answered_whole(store: SqlStore) -> None:
    service, leases = await start(store)
    calls = [
        service.release(release_of(lease, result_json=f'{{"n":{at}}}'))
        for at, lease in enumerate(leases)
    ]
    commits, answers = await commits_of(store, calls)
    assert commits <= 4
    for at, (lease, answer) in enumerate(zip(leases, answers, strict=True)):
        assert isinstance(answer, LeasedJob)
        assert (answer.lease.lease_id, answer.lease.state) == (lease.lease_id, "RELEASED")
        assert (answer.lease.release_status, answer.lease.worker_id) == ("SUCCEEDED", "w")
        assert (answer.job.job_id, answer.job.state) == (lease.job_id, "DONE")
        assert answer.job.result_json == f'{{"n":{at}}}'
        assert answer.job == await service.get_job(lease.job_id)
        assert answer.lease == await service.get_lease(lease.lease_id)
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert (gauges.queued, gauges.running) == (0, 0)


@pytest.mark.spec("Q11", "X12")
async def test_in_a_set_each_release_is_refused_or_repeated_on_its_own(store: SqlStore) -> None:
    service, leases = await start(store, 4)
    first, second, third, fourth = leases
    stranger = Release(second.lease_id, "SUCCEEDED", None, Proof(worker_id="another"))
    calls = [
        service.release(release_of(first)),
        service.release(release_of(first)),  # sent again: a lost answer
        service.release(release_of(first, error="changed its mind")),
        service.release(stranger),
        service.release(Release(new_uuid(), "SUCCEEDED")),
        service.release(Release(third.lease_id, "FAILED", third.job_id, Proof(worker_id="w"))),
        service.release_batch([release_of(second), release_of(fourth), stranger]),
    ]
    _, answers = await commits_of(store, calls)
    assert answers[0] == answers[1] and answers[0].job.state == "DONE"
    for lost in answers[2:4]:
        assert isinstance(lost, ConflictError) and lost.code == "LEASE_LOST"
    assert isinstance(answers[4], NotFoundError)
    assert answers[5].job.state == "FAILED"
    of_batch = answers[6]
    assert [getattr(one, "job", one) for one in of_batch[:2]] == [
        await service.get_job(second.job_id),
        await service.get_job(fourth.job_id),
    ]
    assert isinstance(of_batch[2], ConflictError)
    again = await service.release(release_of(first))  # and once more when all is over
    assert (again.lease, again.job) == (answers[0].lease, answers[0].job)


@pytest.mark.spec("Q11", "Q12")
async def test_a_late_release_in_a_set_is_refused_and_its_neighbours_are_not(
    store: SqlStore, database: Database
) -> None:
    service, leases = await start(store, 3)
    late = f"lease_id = '{leases[1].lease_id}'"
    set_row(database, "scheduler_job_runs", late, lease_expires_at=1_000)
    calls = [service.release(release_of(lease)) for lease in leases]
    _, answers = await commits_of(store, calls)
    assert [getattr(one, "code", None) or one.job.state for one in answers] == [
        "DONE",
        "LEASE_LOST",
        "DONE",
    ]
    assert (await service.get_job(leases[1].job_id)).state == "TIMEOUT"
    assert (await service.get_lease(leases[1].lease_id)).state == "EXPIRED"


@pytest.mark.spec("Q10")
async def test_single_heartbeats_share_commits_and_notes_keep_their_order(store: SqlStore) -> None:
    service, leases = await start(store)
    calls = [
        service.heartbeat(Heartbeat(lease.lease_id, lease.job_id, Proof(worker_id="w")))
        for lease in leases[2:]
    ]
    noted = leases[0]
    beats = [
        Heartbeat(noted.lease_id, progress=0.1, message="a", ttl_sec=50.0),
        Heartbeat(noted.lease_id, progress=0.7),
        Heartbeat(noted.lease_id, message="b"),
        Heartbeat(leases[1].lease_id, proof=Proof(worker_id="another"), progress=0.9),
        Heartbeat(new_uuid()),
    ]
    calls += [service.heartbeat(beat) for beat in beats]
    commits, answers = await commits_of(store, calls)
    assert commits <= 4
    for lease, answer in zip(leases[2:], answers[: COUNT - 2], strict=True):
        assert answer.lease.expires_at > lease.expires_at
        assert answer.lease == await service.get_lease(lease.lease_id)
    told = [(one.job.progress, one.job.note, one.lease.ttl_sec) for one in answers[-5:-2]]
    assert told == [(0.1, "a", 50.0), (0.7, "a", 50.0), (0.7, "b", 50.0)]
    assert isinstance(answers[-2], ConflictError) and isinstance(answers[-1], NotFoundError)
    job = await service.get_job(noted.job_id)
    assert (job.progress, job.note) == (0.7, "b")
    kept = await service.get_lease(noted.lease_id)
    assert kept.ttl_sec == 50.0
    assert kept.expires_at - kept.last_heartbeat_at == 50 * SECOND
    assert (await service.get_job(leases[1].job_id)).progress is None
