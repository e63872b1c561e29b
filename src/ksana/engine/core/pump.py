"""The pump: the one shape of a loop. Do what is due, in batches, then park until the next due
instant or a signal.

The step does everything that is due and answers when the next thing is. A signal is a hint that
something earlier came; the poll is the net under lost hints. Three rules keep it honest:

- It trusts no single reading of the wall clock: the clock's `wait` looks again every few seconds. A
  clock stepped back delays nothing by the size of the step, one stepped forward wakes it within
  seconds. The poll runs on monotonic time, which does not step.
- It never spins: a step that answers an instant which had already passed when it began got nothing
  done about it, so the next call waits, from a millisecond up to a second. A step that stopped in
  the middle of its work answers AGAIN.
- It catches nothing: what the step raises is the supervisor's to see.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros

AGAIN: Final[Instant] = -1
"""The step's answer when it left due work undone on purpose: call it again at once, after others
had their turn."""

_BACKOFF_LEAST: Final[Micros] = MILLISECOND
_BACKOFF_MOST: Final[Micros] = SECOND


class Pump:
    """One loop. `run` goes on until it is cancelled or the step raises; it may be run again
    afterwards."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        step: Callable[[], Awaitable[Instant | None]],
        poll_us: Micros = 5 * SECOND,
        min_interval_us: Micros = 0,
        delay_us: Micros = 0,
    ) -> None:
        """`min_interval_us` is the least time from the start of one step to the next, unless the
        step answered AGAIN: under load a few milliseconds make one commit of many, and a step after
        a pause is not delayed at all. `delay_us` is how long a signal may wait: for a step that has
        nothing to do before."""
        self.name = name
        self.steps = 0
        self._clock = clock
        self._step = step
        self._poll_us = max(poll_us, MILLISECOND)
        self.min_interval_us = min_interval_us
        self._delay_us = delay_us
        self._wake = asyncio.Event()
        self._backoff_us: Micros = 0

    def signal(self) -> None:
        """Hint that something may be due earlier than known. Cheap, and any number of hints make
        one step."""
        self._wake.set()

    async def run(self) -> None:
        """Step and park, for ever."""
        clock, wake = self._clock, self._wake
        while True:
            # Cleared before the step reads anything: a signal that comes while it works is kept for
            # the next one.
            wake.clear()
            began_at, began_mono = clock.now(), clock.monotonic()
            self.steps += 1
            due_at = await self._step()
            if due_at == AGAIN:
                self._backoff_us = 0
                await asyncio.sleep(0)
                continue
            if due_at is None or due_at > began_at:
                self._backoff_us = 0
            else:  # this step should have dealt with it
                self._backoff_us = min(max(self._backoff_us * 2, _BACKOFF_LEAST), _BACKOFF_MOST)
                due_at = clock.now() + self._backoff_us
            await self._park(due_at)
            if self.min_interval_us:
                early_us = began_mono + self.min_interval_us - clock.monotonic()
                if early_us > 0:
                    await clock.sleep_until(clock.now() + early_us)

    async def _park(self, due_at: Instant | None) -> None:
        clock, wake = self._clock, self._wake
        poll_at = clock.monotonic() + self._poll_us
        if self._poll_us > SECOND:
            poll_at -= poll_at % SECOND  # pumps at rest wake together
        while True:
            if wake.is_set():
                if not self._delay_us:
                    break
                wake.clear()
                now = clock.now()
                due_at = min(now + self._delay_us, due_at or now + self._delay_us)
            rest_us = poll_at - clock.monotonic()
            if due_at is None:
                if rest_us <= 0:
                    break
                await clock.rest(wake, rest_us)
                continue
            now = clock.now()
            rest_us = min(rest_us, due_at - now)
            if rest_us <= 0:
                break
            await clock.wait(wake, now + rest_us)
        # Even a due step lets others run first: a step that never awaits must not starve the event
        # loop.
        await asyncio.sleep(0)
