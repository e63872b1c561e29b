"""Waking: runs that must be looked at later. A retry's pause ends, a callback's deadline passes, a
holder dies.

Every non-terminal state has somebody who comes back to it: RETRYING and CALLBACK_PENDING by
`wake_at`, RUNNING by its holder's lease, ready ones by the claim pump's poll, waiting ones by the
promotion net. Each pass is idempotent and runs on a timer, not only at the start.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ksana.base.clock import Clock
from ksana.base.ids import new_token
from ksana.base.instant import SECOND, Instant, format_instant
from ksana.domain.tasks import outcome
from ksana.domain.tasks.classify import Verdict
from ksana.domain.tasks.records import Run, Task, host_of
from ksana.engine.core.clock_watch import proven_skew
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.outcomes import append_attempt
from ksana.engine.tasks.promotion import promote_tasks
from ksana.ports.store import Store
from ksana.ports.tasks.tables import RunEnd, TasksTx

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


class RescueEngine:
    """Owns the pumps that come back to runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        instance_id: str,
        ready: Callable[[str], None],
        known: Callable[[], set[int]],
    ) -> None:
        """`known` tells the runs that this instance works on."""
        self._store = store
        self._clock = clock
        self._instance_id = instance_id
        self._ready = ready
        self._known = known
        self.wakes = Pump("wakes", clock, self._wake, poll_us=5 * SECOND)
        self.rescue = Pump("rescue", clock, self._rescue, poll_us=10 * SECOND)
        self.promote = Pump("promote", clock, self._promote, poll_us=PROMOTE_EVERY)

    async def _wake(self) -> Instant | None:
        began_at = self._clock.now()
        woken = await self._store.transact(wake_due)
        self._tell(woken.ready_hosts)
        if woken.is_full or woken.next_at is None:
            return AGAIN if woken.is_full else None
        return woken.next_at - proven_skew(woken.now, began_at, self._clock.now())

    async def _rescue(self) -> Instant | None:
        orphans = await self._store.read(_list_orphans, self._instance_id)
        if orphans:
            await self._store.transact(rescue_orphans, orphans, self._instance_id)
            self.wakes.signal()
        held = await self._store.read(_list_long_held, self._instance_id)
        forgotten = set(held) - self._known() if held else None
        if forgotten:
            await self._store.transact(rescue_forgotten, sorted(forgotten))
            self.wakes.signal()
        if len(orphans) == BATCH:
            return AGAIN
        # Where we are the only server, others are dead since before our start: the poll is enough.
        return None if self._store.sole else self._clock.now() + RESCUE_EVERY

    async def _promote(self) -> Instant | None:
        stalled = await self._store.read(_list_stalled)
        if stalled:
            self._tell(await self._store.transact(promote_tasks, stalled))
        return None

    def _tell(self, hosts: set[str]) -> None:
        for host in hosts:
            self._ready(host)


def wake_due(tx: TasksTx) -> Woken:
    """Make due retries ready; end runs whose callback did not come."""
    due = tx.runs.list_wakes(tx.now, BATCH)
    woken = Woken(set(), None, len(due) == BATCH, tx.now)
    for run_id, status, task_id in due:
        task = tx.tasks.find(task_id)
        if status == "RETRYING":
            if tx.runs.make_ready_if_retrying(run_id) and task is not None:
                woken.ready_hosts.add(host_of(task.definition.target_url))
        elif status == "CALLBACK_PENDING":
            _expire_callback(tx, run_id, task, woken)
    if not woken.is_full:
        woken.next_at = tx.runs.next_wake_at()
    return woken


def _expire_callback(tx: TasksTx, run_id: int, task: Task | None, woken: Woken) -> None:
    run = tx.runs.find(run_id, lock=True)
    if run is None or run.status != "CALLBACK_PENDING" or (run.wake_at or 0) > tx.now:
        return
    if (
        task is not None
        and task.definition.options.retry_on_callback_failure
        and not task.is_deleted
    ):
        again = _retry_of(task, run, tx.now)
        if again is not None:
            _move(
                tx,
                run,
                "RETRYING",
                "NO_CALLBACK_RETRY_LEFT",
                "no callback came by the deadline",
                retry_at=again,
            )
            return
    if _move(tx, run, "FAILED_TIMEOUT", "NO_CALLBACK", "no callback came by the deadline"):
        tx.tasks.note_last(run.task_id, "timeout", "no callback came by the deadline", tx.now)
        tx.rollups.add("runs_failed_timeout")
        if task is not None and run.is_counted:
            woken.ready_hosts |= promote_tasks(tx, [task.id])


def rescue_orphans(tx: TasksTx, run_ids: list[int], instance_id: str) -> int:
    """Take runs from holders that died: again if a retry is left and the task allows it, else
    failed with the reason."""
    still = set(tx.runs.list_orphans(instance_id, BATCH))
    return sum(_rescue_orphan(tx, run_id) for run_id in run_ids if run_id in still)


def rescue_forgotten(tx: TasksTx, run_ids: list[int]) -> int:
    """The same for runs that were written as ours while we were never told: the answer to that
    commit was lost for good."""
    return sum(_rescue(tx, run_id, "never learned that it holds the run") for run_id in run_ids)


def _rescue_orphan(tx: TasksTx, run_id: int) -> bool:
    run = tx.runs.find(run_id, lock=True)
    if run is None or run.status != "RUNNING":
        return False
    begun_to = None if run.held_by is None else tx.instances.find_begun_to(run.held_by)
    task = tx.tasks.find(run.task_id)
    if begun_to is None or run.id <= begun_to or task is None or task.is_deleted:
        return _rescue(tx, run_id, "died while it held the run")
    # Nobody was called, so this was no attempt: whatever the task says about retries, it is begun
    # now.
    error = f"instance {run.held_by} died before it began the run"
    return _move(
        tx, run, "RETRYING", "HELD_NEVER_BEGUN", error, retry_at=tx.now, attempt=run.attempt - 1
    )


def _rescue(tx: TasksTx, run_id: int, what: str) -> bool:
    run = tx.runs.find(run_id, lock=True)
    if run is None or run.status != "RUNNING":
        return False
    task = tx.tasks.find(run.task_id)
    error = f"instance {run.held_by} {what}: what came of attempt {run.attempt} is not known"
    attempts = append_attempt(run.attempts, _lost_attempt(run, tx.now, error))
    retry_at, reason = _judge_orphan(task, run, tx.now)
    status = "FAILED" if retry_at is None else "RETRYING"
    if not _move(tx, run, status, reason, error, retry_at=retry_at, attempts=attempts):
        return False
    if retry_at is None:
        tx.tasks.note_last(run.task_id, "failed", error, tx.now)
        tx.rollups.add("runs_failed")
        if run.is_counted:
            promote_tasks(tx, [run.task_id])
    return True


def _judge_orphan(task: Task | None, run: Run, now: Instant) -> tuple[Instant | None, str]:
    if task is None or task.is_deleted:
        return None, "ORPHANED_TASK_DELETED"
    options = task.definition.options
    if options.delivery == "at_most_once":
        return None, "OUTCOME_UNKNOWN_AT_MOST_ONCE"
    if options.on_orphan == "fail":
        return None, "ORPHANED_ON_ORPHAN_FAIL"
    if run.attempt > task.definition.retry.max_retries:
        return None, "ORPHANED_NO_RETRY_LEFT"
    return now, "ORPHANED_RETRY_LEFT"


def _lost_attempt(run: Run, now: Instant, error: str) -> bytes:
    started = format_instant(run.start_time) if run.start_time is not None else None
    return msgspec.json.encode(
        {
            "attempt": run.attempt,
            "started_at": started,
            "ended_at": format_instant(now),
            "status": "LOST",
            "response_code": None,
            "error": error,
            "instance": run.held_by,
        }
    )


def _retry_of(task: Task, run: Run, now: Instant) -> Instant | None:
    return outcome.decide_outcome(
        Verdict("retry"),
        task.definition.retry,
        run.attempt,
        run.uid,
        now,
        is_async=True,
        callback_timeout_us=task.definition.callback_timeout_us,
    ).next_retry_time


def _move(
    tx: TasksTx,
    run: Run,
    status: str,
    reason: str,
    error: str,
    *,
    retry_at: Instant | None = None,
    attempts: str | None = None,
    attempt: int | None = None,
) -> bool:
    is_final = status != "RETRYING"
    end = RunEnd(
        status=status,
        end_time=tx.now if is_final else None,
        open_task=None if is_final else run.task_id,
        wake_at=retry_at,
        held_by=None,
        new_token=new_token(),
        error_message=error[:1024],
        reason=reason,
        next_retry_time=retry_at,
        callback_deadline=run.callback_deadline,
        callback_data=run.callback_data,
        attempts=attempts or run.attempts,
        attempt=attempt,
    )
    if not tx.runs.end_if_unchanged(run, end):
        return False
    data: dict[str, Any] = {
        "task_id": run.task_id,
        "from": run.status,
        "reason": reason,
        "error": error[:1024],
    }
    if run.held_by is not None:
        data["instance"] = run.held_by
    if is_final:
        data["alert"] = True
    tx.events.append("RUN", run.id, f"RUN_{status}", data)
    return True


def _list_orphans(tx: TasksTx, instance_id: str) -> list[int]:
    return tx.runs.list_orphans(instance_id, BATCH)


def _list_long_held(tx: TasksTx, instance_id: str) -> list[int]:
    return tx.runs.list_held(instance_id, tx.now - FORGOTTEN_AFTER)


def _list_stalled(tx: TasksTx) -> list[int]:
    return tx.runs.list_stalled(BATCH)
