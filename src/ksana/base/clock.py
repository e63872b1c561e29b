"""The one clock. All code takes time from it and waits only through it.

`SystemClock` is the real one. `VirtualClock` stands still until `advance` (or `run_until_idle`)
moves it from one deadline to the next, in order, letting every woken task run before time moves on:
a year passes in a second, and the same test gives the same trace every time.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from ksana.base.instant import Instant, Micros

SETTLE_TURNS = 25
"""Turns of the event loop the virtual clock gives woken tasks before it believes that nothing more
will happen."""


NAP: Micros = 5_000_000
"""Longest sleep on one reading of the wall clock: a step is noticed within seconds. All who sleep
look at the same moments: one waking for many costs an idle process next to nothing."""


N = TypeVar("N", int, float)


def until_beat(mono: N, every: N) -> N:
    """How long it is from a monotonic time to a multiple of the interval: between half and one and
    a half of it away, so that a timer which rings a moment early does not ring again at once."""
    rest = every - mono % every
    return rest if 2 * rest >= every else rest + every


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> Instant:
        """Tell the wall time."""
        ...

    def monotonic(self) -> Micros:
        """Tell a time that never steps; only differences mean anything."""
        ...

    def boottime(self) -> Micros:
        """Tell a time like `monotonic` that also runs on while the machine is suspended, where the
        system has one. For leases: others count that time."""
        ...

    async def sleep_until(self, at: Instant) -> None:
        """Wait as long as it is until `at` by the wall clock as known now. A step of the clock
        meanwhile is not seen."""
        ...

    async def wait(self, event: asyncio.Event, until: Instant | None) -> bool:
        """Wait for the event or the instant, whichever is first; tell whether the event came.

        A clock stepped forward past `until` ends the wait within seconds; one stepped back does not
        lengthen it. So the wait may end before the wall clock shows `until`: look again, and wait
        again.
        """
        ...

    async def rest(self, event: asyncio.Event, for_us: Micros) -> bool:
        """Wait for the event, but not longer than this; tell whether the event came. What the wall
        clock does meanwhile does not matter, so nobody looks at it."""
        ...


# Linux stops CLOCK_MONOTONIC while it is suspended. macOS has a clock of that name which runs on;
# on Windows time.monotonic does.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
_boottime_ns: Callable[[], int] = (
    time.monotonic_ns if _BOOTTIME is None else partial(time.clock_gettime_ns, _BOOTTIME)
)


class SystemClock:
    """Wall and monotonic time of the machine."""

    def now(self) -> Instant:
        return time.time_ns() // 1000

    def monotonic(self) -> Micros:
        return time.monotonic_ns() // 1000

    def boottime(self) -> Micros:
        return _boottime_ns() // 1000

    async def sleep_until(self, at: Instant) -> None:
        await asyncio.sleep(max(0, at - self.now()) / 1e6)

    async def wait(self, event: asyncio.Event, until: Instant | None) -> bool:
        if until is None:
            await event.wait()
            return True
        end_mono = self.monotonic() + until - self.now()
        while not event.is_set():
            mono = self.monotonic()
            rest_us = min(until - self.now(), end_mono - mono, until_beat(mono, NAP))
            if rest_us <= 0:
                return False
            await self.rest(event, rest_us)
        return True

    async def rest(self, event: asyncio.Event, for_us: Micros) -> bool:
        # A timer that cancels the waiter is cheaper than wait_for.
        loop = asyncio.get_running_loop()
        waiter = loop.create_task(event.wait())
        timer = loop.call_later(for_us / 1e6, waiter.cancel)
        try:
            return await waiter
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return False
        finally:
            timer.cancel()
            waiter.cancel()


class VirtualClock:
    """Time that moves only when told to."""

    def __init__(self, start: Instant = 1_767_225_600_000_000) -> None:
        self._now = start
        self._monotonic = 0
        self._suspended = 0
        self._order = itertools.count()
        self._sleepers: list[tuple[Instant, int, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> Micros:
        return self._monotonic

    def boottime(self) -> Micros:
        return self._monotonic + self._suspended

    async def sleep_until(self, at: Instant) -> None:
        end = self._monotonic + at - self._now
        if end <= self._monotonic:
            await asyncio.sleep(0)
        while self._monotonic < end:
            await self._sleep_to(end)

    async def wait(self, event: asyncio.Event, until: Instant | None) -> bool:
        if until is None:
            return await event.wait()
        return await self._rest(event, until - self._now, until)

    async def rest(self, event: asyncio.Event, for_us: Micros) -> bool:
        return await self._rest(event, for_us, None)

    async def _rest(self, event: asyncio.Event, for_us: Micros, until: Instant | None) -> bool:
        waiter = asyncio.ensure_future(event.wait())
        end = self._monotonic + for_us
        try:
            while not event.is_set() and self._monotonic < end:
                if until is not None and self._now >= until:
                    break
                sleeper = asyncio.ensure_future(self._sleep_to(end))
                await asyncio.wait((waiter, sleeper), return_when=asyncio.FIRST_COMPLETED)
                sleeper.cancel()
            return event.is_set()
        finally:
            waiter.cancel()

    async def _sleep_to(self, monotonic: Micros) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (monotonic, next(self._order), sleeper))
        await sleeper

    def next_deadline(self) -> Micros | None:
        """How long until somebody wants to wake; None if nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] - self._monotonic if self._sleepers else None

    def step(self, by: Micros) -> None:
        """Step the wall clock, as an administrator or NTP would; monotonic time does not notice."""
        self._now += by
        for _, _, sleeper in self._sleepers:  # let everybody look at the clock again
            if not sleeper.done():
                sleeper.set_result(None)

    def suspend(self, by: Micros) -> None:
        """Suspend the machine for so long: nobody runs, and monotonic time stands still."""
        self._suspended += by
        self.step(by)

    async def advance(self, by: Micros) -> None:
        """Let `by` pass, waking sleepers one deadline at a time."""
        await self.settle()
        end = self._monotonic + by
        while (rest := self.next_deadline()) is not None and self._monotonic + rest <= end:
            self._move_to(self._monotonic + max(0, rest))
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
