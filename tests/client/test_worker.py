"""The worker against a fake server: what it claims, sends, keeps and drops."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.client import AccessError, Backoff, Fail, Job, JobContext, QueueClient, Retry, Worker
from tests.client.fake_queue import FakeQueue

QUICK = Backoff(first_sec=0.01, most_sec=0.05, tries=2)


def make_worker(server: FakeQueue, **options: Any) -> Worker:
    given = {
        "concurrency": 8,
        "ttl_sec": 30,
        "wait_sec": 0.2,
        "backoff": QUICK,
        "worker_id": "w1",
        **options,
    }
    return Worker(QueueClient(server.url, deadline_sec=5.0, backoff=QUICK), "shop", **given)


@contextlib.asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    """Run the worker; at the end stop it, and let its errors through."""
    running = asyncio.create_task(worker.run())
    try:
        yield worker
        worker.stop()
        await asyncio.wait_for(running, 20)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await worker.client.close()


class SteppingClock(SystemClock):
    """The real clock, whose monotonic time a test can push ahead, as if the process had paused."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def monotonic(self) -> int:
        return super().monotonic() + self.ahead_us


# --- good times ---


@pytest.mark.spec("Q16")
async def test_async_and_sync_handlers_run_and_their_results_arrive(server: FakeQueue) -> None:
    worker = make_worker(server)

    @worker.job("double")
    async def double(ctx: JobContext) -> dict[str, int]:
        return {"value": ctx.payload["n"] * 2}

    @worker.job("thread")
    def name_thread(ctx: JobContext) -> str:
        return threading.current_thread().name

    [first] = server.add("double", payload={"n": 21})
    [second] = server.add("thread")
    async with at_work(worker):
        await server.until(lambda: len(server.accepted) == 2)
    assert server.results[first]["result_data"] == {"value": 42}
    assert server.results[second]["result_data"].startswith("ksana-shop")
    assert (worker.stats.claimed, worker.stats.succeeded, worker.held) == (2, 2, {})


async def test_many_jobs_go_in_few_calls_and_each_result_arrives_once(server: FakeQueue) -> None:
    worker = make_worker(server, concurrency=100)

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        pass

    made = server.add(count=1_000)
    await worker.run(burst=True)
    await worker.client.close()
    assert sorted(server.accepted) == sorted(made)
    assert server.count("claim") <= 40
    assert server.count("release-batch") <= 40


async def test_no_more_jobs_are_held_than_the_concurrency_allows(server: FakeQueue) -> None:
    worker = make_worker(server, concurrency=3)
    most = 0

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        nonlocal most
        most = max(most, worker.running)
        await asyncio.sleep(0.001)

    server.add(count=20)
    await worker.run(burst=True)
    await worker.client.close()
    assert most == 3
    assert max(body["limit"] for path, body in server.calls if "claim" in path) == 3


async def test_only_job_types_with_a_handler_are_claimed_within_the_capabilities(
    server: FakeQueue,
) -> None:
    worker = make_worker(server, capabilities={"gpu_available": False}, max_cost_units=4)
    worker.add_job("work", lambda ctx: None)
    server.add("foreign")
    server.add("work")
    await worker.run(burst=True)
    await worker.client.close()
    assert server.states() == {"QUEUED": 1, "DONE": 1}
    asked = next(body for path, body in server.calls if "claim" in path)
    assert asked["accept_job_types"] == ["work"]
    assert asked["constraints_capabilities"] == {"gpu_available": False}
    assert asked["max_cost_units"] == 4


async def run_one(
    server: FakeQueue, handler: Callable[[JobContext], Any], **options: Any
) -> dict[str, Any]:
    """Run one job with this handler and give its result."""
    worker = make_worker(server)
    worker.add_job("work", handler, **options)
    [job_id] = server.add("work", payload={"n": 1})
    await worker.run(burst=True)
    await worker.client.close()
    return server.results[job_id]


async def test_an_exception_fails_the_job_with_one_line(server: FakeQueue) -> None:
    def broken(ctx: JobContext) -> None:
        raise ValueError("first line\nsecond line")

    result = await run_one(server, broken)
    assert (result["status"], result["error"]) == ("FAILED", "ValueError: first line")


@pytest.mark.spec("Q11")
@pytest.mark.parametrize(
    ("attempts", "has_tokens", "state"),
    [(1, True, "FAILED"), (3, True, "FAILED"), (1, False, "FAILED"), (3, False, "CANCELED")],
    ids=["last attempt", "attempts left", "older server", "older server, attempts left"],
)
async def test_fail_ends_a_job_whatever_attempts_are_left(
    server: FakeQueue, attempts: int, has_tokens: bool, state: str
) -> None:
    server.has_tokens = has_tokens
    worker = make_worker(server)
    seen: list[int] = []

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        seen.append(ctx.attempt)
        raise Fail("hopeless")

    [job_id] = server.add(max_attempts=attempts)
    await worker.run(burst=True)
    await worker.client.close()
    assert seen == [1]
    assert server.results[job_id]["error"] == "hopeless"
    assert server.jobs[job_id]["state"] == state


async def test_a_handler_that_gives_up_though_nobody_asked_has_failed(server: FakeQueue) -> None:
    async def gives_up(ctx: JobContext) -> None:
        raise asyncio.CancelledError

    result = await run_one(server, gives_up)
    assert (result["status"], result["error"]) == (
        "FAILED",
        "the handler was cancelled from within",
    )


async def test_metrics_that_cannot_be_sent_do_not_cost_the_result(server: FakeQueue) -> None:
    async def odd(ctx: JobContext) -> str:
        ctx.metrics["odd"] = object()
        return "kept"

    result = await run_one(server, odd)
    assert result["result_data"] == "kept"
    assert "metrics_dropped" in result["metrics"]


async def test_a_failed_job_with_attempts_left_is_run_again(server: FakeQueue) -> None:
    worker = make_worker(server)
    seen: list[tuple[int, bool]] = []

    @worker.job("work")
    async def work(ctx: JobContext) -> str:
        seen.append((ctx.attempt, ctx.is_last_attempt))
        if not ctx.is_last_attempt:
            raise Retry("not yet")
        return "done"

    [job_id] = server.add(max_attempts=3)
    await worker.run(burst=True)
    await worker.client.close()
    assert seen == [(1, False), (2, False), (3, True)]
    assert server.results[job_id]["result_data"] == "done"


async def test_a_handler_past_its_deadline_ends_as_timeout(server: FakeQueue) -> None:
    async def endless(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    result = await run_one(server, endless, deadline_sec=0.05)
    assert (result["status"], result["error"]) == ("TIMEOUT", "ran longer than 0.05 s")


async def test_a_timeout_of_the_handlers_own_is_a_failure(server: FakeQueue) -> None:
    async def times_out(ctx: JobContext) -> None:
        raise TimeoutError("upstream")

    result = await run_one(server, times_out, deadline_sec=5)
    assert (result["status"], result["error"]) == ("FAILED", "TimeoutError: upstream")


async def test_a_payload_is_converted_and_one_that_does_not_fit_fails(server: FakeQueue) -> None:
    class Order(msgspec.Struct):
        n: int

    class Other(msgspec.Struct):
        name: str

    async def read(ctx: JobContext) -> int:
        return int(ctx.payload.n)

    assert (await run_one(server, read, payload_type=Order))["result_data"] == 1
    result = await run_one(server, read, payload_type=Other)
    assert result["status"] == "FAILED"
    assert "name" in result["error"]


@pytest.mark.parametrize(
    ("value", "words"), [(object(), "not JSON"), ("x" * 1_000_000, "1000002 bytes")]
)
async def test_a_result_that_cannot_be_sent_fails_the_job(
    server: FakeQueue, value: object, words: str
) -> None:
    result = await run_one(server, lambda ctx: value)
    assert result["status"] == "FAILED"
    assert words in result["error"]


async def test_a_result_the_server_refuses_fails_that_job_only(server: FakeQueue) -> None:
    worker = make_worker(server)
    worker.add_job("work", lambda ctx: ctx.payload)
    [bad] = server.add(payload="poison")
    [good] = server.add(payload="food")
    await worker.run(burst=True)
    await worker.client.close()
    assert server.results[good]["status"] == "SUCCEEDED"
    assert server.results[bad]["status"] == "FAILED"
    assert "refused the result" in server.results[bad]["error"]


# --- heartbeats, progress, cancel ---


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


# --- faults ---


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
    monkeypatch.setattr("ksana.client.worker.FLUSH_SEC", 0.2)
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
