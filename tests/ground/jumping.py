"""An event loop whose time jumps: when nobody has anything to do, it is at once as late as the next
timer. For code that waits by the event loop (`asyncio.timeout`, `asyncio.sleep`) and not by a clock
that was handed in.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND, Micros

BEGIN = 1_000.0
LONGEST_SEC = 20_000.0
"""A test that goes beyond this waits for what never comes."""
TICK_SEC = 1e-11
"""What a turn of the loop takes: with none at all, a rest of a timer too small to count would stay
for ever."""
REAL_PATIENCE_SEC = 1.0
"""So long in real time a thread is waited for where no timer runs."""


class JumpingLoop(asyncio.SelectorEventLoop):
    """Without timers it waits for threads in real time, and fails when none has anything to say."""

    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now = BEGIN

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if found := super().select(0 if timeout is not None else REAL_PATIENCE_SEC):
            return found
        assert timeout is not None, "nothing is due, and no thread is at work"
        self._loop.now += max(TICK_SEC, timeout)
        assert self._loop.now < BEGIN + LONGEST_SEC, "waited in vain for hours"
        return []


class LoopClock(VirtualClock):
    """Shows the time of the running loop."""

    def monotonic(self) -> Micros:
        return round(asyncio.get_running_loop().time() * SECOND)


def on_jumping_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on such a loop."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(test(*args, **named))

    return run


def loop_time() -> float:
    """How many seconds have passed since the test began."""
    return round(asyncio.get_running_loop().time() - BEGIN, 6)


async def pass_time(sec: float = 0.001) -> None:
    """Let everybody go on until so much later."""
    await asyncio.sleep(sec)


async def until(is_so: Callable[[], object]) -> None:
    """Let time pass until a fact holds, a hundredth of a second at a time."""
    while not is_so():
        await asyncio.sleep(0.01)
