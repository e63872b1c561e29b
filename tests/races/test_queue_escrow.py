"""Three servers that share one capacity on a network database, one of them killed and one frozen in
the middle of the work, while somebody reads what the active leases hold. Every other claimer claims
with its release.

Nine claimers and 1,200 jobs by default; `KSANA_FULL=1` runs 64 claimers and 20,000 jobs.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.client import NewJob, QueueClient
from ksana.engine.queue.leasing import recount
from ksana.store.sql import SqlStore, open_store
from tests.ground.child import Child
from tests.ground.process import Program, clean_environment
from tests.races.test_queue_processes import database, has_work, watch

__all__ = ["database"]

IS_FULL = os.environ.get("KSANA_FULL") == "1"
JOBS = 20_000 if IS_FULL else 1_200
CLAIMERS = 64 if IS_FULL else 9
FROZEN_SEC = 20.0 if IS_FULL else 3.0
"""The longer one outlasts what a database grants an idle transaction, and a lease."""
TTL_SEC = 10 if IS_FULL else 3
TOTAL = 50

pytestmark = [
    pytest.mark.timeout(2400 if IS_FULL else 240),
    *([pytest.mark.slow] if IS_FULL else []),
]

CLAIMER = """
import asyncio, pathlib, sys
from ksana.client import CallBackoff, QueueClient, TransportError
from ksana.client.errors import BusyError
from ksana.client.shapes import ReleaseItem
url, name, ttl = sys.argv[1:]

async def main():
    goes_on = int(name[1:]) % 2 == 1
    async with QueueClient(url, deadline_sec=5, backoff=CallBackoff(tries=3)) as client:
        jobs = []
        while not pathlib.Path("all-done").exists():
            try:
                jobs = jobs or await client.claim(
                    "a", name, limit=4, lease=True, ttl_sec=int(ttl), wait_sec=0.5
                )
                items = [
                    ReleaseItem(
                        lease_id=one.lease_id, job_id=one.job_id, worker_id=name, status="SUCCEEDED"
                    )
                    for one in jobs
                ]
                jobs = []
                if items and goes_on:
                    made = await client.release_and_claim(
                        items, "a", name, limit=4, ttl_sec=int(ttl)
                    )
                    jobs = made.jobs
                elif items:
                    await client.release_batch_briefly(items)
            except (TransportError, BusyError):
                await asyncio.sleep(0.1)  # its server is away: what it held runs out

asyncio.run(main())
"""


class Fleet:
    """Three servers, and a window on their store."""

    def __init__(self, programs: list[Program], store: SqlStore, folder: Path) -> None:
        self.programs = programs
        self.store = store
        self.folder = folder

    def claimer(self, number: int) -> Child:
        """A process that claims at one of the servers."""
        url = self.programs[number % 3].url()
        return Child(
            [sys.executable, "-c", CLAIMER, url, f"w{number}", str(TTL_SEC)],
            self.folder / f"claimer-{number}.log",
            env=clean_environment(),
            cwd=self.folder,
        )


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


async def break_two(fleet: Fleet) -> None:
    """Kill one and freeze another while they work; later both are back."""
    killed, frozen, _ = fleet.programs
    await asyncio.sleep(1.0)
    killed.kill9()
    frozen.pause()
    await asyncio.sleep(FROZEN_SEC)
    frozen.resume()
    await asyncio.to_thread(killed.start)


@pytest.mark.spec("Q9", "X4")
async def test_the_sum_stays_below_the_total_while_one_instance_dies_and_one_freezes(
    fleet: Fleet,
) -> None:
    async with QueueClient(fleet.programs[2].url()) as client:
        for start in range(0, JOBS, 500):
            batch = [
                NewJob(addon_id="a", job_type=f"t{n % 5}", cost_units=1 + n % 7, max_attempts=100)
                for n in range(start, min(start + 500, JOBS))
            ]
            await client.submit_batch(batch)
    seen: list[tuple[int, int]] = []
    watching = asyncio.create_task(watch(fleet.store, seen))
    claimers = [fleet.claimer(number) for number in range(CLAIMERS)]
    try:
        await break_two(fleet)
        while await fleet.store.read(has_work):
            assert all(one.is_running() for one in claimers), "a claimer ended early: see its log"
            await asyncio.sleep(0.1)
        (fleet.folder / "all-done").touch()
        ends = [await asyncio.to_thread(one.wait, 60.0) for one in claimers]
    finally:
        for one in claimers:
            one.kill()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert set(ends) == {0}
    assert max(units for _, units in seen) <= TOTAL
    assert max(units for _, units in seen) > TOTAL // 2, "it was seen at work"
    done = await fleet.store.read(lambda tx: tx.series.sum_since(["queue.done"], 0)["queue.done"])
    assert done == JOBS
    room = await fleet.store.read(lambda tx: tx.capacity.read(TOTAL))
    assert (room.used, room.active) == (0, 0)
    assert await fleet.store.transact(recount, TOTAL) == (0, 0)
