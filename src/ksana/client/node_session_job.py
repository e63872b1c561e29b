"""One job that a session asked for: its partials, its result, its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Final

import msgspec

from ksana.client.errors import ClientError
from ksana.client.node_context import NodeJobError
from ksana.domain.nodes.frames import AskJob, JobCreated, JobUpdate, SessionPartial, SessionResult

MOST_PARTIALS: Final = 10_000
"""Partials that may wait to be read."""


class SessionJob:
    """Await it for the result; iterate over it for the partials.

    async for part in job: ...
    result = await job
    """

    def __init__(self, ask: AskJob, send_cancel: Callable[[str], None]) -> None:
        self.ask = ask
        self.request_id = ask.request_id or ""
        self.job_id: str | None = None
        """Known once the server has made the job."""
        self.state: str | None = None
        """The latest that the server told."""
        self.attempt = 0
        self.node_id: str | None = None
        self.is_durable = False
        """Whether the job outlives the server process."""
        self.partials_lost = 0
        """The oldest ones, dropped because nobody read them."""
        self._send_cancel = send_cancel
        self._is_cancel_asked = False
        self._partials: asyncio.Queue[Any] = asyncio.Queue()
        self._created = asyncio.Event()
        self._result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # A failure that nobody awaits is no error of the program.
        self._result.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def is_finished(self) -> bool:
        """Tell whether the result, or the failure, is known."""
        return self._result.done()

    async def result(self) -> Any:
        """Wait for the result. Raise NodeJobError if the job failed or was cancelled, ApiError if
        the server refused it, TransportError if the session lost the server. A caller that stops
        waiting does not cancel the job."""
        return await asyncio.shield(self._result)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()

    async def wait_created(self) -> str:
        """Wait until the server has made the job; its id. Raise what `result` would."""
        await self._created.wait()
        if self.job_id is None:
            self._result.result()
        assert self.job_id is not None
        return self.job_id

    async def __aiter__(self) -> AsyncIterator[Any]:
        """The partials, as they come, until the job has ended. Each is given out once. After a
        failed attempt those of the next one follow."""
        while True:
            part = await self._partials.get()
            if part is _END:
                self._partials.put_nowait(_END)
                return
            yield part

    def cancel(self) -> None:
        """Ask the server to end the job. Awaiting it then raises NodeJobError, `CANCELED`, unless
        its result was faster."""
        if self.is_finished or self._is_cancel_asked:
            return
        self._is_cancel_asked = True
        if self.job_id is not None:
            self._send_cancel(self.job_id)

    # --- called by the session ---

    def on_created(self, frame: JobCreated) -> None:
        """The server made the job, or says again that it did."""
        self.job_id, self.state, self.is_durable = frame.job_id, frame.state, frame.durable
        self._created.set()
        if self._is_cancel_asked:
            self._send_cancel(frame.job_id)

    def on_update(self, frame: JobUpdate) -> None:
        """The job moved."""
        self.state, self.attempt = frame.state, frame.attempt_id
        self.node_id = frame.node_id or self.node_id

    def on_partial(self, frame: SessionPartial) -> None:
        """A part of the result."""
        if not self.is_finished:
            self.attempt = frame.attempt_id
            if self._partials.qsize() >= MOST_PARTIALS:
                self._partials.get_nowait()
                self.partials_lost += 1
            self._partials.put_nowait(msgspec.json.decode(frame.data))

    def on_result(self, frame: SessionResult) -> None:
        """The end."""
        if self.is_finished:
            return
        self.state, self.attempt = "FINISHED", frame.attempt_id
        if frame.success:
            self._result.set_result(msgspec.json.decode(frame.data))
        else:
            error = frame.error
            code, message = ("FAILED", "") if error is None else (error.code, error.message)
            self._result.set_exception(NodeJobError(code, message, frame.job_id))
        self._end()

    def fail(self, error: ClientError) -> None:
        """It will not be known how the job ended, or there is none."""
        if not self.is_finished:
            self._result.set_exception(error)
            self._end()

    def _end(self) -> None:
        self._created.set()
        self._partials.put_nowait(_END)


_END = object()
