"""What a worker says: to its log, and to who registers a handler that cannot work."""

import asyncio
import functools
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ksana.client import Fail, JobContext, Node, QueueClient, Retry, Worker
from tests.client.fake_queue import FakeQueue
from tests.client.workers import at_work, make_worker

LOGGER = "ksana.client"


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if text in one.getMessage()]


# --- failed attempts ---


def broken_inside(ctx: JobContext) -> None:
    raise ValueError("no such order")


async def broken_on_the_loop(ctx: JobContext) -> None:
    broken_inside(ctx)


@pytest.mark.parametrize("handler", [broken_inside, broken_on_the_loop])
async def test_the_traceback_of_a_handler_is_logged(
    server: FakeQueue, caplog: pytest.LogCaptureFixture, handler: Callable[[JobContext], Any]
) -> None:
    worker = make_worker(server)
    worker.add_job("work", handler)
    [job_id] = server.add()
    await worker.run(burst=True)
    await worker.client.close()
    [said] = lines(caplog, "failed")
    assert said.levelno == logging.ERROR
    assert said.getMessage() == (
        f"job {job_id} (work): attempt 1 of 1 failed: ValueError: no such order"
    )
    assert "in broken_inside" in (logging.Formatter().format(said))


@pytest.mark.parametrize("raised", [Fail("not this one"), Retry("not now")])
async def test_a_failure_that_the_handler_meant_is_one_line(
    server: FakeQueue, caplog: pytest.LogCaptureFixture, raised: Exception
) -> None:
    worker = make_worker(server)

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        raise raised

    server.add()
    await worker.run(burst=True)
    await worker.client.close()
    [said] = lines(caplog, "failed")
    assert (said.levelno, said.exc_info) == (logging.WARNING, None)
    assert said.getMessage().endswith(f"attempt 1 of 1 failed: {raised}")


async def test_a_handlers_own_validation_error_is_not_taken_for_the_payloads(
    server: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    import msgspec

    worker = make_worker(server)

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        msgspec.json.decode(b"[]", type=int)

    server.add()
    await worker.run(burst=True)
    await worker.client.close()
    [said] = lines(caplog, "failed")
    assert said.exc_info is not None


# --- the server comes and goes ---


async def test_the_worker_says_that_it_starts_loses_the_server_and_finds_it(
    server: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    worker = make_worker(server)
    worker.add_job("work", lambda ctx: "done")
    async with at_work(worker):
        await server.until(lambda: server.count("claim") >= 2)
        await server.stop()
        while not lines(caplog, "lost http"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # several tries fail meanwhile
        await server.start()
        server.add()
        await server.until(lambda: len(server.accepted) == 1)
    said = [
        one.getMessage()
        for one in caplog.records
        if one.getMessage().startswith("worker w1") and one.levelno >= logging.INFO
    ]
    assert said[0] == "worker w1: starting, addon shop, concurrency 8, job types work"
    assert said[1] == f"worker w1: connected to {server.url}"
    assert said[2].startswith(f"worker w1: lost {server.url}, trying again until it answers: ")
    assert said[3].startswith(f"worker w1: found {server.url} again after ")
    assert said[4].startswith("worker w1: stopped; succeeded 1, failed 0")
    assert len(said) == 5, "one line for each change, not one for each try"


async def test_a_worker_whose_server_was_never_there_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker("http://user:hush@127.0.0.1:1", "shop", "w1")
    worker.add_job("work", lambda ctx: None)
    running = asyncio.create_task(worker.run())
    while not lines(caplog, "cannot reach http://127.0.0.1:1, trying again"):
        await asyncio.sleep(0.01)
    worker.stop()
    await asyncio.wait_for(running, 10)
    assert "hush" not in caplog.text


def test_a_worker_run_as_a_program_says_it_on_stderr(tmp_path: Any) -> None:
    script = """
import os, signal, threading
from ksana.client import Worker
worker = Worker("http://127.0.0.1:1", "shop", "w1")
worker.add_job("work", lambda ctx: None)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
worker.serve()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "INFO worker w1: starting, addon shop" in done.stderr
    assert "WARNING worker w1: cannot reach http://127.0.0.1:1" in done.stderr


# --- registration ---


class Called:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def __call__(self, ctx: JobContext) -> None:
        self.count += 1

    def method(self, ctx: JobContext) -> None:
        self.count += 1

    def bare(self) -> None:
        self.count += 1


def two(ctx: JobContext, other: int) -> None: ...


def keyword_only(*, ctx: JobContext) -> None: ...


def named(ctx: JobContext, *, times: int) -> None: ...


def none() -> None: ...


def yields(ctx: JobContext) -> Any:
    yield 1


async def streams(ctx: JobContext) -> Any:
    yield 1


BAD: list[tuple[Any, str]] = [
    (two, r"takes \(ctx: .*, other: int\) -> None; it is called with one argument"),
    (keyword_only, "called with one argument"),
    (named, "called with one argument"),
    (none, "called with one argument"),
    (Called().bare, "called with one argument"),
    (yields, "yields"),
    (streams, "yields"),
    (Called, "is a class"),
    ("render", "is a str, not a function"),
]


@pytest.mark.parametrize(("handler", "words"), BAD, ids=lambda one: getattr(one, "__name__", None))
def test_a_handler_that_cannot_be_called_is_refused_when_it_is_registered(
    handler: Any, words: str
) -> None:
    worker = Worker("http://127.0.0.1:1", "shop")
    with pytest.raises(TypeError, match=words):
        worker.add_job("work", handler)
    assert not worker.handlers
    node = Node("http://127.0.0.1:1")
    with pytest.raises(TypeError, match=words):
        node.add_model("work", handler)
    assert not node.handlers


@pytest.mark.parametrize(
    "handler",
    [
        Called(),
        Called().method,
        functools.partial(two, other=1),
        functools.partial(named, times=2),
        lambda ctx, extra=None: None,
        lambda *args: None,
        print,
    ],
)
def test_whatever_takes_one_argument_may_be_a_handler(handler: Any) -> None:
    Worker("http://127.0.0.1:1", "shop").add_job("work", handler)
    Node("http://127.0.0.1:1").add_model("work", handler)


@pytest.mark.parametrize("deadline_sec", [0, -1])
def test_a_deadline_that_leaves_no_time_is_refused(deadline_sec: float) -> None:
    worker = Worker("http://127.0.0.1:1", "shop")
    with pytest.raises(ValueError, match="more than 0"):
        worker.add_job("work", broken_on_the_loop, deadline_sec=deadline_sec)


# --- Fail ---


@pytest.mark.parametrize(
    ("raised", "tries", "state"),
    [
        (Fail("hopeless"), 1, "FAILED"),
        (Fail("hopeless", retry=False), 1, "FAILED"),
        (Fail("hopeless", retry=True), 3, "FAILED"),
    ],
)
async def test_fail_ends_failed_and_is_counted_so(
    server: FakeQueue, raised: Exception, tries: int, state: str
) -> None:
    worker = make_worker(server)
    seen: list[int] = []

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        seen.append(ctx.attempt)
        raise raised

    [job_id] = server.add(max_attempts=3)
    await worker.run(burst=True)
    await worker.client.close()
    assert len(seen) == tries
    assert server.jobs[job_id]["state"] == state
    assert (worker.stats.failed, worker.stats.cancelled) == (tries, 0)


async def test_fail_is_final_for_a_job_whose_lease_token_was_lost_with_the_claims_answer(
    server: FakeQueue,
) -> None:
    worker = make_worker(server)

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        raise Fail("hopeless", retry=False)

    [job_id] = server.add(max_attempts=3)
    server.fail("claim", "lost")
    async with at_work(worker):
        await server.until(lambda: len(server.accepted) == 1)
    assert worker.stats.adopted == 1
    assert server.jobs[job_id]["state"] == "FAILED"
    assert (worker.stats.failed, worker.stats.cancelled) == (1, 0)


# --- deadlines ---


async def test_a_call_is_repeated_until_its_deadline(server: FakeQueue) -> None:
    async with QueueClient(server.url, deadline_sec=30.0) as client:
        await client.snapshot()
        await server.stop()
        asked = asyncio.create_task(client.snapshot())
        await asyncio.sleep(2.0)  # five tries, with pauses of 0.1, 0.2, 0.4 and 0.8 s
        assert not asked.done()
        await server.start()
        assert (await asyncio.wait_for(asked, 10)).capacity.total == 70


async def test_the_last_pause_does_not_run_past_the_deadline(server: FakeQueue) -> None:
    loop = asyncio.get_running_loop()
    async with QueueClient(server.url, deadline_sec=1.0) as client:
        await client.snapshot()
        await server.stop()
        started_at = loop.time()
        asked = asyncio.create_task(client.snapshot())
        with pytest.raises(Exception, match="connect"):
            await asked
        assert 0.8 < loop.time() - started_at < 1.2


async def test_an_answer_of_500_is_not_asked_for_until_the_deadline(
    server: FakeQueue, client: QueueClient
) -> None:
    server.fail("snapshot", 500, times=99)
    with pytest.raises(Exception, match="500"):
        await client.snapshot()
    assert server.count("snapshot") == 4
