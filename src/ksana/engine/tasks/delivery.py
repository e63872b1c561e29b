"""Delivery: held runs become calls, calls become outcomes, outcomes are written in the next group
commit.

    firing ──held──▶ take ─▶ host lines ─▶ caller ─▶ over ─▶ outcomes pump ─▶ store
    store ──ready──▶ claim pump ─┘                                 │
      ▲                                                            └─▶ ready hosts, wakes
      └── retries and promotions make runs ready again

Two limits: calls in flight in all (`workers`) and per host. Within them nothing waits for another's
target, and targets that hang do not take the places of those that answer (see hosts). A run waiting
for its retry or its callback is in the store and holds nothing. We hold a run under its token and
our instance's lease; when the lease is not certain nothing new is sent (`is_held`), because another
instance may be taking over. Nothing is sent either before the mark that covers it is on disk (see
begun).
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog

from ksana.base.clock import Clock
from ksana.base.errors import StoreDownError
from ksana.base.ids import new_tokens
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import AttemptOver, ClaimedRun, claimed_run_of
from ksana.engine.tasks.host_limits import ALONE, SHARED, CallSlots, HostQueue, Prefetch, SlotBudget
from ksana.engine.tasks.outcomes import Recorded, record_outcomes
from ksana.engine.tasks.requests import Built, build_request
from ksana.engine.tasks.watermark import Watermark
from ksana.ports.caller import Call, Caller, Reply, Timing
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

_log = structlog.get_logger("ksana.delivery")

MAX_OUTCOMES = 500
CANCEL_LOOK = 400 * MILLISECOND
"""How often calls in flight are compared with the store: a cancel made on another instance is seen
within a second."""

MAX_IDLE_HOSTS = 10_000
PACE = 4 * MILLISECOND
"""Outcomes of a few milliseconds share a commit; after a rest the first is written at once."""

BUSY = 64
BUSY_PACE = 32 * MILLISECOND
"""When that many came in one pace, calls are what the time is needed for: fewer and larger commits.
"""


class DeliveryMetrics(Protocol):
    """What delivery counts."""

    def called(self, over: AttemptOver) -> None: ...

    def recorded(self, over: AttemptOver, status: str) -> None: ...


class _Flight(NamedTuple):
    call: Call
    token: int
    started_at: Instant
    line: HostQueue
    since_mono: Micros


class Delivery:
    """Owns the calls in flight of this instance."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        caller: Callable[[], Caller],
        instance_id: str,
        is_held: Callable[[], bool],
        metrics: DeliveryMetrics,
        *,
        workers: int,
        per_host: int,
        callback_base: str,
        agent: str,
    ) -> None:
        self._store = store
        self._clock = clock
        self._make_caller = caller
        self._caller: Caller | None = None
        self._instance_id = instance_id
        self._is_held = is_held
        self._metrics = metrics
        self._workers = workers
        self._per_host = per_host
        self._callback_base = callback_base
        self._agent = agent
        self._lines: dict[str, HostQueue] = {}
        self._in_flight: dict[int, _Flight] = {}
        self._places = CallSlots(self._in_flight, workers)
        self._begun = Watermark()
        self._ready: dict[str, None] = {}
        self._over: list[AttemptOver] = []
        self._recording: list[AttemptOver] = []
        self._stopped = False
        self._quiet = asyncio.Event()
        self.on_wakes: Callable[[], None] = lambda: None
        self.claims = Pump("claims", clock, self._claim, poll_us=5 * SECOND)
        self.outcomes = Pump(
            "outcomes", clock, self._record, poll_us=30 * SECOND, min_interval_us=PACE
        )
        self.cancels = Pump("cancels", clock, self._look_for_cancels, poll_us=30 * SECOND)

    # -- what others hand in -----------------------------------------------------------------------

    def rooms(self) -> SlotBudget:
        """How many runs firing may hold for us right now."""
        if self._stopped or not self._is_held():
            return SlotBudget({}, 0, 0)
        mono, ahead = self._clock.monotonic(), self._ahead
        by_host = {host: line.room(mono) for host, line in self._lines.items()}
        soon = {host: line.soon(mono) - len(line.waiting) for host, line in self._lines.items()}
        total = max(self._workers * 64, ahead.limit) - self._begun.count_waiting()
        return SlotBudget(by_host, self._per_host + ahead.unknown, total, soon, self._per_host)

    def take(self, held: list[ClaimedRun], ready_hosts: set[str], begun_to: int = 0) -> None:
        """Deliver runs that are ours, and remember hosts that have runs in the store. `begun_to` is
        the mark written with them."""
        self._move_mark(begun_to)
        for run in held:
            line = self._line(run.host)
            line.waiting.append(run)
            self._fill(line)
            if line.waiting:
                self._begun.watch(line)
        if ready_hosts:
            self._ready.update(dict.fromkeys(ready_hosts))
            self.claims.signal()

    def ready(self, host: str) -> None:
        """A run of this host is about to start."""
        self._ready[host] = None
        self.claims.signal()

    def abort(self, run_id: int) -> None:
        """End a call in flight; its result will find the token void."""
        flight = self._in_flight.get(run_id)
        if flight is not None:
            flight.call.abort()

    def known_runs(self) -> set[int]:
        """The runs that wait here, are in flight, or whose outcome is being written."""
        known = {over.held.run_id for over in (*self._over, *self._recording)} | set(
            self._in_flight
        )
        return known | {held.run_id for line in self._lines.values() for held in line.waiting}

    @property
    def _ahead(self) -> Prefetch:
        """Asked each time: we are made before the store is open, and only then it knows."""
        return ALONE if self._store.sole else SHARED

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return len(self._in_flight)

    async def drain(self) -> None:
        """Take nothing more; wait until what is held was sent and recorded."""
        self._stopped = True
        while self._in_flight or self._over or any(line.waiting for line in self._lines.values()):
            self._quiet.clear()
            await self._clock.wait(self._quiet, self._clock.now() + 50 * MILLISECOND)

    def close(self) -> None:
        """Abort what is left; the orphan rule has it."""
        self._stopped = True
        if self._caller is not None:
            self._caller.close()

    # -- sending -----------------------------------------------------------------------------------

    def _line(self, host: str) -> HostQueue:
        line = self._lines.get(host)
        if line is None:
            if len(self._lines) >= MAX_IDLE_HOSTS:
                self._forget_idle_lines()
            line = self._lines[host] = HostQueue(host, self._per_host, self._ahead)
        return line

    def _forget_idle_lines(self) -> None:
        idle = [
            host
            for host, line in self._lines.items()
            if not line.in_flight and not line.waiting and not line.is_lined_up
        ]
        for host in idle:
            del self._lines[host]

    def _fill(self, line: HostQueue) -> None:
        """Send what waits at a host while there are places."""
        while line.waiting and line.in_flight < line.limit:
            if not self._places.has_place(line, self._clock.monotonic()):
                self._places.line_up(line)
                return
            if not self._begun.lets(line):
                self.outcomes.signal()
                return
            self._send(line, line.waiting.popleft())

    def _give_turns(self) -> None:
        """Hand out the places that are free, one call at a time."""
        while (line := self._places.next_line(self._clock.monotonic())) is not None:
            if line.waiting and line.in_flight < line.limit:
                if not self._begun.lets(line):
                    self.outcomes.signal()
                    continue
                self._send(line, line.waiting.popleft())
                if line.waiting:
                    self._places.line_up(line)

    def _move_mark(self, begun_to: int) -> None:
        """The mark is on disk: go on where it was waited for."""
        for line in self._begun.move(begun_to):
            self._fill(line)

    def _send(self, line: HostQueue, held: ClaimedRun) -> None:
        now = self._clock.now()
        if not self._is_held():
            reply = Reply(
                "aborted",
                Timing(),
                error="the lease of this instance has run out; another one takes over",
            )
            self._note_over(held, None, reply, now)
            return
        try:
            built = build_request(held, now, self._callback_base, self._agent)
        except (
            Exception
        ) as error:  # a definition we cannot build from fails its own run, nobody else's
            self._note_over(
                held,
                None,
                Reply("refused", Timing(), error=f"the request cannot be made: {error}"),
                now,
            )
            return
        if self._caller is None:
            self._caller = self._make_caller()
        since_mono = self._clock.monotonic()

        def done(reply: Reply) -> None:
            self._in_flight.pop(held.run_id, None)
            line.ended(since_mono, self._clock.monotonic())
            self._note_over(held, built, reply, now)
            self._refill(line)

        line.began(since_mono)
        if not self._in_flight:
            self.cancels.signal()
        self._in_flight[held.run_id] = _Flight(
            self._caller.call(built.request, done), held.token, now, line, since_mono
        )

    def _note_over(
        self, held: ClaimedRun, built: Built | None, reply: Reply, started_at: Instant
    ) -> None:
        request, shown = built or (None, None)
        over = AttemptOver(
            held, request, shown, reply, started_at, max(started_at, self._clock.now())
        )
        self._metrics.called(over)
        if not (self._stopped and reply.kind == "aborted"):
            self._over.append(over)
            if len(self._over) == 1:
                self.outcomes.signal()

    def _refill(self, line: HostQueue) -> None:
        """A call ended: its place goes to whoever waits longest, be it the same host."""
        if not self._places.is_anyone_lined_up():
            self._fill(line)
        else:
            if line.waiting:
                self._places.line_up(line)
            self._give_turns()
        if self._ready and not line.waiting:
            self.claims.signal()
        if not self._in_flight:
            self._quiet.set()

    # -- pumps -------------------------------------------------------------------------------------

    async def _record(self) -> Instant | None:
        mark = self._begun.next_mark(self._clock.monotonic())
        if self._over or mark:
            batch, self._over = self._over[:MAX_OUTCOMES], self._over[MAX_OUTCOMES:]
            self._recording = batch
            try:
                recorded = await self._write(batch, mark)
            except StoreDownError:
                # Nothing was written: keep them. The guard makes a repeat harmless if something
                # was.
                self._over[:0] = batch
                raise
            finally:
                self._recording = []
            self.outcomes.min_interval_us = BUSY_PACE if len(batch) >= BUSY else PACE
            self._move_mark(recorded.begun_to)
            for over, status in recorded.statuses:
                self._metrics.recorded(over, status)
            if recorded.ready_hosts:
                self._ready.update(dict.fromkeys(recorded.ready_hosts))
                self.claims.signal()
            if recorded.wakes:
                self.on_wakes()
        self._quiet.set()
        if len(self._over) >= MAX_OUTCOMES:
            return AGAIN
        if self._over or self._begun.is_barring:
            self.outcomes.signal()
        return None

    async def _write(self, batch: list[AttemptOver], mark: int = 0) -> Recorded:
        """Record a batch. An outcome the store will not take is left to the orphan rule; the others
        are written without it."""
        try:
            recorded: Recorded = await self._store.transact(
                record_outcomes, batch, self._store.sole, self._instance_id, mark
            )
            return recorded
        except StoreDownError:
            raise
        except Exception as error:
            if not batch:  # the mark alone: nothing to leave out
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

    async def _claim(self) -> Instant | None:
        """Take ready runs for hosts with room. The store's list of hosts is read when the poll
        finds us idle."""
        if self._stopped or not self._is_held():
            return None
        if not self._ready:
            self._ready.update(dict.fromkeys(await self._store.read(_list_ready_hosts)))
        left = False
        for host in list(self._ready):
            line = self._line(host)
            room = min(line.room(self._clock.monotonic()), 500)
            if room <= 0 or not self._places.has_place(line, self._clock.monotonic()):
                continue
            soon = line.soon(self._clock.monotonic()) - len(line.waiting)
            held, mark = await self._store.transact(
                _hold, host, room, self._instance_id, new_tokens(room), soon
            )
            if len(held) < room:
                self._ready.pop(host, None)
            else:
                left = True
            self.take(held, set(), mark)
        return AGAIN if left else None

    async def _look_for_cancels(self) -> Instant | None:
        """Find calls whose run was cancelled on another instance, or ended by its callback. And let
        those who wait for a place look again: a call that has become stale frees one."""
        # Calls that just began are left for the next look: most end before it.
        before = self._clock.now() - CANCEL_LOOK // 2
        flying = [
            (run_id, flight.token)
            for run_id, flight in self._in_flight.items()
            if flight.started_at < before
        ]
        if flying:
            for run_id in await self._store.read(_list_taken_away, flying):
                self.abort(run_id)
        self._give_turns()
        if self._ready:
            self.claims.signal()
        return self._clock.now() + CANCEL_LOOK if self._in_flight else None


def _list_ready_hosts(tx: TasksTx) -> list[str]:
    return tx.runs.list_ready_hosts()


def _list_taken_away(tx: TasksTx, flying: list[tuple[int, int]]) -> list[int]:
    return [run_id for run_id, token in flying if not tx.runs.is_held(run_id, token)]


def _hold(
    tx: TasksTx, host: str, limit: int, instance_id: str, tokens: list[int], soon: int
) -> tuple[list[ClaimedRun], int]:
    """Take ready runs of a host. The first `soon` of them are begun at once: answer the mark that
    covers these, too."""
    held = tx.runs.hold_ready(host, limit, instance_id, tokens)
    for run, task in held:
        data = {"task_id": task.id, "attempt": run.attempt, "reason": "PLACE_FREE"}
        tx.events.append("RUN", run.id, "RUN_STARTED", data)
    mark = max((run.id for run, _ in held[: max(0, soon)]), default=0)
    if mark:
        tx.instances.note_begun(instance_id, mark)
    return [claimed_run_of(run, task, host, instance_id) for run, task in held], mark
