"""The leases a worker holds, from the answer that brought them to the server's answer to their
results: what is the same on every surface.

The phases of a lease change here, on the worker's event loop only.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sized
from concurrent.futures import Executor
from typing import Any, Generic, Protocol, TypeVar

from ksana.base.clock import Clock
from ksana.base.instant import Micros
from ksana.client import held_lease
from ksana.client.held_lease import HeldLease

MAX_UNSETTLED = 2_000
"""Results that may wait for the server before no more is taken."""

H = TypeVar("H", bound=HeldLease)
log = logging.getLogger("ksana.client")


class ResultQueue(Sized, Protocol):
    """Results on their way."""

    async def drain(self, within_sec: float) -> bool: ...

    async def abandon(self) -> list[Any]: ...


class LeaseRunner(ABC, Generic[H]):
    """Runs handlers under leases. Who inherits starts a task for each and finishes it."""

    def __init__(self, clock: Clock, *, concurrency: int, ttl_us: Micros) -> None:
        self._clock = clock
        self._concurrency = concurrency
        self._ttl_us = ttl_us
        self._loop: asyncio.AbstractEventLoop
        self._executor: Executor
        self.held: dict[str, H] = {}
        self.running = 0
        """Handlers at work now."""
        self.begun = 0
        """Handlers started so far."""
        self.has_room = asyncio.Event()

    @property
    @abstractmethod
    def results(self) -> ResultQueue:
        """What waits for the server."""

    @abstractmethod
    def report_lost(self, held: H, reason: str) -> None:
        """A result is dropped: count it, and tell whoever wants to know."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The handlers' tasks."""
        return [held.task for held in self.held.values() if held.task is not None]

    def count_free_slots(self) -> int:
        """How many jobs may be taken now."""
        return min(self._concurrency - self.running, MAX_UNSETTLED - len(self.results))

    def give_back(self) -> None:
        """Send back what is held and not begun. Here all is begun as it comes."""

    async def drain(self, within_sec: float) -> int:
        """Send the results that wait; count those the server has not answered for in time."""
        if await self.results.drain(within_sec):
            return 0
        return len(await self.results.abandon())

    async def interrupt_all(self, within_sec: float) -> None:
        """The grace is over: tell the handlers that still run, and give them a moment to end."""
        running = {
            held.task: held
            for held in self.held.values()
            if held.task is not None and not held.task.done()
        }
        for task, held in running.items():
            held.cause = held.cause or held_lease.BY_STOP
            held.cancelled.set("the worker stops")
            if held.is_async:
                task.cancel()
        if running:
            await asyncio.wait(running, timeout=within_sec)
        for task, held in running.items():
            # What does not end, a thread above all, keeps its lease until that runs out: no other
            # worker may run beside it.
            if not task.done() and held.phase is held_lease.RUNNING:
                held.phase = held_lease.LOST
                self.report_lost(held, "the worker stopped before the handler did")

    def _hold(self, held: H, run: Coroutine[Any, Any, None]) -> None:
        """Start a handler."""
        self.held[held.key] = held
        self.running += 1
        self.begun += 1
        held.task = self._loop.create_task(run)

    def _may_send(self, held: H) -> bool:
        """A handler has ended: whether its result is wanted. Else it is dropped here."""
        self.running -= 1
        self.has_room.set()
        if held.phase is held_lease.LOST:
            self.held.pop(held.key, None)
            return False
        if self._clock.monotonic() >= held.fence_at:
            self._lose(held, "its own lease time has passed")
            self.held.pop(held.key, None)
            return False
        held.phase = held_lease.FINISHED
        return True

    # --- events from the thread that renews ---

    def on_lost_in_thread(self, held: H, reason: str) -> None:
        """Called on the thread that renews. The signal is set here, because the handler may be
        blocking the event loop; the rest happens there."""
        if held.phase is held_lease.RUNNING:
            held.cancelled.mark(f"the lease is lost: {reason}")
            self._call_on_loop(self._lose, held, reason)

    def _call_on_loop(self, notify: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to notify
            self._loop.call_soon_threadsafe(notify, *args)

    def _lose(self, held: H, reason: str) -> None:
        """The lease is ours no longer: stop the handler and send nothing."""
        if held.phase is not held_lease.RUNNING:
            return  # its result is on the way, and the server's answer to that decides
        held.phase = held_lease.LOST
        held.cancelled.set(f"the lease is lost: {reason}")
        if held.task is not None and not held.task.done() and held.is_async:
            held.task.cancel()
        self.report_lost(held, reason)


def tell_lost(notify: Callable[[Any, str], None] | None, job: Any, reason: str) -> None:
    """Call a user's `on_lost`; its mistake must not stop the results of other jobs."""
    log.warning("job %s: result dropped, the lease is lost: %s", job.job_id, reason)
    if notify is not None:
        try:
            notify(job, reason)
        except Exception:
            log.exception("on_lost failed")
