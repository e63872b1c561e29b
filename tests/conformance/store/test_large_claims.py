"""Claims of jobs whose payloads are large, on every SQL store: an answer has about as many bytes as
a page, and no job is left behind or out of its turn."""

from typing import Any

import pytest

from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import NewJob
from ksana.store.sql import SqlStore
from tests.conformance.store.test_queue_store import claim, new_job, submit

pytestmark = pytest.mark.spec("Q2", "X13", "X2")

MEBIBYTE = 1024 * 1024
WANTS = {
    "any class": Wants(),
    "one class": Wants(job_types=frozenset({"t"})),
    "two classes": Wants(job_types=frozenset({"t", "u"})),
}


def large(number: int, size: int = MEBIBYTE - 100, *, is_one: bool = False, **more: Any) -> NewJob:
    kind = "t" if is_one or number % 2 else "u"
    return new_job(kind=kind, payload_json=f'"{number}{"x" * size}"', **more)


@pytest.mark.parametrize("wanted", WANTS)
@pytest.mark.parametrize("has_lease", [False, True])
async def test_a_claim_ends_where_its_bytes_do_and_the_next_goes_on(
    store: SqlStore, wanted: str, has_lease: bool
) -> None:
    is_one = wanted == "one class"
    await submit(store, *[new_job(kind="v") for _ in range(2 if wanted != "any class" else 0)])
    jobs = [large(number, is_one=is_one) for number in range(20)]
    jobs.insert(3, new_job(kind="t"))
    for start in range(0, len(jobs), 5):  # MariaDB takes 16 MiB at once
        await submit(store, *jobs[start : start + 5])
    taken: list[Any] = []
    sizes: list[int] = []
    while some := await claim(store, 500, wants=WANTS[wanted], has_lease=has_lease):
        taken += some
        sizes.append(sum(len(job.payload_json) for job in some))
    assert [job.job_id for job in taken] == [job.job_id for job in jobs]
    assert [job.payload_json for job in taken] == [job.payload_json for job in jobs]
    assert len(sizes) == 3
    assert max(sizes) <= 8 * MEBIBYTE + 1024


async def test_a_payload_larger_than_a_page_comes_alone(store: SqlStore) -> None:
    jobs = [large(number, 9 * MEBIBYTE, is_one=True) for number in range(2)]
    for job in jobs:
        await submit(store, job)
    for job in jobs:
        [taken] = await claim(store, 2)
        assert taken.payload_json == job.payload_json


async def test_the_more_urgent_come_first_however_large_they_are(store: SqlStore) -> None:
    low, high = large(0, 5 * MEBIBYTE), large(2, 5 * MEBIBYTE, priority="HIGH")
    await submit(store, low, new_job(priority="LOW"), high)
    taken = [job.job_id for job in await claim(store, 10)]
    assert taken == [high.job_id]
    assert [job.job_id for job in await claim(store, 1)] == [low.job_id]
