"""Long poll: how a request that found nothing waits. It costs nothing until something comes that it
would take.

A waiter says by a predicate what concerns it. What happens on this instance wakes exactly the
waiters it concerns. What happens on another instance is told by a signal, where signals are heard,
and seen by one small read every 20 ms (100 ms while signals are heard), made only while somebody
waits here and only on a store that others share. A wake-up is a hint: the waiter looks again, and
may find that another was faster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros

HEARD_LOOK_EVERY: Final[Micros] = 100 * MILLISECOND
"""The same while other instances tell us: the net under signals that are lost."""

LOOK_EVERY: Final[Micros] = 20 * MILLISECOND
"""Together with the request itself well under the 50 ms within which a change elsewhere must be
noticed."""

Thing = TypeVar("Thing")


class Waiter(Generic[Thing]):
    """One request that waits. Enter it before the first try, so that nothing is missed between try
    and wait."""

    __slots__ = ("_poll", "came", "concerns")

    def __init__(self, poll: "LongPoll[Thing]", concerns: Callable[[Thing], bool]) -> None:
        self._poll = poll
        self.concerns = concerns
        self.came = asyncio.Event()

    def __enter__(self) -> "Waiter[Thing]":
        self._poll.waiters[self] = None
        self._poll.somebody_waits.set()
        return self

    def __exit__(self, *_: object) -> None:
        self._poll.waiters.pop(self, None)


class LongPoll(Generic[Thing]):
    """Who waits on this instance, and how they are woken. `read_mark` reads a number that changes
    with everything a waiter may wait for."""

    def __init__(
        self, clock: Clock, read_mark: Callable[[], Awaitable[int]], is_shared: Callable[[], bool]
    ) -> None:
        self.tell: Callable[[], None] = lambda: None
        """Tells the other instances that something came here."""
        self.is_told: Callable[[], bool] = lambda: False
        """Whether the other instances tell us."""
        self._clock = clock
        self._read_mark = read_mark
        self._is_shared = is_shared
        self.waiters: dict[Waiter[Thing], None] = {}
        """In the order in which they came."""
        self.somebody_waits = asyncio.Event()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._is_closed

    def close(self) -> None:
        """The server goes down: let every waiter answer now."""
        self._is_closed = True
        self.hear()

    def notify(self, things: Iterable[Thing]) -> None:
        """These came: wake whom one of them concerns."""
        self.tell()
        self.notify_here(things)

    def notify_here(self, things: Iterable[Thing]) -> None:
        """The same for what does not concern other instances."""
        if not self.waiters:
            return
        came = list(things)
        for waiter in self.waiters:
            if not waiter.came.is_set() and any(map(waiter.concerns, came)):
                waiter.came.set()

    def notify_all(self) -> None:
        """Something came, it is not known what."""
        self.tell()
        self.hear()

    def hear(self, _: str = "") -> None:
        """Something came on another instance."""
        for waiter in self.waiters:
            waiter.came.set()

    async def wait(self, waiter: Waiter[Thing], until: Instant) -> bool:
        """Wait for something that concerns the waiter; False when the time is over."""
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
                # Nobody else writes to this store. The loop pauses; a waiter now and then makes it
                # look here again.
                await self._clock.sleep_until(self._clock.now() + SECOND)
                continue
            await self._watch_while_waiting()

    async def _watch_while_waiting(self) -> None:
        known = await self._read_mark()
        # What came between a waiter's own try and this first reading is not in the difference.
        self.hear()
        while self.waiters:
            rest_us = HEARD_LOOK_EVERY if self.is_told() else LOOK_EVERY
            await self._clock.sleep_until(self._clock.now() + rest_us)
            mark = await self._read_mark()
            if mark != known:
                known = mark
                self.hear()
