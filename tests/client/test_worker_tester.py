"""Handlers without a server."""

import asyncio

import pytest

from ksana.client import Fail, Job, JobContext, Worker, WorkerTester


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


@pytest.mark.parametrize("interrupt", [False, True])
async def test_only_a_handler_that_wants_it_is_interrupted(worker: Worker, interrupt: bool) -> None:
    @worker.job("slow", interrupt=interrupt)
    async def slow(ctx: JobContext) -> str:
        ctx.progress(0.1)
        await asyncio.sleep(0)
        return f"told: {ctx.cancelled.reason}"

    tried = await WorkerTester(worker).run_one("slow", cancel_on_report=1)
    cancelled = ("CANCELED", None, "the job was cancelled")
    finished = ("SUCCEEDED", "told: the job was cancelled", None)
    assert (tried.status, tried.result, tried.error) == (cancelled if interrupt else finished)


async def test_a_job_that_is_cancelled_before_it_starts_finds_it_so(worker: Worker) -> None:
    worker.add_job("check", lambda ctx: ctx.raise_if_cancelled())
    assert (await WorkerTester(worker).run_one("check", cancel=True)).status == "CANCELED"
    assert (await WorkerTester(worker).run_one("check")).status == "SUCCEEDED"


async def test_a_handler_sees_the_job_as_the_server_would_send_it(worker: Worker) -> None:
    seen: list[Job] = []
    worker.add_job("look", lambda ctx: seen.append(ctx.job))
    more = {"priority": "HIGH", "lease_id": "l"}
    await WorkerTester(worker).run_one("look", (1, 2), attempt=2, max_attempts=5, job=more)
    await WorkerTester(worker).run_one("look")
    first, second = seen
    assert (first.addon_id, first.job_type, first.state) == ("shop", "look", "RUNNING")
    assert (first.attempts, first.max_attempts, first.payload) == (2, 5, [1, 2])
    assert (first.claimed_by, first.lease_id, first.priority) == ("w1", "l", "HIGH")
    assert (second.attempts, second.max_attempts, second.payload) == (1, 1, None)
    assert second.lease_id is not None and len(second.lease_id) == len(second.job_id) == 36
    assert second.lease_id != second.job_id


async def test_an_unknown_type_is_named_with_those_that_are_known(worker: Worker) -> None:
    with pytest.raises(ValueError, match=r"^no handler for 'x'; there are: none$"):
        await WorkerTester(worker).run_one("x")
    for name in ("b", "a"):
        worker.add_job(name, lambda ctx: None)
    with pytest.raises(ValueError, match=r"there are: a, b$"):
        await WorkerTester(worker).run_one("x")


async def test_progress_outside_its_range_is_refused(worker: Worker) -> None:
    worker.add_job("work", lambda ctx: ctx.progress(2))
    tried = await WorkerTester(worker).run_one("work")
    assert tried.error == "ValueError: progress lies between 0 and 1, not 2"
