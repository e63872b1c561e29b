"""Finds calls in flight whose run was taken away: cancelled on another instance, or ended by its
callback."""

from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, SECOND, Instant
from ksana.engine.core.pump import Pump
from ksana.engine.tasks.claimer import Claimer
from ksana.engine.tasks.dispatcher import Dispatcher
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

LOOK_EVERY: Final = 400 * MILLISECOND
"""A cancel made on another instance is seen within a second."""


class CancelWatch:
    """Compares calls in flight with the store, as long as there are any."""

    def __init__(
        self, store: Store, clock: Clock, dispatcher: Dispatcher, claimer: Claimer
    ) -> None:
        self._store = store
        self._clock = clock
        self._dispatcher = dispatcher
        self._claimer = claimer
        self.pump = Pump("cancels", clock, self._look, poll_us=30 * SECOND, delay_us=LOOK_EVERY)

    async def _look(self) -> Instant | None:
        # Calls that just began are left for the next look: most end before it.
        before = self._clock.now() - LOOK_EVERY // 2
        claims = [
            (run_id, flying.token)
            for run_id, flying in self._dispatcher.in_flight.items()
            if flying.started_at < before
        ]
        if claims:
            for run_id in await self._store.read(_list_void, claims):
                self._dispatcher.abort(run_id)
        # A call that has become stale meanwhile frees a slot for a run that waits in the store.
        self._claimer.look_again()
        return self._clock.now() + LOOK_EVERY if self._dispatcher.in_flight else None


def _list_void(tx: TasksTx, claims: list[tuple[int, int]]) -> list[int]:
    return tx.run_due.list_void(claims)
