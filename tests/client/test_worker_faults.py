"""The worker in bad times: faults of the server, and its own stop."""

import asyncio
import threading
import time

import pytest

from ksana.client import AccessError, JobContext, QueueClient, Worker
from tests.client.fake_queue import FakeQueue
from tests.client.workers import SteppingClock, at_work, make_worker


@pytest.mark.parametrize("fault", ["lost", "cut", 503, 500])
async def test_a_result_is_sent_until_the_server_has_answered_and_counts_once(
    server: FakeQueue, fault: str | int
) -> None:
    worker = make_worker(server)
    worker.add_job("work", lambda ctx: "done")
    [job_id] = server.add()
    server.fail("release", fault, times=5)
    await worker.run(burst=True)
    await worker.client.close()
    assert server.accepted == [job_id]
    assert (worker.stats.succeeded, worker.stats.lost) == (1, 0)


async def test_jobs_handed_out_in_a_lost_answer_are_found_and_run(server: FakeQueue) -> None:
    worker = make_worker(server)
    worker.add_job("work", lambda ctx: "done")
    made = server.add(count=5)
    server.fail("claim", "lost")
    async with at_work(worker):
        await server.until(lambda: len(server.accepted) == 5)
    assert sorted(server.accepted) == sorted(made)
    assert worker.stats.adopted == 5


async def test_jobs_of_another_worker_are_not_taken_up(server: FakeQueue) -> None:
    async with QueueClient(server.url) as other:
        server.add(count=2)
        await other.claim("shop", "w2", limit=2, lease=True, ttl_sec=30)
    worker = make_worker(server)
    worker.add_job("work", lambda ctx: None)
    server.fail("claim", "lost")
    async with at_work(worker):
        await server.until(lambda: server.count("state=RUNNING") >= 1)
    assert (worker.stats.adopted, server.accepted) == (0, [])


async def test_a_restart_of_the_server_in_mid_work_loses_and_doubles_nothing(
    server: FakeQueue,
) -> None:
    worker = make_worker(server, concurrency=20)
    served = 0

    @worker.job("work")
    async def work(ctx: JobContext) -> int:
        nonlocal served
        served += 1
        await asyncio.sleep(0.001)
        return served

    made = server.add(count=300)
    async with at_work(worker):
        for done in (50, 120, 200):
            await server.until(lambda done=done: len(server.accepted) >= done)
            await server.stop()
            await server.start()
        await server.until(lambda: len(server.accepted) >= 300)
    assert sorted(server.accepted) == sorted(made)
    assert worker.stats.succeeded == 300


async def test_an_outage_is_waited_out_with_the_result_in_hand(server: FakeQueue) -> None:
    worker = make_worker(server)
    finish, started = asyncio.Event(), asyncio.Event()

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        started.set()
        await finish.wait()
        return "kept"

    [job_id] = server.add()
    async with at_work(worker):
        await started.wait()
        await server.stop()
        finish.set()
        while worker.running:
            await asyncio.sleep(0.005)
        await server.start()
        await server.until(lambda: bool(server.accepted))
    assert server.results[job_id]["result_data"] == "kept"


async def test_a_worker_whose_claims_are_refused_for_good_says_so(server: FakeQueue) -> None:
    worker = make_worker(server)
    worker.add_job("work", lambda ctx: None)
    server.fail("claim", 401, times=9)
    with pytest.raises(AccessError):
        await asyncio.wait_for(worker.run(), 10)
    await worker.client.close()


# --- stop ---


async def test_a_stop_lets_what_runs_finish_and_claims_no_more(server: FakeQueue) -> None:
    worker = make_worker(server, concurrency=2)
    finish = asyncio.Event()

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        await finish.wait()
        return "finished"

    server.add(count=5)
    async with at_work(worker):
        await server.until(lambda: len(server.leases) == 2)
        worker.stop()
        finish.set()
    assert len(server.accepted) == 2
    assert server.states() == {"DONE": 2, "QUEUED": 3}


async def test_a_stop_ends_handlers_after_the_grace_and_reports_them_failed(
    server: FakeQueue,
) -> None:
    worker = make_worker(server, grace_sec=0.3)

    @worker.job("async")
    async def endless(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    @worker.job("thread")
    def in_thread(ctx: JobContext) -> None:
        ctx.cancelled.wait_in_thread(10)
        ctx.raise_if_cancelled()

    server.add("async")
    server.add("thread")
    async with at_work(worker):
        await server.until(lambda: len(server.leases) == 2)
    assert {result["error"] for result in server.results.values()} == {
        "the worker stopped before the job ended"
    }
    assert worker.stats.failed == 2


async def test_a_thread_that_does_not_end_keeps_its_lease_when_the_worker_stops(
    server: FakeQueue,
) -> None:
    worker = make_worker(server, grace_sec=0.1)
    end = threading.Event()
    worker.add_job("work", lambda ctx: end.wait(20))
    server.add()
    try:
        async with at_work(worker):
            await server.until(lambda: bool(server.leases))
    finally:
        end.set()
    assert (server.accepted, worker.stats.lost) == ([], 1)


async def test_results_without_a_verdict_are_counted_when_the_worker_gives_up(
    server: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ksana.client.pull_worker.FLUSH_SEC", 0.2)
    worker = make_worker(server, grace_sec=0.1)
    worker.add_job("work", lambda ctx: None)
    fault = server.fail("release", 503, times=10_000)
    server.add()
    async with at_work(worker):
        await fault.struck.acquire()
    assert worker.stats.unsettled == 1


def test_a_waiting_time_that_could_outlive_the_lease_is_refused() -> None:
    with pytest.raises(ValueError, match="third"):
        Worker("http://127.0.0.1:1", "shop", ttl_sec=9, wait_sec=4)


async def test_a_worker_runs_once(server: FakeQueue) -> None:
    worker = make_worker(server)
    worker.add_job("work", lambda ctx: None)
    await worker.run(burst=True)
    with pytest.raises(RuntimeError, match="once"):
        await worker.run(burst=True)
    await worker.client.close()


def test_two_handlers_for_one_type_are_refused() -> None:
    worker = Worker("http://127.0.0.1:1", "shop")
    worker.add_job("work", lambda ctx: None)
    with pytest.raises(ValueError, match="already"):
        worker.add_job("work", lambda ctx: None)


def test_time_is_taken_from_the_monotonic_clock() -> None:
    clock = SteppingClock()
    before = clock.monotonic()
    clock.ahead_us += 5
    assert clock.monotonic() >= before + 5
    assert abs(clock.monotonic() - time.monotonic_ns() // 1000) < 1_000_000
