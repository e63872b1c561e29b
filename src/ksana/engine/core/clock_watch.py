"""Watches the clocks: wall against monotonic, ours against the store's, and the event loop against
both.

It changes nothing. Slots are claimed once in the store, so a step back cannot fire one again; this
is how operators learn that a clock moved.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from ksana.base import log
from ksana.base.clock import Clock, until_beat
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros

CHECK_EVERY: Final[Micros] = 5 * SECOND
STEP_TOLERANCE: Final[Micros] = 250 * MILLISECOND
"""More than slewing (0.05 %) and scheduling noise can make between two checks."""

SKEW_TOLERANCE: Final[Micros] = SECOND


class ClockWatch:
    """Compares clocks every few seconds and reports through callbacks."""

    def __init__(
        self,
        clock: Clock,
        on_step: Callable[[Micros], None],
        store_now: Callable[[], Awaitable[Instant]] | None = None,
        on_skew: Callable[[Micros], None] | None = None,
        every_us: Micros = CHECK_EVERY,
    ) -> None:
        self.skew_us: Micros = 0
        """How far the store's clock was ahead of ours at the last look."""
        self.is_skewed = False
        self._clock = clock
        self._on_step = on_step
        self._store_now = store_now
        self._on_skew = on_skew
        self._every_us = every_us
        self._wall = clock.now()
        self._mono = clock.monotonic()

    async def run(self) -> None:
        """Check for ever."""
        self._wall, self._mono = self._clock.now(), self._clock.monotonic()
        while True:
            await self._clock.sleep_until(self._clock.now() + self._every_us)
            self.check_steps()
            await self.check_skew()

    def check_steps(self) -> Micros:
        """Compare both clocks since the last look; report the step and answer it, 0 for none."""
        wall, mono = self._clock.now(), self._clock.monotonic()
        step_us = (wall - self._wall) - (mono - self._mono)
        self._wall, self._mono = wall, mono
        if abs(step_us) <= STEP_TOLERANCE:
            return 0
        log.warning(
            "wall clock stepped",
            step_ms=step_us // 1000,
            direction="forward" if step_us > 0 else "back",
        )
        self._on_step(step_us)
        return step_us

    async def check_skew(self) -> None:
        """Compare our clock with the store's. The time the question took is doubt in our favour."""
        if self._store_now is None:
            return
        asked_at, asked_mono = self._clock.now(), self._clock.monotonic()
        try:
            store_at = await self._store_now()
        except UnavailableError:
            return  # the store's own absence is reported elsewhere
        doubt_us = max(0, self._clock.monotonic() - asked_mono) // 2
        self.skew_us = store_at - (asked_at + doubt_us)
        was_skewed, self.is_skewed = self.is_skewed, abs(self.skew_us) - doubt_us > SKEW_TOLERANCE
        if self._on_skew is not None:
            self._on_skew(self.skew_us)
        if self.is_skewed and not was_skewed:
            log.warning("our clock and the store's disagree", skew_ms=self.skew_us // 1000)
        elif was_skewed and not self.is_skewed:
            log.info("our clock and the store's agree again", skew_ms=self.skew_us // 1000)


def proven_skew(store_at: Instant, asked_at: Instant, answered_at: Instant) -> Micros:
    """How far the store's clock is for certain ahead of ours, or behind (negative): it was read
    between the two instants."""
    if store_at > answered_at:
        return store_at - answered_at
    return min(0, store_at - asked_at)


async def watch_loop_lag(
    clock: Clock, observe: Callable[[Micros], None], every_us: Micros = SECOND
) -> None:
    """Measure how late the event loop wakes us, for ever: what blocks it delays every firing and
    heartbeat."""
    while True:
        asked_mono = clock.monotonic()
        rest_us = until_beat(asked_mono, every_us)  # with the pumps at rest
        await clock.sleep_until(clock.now() + rest_us)
        observe(max(0, clock.monotonic() - asked_mono - rest_us))
