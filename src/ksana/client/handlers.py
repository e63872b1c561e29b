"""Handlers by job type, and what becomes of a handler's end: a status, a result, a one-line error.

No server here: the worker and the tester both run handlers through `Registered.run`.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final

import msgspec

from ksana.client.context import Fail, JobCancelled, JobContext, Retry

MAX_ERROR_CHARS = 1024
"""What the server keeps of an error."""
MAX_RESULT_BYTES = 900_000
"""A body may have 1 MiB; the rest is for what stands around the result."""

MAX_METRICS_BYTES = 16_000

Handler = Callable[[JobContext], Any] | Callable[[JobContext], Awaitable[Any]]
log = logging.getLogger("ksana.client")


class HandlerOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an attempt ended, ready to be sent."""

    status: str
    result_data: msgspec.Raw | None = None
    error: str | None = None
    metrics: dict[str, Any] | None = None
    is_given_up: bool = False
    """The handler ended because it was asked to stop, whoever asked."""
    is_final: bool = False
    """A failure that another attempt would not mend."""

    def result(self) -> Any:
        """The result as plain values."""
        return msgspec.json.decode(self.result_data) if self.result_data else None


_NOTHING: Final = HandlerOutcome(status="SUCCEEDED")


class Registered:
    """A handler and how it wants to be run."""

    __slots__ = (
        "deadline_sec",
        "handler",
        "is_async",
        "is_interrupted",
        "is_plain",
        "job_type",
        "payload_type",
    )

    def __init__(
        self,
        job_type: str,
        handler: Handler,
        payload_type: Any,
        is_interrupted: bool,
        deadline_sec: float | None,
    ) -> None:
        check_handler(handler, f"the handler of {job_type!r}")
        self.job_type = job_type
        self.handler = handler
        self.is_async = is_async_handler(handler)
        self.payload_type = payload_type
        self.is_interrupted = is_interrupted
        self.deadline_sec = deadline_sec
        self.is_plain = self.is_async and payload_type is None and deadline_sec is None
        check_deadline(job_type, self.is_async, deadline_sec)

    async def run(self, ctx: JobContext, executor: Executor | None) -> HandlerOutcome:
        """Run it to its end. Only CancelledError comes through: what it means, the caller knows."""
        try:
            # The plain case without the frame in between: it is most jobs, and counted in
            # microseconds.
            value = await (self.handler(ctx) if self.is_plain else self._call(ctx, executor))
            return _NOTHING if value is None and not ctx.metrics else _succeeded(value, ctx)
        except JobCancelled as error:
            return HandlerOutcome(
                status="CANCELED",
                error=one_line(error),
                metrics=_sendable(ctx.metrics),
                is_given_up=True,
            )
        except Retry as error:
            return _failed(ctx, one_line(error))
        except Fail as error:
            return _failed(ctx, one_line(error), is_final=not error.retry)
        except _PayloadMisfit as error:
            return _failed(ctx, f"ValidationError: {one_line(error)}")
        except DeadlinePassed:
            # TIMEOUT ends the job; with attempts left it is a failure, so that the next attempt is
            # made.
            late = f"ran longer than {self.deadline_sec:g} s"
            if not ctx.is_last_attempt:
                return _failed(ctx, late)
            _log_failure(ctx, late)
            return HandlerOutcome(status="TIMEOUT", error=late, metrics=_sendable(ctx.metrics))
        except Exception as error:
            return _failed(ctx, describe(error), raised=error)

    async def _call(self, ctx: JobContext, executor: Executor | None) -> Any:
        if self.payload_type is not None:
            try:
                ctx.payload = msgspec.convert(ctx.payload, self.payload_type)
            except msgspec.ValidationError as error:
                raise _PayloadMisfit(str(error)) from None
        return await call_handler(self.handler, ctx, self.is_async, executor, self.deadline_sec)


class DeadlinePassed(Exception):
    """The handler was ended by its deadline."""


class _PayloadMisfit(Exception):
    """The payload is not of the type that the handler names."""


def is_async_handler(handler: Callable[..., Any]) -> bool:
    """Tell whether a handler runs on the event loop; others run in a thread."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        type(handler).__call__
    )


def check_handler(handler: Callable[..., Any], named: str) -> None:
    """Raise TypeError for what could not be called with a context, when it is registered and not
    when the first job comes."""
    if not callable(handler):
        raise TypeError(f"{named} is a {type(handler).__name__}, not a function")
    if inspect.isclass(handler):
        raise TypeError(f"{named} is a class; give a function, or an instance with `__call__`")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(f"{named} yields; a handler returns its result")
    try:
        signature = inspect.signature(handler)
    except ValueError:  # written in C, and without a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(
            f"{named} takes {signature}; it is called with one argument, the context: "
            "def handler(ctx)"
        ) from None


def check_deadline(named: str, is_async: bool, deadline_sec: float | None) -> None:
    """Raise ValueError for a deadline that could not be kept."""
    if deadline_sec is None:
        return
    if not is_async:
        raise ValueError(
            f"{named!r}: deadline_sec is for async handlers only, a thread cannot be ended"
        )
    if deadline_sec <= 0:
        raise ValueError(f"{named!r}: deadline_sec is more than 0, not {deadline_sec:g}")


async def call_handler(
    handler: Callable[[Any], Any],
    ctx: Any,
    is_async: bool,
    executor: Executor | None,
    deadline_sec: float | None,
) -> Any:
    """Call a handler where it belongs. Raise DeadlinePassed when its time is over."""
    if not is_async:
        return await asyncio.get_running_loop().run_in_executor(executor, handler, ctx)
    if deadline_sec is None:
        return await handler(ctx)
    try:
        async with asyncio.timeout(deadline_sec) as limit:
            return await handler(ctx)
    except TimeoutError:
        if limit.expired():
            raise DeadlinePassed from None
        raise  # the handler's own


def describe(error: BaseException) -> str:
    """One line for an exception: its type and the first line of its text."""
    text = one_line(error)
    name = type(error).__name__
    return f"{name}: {text}" if text != name else name


def one_line(error: BaseException) -> str:
    """The first line of an exception's text, cut; its type's name when it has no text."""
    lines = str(error).strip().splitlines()
    line = (lines[0] if lines else type(error).__name__).encode("utf-8", "replace").decode()
    return line if len(line) <= MAX_ERROR_CHARS else line[: MAX_ERROR_CHARS - 1] + "…"


def _succeeded(value: Any, ctx: JobContext) -> HandlerOutcome:
    if value is None:
        return HandlerOutcome(status="SUCCEEDED", metrics=_sendable(ctx.metrics))
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return _failed(ctx, f"the result is not JSON: {one_line(error)}", is_final=True)
    if len(data) > MAX_RESULT_BYTES:
        size = f"the result has {len(data)} bytes, more than {MAX_RESULT_BYTES}"
        return _failed(ctx, f"{size}: store it elsewhere and answer where", is_final=True)
    return HandlerOutcome(
        status="SUCCEEDED", result_data=msgspec.Raw(data), metrics=_sendable(ctx.metrics)
    )


def _failed(
    ctx: JobContext, error: str, *, is_final: bool = False, raised: Exception | None = None
) -> HandlerOutcome:
    _log_failure(ctx, error, raised)
    metrics = _sendable(ctx.metrics)
    return HandlerOutcome(status="FAILED", error=error, metrics=metrics, is_final=is_final)


def _log_failure(ctx: JobContext, error: str, raised: Exception | None = None) -> None:
    """One line for each failed attempt: the server keeps no more than that of the error. An
    exception that the handler did not mean comes with its traceback, which is kept nowhere else."""
    job = ctx.job
    log.log(
        logging.WARNING if raised is None else logging.ERROR,
        "job %s (%s): attempt %d of %d failed: %s",
        job.job_id,
        job.job_type,
        job.attempts,
        job.max_attempts,
        error,
        exc_info=raised,
    )


def _sendable(metrics: dict[str, Any]) -> dict[str, Any] | None:
    """The metrics, if they are JSON and small; an odd metric must not cost the job its result."""
    if not metrics:
        return None
    try:
        size = len(msgspec.json.encode(metrics))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return {"metrics_dropped": f"not JSON: {one_line(error)}"}
    return metrics if size <= MAX_METRICS_BYTES else {"metrics_dropped": f"{size} bytes"}
