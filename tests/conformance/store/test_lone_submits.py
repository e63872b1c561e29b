"""A submit that comes alone: the database finds its place in the line, nobody waits for that."""

import asyncio
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError
from ksana.base.instant import HOUR, SECOND
from ksana.domain.queue.classes import class_of
from ksana.domain.queue.jobs import Job, NewJob
from ksana.domain.queue.turns import TAIL
from ksana.service.queue.jobs import submit_together
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.checks import batched, enter_key, key_names
from tests.conformance.store.test_round_trips import CLASS, claim, enter_class, new_jobs, trips_of
from tests.conformance.store.test_submit_sets import check_refused, service_of


def new_job(**more: Any) -> NewJob:
    (job,) = new_jobs(1)
    return msgspec.structs.replace(job, **more)


async def stored(store: SqlStore, made: Job) -> Job:
    job: Job = await store.read(lambda tx: tx.jobs.find_job(made.job_id))
    return job


SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 1),
    "with a request id": ({"client_request_id": "r"}, 1),
    "scheduled": ({"run_at": SystemClock().now() + HOUR}, 1),
    "due at once": ({"run_at": SystemClock().now() - HOUR}, 1),
    "with a fairness key": ({"fairness_key": "k"}, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_it_waits_for_the_database_once(store: SqlStore, shape: str) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    more, wanted = SHAPES[shape]
    service, spent = service_of(store), []
    for number in range(8):  # over all writers: each asks for the clock now and then
        if "client_request_id" in more:
            more = {"client_request_id": f"r{number}"}
        job = new_job(**more)
        trips, made = await trips_of(store, lambda job=job: service.submit(job))
        assert (await stored(store, made)).turn >= 0
        spent.append(trips)
    assert min(spent) == wanted


async def test_a_set_with_many_fairness_keys_asks_for_them_together(store: SqlStore) -> None:
    if not store.dialect.is_network:
        pytest.skip("an embedded store has no round trips")
    await enter_class(store)
    spent = []
    for _ in range(8):
        jobs = [new_job(fairness_key=f"k{n % 5}") for n in range(9)]
        trips, _ = await trips_of(
            store, lambda jobs=jobs: store.transact(submit_together, jobs, [])
        )
        spent.append(trips)
    assert min(spent) == 2
    jobs = [new_job(fairness_key=f"k{n % 5}") for n in range(9)]
    made = await store.transact(submit_together, jobs, [])
    turns = [(await stored(store, one)).turn for one in made]
    assert turns == [16, 16, 16, 16, 8, 17, 17, 17, 17]


@pytest.mark.spec("Q2")
async def test_it_goes_behind_all_that_wait_at_its_urgency(store: SqlStore) -> None:
    service = service_of(store)
    first = await service.submit(new_job())
    assert (await stored(store, first)).turn == 0
    for _ in range(4):
        await service.submit(new_job(fairness_key="k"))
    last = await service.submit(new_job())
    assert (await stored(store, last)).turn == 3
    urgent = await service.submit(new_job(priority="URGENT"))
    assert (await stored(store, urgent)).turn == 0
    other = await service.submit(new_job(fairness_key="another"))
    order = (await claim(store, 9)).jobs
    assert [job.job_id for job in order][:2] == [urgent.job_id, first.job_id]
    assert order[3].job_id == other.job_id, "a key that has none waiting goes to the head"
    assert order[-1].job_id == last.job_id, "who has no key is served by age, behind all turns"
    assert not any(job.turn == TAIL for job in order)


@pytest.mark.spec("Q2")
async def test_those_of_one_commit_see_each_other(store: SqlStore) -> None:
    keyed = [new_job(fairness_key="k") for _ in range(3)]
    alone = [new_job(), new_job()]
    answers = await batched(
        store,
        (submit_together, alone[:1], [CLASS]),
        (submit_together, keyed, []),
        (submit_together, alone[1:], []),
    )
    assert [(await stored(store, made)).turn for (made, *_) in answers] == [0, 0, 2]
    assert (await stored(store, answers[1][2])).turn == 2


@pytest.mark.spec("Q1")
async def test_a_duplicate_is_refused_and_its_neighbours_in_the_commit_are_not(
    store: SqlStore,
) -> None:
    first = await service_of(store).submit(new_job(client_request_id="r"))
    duplicate = [new_job(client_request_id="r")]
    answers = await batched(
        store,
        (enter_key, "before"),
        (submit_together, duplicate, [], 100),
        (enter_key, "after"),
    )
    assert [answers[0], answers[2]] == ["before", "after"]
    check_refused(answers[1][0], first)
    alone = await service_of(store).submit(new_job(client_request_id="s"))
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert gauges.queued == 2
    assert await store.read(key_names) == {"before", "after"}

    def look_away(tx: Any) -> Any:
        return submit_together(tx, [new_job(client_request_id="s")], [], looks_first=False)

    answers = await batched(store, (enter_key, "before 2"), (look_away,), (enter_key, "after 2"))
    assert [answers[0], answers[2]] == ["before 2", "after 2"]
    check_refused(answers[1][0], alone)
    gauges = await store.read(lambda tx: tx.gauges.read())
    assert gauges.queued == 2


@pytest.mark.spec("Q1", "X12")
async def test_of_two_instances_that_submit_the_same_one_is_refused(
    store: SqlStore, store_url: str
) -> None:
    if not store.dialect.is_network:
        pytest.skip("this store admits one server only")
    other = await open_store(store_url, SystemClock())
    try:
        services = [service_of(store), service_of(other)]
        for number in range(12):
            answers = await asyncio.gather(
                *(one.submit(new_job(client_request_id=f"race-{number}")) for one in services),
                return_exceptions=True,
            )
            (made,) = [one for one in answers if isinstance(one, Job)]
            (refused,) = [one for one in answers if isinstance(one, ConflictError)]
            check_refused(refused, made)
        gauges = await store.read(lambda tx: tx.gauges.read())
        assert gauges.queued == 12
    finally:
        await other.close()


@pytest.mark.spec("Q1")
async def test_a_job_whose_class_is_new_brings_it(store: SqlStore) -> None:
    kind = class_of("trips", "alone", 1, ())
    made = await service_of(store).submit(new_job(job_class=kind))
    assert (await stored(store, made)).class_id == kind.id
    classes = await store.read(lambda tx: tx.job_classes.list_classes())
    assert kind.id in {one.id for one in classes}
    assert (await stored(store, made)).created_at <= SystemClock().now() + SECOND
