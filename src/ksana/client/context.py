"""What a handler is given and what it may raise. Nothing here talks to the server."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from ksana.client.shapes import Job

MAX_MESSAGE_CHARS = 1024
"""What the server takes of a message; a longer one would spoil the heartbeats it travels with."""

_making = threading.Lock()


class Retry(Exception):
    """Raised by a handler: this attempt failed; the server tries again with its backoff while
    attempts are left."""


class Fail(Exception):
    """Raised by a handler: the job failed and another attempt would not help. The job ends FAILED,
    whatever attempts are left. `Fail("…", retry=True)` is `Retry("…")`."""

    def __init__(self, *args: object, retry: bool = False) -> None:
        super().__init__(*args)
        self.retry = retry


class JobCancelled(Exception):
    """Raised by `raise_if_cancelled`: the handler gives up because it was asked to. The job ends
    CANCELED."""


class CancelSignal(msgspec.Struct, eq=False, gc=False):
    """Tells a handler to stop. Set once, by the worker; read on the event loop or in a thread.

    One for each job, as a struct: made without a frame, and not walked by the garbage collector."""

    reason: str | None = None
    _event: asyncio.Event | None = None
    _is_announced: bool = False
    _thread_event: threading.Event | None = None

    def is_set(self) -> bool:
        """Tell whether the handler should stop."""
        return self.reason is not None

    async def wait(self) -> None:
        """Wait, in an async handler, until the handler should stop."""
        if self._event is None:
            self._event = asyncio.Event()
        if self.reason is None:
            await self._event.wait()

    def wait_in_thread(self, most_sec: float | None = None) -> bool:
        """Wait, in a sync handler, until it should stop or the time is over; tell whether it should
        stop."""
        with _making:
            if self.reason is not None:
                return True
            event = self._thread_event = self._thread_event or threading.Event()
        return event.wait(most_sec)

    def mark(self, reason: str) -> None:
        """Give the reason; the first one stands. May be called from any thread, so that a handler
        that blocks the event loop still sees it. Those who `wait` wake at the next `set`."""
        with _making:
            if self.reason is not None:
                return
            self.reason = reason
            if self._thread_event is not None:
                self._thread_event.set()

    def set(self, reason: str) -> bool:
        """Give the reason and wake those who wait; tell whether this is the first time. Called by
        the worker on its event loop."""
        self.mark(reason)
        if self._is_announced:
            return False
        self._is_announced = True
        if self._event is not None:
            self._event.set()
        return True


class AttemptContext:
    """What every handler sees of its attempt: whether it should stop."""

    __slots__ = ("cancelled",)

    def __init__(self, cancelled: CancelSignal) -> None:
        self.cancelled = cancelled
        """Set when nobody waits for this attempt any more, with the reason."""

    @property
    def is_cancelled(self) -> bool:
        """Tell whether the handler should stop."""
        return self.cancelled.reason is not None

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled when the handler should stop."""
        if self.cancelled.reason is not None:
            raise JobCancelled(self.cancelled.reason)


class JobContext(AttemptContext):
    """One attempt at one job, as its handler sees it. `cancelled` is set when the job is to be
    cancelled or its lease is lost."""

    __slots__ = ("_report", "job", "metrics", "payload", "worker_id")

    def __init__(
        self,
        job: Job,
        payload: Any,
        worker_id: str,
        cancelled: CancelSignal,
        report: Callable[[float | None, str | None], None],
    ) -> None:
        self.cancelled = cancelled
        self.job = job
        self.payload = payload
        """The job's payload, converted to the handler's `payload_type` if it names one."""
        self.worker_id = worker_id
        self.metrics: dict[str, Any] = {}
        """Sent with the result, as the job's metrics."""
        self._report = report

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.job.attempts

    @property
    def is_last_attempt(self) -> bool:
        """Tell whether a failure now is final."""
        return self.job.attempts >= self.job.max_attempts

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Tell how far the job is, 0 to 1, with a word on it. Sent with the next heartbeat, at most
        about once a second; only the latest counts. May be called from a thread."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"progress lies between 0 and 1, not {fraction}")
        self._report(fraction, message[:MAX_MESSAGE_CHARS] if message is not None else None)
