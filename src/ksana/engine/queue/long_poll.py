"""How a claim that found nothing waits: it costs nothing until something comes that it would take.

A submit or a requeue on this instance wakes exactly the waiters that accept its line. What happens
on another instance is seen by one small read every 20 ms, made only while somebody waits here and
only on a store that others share. A wake-up is a hint: the waiter claims again, and may find that
another was faster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros
from ksana.domain.queue.jobs import Line, Wants, accepts

LOOK_EVERY: Final[Micros] = 20 * MILLISECOND
"""Together with the claim itself well under the 50 ms within which a submit elsewhere must be
noticed."""


class Waiter:
    """One claim that waits. Enter it before the first try, so that nothing is missed between try
    and wait."""

    __slots__ = ("_arrivals", "came", "needs_capacity", "wants")

    def __init__(self, arrivals: "Arrivals", wants: Wants, needs_capacity: bool) -> None:
        self._arrivals = arrivals
        self.wants = wants
        self.needs_capacity = needs_capacity
        self.came = asyncio.Event()

    def __enter__(self) -> "Waiter":
        self._arrivals.waiters.add(self)
        self._arrivals.somebody_waits.set()
        return self

    def __exit__(self, *_: object) -> None:
        self._arrivals.waiters.discard(self)


class Arrivals:
    """Who waits for jobs on this instance, and how they hear of them."""

    def __init__(
        self, clock: Clock, read_count: Callable[[], Awaitable[int]], is_shared: Callable[[], bool]
    ) -> None:
        self._clock = clock
        self._read_count = read_count
        self._is_shared = is_shared
        self.waiters: set[Waiter] = set()
        self.somebody_waits = asyncio.Event()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._is_closed

    def close(self) -> None:
        """The server goes down: let every waiter answer now."""
        self._is_closed = True
        self._wake_all()

    def tell_lines(self, lines: Iterable[Line]) -> None:
        """Jobs of these lines became ready."""
        if not self.waiters:
            return
        fresh = list(lines)
        for waiter in self.waiters:
            if not waiter.came.is_set() and any(accepts(line, waiter.wants) for line in fresh):
                waiter.came.set()

    def tell_ready(self) -> None:
        """Some jobs became ready, it is not known which."""
        if self.waiters:
            self._wake_all()

    def tell_capacity(self) -> None:
        """Units became free."""
        for waiter in self.waiters:
            if waiter.needs_capacity:
                waiter.came.set()

    async def wait(self, waiter: Waiter, until: Instant) -> bool:
        """Wait for something the waiter would take; False when the time is over."""
        if self._is_closed:
            return False
        came = await self._clock.wait(waiter.came, until)
        waiter.came.clear()
        return came and not self._is_closed

    async def watch(self) -> None:
        """The loop that looks for what other instances did."""
        while True:
            if not self.waiters:
                self.somebody_waits.clear()
                await self.somebody_waits.wait()
            if not self._is_shared():
                # Nobody else writes to this store. The loop rests; a waiter now and then makes it
                # look here again.
                await self._clock.sleep_until(self._clock.now() + SECOND)
                continue
            await self._watch_while_waiting()

    async def _watch_while_waiting(self) -> None:
        known = await self._read_count()
        # What came between a waiter's own try and this first reading is not in the difference.
        self._wake_all()
        while self.waiters:
            await self._clock.sleep_until(self._clock.now() + LOOK_EVERY)
            count = await self._read_count()
            if count != known:
                known = count
                self._wake_all()

    def _wake_all(self) -> None:
        for waiter in self.waiters:
            waiter.came.set()
