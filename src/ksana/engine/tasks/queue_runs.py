"""Runs of type `queue`: a ready run and its job start together; the end of the job ends the run.

    ready runs ──▶ one transaction: run RUNNING, job QUEUED        nothing between the two to lose
    jobs end   ──▶ a note, in the transaction that ends them ──▶ one transaction: runs end, notes go
    time over  ──▶ `expire_job`, from the pump that wakes runs     the net under both

Nobody holds such a run: its worker may take days, and instances may come and go. A kill at any
point leaves either a ready run, or a run with its job, or a note; each is found by a poll. The run
is moved by the one writer of runs, under its token, so a cancelled or retried run does not hear of
an old job.
"""

from collections.abc import Callable

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import ConflictError
from ksana.base.ids import new_tokens
from ksana.base.instant import MILLISECOND, SECOND, Instant
from ksana.domain.handover import HandedEnd, HandedJob, find_owner, job_id_of, request_id_of
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.job_runs import (
    GONE,
    OVERDUE,
    end_by_job,
    hand_over,
    is_waiting_for_job,
    refuse_job,
)
from ksana.domain.tasks.records import QUEUE_PLACE, ClaimedRun, Run, Task
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.tasks.claimed_run import (
    AttemptOver,
    claimed_run_of,
    reply_of,
    waiting_run_of,
)
from ksana.engine.tasks.payloads import build_queue_order
from ksana.engine.tasks.recorder import WELL, RunObserver, log_failures
from ksana.engine.tasks.run_writer import write_changes
from ksana.ports.handover import HandoverTx, QueueJobs, QueueOrder
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

BATCH = 200
MIN_INTERVAL = 4 * MILLISECOND
"""Slots that are due together, and ends that come together, share a commit."""


class QueueRunsTx(TasksTx, HandoverTx):
    """A transaction over runs and ends of jobs."""


class Handled(msgspec.Struct):
    """What one transaction came to."""

    is_full: bool
    ready_hosts: set[str]
    wakes: bool
    overs: list[tuple[AttemptOver, str]]
    """Attempts that ended, each with the status of its run."""
    orders: list[QueueOrder] = []
    """Jobs that were submitted."""


class QueueRuns:
    """Owns the pump that starts and ends runs of type `queue`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        jobs: QueueJobs,
        instance_id: str,
        observers: tuple[RunObserver, ...],
        on_handled: Callable[[set[str], bool], None],
    ) -> None:
        """`on_handled` is told the hosts that have ready runs now, and whether a run must be looked
        at later."""
        self.jobs = jobs
        self._store = store
        self._instance_id = instance_id
        self._observers = observers
        self._on_handled = on_handled
        self._has_ready = True
        self._has_ended = True
        self._stopped = False
        jobs.subscribe(self.ended)
        self.pump = Pump(
            "queue-runs", clock, self._step, poll_us=5 * SECOND, min_interval_us=MIN_INTERVAL
        )

    def ready(self) -> None:
        """A run is about to start."""
        self._has_ready = True
        self.pump.signal()

    def ended(self) -> None:
        """A job that a run waits for may have ended."""
        self._has_ended = True
        self.pump.signal()

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True

    async def _step(self) -> Instant | None:
        if not self._has_ready and not self._has_ended:  # the poll: hints may have been lost
            self._has_ready, self._has_ended = await self._store.read(look)
        ends = starts = None
        if self._has_ended:
            ends = await self._store.transact(settle_ends, self.jobs, self._instance_id)
            self._has_ended = ends.is_full
            self._tell(ends)
        if self._has_ready and not self._stopped:
            starts = await self._start()
            self._has_ready = starts.is_full
            self.jobs.submitted(starts.orders)
            self._tell(starts)
        return AGAIN if any(one is not None and one.is_full for one in (ends, starts)) else None

    async def _start(self) -> Handled:
        """Start what is ready. A job that cannot be submitted fails its own run only."""
        try:
            return await self._store.transact(start_runs, self.jobs, self._instance_id)
        except ConflictError as error:
            log.warning("a run's job cannot be submitted", err=error.message)
            return await self._store.transact(
                start_runs, self.jobs, self._instance_id, is_careful=True
            )

    def expire(self, tx: TasksTx, run: Run, task: Task) -> tuple[RunChange, AttemptOver]:
        """The time of a run that waits for its job is over."""
        return expire_job(tx, self.jobs, run, task, self._instance_id)

    def tell(self, overs: list[tuple[AttemptOver, str]]) -> None:
        """These attempts ended, and it is committed."""
        for observer in self._observers:
            observer.recorded(overs)
        log_failures([one for one in overs if one[1] not in WELL])

    def _tell(self, handled: Handled) -> None:
        self.tell(handled.overs)
        if handled.ready_hosts or handled.wakes:
            self._on_handled(handled.ready_hosts, handled.wakes)


def look(tx: QueueRunsTx) -> tuple[bool, bool]:
    """Whether runs are ready, and whether ends are noted."""
    return QUEUE_PLACE in tx.run_due.list_ready_hosts(), tx.handover_ends.has_any()


def start_runs(
    tx: QueueRunsTx, jobs: QueueJobs, instance_id: str, *, is_careful: bool = False
) -> Handled:
    """Start ready runs, each with its job. Raise ConflictError if one cannot be submitted, unless
    `is_careful`: then each is looked up before."""
    ready = tx.run_due.list_ready(QUEUE_PLACE, BATCH)
    changes: list[RunChange] = []
    orders: list[QueueOrder | None] = []
    failed: dict[int, AttemptOver] = {}
    for (run, task), token in zip(ready, new_tokens(len(ready)), strict=True):
        job_id = job_id_of(run.uid, run.attempt + (run.status == "RETRYING"))
        change = hand_over(run, job_id, tx.now + task.definition.timeout_us, tx.now, token)
        held = claimed_run_of(run, task, change, instance_id, 0)
        beside = [one for one in orders if one is not None] if is_careful else None
        order, fault = _order_of(tx, jobs, held, beside)
        if fault is not None:
            change = refuse_job(run, fault, tx.now, token)
            failed[run.id] = _over(held, HandedEnd("gave_up", fault), tx.now, tx.now)
        changes.append(change)
        orders.append(order)
    written = write_changes(tx, changes)
    submitted: list[QueueOrder] = []
    overs: list[tuple[AttemptOver, str]] = []
    for change, order, is_done in zip(changes, orders, written.done, strict=True):
        if is_done and order is not None:
            submitted.append(order)
        elif is_done:
            overs.append((failed[change.run_id], change.new))
    if submitted:
        jobs.submit(tx, submitted)
    return Handled(len(ready) == BATCH, written.ready_hosts, written.wakes, overs, submitted)


def _order_of(
    tx: QueueRunsTx, jobs: QueueJobs, run: ClaimedRun, beside: list[QueueOrder] | None
) -> tuple[QueueOrder | None, str | None]:
    """The order of a run, or why there can be none; looked up if it is told what else is
    submitted."""
    try:
        order = build_queue_order(run, tx.now)
    except ValueError as error:
        return None, str(error)
    fault = jobs.find_fault(order.addon_id, order.cost_units)
    if fault is None and beside is not None:
        fault = jobs.find_conflict(tx, order, beside)
    return (order, None) if fault is None else (None, fault)


def settle_ends(tx: QueueRunsTx, jobs: QueueJobs, instance_id: str) -> Handled:
    """End the runs whose jobs have ended. A run that is not waiting for its job any more does not
    hear of it."""
    noted = tx.handover_ends.list_noted(BATCH)
    ended = jobs.find_jobs(tx, [end.job_id for end in noted]) if noted else {}
    changes: list[RunChange] = []
    overs: list[AttemptOver] = []
    for job in ended.values():
        found = _find_waiting(tx, job)
        if found is not None and job.end is not None:
            change, over = _end(tx, *found, job, job.end, instance_id)
            changes.append(change)
            overs.append(over)
    written = write_changes(tx, changes)
    tx.handover_ends.remove(noted)
    return Handled(
        len(noted) == BATCH,
        written.ready_hosts,
        written.wakes,
        [
            (over, change.new)
            for over, change, is_done in zip(overs, changes, written.done, strict=True)
            if is_done
        ],
    )


def expire_job(
    tx: TasksTx, jobs: QueueJobs, run: Run, task: Task, instance_id: str
) -> tuple[RunChange, AttemptOver]:
    """The time of a run that waits for its job is over: its job is cancelled. If the job has ended
    and nobody said so, its end counts."""
    job_id = job_id_of(run.uid, run.attempt)
    job = jobs.cancel(tx, job_id, f"run {run.id} timed out")
    if job is None:
        job = HandedJob(
            job_id=job_id,
            request_id=request_id_of(run.uid, run.attempt),
            state="GONE",
            payload="",
            created_at=run.updated_at,
            end=HandedEnd("lost", GONE),
            has_begun=True,
        )
    end = HandedEnd("timeout", OVERDUE) if job.end is None else job.end
    return _end(tx, run, task, job, end, instance_id)


def _find_waiting(tx: TasksTx, job: HandedJob) -> tuple[Run, Task] | None:
    """The run that waits for a job, and its task."""
    owner = find_owner(job)
    run_id = None if owner is None else tx.runs.find_id(owner[0])
    run = None if run_id is None else tx.runs.find(run_id)
    if owner is None or run is None or run.attempt != owner[1] or not is_waiting_for_job(run):
        return None
    task = tx.tasks.find(run.task_id)
    return None if task is None else (run, task)


def _end(
    tx: TasksTx, run: Run, task: Task, job: HandedJob, end: HandedEnd, instance_id: str
) -> tuple[RunChange, AttemptOver]:
    held = waiting_run_of(run, task, instance_id)
    ended_at = tx.now if job.ended_at is None else job.ended_at
    change = end_by_job(held, job, end, ended_at, tx.now)
    return change, _over(held, end, job.created_at, ended_at)


def _over(held: ClaimedRun, end: HandedEnd, started_at: Instant, ended_at: Instant) -> AttemptOver:
    """The end of an attempt as observers know it."""
    reply = reply_of(end, started_at, ended_at)
    return AttemptOver(held, None, None, reply, started_at, ended_at)
