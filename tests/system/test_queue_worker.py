"""The worker and the client against the real server: killed, restarted, cut off, and still each
result once."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ksana.client import CallBackoff, Fail, JobContext, LeaseLostError, NewJob, QueueClient, Worker
from tests.ground.child import Child, wait_for
from tests.ground.process import Program, clean_environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "queue_worker"
QUICK = CallBackoff(first_sec=0.02, most_sec=0.2)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Program]:
    with Program(tmp_path / "data", env={"KSANA_CAPACITY_TOTAL": "500"}) as program:
        yield program.start()


@contextlib.asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(running, 30)


async def submit(url: str, count: int, **members: object) -> list[str]:
    async with QueueClient(url, backoff=QUICK) as client:
        made: list[str] = []
        for start in range(0, count, 500):
            size = min(500, count - start)
            batch = [
                NewJob(addon_id="shop", job_type="work", payload={"n": start + n}, **members)
                for n in range(size)
            ]  # type: ignore[arg-type]
            made += [job.job_id for job in await client.submit_batch(batch)]
        return made


async def until_ended(url: str, count: int, within_sec: float = 60.0) -> dict[str, int]:
    """Wait until so many jobs have ended; how many are in which state."""
    async with QueueClient(url, backoff=QUICK) as client, asyncio.timeout(within_sec):
        while True:
            states: dict[str, int] = {}
            async for job in client.list_jobs(addon_id="shop", page_size=500):
                states[job.state] = states.get(job.state, 0) + 1
            if (
                sum(states.get(state, 0) for state in ("DONE", "FAILED", "CANCELED", "TIMEOUT"))
                >= count
            ):
                return states
            await asyncio.sleep(0.1)


@pytest.mark.spec("Q1", "Q2", "Q4", "Q8", "Q10", "Q11", "Q14", "Q15", "Q16")
async def test_every_call_of_the_client_is_understood(served: Program) -> None:
    async with QueueClient(served.url()) as client:
        job = await client.submit(
            "shop",
            "work",
            {"n": 1},
            cost_units=3,
            priority="HIGH",
            fairness_key="a",
            max_attempts=2,
        )
        assert (job.state, job.payload, job.priority, job.cost_units, job.max_attempts) == (
            "QUEUED",
            {"n": 1},
            "HIGH",
            3,
            2,
        )
        [claimed] = await client.claim(
            "shop", "w1", accept_job_types=["work"], capabilities={"gpu_available": False}
        )
        assert claimed.job_id == job.job_id
        assert (
            await client.status(job.job_id, "PREPARING", note="warm", progress=0.1, worker_id="w1")
        ).state == "PREPARING"
        decision = await client.request_lease(job.job_id, worker_id="w1", ttl_sec=30)
        assert decision.lease is not None
        lease_id = decision.lease.lease_id
        beat = await client.heartbeat(
            lease_id, job_id=job.job_id, worker_id="w1", progress=0.5, message="half"
        )
        assert (beat.job.state, beat.job.progress) == ("RUNNING", 0.5)
        assert (await client.get_lease(lease_id)).state == "ACTIVE"
        assert (await client.snapshot()).capacity.used == 3
        for _ in range(2):
            done = await client.release(
                lease_id, job_id=job.job_id, worker_id="w1", result_data={"path": "/x"}
            )
            assert done.result is not None
            assert (done.job.state, done.result.result_data) == ("DONE", {"path": "/x"})
        with pytest.raises(LeaseLostError):
            await client.heartbeat(lease_id, job_id=job.job_id, worker_id="w1")
        assert "JOB_DONE" in [event.type for event in await client.events(job.job_id)]
        assert (await client.explain(job.job_id))["state"] == "DONE"
        assert (await client.timeseries("jobs_done", bucket="1m", span="1h")).metric == "jobs_done"
        other = await client.submit("shop", "work")
        assert (await client.cancel(other.job_id, "not wanted")).state == "CANCELED"
        assert (await client.snapshot()).capacity.used == 0


@pytest.mark.spec("Q3", "Q11", "X10")
async def test_a_server_killed_in_mid_work_loses_and_doubles_no_result(served: Program) -> None:
    made = await submit(served.url(), 2_000)
    worker = Worker(served.url(), "shop", concurrency=50, ttl_sec=30, wait_sec=1, backoff=QUICK)
    runs: dict[int, int] = {}

    @worker.job("work")
    async def work(ctx: JobContext) -> int:
        number = int(ctx.payload["n"])
        runs[number] = runs.get(number, 0) + 1
        await asyncio.sleep(0.002)
        return number

    async with at_work(worker):
        for mark in (300, 900, 1_500):
            while worker.stats.succeeded < mark:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(served.kill9)
            await asyncio.to_thread(served.start)
        states = await until_ended(served.url(), len(made))
    assert states == {"DONE": len(made)}
    assert worker.stats.lost == 0
    assert set(runs.values()) == {1}  # one attempt each: what ran before the kill was not run again
    async with QueueClient(served.url()) as client:
        assert (await client.snapshot()).capacity.used == 0


WORKER = """
import asyncio, sys
from ksana.client import Worker
worker = Worker(sys.argv[1], "shop", concurrency=20, ttl_sec=1)
@worker.job("work")
async def work(ctx):
    await asyncio.sleep(0.01)
    return ctx.payload["n"]
worker.serve()
"""


@pytest.mark.fault("F09")
@pytest.mark.spec("Q12")
async def test_jobs_of_a_killed_worker_come_back_and_end_once(
    served: Program, tmp_path: Path
) -> None:
    made = await submit(served.url(), 600, max_attempts=10)
    command = [sys.executable, "-c", WORKER, served.url()]
    workers = [Child(command, tmp_path / "worker-0.log", env=clean_environment(), cwd=tmp_path)]
    try:
        async with QueueClient(served.url()) as client:
            for round_ in range(1, 3):
                while (await client.snapshot()).capacity.used == 0:
                    await asyncio.sleep(0.01)
                workers[-1].kill()
                workers.append(
                    Child(
                        command,
                        tmp_path / f"worker-{round_}.log",
                        env=clean_environment(),
                        cwd=tmp_path,
                    )
                )
            states = await until_ended(served.url(), len(made))
            assert states == {"DONE": len(made)}
            assert (await client.snapshot()).capacity.used == 0
            os.kill(workers[-1].pid, signal.SIGTERM)
            assert await asyncio.to_thread(workers[-1].wait, 20.0) == 0
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.slow
@pytest.mark.fault("F09")
@pytest.mark.spec("Q12")
async def test_the_work_of_a_killed_worker_is_back_within_20_seconds(
    served: Program, tmp_path: Path
) -> None:
    """With the lease time that a worker has by itself."""
    [job_id] = await submit(served.url(), 1, max_attempts=2)
    text = WORKER.replace(", ttl_sec=1", "").replace("sleep(0.01)", "sleep(60)")
    command = [sys.executable, "-c", text, served.url()]
    killed = Child(command, tmp_path / "worker.log", env=clean_environment(), cwd=tmp_path)
    try:
        async with QueueClient(served.url()) as client:
            while (await client.get_job(job_id)).job.state != "RUNNING":
                await asyncio.sleep(0.05)
            killed.kill()
            killed_at = asyncio.get_running_loop().time()
            [again] = await client.claim("shop", "another", wait_sec=25, lease=True, ttl_sec=5)
            took = asyncio.get_running_loop().time() - killed_at
    finally:
        killed.kill()
    assert again.job_id == job_id
    assert 10 < took < 20, took


@pytest.mark.spec("Q6")
async def test_a_cancelled_job_reaches_its_handler(served: Program) -> None:
    worker = Worker(served.url(), "shop", ttl_sec=3, wait_sec=0.5)
    started = asyncio.Event()

    @worker.job("work", interrupt=True)
    async def work(ctx: JobContext) -> None:
        started.set()
        await asyncio.Event().wait()

    [job_id] = await submit(served.url(), 1)
    async with at_work(worker), QueueClient(served.url()) as client:
        await asyncio.wait_for(started.wait(), 10)
        assert (await client.cancel(job_id)).cancel_requested
        assert await until_ended(served.url(), 1) == {"CANCELED": 1}
    assert worker.stats.cancelled == 1


@pytest.mark.spec("Q9")
def test_the_example_runs_within_the_capacity_and_stops_in_good_order(tmp_path: Path) -> None:
    with Program(tmp_path / "data", env={"KSANA_CAPACITY_TOTAL": "70"}) as program:
        program.start()
        env = {**clean_environment(), "KSANA_URL": program.url()}
        worker = Child(
            [sys.executable, str(EXAMPLE / "worker.py")],
            tmp_path / "worker.log",
            env=env,
            cwd=tmp_path,
        )
        submitted = Child(
            [sys.executable, str(EXAMPLE / "submit.py")],
            tmp_path / "submit.log",
            env=env,
            cwd=tmp_path,
        )
        try:
            assert submitted.wait(60.0) == 0, (tmp_path / "submit.log").read_text()
            os.kill(worker.pid, signal.SIGTERM)
            assert worker.wait(20.0) == 0, (tmp_path / "worker.log").read_text()
        finally:
            submitted.kill()
            worker.kill()
        printed = (tmp_path / "submit.log").read_text()
        assert printed.count("render_image DONE") == 6
        assert "count_words DONE: {'words': 6}" in printed
        wait_for(
            lambda: program.get("/api/scheduler/stats/snapshot").json()["capacity"]["used"] == 0,
            "no unit is held",
        )


@pytest.mark.spec("Q11", "Q15")
async def test_a_job_that_its_handler_gives_up_is_failed_and_counted_so(served: Program) -> None:
    worker = Worker(served.url(), "shop", backoff=QUICK)

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        raise Fail("no such picture", retry=False)

    await submit(served.url(), 3, max_attempts=5)
    await worker.run(burst=True)
    assert (worker.stats.failed, worker.stats.cancelled) == (3, 0)
    jobs = served.get("/api/scheduler/jobs").json()["jobs"]
    assert [(job["state"], job["attempts"]) for job in jobs] == [("FAILED", 1)] * 3
    query = {"metric": "jobs_failed", "bucket": "1h", "range": "1h"}
    points = served.get("/api/scheduler/stats/timeseries", params=query).json()["points"]
    assert sum(point["value"] or 0 for point in points) == 3


@pytest.mark.spec("Q11", "Q16")
async def test_jobs_taken_ahead_come_back_when_jobs_turn_slow_and_at_a_stop(
    served: Program,
) -> None:
    """The first are over at once, so that many are taken ahead; once some are, every slot is
    blocked."""
    ids = await submit(served.url(), 1500, max_attempts=2)
    worker = Worker(served.url(), "shop", concurrency=4)
    goes_on, blocked = asyncio.Event(), asyncio.Event()
    begun: list[str] = []

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        begun.append(ctx.job.job_id)
        if blocked.is_set() or (len(begun) > 400 and worker.jobs.waiting):
            blocked.set()
            await goes_on.wait()

    async with at_work(worker):
        await asyncio.wait_for(blocked.wait(), 30)
        await asyncio.to_thread(
            wait_for,
            lambda: worker.stats.returned > 0 and not worker.jobs.waiting,
            "what waits for a slot goes back",
            within_s=20,
        )
        assert worker.running == 4
        goes_on.set()
        begun_then = len(begun)
        await asyncio.to_thread(
            wait_for, lambda: len(begun) > begun_then, "the rest goes on", within_s=30
        )
    async with QueueClient(served.url()) as client:
        jobs = [job async for job in client.list_jobs(addon_id="shop", page_size=500)]
    assert {job.job_id for job in jobs} == set(ids)
    assert {(job.state, job.attempts) for job in jobs} <= {("DONE", 1), ("QUEUED", 0)}
    assert sum(job.state == "DONE" for job in jobs) == len(begun) == len(set(begun))
