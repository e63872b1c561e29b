"""A thread with an event loop and connections of its own, that keeps the leases a worker holds.

A handler that blocks the worker's event loop, or a thread pool that is full, must not cost the
lease (bullmq#3183). And a lease must not be believed in longer than the server does: `fence_at` is
the moment, on the monotonic clock, when our own lease time is over, counted from when the last
renewal *left*. From then on the job is lost to us, whatever happens.
"""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.client import held_lease
from ksana.client.api_client import ApiClient
from ksana.client.held_lease import HeldLease
from ksana.client.transport import CallBackoff

H = TypeVar("H", bound=HeldLease)
C = TypeVar("C", bound=ApiClient)


class LeaseThread(ABC, Generic[H, C]):
    """Renews the leases in `held` until stopped, with a client like `client`. `on_lost` is called
    on this thread."""

    most: ClassVar[int]
    """Leases in one request."""

    def __init__(
        self,
        name: str,
        client: C,
        held: Mapping[str, H],
        ttl_us: Micros,
        clock: Clock,
        on_lost: Callable[[H, str], None],
    ) -> None:
        self._source = client
        self._held = held
        self._ttl_us = ttl_us
        self._tick_us = max(ttl_us // 6, 20 * MILLISECOND)
        self._clock = clock
        self._on_lost = on_lost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    @abstractmethod
    async def renew(self, client: C, due: list[H]) -> None:
        """Renew some leases in one request. One try: the next renewal is the repeat, and carries
        what is true by then."""

    async def look_around(self, client: C, now: Micros) -> None:
        """Do what else is to be done after each round of renewals."""

    async def keep(self) -> None:
        """On the thread's own event loop: renew what is due and sleep, until stopped."""
        deadline_sec = min(self._source.deadline_sec, self._ttl_us / 4 / SECOND)
        async with self._source.twin(
            deadline_sec=deadline_sec, backoff=CallBackoff(tries=1)
        ) as client:
            while not self._is_stopping:
                assert self._wake is not None
                self._wake.clear()
                now = self._clock.monotonic()
                alive = self._list_alive(now)
                due = [held for held in alive if self.due_at(held) <= now]
                for start in range(0, len(due), self.most):
                    await self.renew(client, due[start : start + self.most])
                await self.look_around(client, now)
                await self._sleep(alive)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Renew no more and wait for the thread."""
        self._is_stopping = True
        self.wake()
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 1.0)
            self.wake()

    def wake(self) -> None:
        """Look again now. From any thread."""
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just closed
                loop.call_soon_threadsafe(wake.set)

    def _main(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await self.keep()

    def _list_alive(self, now: Micros) -> list[H]:
        """What is still ours to renew. A job that has ended is renewed until the server has its
        result: while another handler blocks the event loop, the result waits there."""
        kept = [held for held in list(self._held.values()) if held.phase is not held_lease.LOST]
        return [held for held in kept if not self._is_fenced(held, now)]

    def _is_fenced(self, held: H, now: Micros) -> bool:
        if now < held.fence_at:
            return False
        if held.phase is held_lease.RUNNING:
            self._on_lost(held, "its own lease time has passed")
        return True  # of a job that has ended, the server's answer to its result decides

    def due_at(self, held: H) -> Micros:
        """When to renew a lease next."""
        return held.beat_at

    async def _sleep(self, alive: Iterable[H]) -> None:
        """Sleep until something is due, or somebody wakes us."""
        now = self._clock.monotonic()
        until = min(
            [now + self._tick_us, *(min(self.due_at(held), held.fence_at) for held in alive)]
        )
        assert self._wake is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, until - now) / SECOND):
                await self._wake.wait()

    def _postpone(self, due: Iterable[H]) -> None:
        """Renew again soon: a tenth of the lease's time, so that an outage of half of it is still
        survived."""
        again_at = self._clock.monotonic() + min(self._ttl_us // 10, 2 * SECOND)
        for held in due:
            held.beat_at = again_at
