"""Jobs that a worker takes ahead, to begin them later: which are handed out so, and how they come
back."""

import asyncio

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import Job, Lease
from ksana.service.queue.claims import Claim, Claimed
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore
from tests.conformance.store.test_round_trips import CLASS, new_jobs

WANTS = Wants(CLASS.addon_id)


async def open_queue(store: SqlStore, attempts: list[int], total: int = 1_000) -> QueueService:
    """A queue with a job for each of these `max_attempts`."""
    service = QueueService(store, SystemClock(), Limits(total))
    made = zip(new_jobs(len(attempts)), attempts, strict=True)
    await service.submit_batch(
        [
            msgspec.structs.replace(job, max_attempts=most, payload_json=str(at))
            for at, (job, most) in enumerate(made)
        ]
    )
    return service


def claim(limit: int, ahead: int, worker_id: str = "w") -> Claim:
    return Claim(worker_id, WANTS, limit, True, 30.0, ahead=ahead)


def numbers(claimed: Claimed) -> list[int]:
    """Which jobs these are, by the order in which they were submitted."""
    return [int(job.payload_json) for job in claimed.jobs]


def release_of(lease: Lease, status: str) -> Release:
    return Release(lease.lease_id, status, lease.job_id, Proof(worker_id="w"))


@pytest.mark.spec("Q16")
async def test_only_jobs_with_an_attempt_to_spare_are_handed_out_ahead(store: SqlStore) -> None:
    service = await open_queue(store, [1, 1, 1, 2, 1])
    assert numbers(await service.claim(claim(5, 2))) == [0, 1, 2, 3]
    assert numbers(await service.claim(claim(5, 5))) == []
    assert numbers(await service.claim(claim(5, 0))) == [4]


@pytest.mark.spec("Q16")
async def test_who_begins_at_once_comes_before_who_begins_later(store: SqlStore) -> None:
    service = await open_queue(store, [2] * 7)
    first, second, third = await asyncio.gather(
        service.claim(claim(4, 4)), service.claim(claim(3, 1)), service.claim(claim(3, 0))
    )
    assert numbers(second)[:2] + numbers(third) == [0, 1, 2, 3, 4]
    assert numbers(first) + numbers(second)[2:] == [5, 6]


@pytest.mark.spec("Q9", "Q16")
async def test_half_of_the_free_units_are_left_to_others(store: SqlStore) -> None:
    service = await open_queue(store, [2] * 30, total=CLASS.cost_units * 20)
    assert len((await service.claim(claim(30, 28))).taken) == 10
    assert len((await service.claim(claim(30, 28))).taken) == 5
    assert len((await service.claim(claim(30, 0))).taken) == 5


@pytest.mark.spec("Q11", "Q16")
async def test_a_job_given_back_keeps_its_attempt_and_its_place(store: SqlStore) -> None:
    service = await open_queue(store, [2, 2, 2])
    claimed = await service.claim(claim(2, 1))
    releases = [release_of(lease, "RETURNED") for lease in claimed.leases]
    (answered,) = await service.release_batch_compactly(releases[1:])
    whole = await service.release(releases[0])
    assert (whole.job.state, whole.job.attempts, whole.job.lease_id) == ("QUEUED", 0, None)
    for taken, change in zip(claimed.taken, claimed.changes, strict=True):
        job: Job = await service.get_job(taken.job_id)
        assert (job.state, job.attempts, job.claimed_by, job.lease_id) == ("QUEUED", 0, None, None)
        assert (await service.get_lease(change.lease_id)).release_status == "RETURNED"
    again = await service.release_batch_compactly(releases)
    assert again[1] == answered
    assert sorted(numbers(await service.claim(claim(2, 0)))) == [0, 1]
    events = [event.type for event in await service.list_events(claimed.taken[0].job_id)]
    assert events[4:6] == ["LEASE_RELEASED", "JOB_REQUEUED"]
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert (gauges.queued, gauges.running) == (1, 2)


@pytest.mark.spec("Q6", "Q11")
async def test_a_job_given_back_after_its_cancel_is_cancelled(store: SqlStore) -> None:
    service = await open_queue(store, [2])
    claimed = await service.claim(claim(1, 0))
    await service.cancel(claimed.taken[0].job_id, "enough")
    answer = await service.release(release_of(claimed.leases[0], "RETURNED"))
    assert answer.job.state == "CANCELED"
