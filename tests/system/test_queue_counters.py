"""Instances and workers killed (-9) in turn while jobs are submitted and run: after every kill, and
all the time, the counters say what the rows say.

Four kills by default; `KSANA_FULL=1` makes it forty.
"""

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ksana.client import CallBackoff, ClientError, NewJob, QueueClient
from tests.ground.child import Child, wait_for
from tests.ground.counters import Books
from tests.ground.process import Program, clean_environment

IS_FULL = os.environ.get("KSANA_FULL") == "1"
KILLS = 40 if IS_FULL else 4

pytestmark = [
    pytest.mark.timeout(1800 if IS_FULL else 120),
    *([pytest.mark.slow] if IS_FULL else []),
]

WORKER = """
import asyncio, sys
from ksana.client import Worker
worker = Worker(sys.argv[1], "shop", concurrency=20, ttl_sec=2, wait_sec=0.5)
@worker.job("work")
async def work(ctx):
    await asyncio.sleep(0.02)
worker.serve()
"""


class Fleet:
    """Instances over one store, with a worker each."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._folder = folder
        self._count = 0
        # A file store admits one server.
        names = ("a",) if url.startswith("sqlite") else ("a", "b")
        self.programs = [
            Program(folder / name, store=url, env={"KSANA_CAPACITY_TOTAL": "100"}) for name in names
        ]
        for program in self.programs:
            program.start()
        self.workers = [self._new_worker(program) for program in self.programs]

    def _new_worker(self, program: Program) -> Child:
        self._count += 1
        log = self._folder / f"worker-{self._count}.log"
        command = [sys.executable, "-c", WORKER, program.url()]
        return Child(command, log, env=clean_environment(), cwd=self._folder)

    def kill(self, number: int) -> None:
        """A server, then a worker, then a server …"""
        which = (number // 2) % len(self.programs)
        if number % 2:
            self.workers[which].kill()
            self.workers[which] = self._new_worker(self.programs[which])
        else:
            self.programs[which].kill9()
            self.programs[which].start()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        for program in self.programs:
            program.close()


@pytest.fixture
def fleet(tmp_path: Path, store_url: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, store_url)
    yield fleet
    fleet.close()


async def submit(url: str, dice: random.Random) -> None:
    """Submit for ever, through every kill."""
    async with QueueClient(
        url, deadline_sec=30, backoff=CallBackoff(most_sec=0.3, tries=200)
    ) as client:
        while True:
            batch = [
                NewJob(
                    addon_id="shop",
                    job_type="work",
                    cost_units=dice.randint(1, 5),
                    max_attempts=1000,
                )
                for _ in range(20)
            ]
            with contextlib.suppress(ClientError):
                await client.submit_batch(batch)
            await asyncio.sleep(0.05)


async def compare(books: Books, seen: list[int]) -> None:
    """Hold counters against rows, over and over."""
    while True:
        compared = await asyncio.to_thread(books.check)
        seen.append(compared.running[0])
        await asyncio.sleep(0.01)


@pytest.mark.spec("Q12", "X4", "X10")
async def test_after_every_kill_the_counters_say_what_the_rows_say(fleet: Fleet) -> None:
    dice = random.Random(11)
    seen: list[int] = []
    with Books(fleet.url) as watched, Books(fleet.url) as books:
        submitting = [
            asyncio.create_task(submit(program.url(), dice)) for program in fleet.programs
        ]
        comparing = asyncio.create_task(compare(watched, seen))
        for number in range(KILLS):
            assert all(worker.is_running() for worker in fleet.workers)
            await asyncio.sleep(dice.uniform(0.3, 0.8))  # the load is the fact here
            await asyncio.to_thread(fleet.kill, number)
            books.check()
            assert not comparing.done(), comparing.exception()
        for task in submitting:
            task.cancel()
        await asyncio.gather(*submitting, return_exceptions=True)
        await asyncio.to_thread(
            wait_for,
            lambda: books.check()[:3] == ((0, 0), (0, 0), (0, 0)),
            "every job ends",
            within_s=60,
            every_s=0.05,
        )
        assert not comparing.done(), comparing.exception()
        comparing.cancel()
        await asyncio.gather(comparing, return_exceptions=True)
    assert max(seen) > 0, "nothing ran while it was compared"
    for program in fleet.programs:
        snapshot = program.get("/api/scheduler/stats/snapshot").json()
        assert (snapshot["jobs"]["queued"], snapshot["jobs"]["running"]) == (0, 0)
        assert snapshot["capacity"]["used"] == 0
