"""Handlers that block the event loop: leases are kept, cancellation and loss still arrive."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ksana.client import CallBackoff, JobContext, Worker
from tests.client.fake_queue import FakeQueue

QUICK = CallBackoff(first_sec=0.01, most_sec=0.05, tries=2)


def make_worker(server: FakeQueue, **options: Any) -> Worker:
    given = {"concurrency": 1, "ttl_sec": 1, "wait_sec": 0.2, "backoff": QUICK, **options}
    return Worker(server.url, "shop", "w1", **given)


def run_aside(worker: Worker) -> "asyncio.Task[None]":
    """Run the worker on a thread and event loop of its own: the server must go on answering."""
    return asyncio.create_task(asyncio.to_thread(asyncio.run, worker.run(burst=True)))


def block_until(fact: Callable[[], bool]) -> None:
    """Block the thread, and the event loop on it, until a fact holds."""
    ends_at = time.monotonic() + 10
    while not fact() and time.monotonic() < ends_at:
        time.sleep(0.005)


@pytest.mark.spec("Q10")
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(server: FakeQueue) -> None:
    worker = make_worker(server)
    may_end = threading.Event()

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        may_end.wait(10)  # blocks the loop, not just the task
        return "done"

    [job_id] = server.add()
    running = run_aside(worker)
    await server.until(lambda: bool(server.leases))
    lease = server.leases[server.jobs[job_id]["lease_id"]]
    await server.until(lambda: lease.get("beats", 0) >= 4)  # more than the lease's own second
    may_end.set()
    await running
    assert server.results[job_id]["result_data"] == "done"


@pytest.mark.spec("Q10")
async def test_results_that_wait_behind_a_blocked_event_loop_keep_their_leases(
    server: FakeQueue,
) -> None:
    worker = make_worker(server, concurrency=4)
    may_end = threading.Event()

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        return "done"

    @worker.job("block")
    async def block(ctx: JobContext) -> str:
        may_end.wait(10)
        return "done"

    job_ids = [*server.add(count=3), *server.add("block")]
    running = run_aside(worker)
    await server.until(lambda: len(server.leases) == 4)
    leases = [server.leases[server.jobs[job_id]["lease_id"]] for job_id in job_ids]
    await server.until(lambda: all(lease.get("beats", 0) >= 4 for lease in leases))
    assert server.accepted == [], "their results could not leave"
    may_end.set()
    await running
    assert sorted(server.accepted) == sorted(job_ids) and worker.stats.lost == 0


@pytest.mark.spec("Q10", "Q16")
async def test_jobs_in_an_answer_that_a_blocked_event_loop_cannot_read_keep_their_leases(
    server: FakeQueue,
) -> None:
    worker = make_worker(server, concurrency=2, ttl_sec=2, wait_sec=0.6)
    may_end = threading.Event()

    @worker.job("block")
    async def block(ctx: JobContext) -> str:
        may_end.wait(20)
        return "done"

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        worker.stop()
        return "done"

    server.add("block")
    running = asyncio.create_task(asyncio.to_thread(asyncio.run, worker.run()))
    # The second claim waits at the server while the handler of the first job blocks the loop.
    await server.until(lambda: bool(server.leases) and server.count("/jobs/claim") >= 2)
    [job_id] = server.add()
    await server.until(lambda: server.jobs[job_id]["state"] == "RUNNING")
    lease = server.leases[server.jobs[job_id]["lease_id"]]
    await server.until(lambda: lease.get("beats", 0) >= 3)  # about the lease's own two seconds
    may_end.set()
    await running
    assert len(server.accepted) == 2 and worker.stats.lost == 0


@pytest.mark.spec("Q6", "Q10")
async def test_a_cancellation_reaches_a_handler_that_blocks_the_event_loop(
    server: FakeQueue,
) -> None:
    worker = make_worker(server)

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        block_until(lambda: ctx.is_cancelled)
        ctx.raise_if_cancelled()

    [job_id] = server.add()
    running = run_aside(worker)
    await server.until(lambda: bool(server.leases))
    server.jobs[job_id]["cancel_requested"] = True
    await running
    assert server.results[job_id]["status"] == "CANCELED" and worker.stats.cancelled == 1


@pytest.mark.spec("Q10")
async def test_a_lost_lease_reaches_a_handler_that_blocks_the_event_loop(
    server: FakeQueue,
) -> None:
    worker = make_worker(server)
    seen: list[bool] = []

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        block_until(lambda: ctx.is_cancelled)
        seen.append(ctx.is_cancelled)
        return "too late"

    [job_id] = server.add()
    running = run_aside(worker)
    await server.until(lambda: bool(server.leases))
    server.expire(server.jobs[job_id]["lease_id"])
    await running
    assert seen == [True] and server.accepted == [] and worker.stats.lost == 1
