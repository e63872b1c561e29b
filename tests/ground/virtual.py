"""Tests on the virtual clock: run something to its end while time jumps from deadline to deadline.

Time never passes by itself. Where a real thread takes part (a store's), the clock stands still
until it is done.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ksana.base.clock import VirtualClock
from ksana.base.instant import Instant, Micros

T = TypeVar("T")

SECOND: Micros = 1_000_000
MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE
DAY: Micros = 24 * HOUR

REAL_PATIENCE_S = 10.0
"""How long in real time a test may wait for a thread before it fails."""


def next_deadline(clock: VirtualClock) -> Instant | None:
    """The instant the next sleeper wants to wake; None if nobody sleeps."""
    rest = clock.next_deadline()
    return None if rest is None else clock.now() + rest


async def eventually(fact: Callable[[], object], what: str = "the fact") -> None:
    """Wait in real time, the virtual clock standing still, until `fact()` holds."""
    give_up_at = time.monotonic() + REAL_PATIENCE_S
    while not fact():
        assert time.monotonic() < give_up_at, f"waited {REAL_PATIENCE_S:g} s in vain for {what}"
        await asyncio.sleep(0.001)


async def finish(clock: VirtualClock, work: Awaitable[T], *, within_us: Micros = 366 * DAY) -> T:
    """Await `work` while time jumps to each next deadline, and no further than `within_us`."""
    task = asyncio.ensure_future(work)
    end = clock.now() + within_us
    give_up_at = time.monotonic() + REAL_PATIENCE_S
    try:
        while not task.done():
            await clock.settle()
            deadline = next_deadline(clock)
            if task.done() or deadline is None:
                # Nobody sleeps: a thread is at work, or nothing will ever happen.
                await asyncio.wait((task,), timeout=0.005)
                assert task.done() or time.monotonic() < give_up_at, (
                    "nothing is due and the work is not done"
                )
                continue
            assert deadline <= end, f"not done within {within_us} µs of virtual time"
            await clock.advance_to(deadline)
            give_up_at = time.monotonic() + REAL_PATIENCE_S
        return task.result()
    finally:
        task.cancel()
