"""The dispatcher: claimed runs wait here by host, and are sent as call slots come free.

Two limits hold: calls in flight in all (`workers`) and per host. Within them nothing waits for
another's target, and targets that hang do not take the slots of those that answer (`host_limits`).
Nothing is sent before the watermark that covers it is on disk (`watermark`), and nothing while our
lease is not certain, because another instance may be taking over. A run that was claimed under an
older generation of the lease is not sent either: after a freeze it may be another's, although we
hold our lease again. Both are asked twice: here, and by the caller when it has a connection and
writes the request to it, for looking up a name and connecting take time as well.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.tasks.records import NODE_PLACE, QUEUE_PLACE, ClaimedRun
from ksana.engine.core.pump import Pump
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.host_limits import (
    ALONE,
    SHARED,
    STALE_LOOK,
    CallSlots,
    HostQueue,
    Prefetch,
    SlotBudget,
)
from ksana.engine.tasks.requests import Built, build_request, shown_reply
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.caller import NOT_OURS, Call, Caller, Reply, Timing
from ksana.ports.store import Share, Store

_RUN_ID: Final = attrgetter("run_id")


class Watermark:
    """The stored watermark, and the hosts whose next run lies above it."""

    def __init__(self) -> None:
        self.stored = 0
        self._queues: dict[HostQueue, None] = {}
        self.blocked: dict[HostQueue, None] = {}
        """Hosts that wait for it to move."""

    def watch(self, queues: Iterable[HostQueue]) -> None:
        """Runs came to these hosts."""
        self._queues.update((queue, None) for queue in queues if queue.waiting)

    def count_waiting(self) -> int:
        """How many runs wait here, at all hosts."""
        return sum(len(queue.waiting) for queue in self._queues)

    def find_next(self, now_mono: Micros) -> int:
        """How far the watermark should be for what is sent soon; 0 if it is far enough."""
        wanted = self.stored
        for queue in list(self._queues):
            if not queue.waiting:
                del self._queues[queue]
                continue
            soon = islice(queue.waiting, queue.soon(now_mono))
            wanted = max(wanted, max(map(_RUN_ID, soon)))
        return wanted if wanted > self.stored else 0

    def move(self, stored: int) -> list[HostQueue]:
        """The watermark is on disk. Answer the hosts that waited for it."""
        if stored <= self.stored:
            return []
        self.stored = stored
        blocked, self.blocked = self.blocked, {}
        return list(blocked)


MAX_IDLE_HOSTS = 10_000
_NO_CALLS: Final = {QUEUE_PLACE: 0, NODE_PLACE: 0}
"""Runs that start there are done by jobs: none is claimed for a call."""


class InstanceLease(Protocol):
    """The lease under which this instance holds its runs."""

    def is_held(self) -> bool:
        """Whether it is certain now."""
        ...

    @property
    def generation(self) -> int:
        """Rises whenever the lease was lost and is held again."""
        ...

    def covers(self, generation: int) -> bool:
        """Whether what was claimed under this generation is certainly still ours."""
        ...

    @property
    def share(self) -> Share:
        """Which part of what falls due is this instance's own."""
        ...


class CallInFlight(msgspec.Struct, frozen=True):
    """A call under way."""

    call: Call
    token: int
    started_at: Instant
    queue: HostQueue
    since_mono: Micros


class Dispatcher:
    """Owns the calls in flight and what waits to be sent."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        caller: Callable[[], Caller],
        lease: InstanceLease,
        on_over: Callable[[AttemptOver], None],
        *,
        workers: int,
        per_host: int,
        callback_base: str,
        agent: str,
        secrets: TaskSecrets = CLEAR,
    ) -> None:
        """`on_over` is told of every attempt that ended."""
        self._store = store
        self._clock = clock
        self._make_caller = caller
        self._caller: Caller | None = None
        self._lease = lease
        self._on_over = on_over
        self._workers = workers
        self._per_host = per_host
        self._callback_base = callback_base
        self._agent = agent
        self._secrets = secrets
        self._queues: dict[str, HostQueue] = {}
        self.in_flight: dict[int, CallInFlight] = {}
        self._slots = CallSlots(self.in_flight, workers)
        self.turns = Pump(
            "turns", clock, self._look_for_slots, poll_us=30 * SECOND, delay_us=STALE_LOOK
        )
        """Calls free slots also by growing old: looked for while hosts wait for their turn."""
        self.watermark = Watermark()
        self.on_first_call: Callable[[], None] = lambda: None
        """A call begins while none is in flight."""
        self.on_blocked: Callable[[], None] = lambda: None
        """The watermark must move before something can be sent."""
        self.on_free: Callable[[], None] | None = None
        """A slot may have come free. Set while runs in the store wait for one."""
        self.is_stopped = False
        """Nothing more is to be claimed."""

    @property
    def is_lease_held(self) -> bool:
        """Whether runs may be claimed and sent."""
        return self._lease.is_held()

    @property
    def lease_generation(self) -> int:
        """The generation to claim runs under."""
        return self._lease.generation

    def slot_budget(self) -> SlotBudget:
        """How many runs may be claimed for us right now."""
        generation = self._lease.generation
        if self.is_stopped or not self._lease.is_held():
            return SlotBudget({}, 0, 0)
        mono, prefetch = self._clock.monotonic(), self._prefetch
        by_host = {host: queue.room(mono, prefetch) for host, queue in self._queues.items()}
        by_host |= _NO_CALLS
        soon = {host: queue.soon(mono) - len(queue.waiting) for host, queue in self._queues.items()}
        total = max(self._workers * 64, prefetch.limit) - self.watermark.count_waiting()
        return SlotBudget(
            by_host, self._per_host + prefetch.unknown, total, soon, self._per_host, generation
        )

    def room_at(self, host: str) -> tuple[int, int]:
        """How many runs may be claimed for one host, and how many of them are sent soon."""
        queue, mono = self.queue_of(host), self._clock.monotonic()
        if not self._slots.has_slot(queue, mono):
            return 0, 0
        return queue.room(mono, self._prefetch), queue.soon(mono) - len(queue.waiting)

    def take(self, runs: list[ClaimedRun], watermark: int = 0) -> None:
        """Send runs that are ours as soon as there are slots. `watermark` was stored with them."""
        self.move_watermark(watermark)
        queues = {host: self.queue_of(host) for host in {run.host for run in runs}}
        for run in runs:
            queue = queues[run.host]
            queue.waiting.append(run)
            # One that waits for the watermark is filled when it moves.
            if queue.in_flight < queue.limit and queue not in self.watermark.blocked:
                self._fill(queue)
        self.watermark.watch(queues.values())

    def move_watermark(self, stored: int) -> None:
        """The watermark is on disk: go on where it was waited for."""
        for queue in self.watermark.move(stored):
            self._fill(queue)

    def give_turns(self) -> None:
        """Hand out the slots that are free, one call at a time."""
        while (queue := self._slots.next_queue(self._clock.monotonic())) is not None:
            if queue.waiting and queue.in_flight < queue.limit:
                if queue.waiting[0].run_id > self.watermark.stored:
                    self._wait_for_watermark(queue)
                    continue
                self._send(queue, queue.waiting.popleft())
                if queue.waiting:
                    self._wait_for_turn(queue)

    def abort(self, run_id: int) -> None:
        """End a call in flight; its result will find the token void."""
        flying = self.in_flight.get(run_id)
        if flying is not None:
            flying.call.abort()

    def known_runs(self) -> set[int]:
        """The runs that wait here or are in flight."""
        waiting = {run.run_id for queue in self._queues.values() for run in queue.waiting}
        return waiting | set(self.in_flight)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight and nothing waits."""
        return not self.in_flight and not any(queue.waiting for queue in self._queues.values())

    def close(self) -> None:
        """Abort what is in flight."""
        if self._caller is not None:
            self._caller.close()

    def queue_of(self, host: str) -> HostQueue:
        """The queue of a host, made when first asked for."""
        queue = self._queues.get(host)
        if queue is None:
            if len(self._queues) >= MAX_IDLE_HOSTS:
                self._forget_idle_queues()
            queue = self._queues[host] = HostQueue(host, self._per_host)
        return queue

    @property
    def _prefetch(self) -> Prefetch:
        return ALONE if self._store.sole or self._lease.share.of == 1 else SHARED

    def _forget_idle_queues(self) -> None:
        idle = [
            host
            for host, queue in self._queues.items()
            if not queue.in_flight and not queue.waiting and not queue.is_in_turn
        ]
        for host in idle:
            del self._queues[host]

    def _fill(self, queue: HostQueue) -> None:
        """Send what waits at a host while there are slots."""
        while queue.waiting and queue.in_flight < queue.limit:
            if len(self.in_flight) >= self._slots.for_all and not self._slots.has_slot(
                queue, self._clock.monotonic()
            ):
                self._wait_for_turn(queue)
                return
            if queue.waiting[0].run_id > self.watermark.stored:
                self._wait_for_watermark(queue)
                return
            self._send(queue, queue.waiting.popleft())

    def _wait_for_turn(self, queue: HostQueue) -> None:
        """Every slot is taken."""
        self._slots.wait_for_turn(queue, self._clock.monotonic())
        self.turns.signal()

    async def _look_for_slots(self) -> Instant | None:
        self.give_turns()
        return self._clock.now() + STALE_LOOK if self._slots.waiting else None

    def _wait_for_watermark(self, queue: HostQueue) -> None:
        """The next run of a host lies above the watermark."""
        if queue not in self.watermark.blocked:
            self.watermark.blocked[queue] = None
            self.on_blocked()

    def _send(self, queue: HostQueue, run: ClaimedRun) -> None:
        now = self._clock.now()
        may_send = partial(self._lease.covers, run.lease)
        if not may_send():
            self._end(run, None, Reply("aborted", Timing(), error=NOT_OURS, sends=0), now)
            return
        try:
            built = build_request(
                self._secrets.open_run(run), now, self._callback_base, self._agent
            )
        except Exception as error:  # a bad definition fails its own run, nobody else's
            why = f"the request cannot be made: {error}"
            self._end(run, None, Reply("refused", Timing(), error=why, sends=0), now)
            return
        if self._caller is None:
            self._caller = self._make_caller()
        since_mono = self._clock.monotonic()

        def done(reply: Reply) -> None:
            self.in_flight.pop(run.run_id, None)
            queue.ended(since_mono, self._clock.monotonic())
            is_held_back = reply.kind == "aborted" and not reply.sends and not may_send()
            self._end(run, None if is_held_back else built, reply, now)
            if self._slots.waiting:  # the slot goes to whoever waits longest, be it the same host
                if queue.waiting:
                    self._wait_for_turn(queue)
                self.give_turns()
            else:
                self._fill(queue)
            if self.on_free is not None and not queue.waiting:
                self.on_free()

        queue.began(since_mono)
        if queue.is_prompt:
            self._slots.prompt_mono = since_mono
        if not self.in_flight:
            self.on_first_call()
        call = self._caller.call(built.request, done, may_send)
        self.in_flight[run.run_id] = CallInFlight(call, run.token, now, queue, since_mono)

    def _end(self, run: ClaimedRun, built: Built | None, reply: Reply, started_at: Instant) -> None:
        request, kept = (None, None) if built is None else (built.request, built.kept_headers)
        if request is not None and request.secrets is not None:
            reply = shown_reply(reply, request.secrets)
        ended_at = max(started_at, self._clock.now())
        self._on_over(AttemptOver(run, request, kept, reply, started_at, ended_at))
