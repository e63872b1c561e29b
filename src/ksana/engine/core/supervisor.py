"""The supervisor: holds every long-running loop as a task, restarts one that falls, and reports
their state.

A crash is restarted with exponential backoff and jitter, logged with its stack. A store that is
down is no crash: the loop pauses quietly and tries again. A loop that returns by itself counts as
fallen, for a loop has no end. The tasks are referenced here for their whole life, so none can be
collected while it waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Literal

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros

LoopState = Literal["running", "recovering", "paused", "stopped"]
"""running; recovering: fell and waits for its restart, or restarted a moment ago; paused: waits for
the store or another dependency; stopped: ended on purpose."""

_BACKOFF_LEAST: Final[Micros] = 100 * MILLISECOND
_BACKOFF_MOST: Final[Micros] = 30 * SECOND
_PAUSE_MOST: Final[Micros] = SECOND
"""A store that comes back is noticed soon, and a store that is away refuses at once; a bug is not
cured by trying often."""

_PROVEN_AFTER: Final[Micros] = 10 * SECOND
"""A restarted loop that ran this long is well again: its count of failures in a row starts anew."""

_RESUMED_AFTER: Final[Micros] = 250 * MILLISECOND
"""A loop that waited for the store is shown as running after so long: it asks the store first, and
falls at once if that is still away."""

_TURNS: Final = 16
"""Turns of the event loop that a cancelled loop gets however little time is left: one that is
willing to end needs no more."""


class Loop(msgspec.Struct, frozen=True):
    """A named loop: `run` goes on until cancelled."""

    name: str
    run: Callable[[], Awaitable[None]]


class LoopReport(msgspec.Struct, frozen=True):
    """How one loop fares, for /readyz."""

    name: str
    state: LoopState
    since: Instant
    restarts: int
    last_error: str | None = None
    last_error_at: Instant | None = None

    @property
    def ok(self) -> bool:
        """Whether it does its work."""
        return self.state == "running"


class _Watched:
    """What the supervisor remembers of one loop."""

    def __init__(self, loop: Loop, now: Instant) -> None:
        self.loop = loop
        self.task: asyncio.Task[None] | None = None
        self.state: LoopState = "stopped"
        self.since = now
        self.restarts = 0
        self.failures = 0
        self.was_paused = False
        self.began_mono: Micros = 0
        self.last_error: str | None = None
        self.last_error_at: Instant | None = None

    def turn(self, state: LoopState, now: Instant) -> None:
        if state != self.state:
            self.state, self.since = state, now


class Supervisor:
    """Runs loops. `start` each, ask `readiness`, and `stop` them in the reverse order."""

    def __init__(
        self, clock: Clock, random: Random, on_restart: Callable[[str], None] | None = None
    ) -> None:
        self._clock = clock
        self._random = random
        self._on_restart = on_restart
        self._watched: dict[str, _Watched] = {}

    def start(self, loop: Loop) -> None:
        """Start a loop and keep it going."""
        if loop.name in self._watched:
            raise ValueError(f"a loop called {loop.name!r} is already here")
        watched = self._watched[loop.name] = _Watched(loop, self._clock.now())
        watched.turn("running", self._clock.now())
        watched.task = asyncio.create_task(self._keep_going(watched), name=f"loop:{loop.name}")

    def readiness(self) -> tuple[LoopReport, ...]:
        """The state of each loop, in the order of their start."""
        return tuple(self._report(watched) for watched in self._watched.values())

    async def stop(
        self, within_us: Micros, names: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Cancel loops (all, or those named), the last started first, and wait for each as long as
        `within_us` lasts in all. One that will not end takes at most half of what is left before
        the next is cancelled. Answer the names of those that did not end in time."""
        until_mono = self._clock.monotonic() + within_us
        stopped: list[tuple[_Watched, asyncio.Task[None]]] = []
        for watched in reversed(list(self._watched.values())):
            task = watched.task
            if task is None or (names is not None and watched.loop.name not in names):
                continue
            task.cancel()
            stopped.append((watched, task))
            now_mono = self._clock.monotonic()
            await self._wait_for_end(task, now_mono + max(0, until_mono - now_mono) // 2)
            watched.turn("stopped", self._clock.now())
        late = []
        for watched, task in stopped:
            await self._wait_for_end(task, until_mono)
            if not task.done():
                late.append(watched.loop.name)
            watched.task = None if task.done() else task
        return tuple(late)

    async def _wait_for_end(self, task: asyncio.Task[None], until_mono: Micros) -> None:
        for _ in range(_TURNS):
            if task.done():
                return
            await asyncio.sleep(0)
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        while not task.done() and (rest_us := until_mono - self._clock.monotonic()) > 0:
            # Again if the wall clock was stepped: only the time that passed counts.
            await self._clock.wait(ended, self._clock.now() + rest_us)

    def _report(self, watched: _Watched) -> LoopReport:
        state = watched.state
        if state == "running" and watched.failures:
            proof_us = _RESUMED_AFTER if watched.was_paused else _PROVEN_AFTER
            if not self._ran_for(watched, proof_us):
                state = "paused" if watched.was_paused else "recovering"
        if watched.task is not None and watched.task.done() and state != "stopped":
            state = "recovering"  # the keeper itself died: never expected, and never shown as well
        return LoopReport(
            watched.loop.name,
            state,
            watched.since,
            watched.restarts,
            watched.last_error,
            watched.last_error_at,
        )

    def _ran_for(self, watched: _Watched, least_us: Micros) -> bool:
        return self._clock.monotonic() - watched.began_mono >= least_us

    async def _keep_going(self, watched: _Watched) -> None:
        while True:
            watched.began_mono = self._clock.monotonic()
            watched.turn("running", self._clock.now())
            error = await self._run_once(watched)
            if _is_cancelled():
                return  # the loop swallowed its cancellation and ended all the same
            if self._ran_for(watched, _PROVEN_AFTER):
                watched.failures = 0
            watched.failures += 1
            watched.restarts += 1
            watched.last_error = f"{type(error).__name__}: {error}"[:1024]
            watched.last_error_at = self._clock.now()
            is_pause = watched.was_paused = isinstance(error, UnavailableError)
            watched.turn("paused" if is_pause else "recovering", self._clock.now())
            delay_us = self._delay_us(watched.failures, _PAUSE_MOST if is_pause else _BACKOFF_MOST)
            self._report_failure(watched, error, delay_us, is_pause)
            await self._clock.sleep_until(self._clock.now() + delay_us)

    async def _run_once(self, watched: _Watched) -> BaseException:
        try:
            await watched.loop.run()
        except asyncio.CancelledError as error:
            # Ours to obey only if somebody cancelled this very task; a stray one from inside is a
            # fault like any other.
            if _is_cancelled():
                raise
            return error
        except Exception as error:
            return error
        return RuntimeError("the loop ended by itself")

    def _delay_us(self, failures: int, most: Micros) -> Micros:
        full = min(_BACKOFF_LEAST << min(failures - 1, 30), most)
        return int(full * (0.5 + self._random.random() / 2))

    def _report_failure(
        self, watched: _Watched, error: BaseException, delay_us: Micros, is_pause: bool
    ) -> None:
        if is_pause:
            if watched.failures == 1:
                log.warning("loop paused", loop=watched.loop.name, err=str(error))
        else:
            log.error(
                "loop fell and will be restarted",
                loop=watched.loop.name,
                delay_ms=delay_us // 1000,
                exc_info=error,
            )
        if self._on_restart is not None:
            self._on_restart(watched.loop.name)


def _is_cancelled() -> bool:
    """Whether somebody asked the current task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
