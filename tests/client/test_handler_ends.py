"""How an attempt ends: what becomes of a handler's result, its failure and the signal to stop."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from ksana.client.context import (
    MAX_MESSAGE_CHARS,
    CancelSignal,
    Fail,
    JobCancelled,
    JobContext,
    Retry,
)
from ksana.client.handlers import (
    MAX_METRICS_BYTES,
    MAX_RESULT_BYTES,
    DeadlinePassed,
    HandlerOutcome,
    Registered,
    call_handler,
    check_deadline,
    check_handler,
    is_async_handler,
)
from ksana.client.pull_worker import choose_wait
from ksana.client.shapes import Job

pytestmark = pytest.mark.spec("Q16")


def context(attempts: int = 1, max_attempts: int = 3, payload: Any = None) -> JobContext:
    job = Job(
        job_id="j",
        addon_id="a",
        job_type="t",
        state="RUNNING",
        attempts=attempts,
        max_attempts=max_attempts,
    )
    reports: list[Any] = []
    ctx = JobContext(job, payload, "w", CancelSignal(), lambda *what: reports.append(what))
    ctx.metrics["reports"] = reports
    return ctx


async def end(value: Any, ctx: JobContext | None = None, **how: Any) -> HandlerOutcome:
    """Run a handler that answers or raises a value."""

    async def handler(ctx: JobContext) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value(ctx) if callable(value) else value

    chosen = {"payload_type": None, "is_interrupted": True, "deadline_sec": None, **how}
    registered = Registered("t", handler, **chosen)
    if ctx is None:
        ctx = context()
        ctx.metrics.clear()
    return await registered.run(ctx, None)


async def test_a_result_is_sent_as_json_within_its_bound() -> None:
    assert await end(None) == HandlerOutcome(status="SUCCEEDED")
    done = await end({"a": 1})
    assert (done.status, done.result(), done.metrics) == ("SUCCEEDED", {"a": 1}, None)
    assert HandlerOutcome(status="SUCCEEDED").result() is None
    whole = await end("x" * (MAX_RESULT_BYTES - 2))
    assert whole.status == "SUCCEEDED"
    large = await end("x" * (MAX_RESULT_BYTES - 1))
    assert (large.status, large.is_final) == ("FAILED", True)
    assert f"{MAX_RESULT_BYTES + 1} bytes" in str(large.error)
    odd = await end(object())
    assert (odd.status, odd.is_final) == ("FAILED", True)
    assert str(odd.error).startswith("the result is not JSON: ")


@pytest.mark.parametrize(
    ("raised", "status", "error", "is_final", "is_given_up"),
    [
        (Retry("later"), "FAILED", "later", False, False),
        (Fail("never"), "FAILED", "never", True, False),
        (Fail("later", retry=True), "FAILED", "later", False, False),
        (ValueError("odd\nmore"), "FAILED", "ValueError: odd", False, False),
        (JobCancelled("asked"), "CANCELED", "asked", False, True),
    ],
)
async def test_a_failure_says_whether_another_attempt_helps(
    raised: Exception, status: str, error: str, is_final: bool, is_given_up: bool
) -> None:
    ctx = context()
    ctx.metrics = {"n": 1}
    ended = await end(raised, ctx)
    assert (ended.status, ended.error) == (status, error)
    assert (ended.is_final, ended.is_given_up) == (is_final, is_given_up)
    assert ended.metrics == {"n": 1}


async def test_a_failure_is_logged_in_one_line_and_one_not_meant_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await end(Retry("later"), context(2, 3))
    await end(ValueError("odd"), context(2, 3))
    meant, odd = caplog.records
    assert meant.getMessage() == "job j (t): attempt 2 of 3 failed: later"
    assert (meant.levelname, meant.exc_info) == ("WARNING", None)
    assert (odd.levelname, odd.exc_info is not None) == ("ERROR", True)


@pytest.mark.parametrize(("attempts", "status"), [(1, "FAILED"), (3, "TIMEOUT"), (4, "TIMEOUT")])
async def test_a_deadline_ends_the_job_with_its_last_attempt(
    caplog: pytest.LogCaptureFixture, attempts: int, status: str
) -> None:
    async def handler(ctx: JobContext) -> None:
        await asyncio.sleep(30)

    ctx = context(attempts, 3)
    ended = await Registered("t", handler, None, True, 0.005).run(ctx, None)
    assert (ended.status, ended.error) == (status, "ran longer than 0.005 s")
    assert ended.metrics == ctx.metrics
    told = f"job j (t): attempt {attempts} of 3 failed: ran longer than 0.005 s"
    assert caplog.messages == [told]


def test_what_cannot_be_called_or_ended_is_refused_when_it_is_registered() -> None:
    with pytest.raises(TypeError, match="the handler of 'draw' is a str, not a function"):
        Registered("draw", "render", None, False, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'draw': deadline_sec is for async handlers only"):
        Registered("draw", lambda ctx: None, None, False, 1.0)


async def test_a_timeout_of_the_handlers_own_is_an_error_like_others() -> None:
    async def handler(ctx: Any) -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await call_handler(handler, None, True, None, 30.0)
    assert (await end(TimeoutError("mine"), deadline_sec=30.0)).error == "TimeoutError: mine"
    with pytest.raises(DeadlinePassed):
        await call_handler(lambda _: asyncio.sleep(30), None, True, None, 0.001)
    assert await call_handler(lambda _: asyncio.sleep(0, "x"), None, True, None, None) == "x"


async def test_a_payload_is_converted_or_fails_with_its_reason() -> None:
    class Order(msgspec.Struct):
        count: int

    done = await end(
        lambda ctx: ctx.payload.count, context(payload={"count": 4}), payload_type=Order
    )
    assert done.result() == 4
    bad = await end(lambda ctx: 1, context(payload={"count": "x"}), payload_type=Order)
    assert (bad.status, bad.is_final) == ("FAILED", False)
    assert str(bad.error).startswith("ValidationError: ")


async def test_a_sync_handler_runs_in_a_thread() -> None:
    def handler(ctx: JobContext) -> bool:
        return threading.current_thread() is threading.main_thread()

    registered = Registered("t", handler, None, False, None)
    with ThreadPoolExecutor(1) as executor:
        assert (await registered.run(context(), executor)).result() is False
    assert (registered.is_async, registered.is_plain) == (False, False)


async def test_metrics_that_cannot_be_sent_do_not_cost_the_result() -> None:
    for metrics, sent in (
        ({"a": object()}, "not JSON"),
        ({"a": "x" * MAX_METRICS_BYTES}, f"{MAX_METRICS_BYTES + 8} bytes"),
    ):
        ctx = context()
        ctx.metrics = metrics
        done = await end("fine", ctx)
        assert done.status == "SUCCEEDED"
        assert done.metrics is not None
        assert sent in done.metrics["metrics_dropped"]
    ctx.metrics = {"a": "x" * (MAX_METRICS_BYTES - 8)}
    assert (await end("fine", ctx)).metrics == ctx.metrics


class AsyncInstance:
    async def __call__(self, ctx: Any) -> None: ...


def generator(ctx: Any) -> Any:
    yield 1


async def async_generator(ctx: Any) -> Any:
    yield 1


@pytest.mark.parametrize("handler", [1, AsyncInstance, generator, async_generator, lambda: 1])
def test_what_cannot_be_a_handler_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match="the handler"):
        check_handler(handler, "the handler")


def test_an_instance_may_be_a_handler() -> None:
    check_handler(AsyncInstance(), "it")
    assert is_async_handler(AsyncInstance())
    assert not is_async_handler(lambda ctx: 1)


@pytest.mark.parametrize(
    ("is_async", "deadline_sec", "is_good"),
    [
        (True, None, True),
        (False, None, True),
        (True, 0.1, True),
        (True, 0, False),
        (False, 1, False),
    ],
)
def test_a_deadline_is_for_what_can_be_ended(
    is_async: bool, deadline_sec: float | None, is_good: bool
) -> None:
    if is_good:
        check_deadline("t", is_async, deadline_sec)
        return
    with pytest.raises(ValueError, match="deadline_sec"):
        check_deadline("t", is_async, deadline_sec)


@pytest.mark.parametrize(
    ("wait_sec", "lease_sec", "chosen"),
    [
        (None, 30, 5.0),
        (None, 6, 2.0),
        (None, 1, 1 / 3),
        (0, 30, 0),
        (10, 30, 10),
        (10.1, 30, None),
        (-0.1, 30, None),
        (None, 0, None),
        (None, 86_400, 5.0),
        (None, 86_401, None),
    ],
)
def test_a_request_waits_for_a_third_of_the_lease_at_most(
    wait_sec: float | None, lease_sec: int, chosen: float | None
) -> None:
    if chosen is not None:
        assert choose_wait(wait_sec, lease_sec) == pytest.approx(chosen)
        return
    with pytest.raises(ValueError, match="lies between"):
        choose_wait(wait_sec, lease_sec)


# The signal to stop


async def test_the_first_reason_stands_and_wakes_those_who_wait() -> None:
    signal = CancelSignal()
    assert not signal.is_set()
    waiting = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    signal.mark("first")
    assert (signal.is_set(), signal.reason) == (True, "first")
    await asyncio.sleep(0)
    assert not waiting.done()  # a thread may not wake them
    assert signal.set("second") is True
    assert signal.reason == "first"
    await asyncio.wait_for(waiting, 5)
    assert signal.set("third") is False
    await asyncio.wait_for(signal.wait(), 5)


def test_a_thread_waits_for_the_signal_or_its_time() -> None:
    signal = CancelSignal()
    assert signal.wait_in_thread(0.001) is False
    threading.Timer(0.01, signal.mark, ("x",)).start()
    assert signal.wait_in_thread(5) is True
    assert signal.wait_in_thread(0) is True


def test_a_handler_sees_its_attempt_and_reports_how_far_it_is() -> None:
    ctx = context(2, 3)
    assert (ctx.attempt, ctx.is_last_attempt, context(3, 3).is_last_attempt) == (2, False, True)
    assert ctx.is_cancelled is False
    ctx.raise_if_cancelled()
    for fraction in (0, 1, None):
        ctx.progress(fraction)
    ctx.progress(0.5, "m" * (MAX_MESSAGE_CHARS + 1))
    assert ctx.metrics["reports"] == [
        (0, None),
        (1, None),
        (None, None),
        (0.5, "m" * MAX_MESSAGE_CHARS),
    ]
    for wrong in (-0.01, 1.01):
        with pytest.raises(ValueError, match="between 0 and 1"):
            ctx.progress(wrong)
    ctx.cancelled.mark("enough")
    assert ctx.is_cancelled is True
    with pytest.raises(JobCancelled, match="enough"):
        ctx.raise_if_cancelled()
