"""The attempts that a node works on: each in a task of its own, within the node's slots.

An attempt belongs to the socket over which it came. When that socket ends, the server gives the job
to another node, so the attempt is given up: its handler is told, and its result is not sent over a
later socket.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final

import msgspec

from ksana.client.context import CancelSignal, JobCancelled
from ksana.client.handlers import (
    MAX_ERROR_CHARS,
    MAX_RESULT_BYTES,
    check_handler,
    describe,
    is_async_handler,
    one_line,
)
from ksana.client.node_context import MODEL_NOT_AVAILABLE, NodeJobContext, NodeJobError
from ksana.client.node_socket import FrameSocket
from ksana.client.stats import NodeStats
from ksana.domain.nodes.frames import JobAck, JobAssign, JobPartial, JobStarted, NodeJobResult
from ksana.domain.nodes.records import JobError

HANDLER_ERROR: Final = "HANDLER_ERROR"
INVALID_PAYLOAD: Final = "INVALID_PAYLOAD"
INVALID_RESULT: Final = "INVALID_RESULT"

NodeHandler = Callable[[NodeJobContext], Any] | Callable[[NodeJobContext], Awaitable[Any]]
log = logging.getLogger("ksana.client")


class ServedModel:
    """A handler and how it wants to be run."""

    __slots__ = ("handler", "is_async", "is_interrupted", "payload_type")

    def __init__(
        self, name: str, handler: NodeHandler, payload_type: Any, is_interrupted: bool
    ) -> None:
        check_handler(handler, f"the handler of {name!r}")
        self.handler = handler
        self.payload_type = payload_type
        self.is_async = is_async_handler(handler)
        self.is_interrupted = is_interrupted and self.is_async


class NodeAttempt:
    """One assignment, from `job_assign` to its end."""

    __slots__ = ("assign", "is_started", "model", "signal", "socket", "task")

    def __init__(self, assign: JobAssign, model: ServedModel, socket: FrameSocket) -> None:
        self.assign = assign
        self.model = model
        self.socket = socket
        self.signal = CancelSignal()
        self.is_started = False
        self.task: asyncio.Task[None] | None = None

    def stop(self, reason: str, *, is_forced: bool = False) -> None:
        """Tell the handler to stop. One that has not begun never does. A thread cannot be ended: it
        keeps its slot until it returns."""
        self.signal.set(reason)
        is_free = not self.is_started or self.model.is_interrupted
        if self.task is not None and (is_free or (is_forced and self.model.is_async)):
            self.task.cancel()


class NodeAttempts:
    """What a node works on now."""

    def __init__(self, models: dict[str, ServedModel], slots: int, stats: NodeStats) -> None:
        self._models = models
        self._stats = stats
        self._slots = asyncio.Semaphore(slots)
        self._held: dict[tuple[str, int], NodeAttempt] = {}
        self._executor: Executor | None = None
        self.node_id = ""

    def start(self, executor: Executor) -> None:
        """Where sync handlers run."""
        self._executor = executor

    @property
    def running(self) -> int:
        """Count the attempts that have not ended."""
        return len(self._held)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Their tasks."""
        return [attempt.task for attempt in self._held.values() if attempt.task is not None]

    def take(self, assign: JobAssign, socket: FrameSocket) -> None:
        """Acknowledge an assignment and begin with it."""
        key = (assign.job_id, assign.attempt_id)
        if key in self._held:
            return
        self._stats.assigned += 1
        socket.send(JobAck(job_id=assign.job_id, attempt_id=assign.attempt_id))
        model = self._models.get(assign.model)
        if model is None:
            error = NodeJobError(MODEL_NOT_AVAILABLE, f"no handler for {assign.model!r}")
            self._stats.failed += 1
            socket.send(_failure(assign, error))
            return
        attempt = self._held[key] = NodeAttempt(assign, model, socket)
        attempt.task = asyncio.create_task(self._run(attempt))
        attempt.task.add_done_callback(lambda _: self._held.pop(key, None))

    def cancel(self, job_id: str, attempt_id: int, reason: str) -> None:
        """The server does not want the result of an attempt any more."""
        attempt = self._held.get((job_id, attempt_id))
        if attempt is not None and not attempt.signal.is_set():
            self._stats.cancelled += 1
            attempt.stop(reason or "the job was cancelled")

    def give_up(self, reason: str, *, is_forced: bool = False) -> None:
        """Nobody waits for these attempts any more; another node has their jobs, or will."""
        for attempt in list(self._held.values()):
            if not attempt.signal.is_set():
                self._stats.lost += 1
                log.warning("attempt %d at job %s is given up: %s", *_key(attempt), reason)
            attempt.stop(reason, is_forced=is_forced)

    async def _run(self, attempt: NodeAttempt) -> None:
        assign = attempt.assign
        async with self._slots:
            attempt.is_started = True
            attempt.socket.send(JobStarted(job_id=assign.job_id, attempt_id=assign.attempt_id))
            result = await self._answer(attempt)
        if attempt.signal.is_set():
            return  # nobody waits for it
        if result.success:
            self._stats.succeeded += 1
        else:
            self._stats.failed += 1
        attempt.socket.send(result)

    async def _answer(self, attempt: NodeAttempt) -> NodeJobResult:
        assign = attempt.assign
        try:
            value = await self._call(attempt)
            data = _encode(value)
        except NodeJobError as error:
            return _failure(assign, error)
        except JobCancelled as error:
            return _failure(assign, NodeJobError("CANCELED", one_line(error)))
        except Exception as error:
            log.error(
                "attempt %d at job %s (%s) failed: %s",
                *_key(attempt),
                assign.model,
                describe(error),
                exc_info=error,
            )
            return _failure(assign, NodeJobError(HANDLER_ERROR, describe(error)))
        return NodeJobResult(
            job_id=assign.job_id, attempt_id=assign.attempt_id, success=True, data=data
        )

    async def _call(self, attempt: NodeAttempt) -> Any:
        model = attempt.model
        wanted = Any if model.payload_type is None else model.payload_type
        try:
            payload = msgspec.json.decode(attempt.assign.payload, type=wanted)
        except msgspec.DecodeError as error:
            raise NodeJobError(INVALID_PAYLOAD, one_line(error)) from None
        loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

        def send_partial(value: Any) -> None:
            data = _encode(value)
            if threading.get_ident() == loop_thread:
                self._send_partial(attempt, data)  # now, so that the result comes after it
            else:
                loop.call_soon_threadsafe(self._send_partial, attempt, data)

        ctx = NodeJobContext(attempt.assign, payload, self.node_id, attempt.signal, send_partial)
        if model.is_async:
            return await model.handler(ctx)
        return await loop.run_in_executor(self._executor, model.handler, ctx)

    def _send_partial(self, attempt: NodeAttempt, data: msgspec.Raw) -> None:
        if attempt.signal.is_set():
            return
        assign = attempt.assign
        frame = JobPartial(job_id=assign.job_id, attempt_id=assign.attempt_id, data=data)
        if not attempt.socket.send(frame, is_dispensable=True):
            self._stats.partials_lost += 1


def _key(attempt: NodeAttempt) -> tuple[int, str]:
    return attempt.assign.attempt_id, attempt.assign.job_id


def _failure(assign: JobAssign, error: NodeJobError) -> NodeJobResult:
    return NodeJobResult(
        job_id=assign.job_id,
        attempt_id=assign.attempt_id,
        success=False,
        # Cut: a frame that is too large would cost the socket.
        error=JobError(code=error.code[:128], message=error.message[:MAX_ERROR_CHARS]),
    )


def _encode(value: Any) -> msgspec.Raw:
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NodeJobError(INVALID_RESULT, f"not JSON: {one_line(error)}") from None
    if len(data) > MAX_RESULT_BYTES:
        size = f"{len(data)} bytes, more than {MAX_RESULT_BYTES}"
        raise NodeJobError(INVALID_RESULT, f"{size}: store it elsewhere and answer where")
    return msgspec.Raw(data)
