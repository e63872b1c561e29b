"""The worker against a fake server: what it claims, runs and sends."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ksana.client import Fail, JobContext, Retry
from tests.client.fake_queue import FakeQueue
from tests.client.workers import at_work, make_worker


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


async def test_no_more_jobs_run_than_the_concurrency_allows(server: FakeQueue) -> None:
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
    claims = [body for path, body in server.calls if "claim" in path]
    assert max(body["limit"] - body.get("ahead", 0) for body in claims) == 3


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
@pytest.mark.parametrize("attempts", [1, 3], ids=["last attempt", "attempts left"])
async def test_fail_ends_a_job_whatever_attempts_are_left(server: FakeQueue, attempts: int) -> None:
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
    assert server.jobs[job_id]["state"] == "FAILED"


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
