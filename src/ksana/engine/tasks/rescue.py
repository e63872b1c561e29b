"""Rescue: runs that must be looked at later. A retry's pause ends, a callback's deadline passes, a
holder dies, a job takes too long.

Every unfinished state has somebody who comes back to it: RETRYING, CALLBACK_PENDING, RUNNING ones
that wait for a job and SCHEDULED ones of a backfill by `wake_at`, other RUNNING ones by their
holder's lease, ready ones by the claim pump's poll, waiting ones by the promotion net. Each pass is
idempotent and runs on a timer, not only at the start.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from ksana.base.clock import Clock
from ksana.base.ids import new_token
from ksana.base.instant import SECOND, Instant
from ksana.domain.tasks import rescue as decide
from ksana.domain.tasks.backfill import is_held_back
from ksana.domain.tasks.changes import RunChange, expire_callback, make_ready
from ksana.domain.tasks.job_runs import is_waiting_for_job, refuse_job
from ksana.domain.tasks.records import Run, Task
from ksana.engine.core.clock_watch import proven_skew
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.run_writer import let_in_runs, promote_waiting, write_changes
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

BATCH = 200
RESCUE_EVERY = 2 * SECOND
PROMOTE_EVERY = 5 * SECOND
FORGOTTEN_AFTER = 120 * SECOND
"""Longer than the store looks for the outcome of a commit that got no answer: what we hold for so
long, we were told of."""


class Woken(msgspec.Struct):
    """What a pass came to."""

    ready_hosts: set[str]
    next_at: Instant | None
    is_full: bool
    now: Instant
    overs: list[tuple[AttemptOver, str]] = []
    """Attempts that ended because their time was over, each with the status of its run."""


class OverdueJobs(Protocol):
    """Who knows the jobs that runs wait for."""

    def expire(self, tx: TasksTx, run: Run, task: Task) -> tuple[RunChange, AttemptOver]:
        """The time of such a run is over."""
        ...

    def tell(self, overs: list[tuple[AttemptOver, str]]) -> None:
        """These attempts ended, and it is committed."""
        ...


class RescueEngine:
    """Owns the pumps that come back to runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance_id: str,
        ready: Callable[[str], None],
        known: Callable[[], set[int]],
        jobs: OverdueJobs,
        keeps_jobs: Callable[[], bool] = lambda: False,
    ) -> None:
        """`known` tells the runs that this instance works on, `keeps_jobs` whether node jobs
        outlive who submitted them."""
        self._store = store
        self._clock = clock
        self._instance_id = instance_id
        self._ready = ready
        self._known = known
        self._jobs = jobs
        self._keeps_jobs = keeps_jobs
        self.wakes = Pump("wakes", clock, self._wake, poll_us=5 * SECOND)
        self.rescue = Pump("rescue", clock, self._rescue, poll_us=10 * SECOND)
        self.promote = Pump("promote", clock, self._promote, poll_us=PROMOTE_EVERY)

    async def _wake(self) -> Instant | None:
        began_at = self._clock.now()
        woken = await self._store.transact(wake_due, self._jobs)
        self._announce(woken.ready_hosts)
        self._jobs.tell(woken.overs)
        if woken.is_full or woken.next_at is None:
            return AGAIN if woken.is_full else None
        return woken.next_at - proven_skew(woken.now, began_at, self._clock.now())

    async def _rescue(self) -> Instant | None:
        orphans = await self._store.read(_list_orphans, self._instance_id)
        if orphans:
            hosts = await self._store.transact(
                rescue_orphans, orphans, self._instance_id, keeps_jobs=self._keeps_jobs()
            )
            self._announce(hosts)
            self.wakes.signal()
        held = await self._store.read(_list_long_held, self._instance_id)
        forgotten = set(held) - self._known() if held else None
        if forgotten:
            self._announce(await self._store.transact(rescue_forgotten, sorted(forgotten)))
            self.wakes.signal()
        if len(orphans) == BATCH:
            return AGAIN
        # Where we are the only server, others are dead since before our start: the poll is enough.
        return None if self._store.sole else self._clock.now() + RESCUE_EVERY

    async def _promote(self) -> Instant | None:
        stalled = await self._store.read(_list_stalled)
        if stalled:
            self._announce(await self._store.transact(promote_stalled, stalled))
        return None

    def _announce(self, hosts: set[str]) -> None:
        for host in hosts:
            self._ready(host)


def wake_due(tx: TasksTx, jobs: OverdueJobs) -> Woken:
    """Make due retries ready; end runs whose callback did not come, or whose job did not end."""
    due = tx.run_due.list_wakes(tx.now, BATCH)
    changes: list[RunChange] = []
    expired: dict[int, AttemptOver] = {}
    held_back: dict[int, list[Run]] = {}
    for run in due:
        if is_held_back(run):
            held_back.setdefault(run.task_id, []).append(run)
        elif run.status == "RETRYING":
            changes.append(make_ready(run))
        elif run.status == "CALLBACK_PENDING":
            task = tx.tasks.find(run.task_id)
            changes.append(expire_callback(run, task, tx.now, new_token()))
        elif is_waiting_for_job(run):
            task = tx.tasks.find(run.task_id)
            if task is None:
                changes.append(refuse_job(run, "its task is gone", tx.now, new_token()))
                continue
            change, expired[run.id] = jobs.expire(tx, run, task)
            changes.append(change)
    written = write_changes(tx, changes)
    for task_id in sorted(held_back):
        # The others of its line may be due as well, and were not all read.
        written.ready_hosts |= let_in_runs(tx, task_id, held_back[task_id])
    woken = Woken(written.ready_hosts, None, len(due) == BATCH, tx.now)
    woken.overs = [
        (expired[change.run_id], change.new)
        for change, is_done in zip(changes, written.done, strict=True)
        if is_done and change.run_id in expired
    ]
    if not woken.is_full:
        woken.next_at = tx.run_due.next_wake_at()
    return woken


def rescue_orphans(
    tx: TasksTx, run_ids: list[int], instance_id: str, *, keeps_jobs: bool = False
) -> set[str]:
    """Take runs from holders that died: again if a retry is left and the task allows it, else
    failed with the reason. Answer the hosts at which others may start instead."""
    wanted = set(run_ids)
    changes = [
        decide.rescue_orphan(
            run,
            tx.tasks.find(run.task_id),
            None if run.held_by is None else tx.instances.find_begun_to(run.held_by),
            tx.now,
            new_token(),
            keeps_jobs=keeps_jobs,
        )
        for run in tx.run_due.list_orphans(instance_id, BATCH)
        if run.id in wanted
    ]
    return write_changes(tx, changes).ready_hosts


def rescue_forgotten(tx: TasksTx, run_ids: list[int]) -> set[str]:
    """The same for runs that were written as ours while we were never told: the answer to that
    commit was lost for good."""
    runs = [run for run_id in run_ids if (run := tx.runs.find(run_id)) is not None]
    changes = [
        decide.rescue_forgotten(run, tx.tasks.find(run.task_id), tx.now, new_token())
        for run in runs
        if run.status == "RUNNING"
    ]
    return write_changes(tx, changes).ready_hosts


def promote_stalled(tx: TasksTx, task_ids: list[int]) -> set[str]:
    """Let waiting runs start that a lost promotion left behind."""
    tx.tasks.lock(sorted(task_ids))
    return promote_waiting(tx, task_ids)


def _list_orphans(tx: TasksTx, instance_id: str) -> list[int]:
    return [run.id for run in tx.run_due.list_orphans(instance_id, BATCH)]


def _list_long_held(tx: TasksTx, instance_id: str) -> list[int]:
    return tx.run_due.list_held(instance_id, tx.now - FORGOTTEN_AFTER)


def _list_stalled(tx: TasksTx) -> list[int]:
    return tx.run_due.list_stalled(BATCH)
