"""Firing: due tasks become runs. One transaction for all that is due: slots claimed by
compare-and-set on (task, version, slot), runs, next slots and events written together.

The index on `fire_at` is the heap and the pump is the one timer: memory and the cost of a firing do
not depend on how many tasks wait. Tasks made or fired lately are in a cache by version, and only
where they stand is read when they are due.

A run for which a worker and a slot at its host are free is written RUNNING and claimed by us at
once; the rest are written ready, for any instance to take. Nothing fires early: what is due is
judged by the store's clock.

Instances that share a store share what is due by the remainder of the task's id (`Share`), so that
they do not race for the same rows. The shares say who is first; the compare-and-set says who wins.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from ksana.base.clock import Clock
from ksana.base.ids import new_run_uids, new_tokens
from ksana.base.instant import MILLISECOND, Instant
from ksana.domain.tasks import firing as rules
from ksana.domain.tasks.clock_steps import NO_WINDOWS, ClockWindows
from ksana.domain.tasks.firing import Counts, Firing, PlannedRun, place_of
from ksana.domain.tasks.records import ClaimedRun, NewRun, Task
from ksana.engine.core.clock_watch import proven_skew
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.clock_steps import ClockSteps
from ksana.engine.tasks.host_limits import SlotBudget
from ksana.engine.tasks.run_writer import write_misfire, write_runs
from ksana.engine.tasks.task_cache import TaskCache
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.store import WHOLE, Share, Store
from ksana.ports.tasks.tables import Advance, FindTask, TasksTx, find_no_task

_NO_COUNTS: Final = Counts()

MIN_INTERVAL: Final = 4 * MILLISECOND
"""At most 250 firing passes a second: with a thousand slots spread over it each commit carries a
few of them."""

FIRST_BATCH: Final = 100
"""When very many are due at once the first pass takes no more, so that their calls begin while the
rest is fired."""


LEFT_FOR: Final = 500 * MILLISECOND
"""How late a task of another instance's share may be before anybody fires it: its instance may be
gone, frozen or full."""


class FiringMetrics(Protocol):
    """What firing counts."""

    def scanned(self, seconds: float, fired: int) -> None: ...

    def misfired(self, task_id: int, count: int) -> None: ...


class Fired(msgspec.Struct):
    """What one transaction fired."""

    claimed: list[ClaimedRun]
    ready_hosts: set[str]
    next_at: Instant | None
    is_full: bool
    misfires: list[tuple[int, int]]
    fired: int
    now: Instant
    watermark: int = 0
    """The watermark that was written with them; 0 if none of them is sent soon."""
    due: list[Task] = []
    """The tasks that were due, as they were read."""


class FiringEngine:
    """Owns the pump that fires."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance_id: str,
        slot_budget: Callable[[], SlotBudget],
        send: Callable[[list[ClaimedRun], int], None],
        note_ready: Callable[[set[str]], None],
        metrics: FiringMetrics,
        *,
        batch_limit: int,
        poll_us: int,
        secrets: TaskSecrets = CLEAR,
        share: Callable[[], Share] = lambda: WHOLE,
    ) -> None:
        """`send` gets the runs that are ours, with the watermark that was stored with them, and
        `note_ready` the hosts that have runs in the store. `share` tells which part of what is due
        is ours to fire at once."""
        self.steps = ClockSteps(store, clock, instance_id, self.hint)
        self._store = store
        self._secrets = secrets
        self._clock = clock
        self._instance_id = instance_id
        self._slot_budget = slot_budget
        self._send = send
        self._note_ready = note_ready
        self._metrics = metrics
        self._batch_limit = batch_limit
        self._share = share
        self._all_until: Instant = 0
        self._next_at: Instant | None = None
        self._stopped = False
        self._is_busy = False
        self.cache = TaskCache()
        self.pump = Pump("firing", clock, self._step, poll_us, min_interval_us=MIN_INTERVAL)

    def hint(self, at: Instant | None) -> None:
        """A task may be due at `at`; wake only if that is earlier than what we wait for."""
        if at is not None and (self._next_at is None or at < self._next_at):
            self._next_at = at
            self.pump.signal()

    def fire_all_until(self, at: Instant) -> None:
        """Fire whatever is due until then, of any share: a task was made here that its own instance
        may not know of in time."""
        self._all_until = max(self._all_until, at)

    def stop(self) -> None:
        """Fire nothing more: shutdown has begun."""
        self._stopped = True

    async def _step(self) -> Instant | None:
        if self._stopped:
            return None
        if not self.steps.is_loaded:
            await self.steps.load()
        began, began_at = self._clock.monotonic(), self._clock.now()
        self._next_at = None
        limit = self._batch_limit if self._is_busy else min(FIRST_BATCH, self._batch_limit)
        fired = await self._store.transact(
            fire_due,
            self._instance_id,
            limit,
            self._slot_budget(),
            self.cache.find,
            self._secrets,
            self.steps.windows,
            WHOLE if began_at <= self._all_until + LEFT_FOR else self._share(),
        )
        self.steps.observe(fired.now, began, self._clock.monotonic())
        self.cache.add_fired(fired.due)
        self._is_busy = fired.is_full
        if fired.claimed:
            self._send(fired.claimed, fired.watermark)
        if fired.ready_hosts:
            self._note_ready(fired.ready_hosts)
        for task_id, count in fired.misfires:
            self._metrics.misfired(task_id, count)
        self._metrics.scanned((self._clock.monotonic() - began) / 1e6, fired.fired)
        if fired.is_full:
            return AGAIN
        soonest = [at for at in (self._next_at, fired.next_at) if at is not None]
        self._next_at = min(soonest, default=None)
        # Due is judged by the store's clock and waited for by ours.
        return (
            None
            if self._next_at is None
            else self._next_at - proven_skew(fired.now, began_at, self._clock.now())
        )


def fire_due(
    tx: TasksTx,
    instance_id: str,
    limit: int,
    budget: SlotBudget,
    find: FindTask = find_no_task,
    secrets: TaskSecrets = CLEAR,
    windows: ClockWindows = NO_WINDOWS,
    share: Share = WHOLE,
) -> Fired:
    """Fire everything that is due and of our share, up to `limit` tasks, and what others left due
    for too long. `find` knows tasks by id and version."""
    budget = budget.copy()  # the function may be run again
    due = tx.task_due.list_due(tx.now, limit, find, share, tx.now - LEFT_FOR)
    fired = Fired([], set(), None, len(due) == limit, [], len(due), tx.now, due=due)
    if due:
        outages = tx.instances.list_outages(min(task.next_slot_at or tx.now for task in due))
        counts = tx.runs.count_open(
            [task.id for task in due if task.definition.concurrency_policy != "PARALLEL"]
        )
        decided = [
            rules.decide_firing(task, tx.now, outages, counts.get(task.id, _NO_COUNTS))
            for task in due
        ]
        if (due[0].fire_at or 0) <= windows.lived_until:
            decided = _leave_out_claimed(tx, due, decided, windows)
        is_ours = tx.task_due.advance_unchanged(
            [
                Advance(task, one.next_slot_at, one.fire_at, one.started, one.last_status)
                for task, one in zip(due, decided, strict=True)
            ]
        )
        planned: list[tuple[Task, PlannedRun]] = []
        for task, decision, ours in zip(due, decided, is_ours, strict=True):
            if ours:  # if not, another instance or a change was first
                if decision.misfire is not None:
                    write_misfire(tx, task, decision)
                    fired.misfires.append((task.id, decision.misfire.count))
                planned += [(task, run) for run in decision.runs]
        _write_planned(tx, planned, instance_id, budget, fired, secrets)
    if not fired.is_full:
        fired.next_at = tx.task_due.next_fire_at(share, tx.now, LEFT_FOR)
    return fired


def _leave_out_claimed(
    tx: TasksTx, due: list[Task], decided: list[Firing], windows: ClockWindows
) -> list[Firing]:
    """The decisions without slots that were decided while the clock was ahead."""
    slots = [run.slot_at for one in decided for run in one.runs]
    if not slots:
        return decided
    claimed = tx.runs.list_claimed([task.id for task in due], min(slots), max(slots))
    return [
        rules.leave_out(task, one, claimed, windows) for task, one in zip(due, decided, strict=True)
    ]


def _write_planned(
    tx: TasksTx,
    planned: list[tuple[Task, PlannedRun]],
    instance_id: str,
    budget: SlotBudget,
    fired: Fired,
    secrets: TaskSecrets,
) -> None:
    """Write the runs of slots that were claimed, and the watermark for those that are sent soon."""
    runs = plan_runs(tx.now, planned, instance_id, budget, secrets)
    lease = budget.lease
    for run_id, run, (task, _) in zip(write_runs(tx, runs), runs, planned, strict=True):
        if run.held_by is not None:
            # By position, in the order of the fields: there is one for every firing.
            fired.claimed.append(
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
                    instance_id,
                    run.callback_hash,
                    None,
                    "[]",
                    lease,
                    rules.prompt_due_at(task, run.slot_at, run.trigger, run.reason),
                )
            )
        elif run.is_ready:
            fired.ready_hosts.add(run.host)
    pairs = zip(fired.claimed, budget.taken, strict=True)
    soon = [run.run_id for run, is_soon in pairs if is_soon]
    if soon:
        fired.watermark = soon[-1]
        tx.instances.note_begun(instance_id, fired.watermark)


def plan_runs(
    now: Instant,
    planned: list[tuple[Task, PlannedRun]],
    instance_id: str,
    budget: SlotBudget,
    secrets: TaskSecrets = CLEAR,
) -> list[NewRun]:
    """The runs to write for slots: claimed by us where the budget has a slot, else ready, waiting
    or skipped."""
    runs: list[NewRun] = []
    count = len(planned)
    for (task, plan), uid, token in zip(
        planned, new_run_uids(now, count), new_tokens(count), strict=True
    ):
        definition = task.definition
        host, exec_type, start = place_of(definition), definition.exec_type, plan.start
        is_held = start == "start" and budget.take(host)
        # By position, in the order of the fields: there is one for every firing.
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
                secrets.hash_new_token(uid) if exec_type == "ASYNC" and start != "skip" else None,
                None,
                None,
                rules.limits_of(definition) if start == "skip" else "",
            )
        )
    return runs


def drop_due_slots(tx: TasksTx, task: Task, reason: str) -> None:
    """Record slots that are due and not fired yet: firing is late, and nobody will fire them after
    this change."""
    if task.fire_at is None or task.next_slot_at is None or task.fire_at > tx.now:
        return
    outages = tx.instances.list_outages(task.next_slot_at)
    planned: list[tuple[Task, PlannedRun]] = []
    for decision in rules.drop_due(task, tx.now, outages, reason):
        if decision.misfire is not None:
            write_misfire(tx, task, decision)
        planned += [(task, run) for run in decision.runs]
    write_runs(tx, plan_runs(tx.now, planned, "", SlotBudget({}, 0, 0)))
