"""The worker and its leases: heartbeats, progress, cancellation, leases that are lost."""

import asyncio

import pytest

from ksana.client import Job, JobContext, Worker
from tests.client.fake_queue import FakeQueue
from tests.client.workers import SteppingClock, at_work, make_worker


@pytest.mark.spec("Q10", "Q12")
async def test_a_lease_lasts_15_seconds_unless_told(server: FakeQueue) -> None:
    """What a killed worker held is then back within 20 s."""
    worker = Worker(server.url, "shop", "w1")

    @worker.job("work")
    async def work(ctx: JobContext) -> None: ...

    [job_id] = server.add()
    async with at_work(worker):
        await server.until(lambda: bool(server.accepted))
    assert server.accepted == [job_id]
    assert [lease["ttl_sec"] for lease in server.leases.values()] == [15]
    assert worker.wait_sec == 5


@pytest.mark.spec("Q10")
async def test_progress_reaches_the_server_and_the_lease_is_kept(server: FakeQueue) -> None:
    worker = make_worker(server, ttl_sec=1)
    go_on = asyncio.Event()

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        ctx.progress(0.5, "half way")
        await go_on.wait()

    [job_id] = server.add()
    async with at_work(worker):
        await server.until(lambda: server.jobs[job_id].get("progress") == 0.5)
        lease = server.leases[server.jobs[job_id]["lease_id"]]
        await server.until(lambda: lease.get("beats", 0) >= 3)
        go_on.set()
        await server.until(lambda: bool(server.accepted))
    assert server.jobs[job_id]["message"] == "half way"
    assert worker.stats.lost == 0


@pytest.mark.spec("Q6")
async def test_a_cancelled_job_tells_its_handler_and_ends_cancelled(server: FakeQueue) -> None:
    worker = make_worker(server, ttl_sec=1)

    @worker.job("told")
    async def told(ctx: JobContext) -> None:
        await ctx.cancelled.wait()
        ctx.raise_if_cancelled()

    @worker.job("thread")
    def in_thread(ctx: JobContext) -> None:
        assert ctx.cancelled.wait_in_thread(10)
        ctx.raise_if_cancelled()

    @worker.job("interrupted", interrupt=True)
    async def interrupted(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    @worker.job("finishes")
    async def finishes(ctx: JobContext) -> str:
        await ctx.cancelled.wait()
        return "kept"

    jobs = {kind: server.add(kind)[0] for kind in ("told", "thread", "interrupted", "finishes")}
    async with at_work(worker):
        await server.until(lambda: len(server.leases) == 4)
        for job_id in jobs.values():
            server.jobs[job_id]["cancel_requested"] = True
        await server.until(lambda: len(server.accepted) == 4)
    statuses = {kind: server.results[job_id]["status"] for kind, job_id in jobs.items()}
    assert statuses == {
        "told": "CANCELED",
        "thread": "CANCELED",
        "interrupted": "CANCELED",
        "finishes": "SUCCEEDED",
    }
    assert server.results[jobs["finishes"]]["result_data"] == "kept"


# --- lost leases ---


@pytest.mark.fault("F12")
@pytest.mark.spec("Q12")
async def test_a_lease_lost_in_a_heartbeat_stops_the_handler_and_drops_its_result(
    server: FakeQueue,
) -> None:
    lost: list[tuple[str, str]] = []
    worker = make_worker(
        server, ttl_sec=1, on_lost=lambda job, reason: lost.append((job.job_id, reason))
    )
    stopped = asyncio.Event()

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    [job_id] = server.add()
    async with at_work(worker):
        await server.until(lambda: bool(server.leases))
        server.expire(server.jobs[job_id]["lease_id"])
        await asyncio.wait_for(stopped.wait(), 10)
    assert [told for told, _ in lost] == [job_id]
    assert "LEASE_LOST" in lost[0][1]
    assert (server.accepted, worker.stats.lost, server.count("release")) == ([], 1, 0)


@pytest.mark.spec("Q11", "Q12")
async def test_a_release_after_the_lease_was_lost_is_dropped_and_reported(
    server: FakeQueue,
) -> None:
    lost: list[Job] = []
    worker = make_worker(server, on_lost=lambda job, reason: lost.append(job))

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        assert ctx.job.lease_id is not None
        server.expire(ctx.job.lease_id)
        return "too late"

    [job_id] = server.add()
    await worker.run(burst=True)
    await worker.client.close()
    assert [job.job_id for job in lost] == [job_id]
    assert (server.results, worker.stats.lost, worker.stats.succeeded) == ({}, 1, 0)


async def test_a_result_that_comes_after_the_own_lease_time_is_not_sent(server: FakeQueue) -> None:
    """As after a long pause of the process: the clock has moved on, the server may have given the
    job away."""
    clock = SteppingClock()
    worker = make_worker(server, clock=clock)

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        clock.ahead_us += 31_000_000
        return "too late"

    server.add()
    await worker.run(burst=True)
    await worker.client.close()
    assert (server.count("release"), worker.stats.lost) == (0, 1)


async def test_a_running_handler_is_stopped_when_the_own_lease_time_has_passed(
    server: FakeQueue,
) -> None:
    """Heartbeats fail, nobody says that the lease is lost: the worker must find out by itself."""
    worker = make_worker(server, ttl_sec=1)
    server.fail("heartbeat", 503, times=1_000)
    stopped = asyncio.Event()

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    server.add()
    async with at_work(worker):
        await asyncio.wait_for(stopped.wait(), 10)
    assert (server.count("release"), worker.stats.lost) == (0, 1)
