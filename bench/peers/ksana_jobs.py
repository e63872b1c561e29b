"""Ours, through the SDK as a user has it. The address of the instance is the store here."""

import asyncio
import os

import uvloop
from counting import (  # type: ignore[import-not-found, unused-ignore]
    Counter,
    Starts,
    act,
    add_batches,
    add_one_by_one,
    tell,
)

from ksana.client import Job, JobContext, NewJob, QueueClient, ReleaseItem, Worker

URL = os.environ["PEER_STORE"]
ADDON = "bench"
DEFAULT = 10
"""The SDK's own in-flight."""


async def fill(jobs: int, batch: int, attempts: int = 2) -> None:
    async with QueueClient(URL) as client:
        await add_batches(
            jobs,
            batch,
            lambda size: client.submit_batch(
                [
                    NewJob(addon_id=ADDON, job_type="noop", payload={"n": 1}, max_attempts=attempts)
                    for _ in range(size)
                ]
            ),
        )


async def add(seconds: float) -> None:
    async with QueueClient(URL) as client:
        await add_one_by_one(seconds, lambda: client.submit(ADDON, "noop", {"n": 1}))


async def drain(in_flight: int) -> None:
    worker, counter = Worker(URL, ADDON, concurrency=in_flight or DEFAULT), Counter()

    @worker.job("noop")
    async def noop(ctx: JobContext) -> None:
        counter.count()

    async with asyncio.TaskGroup() as group:
        group.create_task(counter.tell_often())
        group.create_task(worker.run())


async def single(in_flight: int) -> None:
    """One job a claim, `in_flight` claimers. Who releases a job claims the next with it, as workers
    of BullMQ do."""
    counter = Counter()

    async def take(client: QueueClient, name: str) -> None:
        jobs: list[Job] = []
        while True:
            if not jobs:
                jobs = await client.claim(ADDON, name, lease=True, ttl_sec=30, wait_sec=5)
            released = [
                ReleaseItem(
                    lease_id=job.lease_id or "",
                    job_id=job.job_id,
                    worker_id=name,
                    lease_token=job.lease_token,
                    status="SUCCEEDED",
                )
                for job in jobs
            ]
            if released:
                made = await client.release_and_claim(released, ADDON, name, ttl_sec=30)
                assert made.refused == [None]
                jobs = made.jobs
                counter.count()

    # A claim that waits has a connection of its own, and so has each release beside it.
    connections = max(32, 2 * in_flight)
    async with (
        QueueClient(URL, max_connections=connections) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(counter.tell_often())
        for number in range(in_flight):
            group.create_task(take(client, f"claimer-{os.getpid()}-{number}"))


async def latency(count: int) -> None:
    worker, starts = Worker(URL, ADDON, concurrency=10), Starts(count)

    @worker.job("noop")
    async def noop(ctx: JobContext) -> None:
        starts.seen(ctx.payload)

    running = asyncio.create_task(worker.run())
    async with QueueClient(URL) as client:
        await asyncio.sleep(0.5)
        await starts.time(lambda number: client.submit(ADDON, "noop", number))
    worker.stop()
    await running


async def hold(in_flight: int) -> None:
    worker = Worker(URL, ADDON, concurrency=in_flight)

    @worker.job("noop")
    async def noop(ctx: JobContext) -> None:
        await asyncio.sleep(3600)

    tell(ready=True)
    await worker.run()


ACTIONS = {
    "fill": fill,
    "add": add,
    "drain": drain,
    "single": single,
    "latency": latency,
    "hold": hold,
}

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(act(ACTIONS))
