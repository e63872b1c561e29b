"""Handlers without a server."""

import asyncio

import pytest

from ksana.client import Fail, JobContext, Worker, WorkerTester


@pytest.fixture
def worker() -> Worker:
    return Worker("http://127.0.0.1:1", "shop", "w1")


async def test_a_handler_runs_without_a_server(worker: Worker) -> None:
    @worker.job("greet")
    async def greet(ctx: JobContext) -> dict[str, str]:
        ctx.progress(0.5, "half")
        ctx.metrics["words"] = 2
        return {"text": f"hello {ctx.payload['name']}, attempt {ctx.attempt}"}

    tried = await WorkerTester(worker).run_one("greet", {"name": "Ada"}, attempt=2, max_attempts=3)
    assert (tried.status, tried.result) == ("SUCCEEDED", {"text": "hello Ada, attempt 2"})
    assert (tried.reports, tried.metrics) == ([(0.5, "half")], {"words": 2})


async def test_a_failure_is_told_as_the_server_would_see_it(worker: Worker) -> None:
    @worker.job("fail")
    def fail(ctx: JobContext) -> None:
        raise Fail("no such order")

    tried = await WorkerTester(worker).run_one("fail")
    assert (tried.status, tried.error) == ("FAILED", "no such order")
    failed = await WorkerTester(worker).run_one("fail", max_attempts=3)
    assert (failed.status, failed.is_final) == ("FAILED", True)


async def test_cancellation_can_be_tried(worker: Worker) -> None:
    @worker.job("polite")
    def polite(ctx: JobContext) -> None:
        for step in range(10):
            ctx.progress(step / 10)
            ctx.raise_if_cancelled()

    @worker.job("cut", interrupt=True)
    async def cut(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    tester = WorkerTester(worker)
    tried = await tester.run_one("polite", cancel_on_report=3)
    assert (tried.status, len(tried.reports)) == ("CANCELED", 3)
    assert (await tester.run_one("cut", cancel=True)).status == "CANCELED"


async def test_an_unknown_type_is_named(worker: Worker) -> None:
    with pytest.raises(ValueError, match="no handler for 'x'"):
        await WorkerTester(worker).run_one("x")


async def test_progress_outside_its_range_is_refused(worker: Worker) -> None:
    worker.add_job("work", lambda ctx: ctx.progress(2))
    tried = await WorkerTester(worker).run_one("work")
    assert tried.error == "ValueError: progress lies between 0 and 1, not 2"
