"""Hints of the tasks surface: from its services to the engine, and to the other instances."""

from collections.abc import Sequence
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.tasks.records import Task
from ksana.engine.core.signal_relay import SignalRelay
from ksana.engine.tasks.delivery import Delivery
from ksana.engine.tasks.firing import FiringEngine

TELL_WITHIN: Final[Micros] = 10 * SECOND
"""What is due later is found by the polls of the other instances in time."""

MOST_TOLD: Final = 1000
"""Characters of run ids in one signal; a run beyond is found by the poll for cancels."""


class TaskHints:
    """Carries the services' hints to the engine, and those that others need to them."""

    def __init__(
        self, firing: FiringEngine, delivery: Delivery, signals: SignalRelay, clock: Clock
    ) -> None:
        self._firing = firing
        self._delivery = delivery
        self._signals = signals
        self._clock = clock
        signals.subscribe("tasks.due", self._hear_due)
        signals.subscribe("tasks.canceled", self._hear_canceled)

    def due(self, at: Instant | None) -> None:
        self._firing.hint(at)
        if at is not None and at < self._clock.now() + TELL_WITHIN:
            self._signals.tell("tasks.due", str(at), _earlier)
            if not self._signals.is_live:
                self._firing.fire_all_until(at)

    def made(self, tasks: Sequence[Task]) -> None:
        self._firing.cache.add(tasks)

    def ready(self, host: str) -> None:
        self._delivery.ready(host)

    def paced(self) -> None:
        self._delivery.on_wakes()

    def canceled(self, run_id: int) -> None:
        self._delivery.abort(run_id)
        self._signals.tell("tasks.canceled", str(run_id), _join)

    def _hear_due(self, at: str) -> None:
        if at.isdigit():
            self._firing.hint(int(at))

    def _hear_canceled(self, run_ids: str) -> None:
        for run_id in run_ids.split(","):
            if run_id.isdigit():
                self._delivery.abort(int(run_id))


def _earlier(one: str, other: str) -> str:
    return min(one, other, key=int)


def _join(one: str, other: str) -> str:
    return one if len(one) > MOST_TOLD else f"{one},{other}"
