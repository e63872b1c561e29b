"""Delivery: claimed runs become calls, calls become outcomes, outcomes are written in the next
group commit.

    firing ──claimed──▶ Dispatcher ─▶ host queues ─▶ caller ─▶ Recorder ─▶ store
    store ──ready──▶ Claimer ─┘                                    │
      ▲                                                            └─▶ ready hosts, wakes
      └── retries and promotions make runs ready again

This is the front of the four parts: it connects them, and is what the rest of the program knows.
Firing alone is handed two of them: the dispatcher takes its runs, the claimer the hosts. A run
waiting for its retry or its callback is in the store and holds nothing here.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND
from ksana.engine.core.pump import Pump
from ksana.engine.tasks.cancel_watch import CancelWatch
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.claimer import Claimer
from ksana.engine.tasks.dispatcher import Dispatcher, InstanceLease
from ksana.engine.tasks.recorder import Recorded, Recorder, RunObserver
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.caller import Caller
from ksana.ports.store import Store


class DeliveryMetrics(RunObserver, Protocol):
    """What delivery counts."""

    def called(self, over: AttemptOver) -> None:
        """An attempt ended."""
        ...


class Delivery:
    """Connects dispatcher, recorder, claimer and cancel watch of one instance."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        caller: Callable[[], Caller],
        instance_id: str,
        lease: InstanceLease,
        metrics: DeliveryMetrics,
        observers: tuple[RunObserver, ...] = (),
        *,
        workers: int,
        per_host: int,
        callback_base: str,
        agent: str,
        secrets: TaskSecrets = CLEAR,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._quiet = asyncio.Event()
        self.on_wakes: Callable[[], None] = lambda: None
        self.on_abort: Callable[[int], None] = lambda run_id: None
        """A run that may wait for its job here was cancelled."""
        self.on_places: dict[str, Callable[[], None]] = {}
        """Who starts the runs that no host is called for, by their place."""
        self.dispatcher = Dispatcher(
            store,
            clock,
            caller,
            lease,
            self._on_over,
            workers=workers,
            per_host=per_host,
            callback_base=callback_base,
            agent=agent,
            secrets=secrets,
        )
        self.recorder = Recorder(
            store,
            clock,
            instance_id,
            (metrics, *observers),
            self.dispatcher.watermark,
            self._on_recorded,
        )
        self.claimer = Claimer(store, clock, instance_id, self.dispatcher)
        self.cancel_watch = CancelWatch(store, clock, self.dispatcher, self.claimer)
        self.claimer.on_place = self._on_place
        self.dispatcher.on_blocked = self.recorder.pump.signal
        self.dispatcher.on_first_call = self.cancel_watch.pump.signal

    @property
    def pumps(self) -> tuple[Pump, ...]:
        """The loops to run."""
        return (
            self.recorder.pump,
            self.claimer.pump,
            self.cancel_watch.pump,
            self.dispatcher.turns,
        )

    def ready(self, host: str) -> None:
        """A run of this host is about to start."""
        self.claimer.add((host,))

    def on_handled(self, ready_hosts: Iterable[str], wakes: bool) -> None:
        """Runs were moved elsewhere: these hosts have runs about to start, and some must be looked
        at later."""
        if ready_hosts:
            self.claimer.add(ready_hosts)
        if wakes:
            self.on_wakes()

    def abort(self, run_id: int) -> None:
        """End a call in flight; its result will find the token void."""
        self.dispatcher.abort(run_id)
        self.on_abort(run_id)

    def known_runs(self) -> set[int]:
        """The runs that wait here, are in flight, or whose outcome is being written."""
        return self.recorder.known_runs() | self.dispatcher.known_runs()

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return len(self.dispatcher.in_flight)

    async def drain(self) -> None:
        """Take nothing more; wait until what is claimed was sent and recorded."""
        self.dispatcher.is_stopped = True
        self.claimer.stop()
        while not (self.dispatcher.is_idle and self.recorder.is_idle):
            self._quiet.clear()
            await self._clock.wait(self._quiet, self._clock.now() + 50 * MILLISECOND)

    def close(self) -> None:
        """Abort what is left; the rescue of orphans has it."""
        self.dispatcher.is_stopped = True
        self.claimer.stop()
        self.dispatcher.close()

    def _on_over(self, over: AttemptOver) -> None:
        self._metrics.called(over)
        if self.dispatcher.is_stopped and over.reply.kind == "aborted":
            self._quiet.set()
        else:
            self.recorder.add(over)

    def _on_place(self, place: str) -> None:
        start = self.on_places.get(place)
        if start is not None:
            start()

    def _on_recorded(self, recorded: Recorded) -> None:
        self.dispatcher.move_watermark(recorded.watermark)
        if recorded.ready_hosts or recorded.wakes:
            self.on_handled(recorded.ready_hosts, recorded.wakes)
        self._quiet.set()
