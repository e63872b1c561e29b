"""The one clock. All code takes time from it and waits only through it.

`SystemClock` is the real one. `VirtualClock` stands still until `advance` (or `run_until_idle`) moves it from one
deadline to the next, in order, letting every woken task run before time moves on: a year passes in a second, and the
same test gives the same trace every time.
"""

import asyncio
import heapq
import itertools
import time
from typing import Protocol

from ksana.base.instant import Instant, Micros

SETTLE_TURNS = 25
"""Turns of the event loop the virtual clock gives woken tasks before it believes that nothing more will happen."""


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> Instant:
        """Tell the wall time."""
        ...

    def monotonic(self) -> Micros:
        """Tell a time that never steps; only differences mean anything."""
        ...

    async def sleep_until(self, at: Instant) -> None:
        """Wait until the wall clock as known now reaches `at`. A step of the wall clock meanwhile is not seen."""
        ...

    async def wait(self, event: asyncio.Event, until: Instant | None) -> bool:
        """Wait for the event or the instant, whichever is first; tell whether the event came."""
        ...


class SystemClock:
    """Wall and monotonic time of the machine."""

    def now(self) -> Instant:
        return time.time_ns() // 1000

    def monotonic(self) -> Micros:
        return time.monotonic_ns() // 1000

    async def sleep_until(self, at: Instant) -> None:
        await asyncio.sleep(max(0, at - self.now()) / 1e6)

    async def wait(self, event: asyncio.Event, until: Instant | None) -> bool:
        if event.is_set():
            return True
        if until is None:
            await event.wait()
            return True
        # A bare timer that sets the event's twin is cheaper than wait_for, which makes a task per call.
        loop = asyncio.get_running_loop()
        waiter = asyncio.ensure_future(event.wait())
        timer = loop.call_later(max(0, until - self.now()) / 1e6, waiter.cancel)
        try:
            await waiter
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return False
        finally:
            timer.cancel()
            waiter.cancel()
        return True


class VirtualClock:
    """Time that moves only when told to."""

    def __init__(self, start: Instant = 1_767_225_600_000_000) -> None:
        self._now = start
        self._monotonic = 0
        self._order = itertools.count()
        self._sleepers: list[tuple[Instant, int, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> Micros:
        return self._monotonic

    async def sleep_until(self, at: Instant) -> None:
        if at <= self._now:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + at - self._now, next(self._order), sleeper))
        await sleeper

    async def wait(self, event: asyncio.Event, until: Instant | None) -> bool:
        if event.is_set():
            return True
        waiter = asyncio.ensure_future(event.wait())
        if until is None:
            await waiter
            return True
        sleeper = asyncio.ensure_future(self.sleep_until(until))
        try:
            await asyncio.wait((waiter, sleeper), return_when=asyncio.FIRST_COMPLETED)
            return event.is_set()
        finally:
            waiter.cancel()
            sleeper.cancel()

    def step(self, by: Micros) -> None:
        """Step the wall clock, as an administrator or NTP would; monotonic time does not notice."""
        self._now += by

    async def advance(self, by: Micros) -> None:
        """Let `by` pass, waking sleepers one deadline at a time."""
        await self.settle()
        end = self._monotonic + by
        while self._sleepers and self._sleepers[0][0] <= end:
            self._move_to(max(self._monotonic, self._sleepers[0][0]))
            self._wake_due()
            await self.settle()
        self._move_to(end)
        await self.settle()

    async def advance_to(self, at: Instant) -> None:
        """Let time pass until the wall clock shows `at`."""
        await self.advance(max(0, at - self._now))

    async def settle(self) -> None:
        """Let every task that can run do so, without moving time."""
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)

    def _move_to(self, monotonic: Micros) -> None:
        self._now += monotonic - self._monotonic
        self._monotonic = monotonic

    def _wake_due(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            sleeper = heapq.heappop(self._sleepers)[2]
            if not sleeper.done():
                sleeper.set_result(None)
