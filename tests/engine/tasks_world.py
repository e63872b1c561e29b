"""The whole of timers and tasks on a virtual clock: real store (inline SQLite), real services and
engine, a scripted caller."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND, Instant
from ksana.domain.queue.admission import Limits
from ksana.domain.schedule import Once, Schedule, make_cron, make_every
from ksana.domain.tasks.events import KINDS
from ksana.domain.tasks.records import (
    NODE_PLACE,
    QUEUE_PLACE,
    Definition,
    Options,
    RetryPolicy,
    Run,
    Task,
)
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.delivery import Delivery
from ksana.engine.tasks.firing import FiringEngine
from ksana.engine.tasks.node_runs import NodeRuns
from ksana.engine.tasks.queue_runs import QueueRuns
from ksana.engine.tasks.rescue import RescueEngine
from ksana.ports.caller import NOT_OURS, MaySend, Reply, Request, Timing, always
from ksana.ports.events import Event
from ksana.ports.store import WHOLE, Share
from ksana.ports.tasks.runs import RunFilter
from ksana.service.queue.handover import QueueHandover
from ksana.service.queue.service import QueueService
from ksana.service.tasks.callbacks import CallbackBody, CallbackService, Received
from ksana.service.tasks.definitions import NewTask, TaskService
from ksana.service.tasks.runs import RunService
from ksana.store.sql import SqlStore, open_store
from tests.engine.node_ground import ScriptedNodes

_KINDS = {(kind.entity, kind.name): kind for kind in KINDS}

Script = Callable[[Request], Reply | None]
"""What a target does: a reply at once, or None to hang until aborted or past its deadline."""


class Sent(msgspec.Struct):
    at: Instant
    request: Request

    def header(self, name: str) -> str:
        return next(value for key, value in self.request.headers if key.lower() == name.lower())


class _Call:
    is_resolving = False

    def __init__(self, end: Callable[[Reply], None]) -> None:
        self.end = end

    def abort(self) -> None:
        self.end(Reply("aborted", Timing(), error="aborted"))


class ScriptedCaller:
    """A Caller whose targets are functions; a hanging one times out on the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.sent: list[Sent] = []
        self.scripts: dict[str, Script] = defaultdict(lambda: lambda request: answer(200))
        self.open = 0
        self._hanging: list[asyncio.Task[None]] = []
        self.most_open = 0
        self.connects = True
        self.connecting: list[Callable[[], object]] = []
        """Calls that wait for a connection while there is none."""

    def call(
        self, request: Request, done: Callable[[Reply], None], may_send: MaySend = always
    ) -> _Call:
        if not self.connects:
            self.connecting.append(lambda: self.call(request, done, may_send))
            return _Call(lambda reply: None)
        if not may_send():
            held_back = Reply("aborted", Timing(), error=NOT_OURS, sends=0)
            asyncio.get_running_loop().call_soon(done, held_back)
            return _Call(lambda reply: None)
        self.sent.append(Sent(self._clock.now(), request))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        over = False

        def end(reply: Reply) -> None:
            nonlocal over
            if not over:
                over = True
                self.open -= 1
                asyncio.get_running_loop().call_soon(done, reply)

        reply = self.scripts[request.url](request)
        if reply is not None:
            end(reply)
        else:
            self._hanging.append(asyncio.ensure_future(self._time_out(request, end)))
        return _Call(end)

    def connect(self) -> None:
        """Let those in that wait for a connection."""
        self.connects = True
        for go_on in self.connecting:
            go_on()

    async def _time_out(self, request: Request, end: Callable[[Reply], None]) -> None:
        await self._clock.sleep_until(self._clock.now() + request.timeout_us)
        end(Reply("timeout", Timing(total_ms=request.timeout_us / 1000), error="no answer in time"))

    def close(self) -> None:
        """Nothing to free."""


def answer(status: int, body: bytes = b"", retry_after: str | None = None) -> Reply:
    return Reply(
        "answered", Timing(total_ms=1.0), status=status, body=body, retry_after=retry_after
    )


class Quiet:
    """Metrics that are only remembered."""

    def __init__(self) -> None:
        self.misfires: list[tuple[int, int]] = []

    def scanned(self, seconds: float, fired: int) -> None: ...

    def misfired(self, task_id: int, count: int) -> None:
        self.misfires.append((task_id, count))

    def called(self, over: AttemptOver) -> None: ...

    def recorded(self, ended: Sequence[tuple[AttemptOver, str]]) -> None: ...


class World:
    """One instance. `die` and `revive` stand for kill -9 and a restart; the store and the clock
    live on."""

    def __init__(
        self,
        store: SqlStore,
        clock: VirtualClock,
        instance: str = "one",
        workers: int = 64,
        per_host: int = 16,
    ) -> None:
        self.store = store
        self.clock = clock
        self.caller = ScriptedCaller(clock)
        self.metrics = Quiet()
        self.is_alive = False
        self.generation = 0
        self.share: Share = WHOLE
        self.nodes = ScriptedNodes(clock)
        self._is_draining = False
        self._names = 0
        self.renew_every_us = SECOND
        self.joins = False
        """Whether others run beside it."""
        self._instance = instance
        self._limits = (workers, per_host)
        self._tasks: list[asyncio.Task[None]] = []

    async def revive(self) -> None:
        """Start the instance, as a new one."""
        self._names += 1
        self._is_draining = False
        me = f"{self._instance}-{self._names}"
        clock, store = self.clock, self.store
        is_sole = not self.joins
        await store.transact(
            lambda tx: tx.instances.register(me, "host", "0", 15 * SECOND, is_sole)
        )
        self.delivery = Delivery(
            store,
            clock,
            lambda: self.caller,
            me,
            self,
            self.metrics,
            workers=self._limits[0],
            per_host=self._limits[1],
            callback_base="http://ksana/api/v1/callbacks",
            agent="ksana/test",
        )
        self.firing = FiringEngine(
            store,
            clock,
            me,
            self.delivery.dispatcher.slot_budget,
            self.delivery.dispatcher.take,
            self.delivery.claimer.add,
            self.metrics,
            batch_limit=500,
            poll_us=5 * SECOND,
            share=lambda: self.share,
        )
        self.queue = QueueService(store, clock, Limits())
        jobs = QueueHandover(self.queue)
        delivery = self.delivery
        self.queue_runs = QueueRuns(store, clock, jobs, me, (self.metrics,), delivery.on_handled)
        delivery.on_places[QUEUE_PLACE] = self.queue_runs.ready
        node_runs = NodeRuns(store, clock, self.nodes, me, self, delivery.recorder.add)
        self.node_runs = node_runs
        delivery.on_places[NODE_PLACE] = node_runs.ready
        delivery.on_abort = node_runs.abort
        self.rescue = RescueEngine(
            store,
            clock,
            me,
            delivery.ready,
            lambda: delivery.known_runs() | node_runs.known_runs(),
            self.queue_runs,
            lambda: node_runs.are_jobs_kept,
        )
        self.delivery.on_wakes = self.rescue.wakes.signal
        self.tasks = TaskService(store, clock, self, SECOND)
        self.runs = RunService(store, self, jobs)
        self.callbacks = CallbackService(store, clock, self, 3600 * SECOND, True)
        self.is_alive = True
        pumps = (
            *self.delivery.pumps,
            self.rescue.wakes,
            self.rescue.rescue,
            self.rescue.promote,
            self.queue_runs.pump,
            self.node_runs.pump,
            self.firing.pump,
            self.firing.steps.pump,
        )
        self._pumps = pumps
        self._tasks = [asyncio.ensure_future(pump.run()) for pump in pumps]
        self._tasks.append(asyncio.ensure_future(self._renew(me)))
        await clock.settle()

    def slow_down_polls(self) -> None:
        """For tests over years: the polls are a net, and nothing falls here."""
        self.renew_every_us = 10**15
        for pump in self._pumps:
            pump._poll_us = 10**15
            pump.signal()

    def poll_again(self) -> None:
        """The polls as they were."""
        self.renew_every_us = SECOND
        for pump in self._pumps:
            pump._poll_us = 5 * SECOND
            pump.signal()

    async def die(self) -> None:
        """Stop dead: nothing is flushed, nothing is recorded any more."""
        self.is_alive = False
        self.node_runs.close()
        self.nodes.lose_instance()
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):  # a loop fell, and here no supervisor picks it up
                raise ended

    async def begin_drain(self) -> None:
        """Fire nothing more, as at the beginning of a shutdown."""
        me = f"{self._instance}-{self._names}"
        await self.store.transact(lambda tx: tx.instances.renew_if_registered(me, 15 * SECOND))
        self._is_draining = True
        self.firing.stop()

    async def _renew(self, me: str) -> None:
        while True:
            draining = self._is_draining
            await self.store.transact(
                lambda tx, draining=draining: tx.instances.renew_if_registered(
                    me, 15 * SECOND, draining
                )
            )
            await self.clock.sleep_until(self.clock.now() + self.renew_every_us)

    def is_held(self) -> bool:
        """The lease, as delivery asks for it."""
        return self.is_alive

    def covers(self, generation: int) -> bool:
        return self.is_alive and generation == self.generation

    # the services' hints
    def due(self, at: Instant | None) -> None:
        self.firing.hint(at)

    def made(self, tasks: Sequence[Task]) -> None:
        self.firing.cache.add(tasks)

    def ready(self, host: str) -> None:
        self.delivery.ready(host)

    def canceled(self, run_id: int) -> None:
        self.delivery.abort(run_id)

    def paced(self) -> None:
        self.rescue.wakes.signal()

    # what tests ask
    async def add(
        self, definition: Definition, *, dialect: str = "C", status: str = "ENABLED"
    ) -> Task:
        task = await self.tasks.create(NewTask(dialect, definition, status))  # type: ignore[arg-type]
        await self.clock.settle()
        return task

    async def all_runs(self, task: Task) -> list[Run]:
        """A task's runs, oldest first."""
        return list(
            reversed((await self.runs.list_page(RunFilter(task_id=task.id), page_size=500)).runs)
        )

    async def events(self, kind: str) -> list[Event]:
        return [
            e
            for e in await self.store.read(lambda tx: tx.events.list_after(0, 5000))
            if e.type == kind
        ]

    async def check_events(self) -> None:
        """Every event that was written is one of the catalogue, with the members it declares."""
        events = await self.store.read(lambda tx: tx.events.list_after(0, 100_000))
        for event in events:
            assert_is_declared(event)

    async def call_back(self, token: str, status: str, **members: Any) -> Any:
        body = CallbackBody(status, **members)
        answer = await self.callbacks.take_by_token(token, Received(body, "{}", "{}", "POST"))
        await self.clock.settle()
        return answer


def assert_is_declared(event: Event) -> None:
    """An event of a task or a run is as its kind says."""
    if event.entity_type in ("TASK", "RUN"):
        kind = _KINDS.get((event.entity_type, event.type))
        assert kind is not None, f"{event.type} is in no catalogue"
        members = list(data_of(event))
        assert kind.allows(members), (event.type, members)


async def open_world(path: Path, clock: VirtualClock, **limits: int) -> World:
    store = await open_store(f"sqlite:///{path}/ksana.db", clock, inline=True)
    world = World(store, clock, **limits)
    await world.revive()
    return world


def data_of(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(event.data)
    return found


def every(world: World, seconds: float, **members: Any) -> Schedule:
    return make_every(round(seconds * SECOND), now=world.clock.now(), **members)


def cron(expr: str, timezone: str = "UTC", **members: Any) -> Schedule:
    return make_cron(expr, timezone, **members)


def once(at: Instant) -> Schedule:
    return Once(at)


def task_of(
    schedule: Schedule, name: str = "t", url: str = "http://target/hook", **members: Any
) -> Definition:
    """A definition with C's defaults."""
    retry = members.pop("retry", RetryPolicy())
    options = members.pop("options", Options())
    return Definition(name, "", schedule, target_url=url, retry=retry, options=options, **members)
