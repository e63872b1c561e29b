"""The recorder: attempts that ended are gathered and written in the next group commit."""

from collections.abc import Callable
from typing import Final, Protocol

import structlog

from ksana.base.clock import Clock
from ksana.base.errors import StoreDownError
from ksana.base.instant import MILLISECOND, SECOND, Instant
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.outcomes import Recorded, record_outcomes
from ksana.engine.tasks.watermark import Watermark
from ksana.ports.store import Store

_log = structlog.get_logger("ksana.delivery")

MAX_OUTCOMES: Final = 500
MIN_INTERVAL: Final = 4 * MILLISECOND
"""Outcomes of a few milliseconds share a commit; after a pause the first is written at once."""

BUSY: Final = 64
BUSY_INTERVAL: Final = 32 * MILLISECOND
"""When that many came in one interval, the time is needed for calls: fewer and larger commits."""


class RunObserver(Protocol):
    """Is told what becomes of attempts: metrics, logs, history."""

    def recorded(self, over: AttemptOver, status: str) -> None:
        """It is on disk, and its run has this status now."""
        ...


class Recorder:
    """Owns the attempts that ended and are not written yet."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance_id: str,
        observers: tuple[RunObserver, ...],
        watermark: Watermark,
        on_recorded: Callable[[Recorded], None],
    ) -> None:
        """`on_recorded` is told what each commit came to."""
        self._store = store
        self._clock = clock
        self._instance_id = instance_id
        self._observers = observers
        self._watermark = watermark
        self._on_recorded = on_recorded
        self._over: list[AttemptOver] = []
        self._recording: list[AttemptOver] = []
        self.pump = Pump(
            "outcomes", clock, self._record, poll_us=30 * SECOND, min_interval_us=MIN_INTERVAL
        )

    def add(self, over: AttemptOver) -> None:
        """An attempt ended."""
        self._over.append(over)
        if len(self._over) == 1:
            self.pump.signal()

    def known_runs(self) -> set[int]:
        """The runs whose outcome is not written yet."""
        return {over.held.run_id for over in (*self._over, *self._recording)}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._over and not self._recording

    async def _record(self) -> Instant | None:
        watermark = self._watermark.find_next(self._clock.monotonic())
        if self._over or watermark:
            batch, self._over = self._over[:MAX_OUTCOMES], self._over[MAX_OUTCOMES:]
            self._recording = batch
            try:
                recorded = await self._write(batch, watermark)
            except StoreDownError:
                # Nothing was written: keep them. The guard makes a repeat harmless if something
                # was.
                self._over[:0] = batch
                raise
            finally:
                self._recording = []
            self.pump.min_interval_us = BUSY_INTERVAL if len(batch) >= BUSY else MIN_INTERVAL
            self._on_recorded(recorded)
            for observer in self._observers:
                observed = observer.recorded
                for over, status in recorded.statuses:
                    observed(over, status)
        else:
            self._on_recorded(Recorded(set(), False, [], 0))
        if len(self._over) >= MAX_OUTCOMES:
            return AGAIN
        if self._over or self._watermark.is_blocking:
            self.pump.signal()
        return None

    async def _write(self, batch: list[AttemptOver], watermark: int = 0) -> Recorded:
        """Record a batch. An outcome the store will not take is left to the rescue of orphans; the
        others are written without it."""
        try:
            recorded: Recorded = await self._store.transact(
                record_outcomes, batch, self._store.sole, self._instance_id, watermark
            )
            return recorded
        except StoreDownError:
            raise
        except Exception as error:
            if not batch:  # the watermark alone: nothing to leave out
                raise
            if len(batch) == 1:
                _log.error(
                    "an outcome cannot be recorded", run_id=batch[0].held.run_id, exc_info=error
                )
                return Recorded(set(), False, [], 0)
        middle = len(batch) // 2
        one, other = await self._write(batch[:middle]), await self._write(batch[middle:])
        return Recorded(
            one.ready_hosts | other.ready_hosts,
            one.wakes or other.wakes,
            one.statuses + other.statuses,
            one.refused + other.refused,
        )
