"""Firing: due tasks become runs. One transaction for all that is due: slots claimed by
compare-and-set on (task, version, slot), runs, next slots and events written together.

The index on `fire_at` is the heap and the pump is the one timer: memory and the cost of a firing do
not depend on how many tasks wait. Tasks that were made or fired lately are remembered by version,
and only where they stand is read when they are due. What is remembered is never the truth: the
compare-and-set on the version is.

A run for which a worker and a place at its host are free is written RUNNING and held by us at once;
the rest are written ready, for any instance to take. Nothing fires early: what is due is judged by
the store's clock.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from ksana.base.clock import Clock
from ksana.base.ids import new_run_uids, new_tokens, new_uid
from ksana.base.instant import MILLISECOND, Instant, format_instant
from ksana.domain.tasks import firing as rules
from ksana.domain.tasks.firing import Counts, Firing, PlannedRun
from ksana.domain.tasks.records import Definition, Task, host_of
from ksana.engine.core.clock_watch import proven_skew
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import ClaimedRun
from ksana.engine.tasks.host_limits import SlotBudget
from ksana.ports.store import Store
from ksana.ports.tasks.tables import Advance, NewRun, TasksTx

_NO_COUNTS = Counts()

PACE = 4 * MILLISECOND
"""At most 250 firing passes a second: with a thousand slots spread over it each commit carries a
few of them."""

FIRST_BATCH = 100
"""The first pass of a crowd takes no more, so that their calls begin while the rest is fired."""


KNOWN: Final = 16_384
"""Tasks remembered at most, some 2 kB each."""


class FiringMetrics(Protocol):
    """What firing counts."""

    def scanned(self, seconds: float, fired: int) -> None: ...

    def misfired(self, task_id: int, count: int) -> None: ...


class Fired(msgspec.Struct):
    """What one transaction fired."""

    held: list[ClaimedRun]
    ready_hosts: set[str]
    next_at: Instant | None
    is_full: bool
    misfires: list[tuple[int, int]]
    fired: int
    now: Instant
    begun_to: int = 0
    """The mark that was written with them; 0 if none of them begins soon."""
    due: list[Task] = []
    """The tasks that were due, as they were read."""


class FiringEngine:
    """Owns the pump that fires."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance_id: str,
        rooms: Callable[[], SlotBudget],
        deliver: Callable[[list[ClaimedRun], set[str], int], None],
        metrics: FiringMetrics,
        *,
        batch_limit: int,
        poll_us: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._instance_id = instance_id
        self._rooms = rooms
        self._deliver = deliver
        self._metrics = metrics
        self._batch_limit = batch_limit
        self._next_at: Instant | None = None
        self._stopped = False
        self._is_busy = False
        self._known: dict[int, Task] = {}
        """Tasks as they were committed, the newest last. The writer looks things up here while we
        add and drop."""
        self.pump = Pump("firing", clock, self._step, poll_us, min_interval_us=PACE)

    def hint(self, at: Instant | None) -> None:
        """A task may be due at `at`; wake only if that is earlier than what we wait for."""
        if at is not None and (self._next_at is None or at < self._next_at):
            self._next_at = at
            self.pump.signal()

    def remember(self, tasks: Sequence[Task]) -> None:
        """These tasks are in the store as they are here, and stay so for as long as their version
        is the current one."""
        known = self._known
        known.update((task.id, task) for task in tasks)
        for _ in range(len(known) - KNOWN):
            del known[next(iter(known))]

    def _knows(self, task: Task) -> bool:
        known = self._known.get(task.id)
        return known is not None and known.version == task.version

    def stop(self) -> None:
        """Fire nothing more: shutdown has begun."""
        self._stopped = True

    async def _step(self) -> Instant | None:
        if self._stopped:
            return None
        began, began_at = self._clock.monotonic(), self._clock.now()
        self._next_at = None
        limit = self._batch_limit if self._is_busy else min(FIRST_BATCH, self._batch_limit)
        fired = await self._store.transact(
            fire_due, self._instance_id, limit, self._rooms(), self._known
        )
        self.remember(
            [
                task
                for task in fired.due
                if task.id not in self._known or self._known[task.id].version != task.version
            ]
        )
        self._is_busy = fired.is_full
        if fired.held or fired.ready_hosts:
            self._deliver(fired.held, fired.ready_hosts, fired.begun_to)
        for task_id, count in fired.misfires:
            self._metrics.misfired(task_id, count)
        self._metrics.scanned((self._clock.monotonic() - began) / 1e6, fired.fired)
        if fired.is_full:
            return AGAIN
        self._next_at = _earlier(self._next_at, fired.next_at)
        # Due is judged by the store's clock and waited for by ours.
        return (
            None
            if self._next_at is None
            else self._next_at - proven_skew(fired.now, began_at, self._clock.now())
        )


def _earlier(one: Instant | None, other: Instant | None) -> Instant | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def fire_due(
    tx: TasksTx,
    instance_id: str,
    limit: int,
    rooms: SlotBudget,
    known: Mapping[int, Task] = MappingProxyType({}),
) -> Fired:
    """Fire everything that is due, up to `limit` tasks."""
    rooms = rooms.copy()  # the function may be run again
    due = tx.tasks.list_due(tx.now, limit, known)
    fired = Fired([], set(), None, len(due) == limit, [], len(due), tx.now, due=due)
    if due:
        outages = tx.instances.list_outages(min(task.next_slot_at or tx.now for task in due))
        counts = tx.runs.count_open_of(
            [task.id for task in due if task.definition.concurrency_policy != "PARALLEL"]
        )
        decided = [
            rules.decide_firing(task, tx.now, outages, counts.get(task.id, _NO_COUNTS))
            for task in due
        ]
        is_ours = tx.tasks.advance_unchanged(
            [_advance(task, one) for task, one in zip(due, decided, strict=True)]
        )
        planned: list[tuple[Task, PlannedRun]] = []
        for task, decision, ours in zip(due, decided, is_ours, strict=True):
            if ours:  # if not, another instance or a change was first
                if decision.misfire is not None:
                    _tell_misfire(tx, task, decision, fired)
                planned += [(task, run) for run in decision.runs]
        _write_runs(tx, planned, _new_runs(tx.now, planned, instance_id, rooms), fired)
        if fired.held:
            soon = [run.run_id for run in fired.held if rooms.take_soon(run.host)]
            if soon:
                fired.begun_to = soon[-1]
                tx.instances.note_begun(instance_id, fired.begun_to)
    if not fired.is_full:
        fired.next_at = tx.tasks.next_fire_at()
    return fired


def _advance(task: Task, decision: Firing) -> Advance:
    last_status = "missed" if decision.is_missed else "skipped" if _all_skipped(decision) else ""
    return Advance(task, decision.next_slot_at, decision.fire_at, decision.started, last_status)


def _new_runs(
    now: Instant, planned: list[tuple[Task, PlannedRun]], instance_id: str, rooms: SlotBudget
) -> list[NewRun]:
    runs: list[NewRun] = []
    count = len(planned)
    for (task, plan), uid, token in zip(
        planned, new_run_uids(now, count), new_tokens(count), strict=True
    ):
        definition = task.definition
        host, exec_type, start = host_of(definition.target_url), definition.exec_type, plan.start
        is_held = start == "start" and rooms.take(host)
        # In the order of the fields: names would cost as much again, and there is one for every
        # firing.
        runs.append(
            NewRun(
                uid,
                task.id,
                plan.slot_at,
                plan.slot_at,
                "RUNNING" if is_held else "SKIPPED" if start == "skip" else "SCHEDULED",
                plan.trigger,
                exec_type,
                True,
                host,
                start == "start" and not is_held,
                instance_id if is_held else None,
                token,
                plan.reason,
                uid,
                new_uid() if exec_type == "ASYNC" else None,
            )
        )
    return runs


def _all_skipped(decision: Firing) -> bool:
    return bool(decision.runs) and decision.runs[-1].start == "skip"


def _tell_misfire(tx: TasksTx, task: Task, decision: Firing, fired: Fired) -> None:
    misfire = decision.misfire
    assert misfire is not None
    data: dict[str, Any] = {
        "first": format_instant(misfire.first),
        "last": format_instant(misfire.last),
        "count": misfire.count,
        "policy": misfire.policy,
    }
    tx.events.append("TASK", task.id, "TASK_MISFIRED", data)
    tx.rollups.add("misfires", count=misfire.count)
    fired.misfires.append((task.id, misfire.count))
    if decision.is_missed:
        data = {"slot": format_instant(misfire.last), "reason": "NO_INSTANCE_RAN", "alert": True}
        tx.events.append("TASK", task.id, "TASK_MISSED", data)


def _write_runs(
    tx: TasksTx, planned: list[tuple[Task, PlannedRun]], runs: list[NewRun], fired: Fired
) -> None:
    events: list[tuple[str, str, str, str]] = []
    for run_id, run, (task, _) in zip(tx.runs.insert_many(runs), runs, planned, strict=True):
        # A task, an instant and two words: nothing in them needs escaping.
        facts = (
            f'"task_id":{run.task_id},"slot":"{format_instant(run.scheduled_time)}","trigger":"{run.trigger}",'
            f'"reason":"{run.reason}"'
        )
        if run.status == "RUNNING":
            events.append(("RUN", str(run_id), "RUN_STARTED", f"{{{facts}}}"))
            fired.held.append(
                ClaimedRun(
                    run_id,
                    run.uid,
                    task,
                    run.token,
                    1,
                    run.scheduled_time,
                    run.exec_type,
                    run.trace_id,
                    run.host,
                    True,
                    run.held_by or "",
                    run.callback_token,
                )
            )
        elif run.status == "SKIPPED":
            events.append(
                ("RUN", str(run_id), "RUN_SKIPPED", f"{{{facts},{_limits(task.definition)}}}")
            )
            tx.rollups.add("runs_skipped")
        else:
            events.append(("RUN", str(run_id), "RUN_SCHEDULED", f"{{{facts}}}"))
            if run.is_ready:
                fired.ready_hosts.add(run.host)
    tx.events.append_texts(events)


def _limits(definition: Definition) -> str:
    return (
        f'"max_concurrency":{definition.max_concurrency},"max_queued":{definition.options.max_queued},'
        f'"policy":"{definition.concurrency_policy}"'
    )
