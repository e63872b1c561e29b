"""Claimers that are processes, over three servers that are processes, on one network database:
nothing shared but the store.

Eight claimers and 1,200 jobs by default; `KSANA_FULL=1` runs 64 claimers and 20,000 jobs.
"""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.client import NewJob, QueueClient
from ksana.domain.queue.jobs import CLAIM_HELD
from ksana.engine.queue.leasing import recount
from ksana.ports.queue.tables import JobFilter
from ksana.store.sql import SqlStore, open_store
from tests.ground.child import Child
from tests.ground.process import Program, clean_environment

IS_FULL = os.environ.get("KSANA_FULL") == "1"
JOBS = 20_000 if IS_FULL else 1_200
CLAIMERS = 64 if IS_FULL else 8
TOTAL = 50

pytestmark = [
    pytest.mark.timeout(2400 if IS_FULL else 240),
    *([pytest.mark.slow] if IS_FULL else []),
]

CLAIMER = """
import asyncio, pathlib, sys
from ksana.client import CallBackoff, QueueClient, TransportError
from ksana.client.shapes import ReleaseItem
url, name, way = sys.argv[1:]

async def lease_of(client, job_id):
    while True:
        decision = await client.request_lease(job_id, worker_id=name, ttl_sec=30)
        if decision.approved:
            return decision.lease.lease_id
        await asyncio.sleep(0.01)

async def claim(client):
    if way == "at-once":
        jobs = await client.claim("a", name, limit=4, lease=True, ttl_sec=30, wait_sec=0.5)
        return [(job.job_id, job.lease_id) for job in jobs]
    jobs = await client.claim("a", name, limit=1, wait_sec=0.5)
    return [(job.job_id, await lease_of(client, job.job_id)) for job in jobs]

async def main():
    async with QueueClient(url, deadline_sec=25, backoff=CallBackoff(tries=50)) as client:
        while not pathlib.Path("all-done").exists():
            try:
                held = await claim(client)
            except TransportError:
                continue  # what a claim got whose answer was lost comes back when its time is over
            if not held:
                continue
            items = [
                ReleaseItem(lease_id=lease, job_id=job, worker_id=name, status="SUCCEEDED")
                for job, lease in held
            ]
            refusals = await client.release_batch_briefly(items)
            for (job_id, _), refusal in zip(held, refusals, strict=True):
                print("ran" if refusal is None else f"REFUSED {refusal}", job_id, flush=True)

asyncio.run(main())
"""


class Fleet:
    """Three servers and a window on their store."""

    def __init__(self, programs: list[Program], store: SqlStore, folder: Path) -> None:
        self.programs = programs
        self.store = store
        self.folder = folder

    def claimer(self, number: int) -> Child:
        """One more process that claims, in one of the two ways, at one of the servers."""
        way = "in-steps" if number % 4 == 0 else "at-once"
        command = [
            sys.executable,
            "-c",
            CLAIMER,
            self.programs[number % 3].url(),
            f"w{number}",
            way,
        ]
        return Child(
            command, self.folder / f"claimer-{number}.log", env=clean_environment(), cwd=self.folder
        )


@pytest.fixture(params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    server: Any = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
async def fleet(database: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    with contextlib.ExitStack() as stack:
        env = {"KSANA_CAPACITY_TOTAL": str(TOTAL)}
        programs = [
            stack.enter_context(Program(tmp_path / f"server-{n}", store=database, env=env))
            for n in range(3)
        ]
        for program in programs:
            program.start()
        store = await open_store(database, SystemClock())
        yield Fleet(programs, store, tmp_path)
        await store.close()


async def watch(store: SqlStore, seen: list[tuple[int, int]]) -> None:
    """Read the truth over and over: what the active leases hold, not what a counter says."""
    while True:
        seen.append(await store.read(lambda tx: tx.capacity.sum_active()))
        await asyncio.sleep(0.005)


def has_work(tx: Any) -> bool:
    """Whether a job has not ended yet."""
    return any(
        tx.job_lists.list_page(JobFilter(state=state), None, 1)
        for state in ("QUEUED", "RUNNING", *CLAIM_HELD)
    )


@pytest.mark.spec("Q3", "Q9", "Q16", "X4")
async def test_claimers_in_processes_of_their_own_share_no_job_and_no_unit(fleet: Fleet) -> None:
    made: set[str] = set()
    async with QueueClient(fleet.programs[0].url()) as client:
        for start in range(0, JOBS, 500):
            numbers = range(start, min(start + 500, JOBS))
            batch = [
                NewJob(addon_id="a", job_type=f"t{n % 5}", cost_units=1 + n % 7, max_attempts=100)
                for n in numbers
            ]
            made |= {job.job_id for job in await client.submit_batch(batch)}
    seen: list[tuple[int, int]] = []
    watching = asyncio.create_task(watch(fleet.store, seen))
    claimers = [fleet.claimer(number) for number in range(CLAIMERS)]
    try:
        while await fleet.store.read(has_work):
            assert all(claimer.is_running() for claimer in claimers), (
                "a claimer ended early: see its log"
            )
            await asyncio.sleep(0.1)
        (fleet.folder / "all-done").touch()
        ends = [await asyncio.to_thread(claimer.wait, 60.0) for claimer in claimers]
    finally:
        for claimer in claimers:
            claimer.kill()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    told = [line.split() for claimer in claimers for line in claimer.log.read_text().splitlines()]
    assert set(ends) == {0}, told[-5:]
    assert {line[0] for line in told} == {"ran"}
    assert Counter(line[1] for line in told) == Counter(made)  # each once, and none besides
    assert max(units for _, units in seen) <= TOTAL
    assert max(leases for leases, _ in seen) > 1  # it was seen at work
    room, gauges = await fleet.store.read(lambda tx: (tx.capacity.read(TOTAL), tx.gauges.read()))
    assert (room.used, room.active, gauges.queued, gauges.running) == (0, 0, 0, 0)
    assert await fleet.store.transact(recount, TOTAL) == (0, 0)
