"""Single submits that wait together: one transaction for all, and each is entered or refused as if
it had come alone."""

import asyncio
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock, VirtualClock
from ksana.base.errors import ConflictError
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.classes import class_of
from ksana.domain.queue.jobs import Job, NewJob
from ksana.service.queue.service import LOOKING, QueueService
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.test_round_trips import new_jobs, trips_of


def service_of(store: SqlStore) -> QueueService:
    return QueueService(store, SystemClock(), Limits(1_000))


def jobs_with(request_ids: list[str | None]) -> list[NewJob]:
    return [
        msgspec.structs.replace(job, client_request_id=request_id)
        for job, request_id in zip(new_jobs(len(request_ids)), request_ids, strict=True)
    ]


async def submit_all(service: QueueService, jobs: list[NewJob]) -> list[Any]:
    return await asyncio.gather(*map(service.submit, jobs), return_exceptions=True)


def check_refused(answer: Any, first: Job) -> None:
    assert isinstance(answer, ConflictError) and answer.code == "DUPLICATE_REQUEST"
    assert answer.extra["job"].job_id == first.job_id
    assert answer.extra["index"] == 0


@pytest.mark.spec("Q1")
async def test_submits_with_request_ids_share_commits_and_a_duplicate_is_refused_alone(
    store: SqlStore,
) -> None:
    service = service_of(store)
    (before,) = await submit_all(service, jobs_with(["old"]))
    ids = [f"r{n}" for n in range(30)]
    jobs = jobs_with([*ids, "old", "r3", None, None, "r3"])
    commits = store.health().commits
    answers = await submit_all(service, jobs)
    assert store.health().commits - commits <= 3
    made = [answer for answer in answers if isinstance(answer, Job)]
    assert [job.job_id for job in made] == [job.job_id for job in jobs[:30] + jobs[32:34]]
    check_refused(answers[30], before)
    check_refused(answers[31], answers[3])
    check_refused(answers[34], answers[3])
    stored = await store.read(lambda tx: tx.jobs.find_jobs([job.job_id for job in jobs]))
    assert {job.job_id for job in made} == set(stored)
    assert all(stored[job.job_id].turn == job.turn for job in made)
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert gauges.queued == 1 + len(made)
    (again,) = await submit_all(service, jobs_with(["r29"]))
    check_refused(again, answers[29])


@pytest.mark.spec("Q1")
async def test_after_a_duplicate_submits_look_first_for_a_while(store: SqlStore) -> None:
    clock = VirtualClock(SystemClock().now())
    service = QueueService(store, clock, Limits(1_000))

    async def retries_of(request_id: str) -> tuple[int, Any]:
        before = store.health().retries
        (answer,) = await submit_all(service, jobs_with([request_id]))
        return store.health().retries - before, answer

    spent, first = await retries_of("r")
    assert spent == 0 and isinstance(first, Job)
    spent, refused = await retries_of("r")
    assert spent == 1  # the insert found it, and the second run looked who it is
    check_refused(refused, first)
    spent, refused = await retries_of("r")
    assert spent == 0
    check_refused(refused, first)
    clock.step(LOOKING)
    spent, refused = await retries_of("r")
    assert spent == 1
    check_refused(refused, first)


@pytest.mark.spec("Q1")
async def test_a_class_that_came_with_a_refused_job_alone_can_be_submitted_later(
    store: SqlStore,
) -> None:
    service = service_of(store)
    await submit_all(service, jobs_with(["r"]))
    other = class_of("trips", "never seen", 1, ())
    (refused, job) = jobs_with(["r", None])
    (answer,) = await submit_all(service, [msgspec.structs.replace(refused, job_class=other)])
    assert isinstance(answer, ConflictError)
    (made,) = await submit_all(service, [msgspec.structs.replace(job, job_class=other)])
    assert isinstance(made, Job)
    classes = await store.read(lambda tx: tx.job_classes.list_classes())
    assert other.id in {kind.id for kind in classes}


@pytest.mark.spec("Q1", "X12")
async def test_the_same_request_by_two_instances_at_once_enters_one_job(
    store: SqlStore, store_url: str
) -> None:
    if not store.dialect.is_network:
        pytest.skip("this store admits one server only")
    other = await open_store(store_url, SystemClock())
    try:
        services = [service_of(store), service_of(other)]
        for number in range(8):
            ids: list[str | None] = [f"race-{number}-{n}" for n in range(4)]
            both = await asyncio.gather(
                *(submit_all(service, jobs_with(ids)) for service in services)
            )
            for one, another in zip(*both, strict=True):
                first, second = (one, another) if isinstance(one, Job) else (another, one)
                assert isinstance(first, Job)
                check_refused(second, first)
        gauges = await store.read(lambda tx: tx.gauges.read())
        assert gauges.queued == 32
    finally:
        await other.close()


async def test_a_submit_with_a_request_id_costs_few_round_trips(store: SqlStore) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    service, spent = service_of(store), []
    for number in range(12):  # over all writers: each asks for the clock and for types now and then
        ids: list[str | None] = [f"trip-{number}-{n}" for n in range(1 + number % 2)]
        trips, _ = await trips_of(store, lambda ids=ids: submit_all(service, jobs_with(ids)))
        spent.append(trips)
    assert min(spent[::2]) == 1
    assert min(spent[1::2]) == 2
