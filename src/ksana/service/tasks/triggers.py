"""Runs made by hand: trigger, run now, run again. Transaction functions for the services."""

from collections.abc import Callable
from typing import Any

import msgspec

from ksana.base.errors import ConflictError, InvalidError, NotFoundError
from ksana.base.ids import new_run_uid, new_token
from ksana.domain.tasks import firing
from ksana.domain.tasks.firing import Counts, place_of
from ksana.domain.tasks.records import ExecType, NewRun, Task, Trigger
from ksana.engine.tasks.run_writer import write_runs
from ksana.engine.tasks.task_secrets import TaskSecrets
from ksana.ports.tasks.tables import TasksTx

TaskRef = int | str
"""A task by its integer id (C) or its job id (T)."""


class Started(msgspec.Struct, frozen=True):
    """A run made by hand."""

    run_id: int
    uid: str
    host: str
    is_ready: bool


class TriggerRefusedError(ConflictError):
    """A trigger that the task's concurrency limit does not allow."""

    def __init__(self, task: Task, reason: str, counts: Counts) -> None:
        definition = task.definition
        self.task_id = task.id
        self.data = {
            "reason": reason,
            "active": counts.active,
            "waiting": counts.waiting,
            "max_concurrency": definition.max_concurrency,
            "max_queued": definition.options.max_queued,
            "policy": definition.concurrency_policy,
        }
        super().__init__(
            f"{counts.waiting} runs wait already, {definition.options.max_queued} may"
            if reason == "QUEUE_FULL"
            else f"{counts.active} of {definition.max_concurrency} runs are active"
            " and the policy is SKIP",
            code=reason,
            current={"active": counts.active, "waiting": counts.waiting},
        )


def find_task(tx: TasksTx, ref: TaskRef, *, lock: bool = False) -> Task:
    """Find a living task by either id, or raise NOT_FOUND."""
    task_id = ref if isinstance(ref, int) else tx.tasks.find_id(job_id=ref)
    task = None if task_id is None else tx.tasks.find(task_id, lock=lock)
    if task is None or task.is_deleted:
        raise NotFoundError(f"no task has the id {ref}")
    return task


def record_refusal(
    tx: TasksTx, work: Callable[..., Started], *args: Any
) -> Started | TriggerRefusedError:
    """Trigger; a refusal is answered, not raised, so that its event is committed."""
    try:
        return work(tx, *args)
    except TriggerRefusedError as refusal:
        tx.events.append("TASK", refusal.task_id, "TRIGGER_REFUSED", refusal.data)
        return refusal


def trigger_task(
    tx: TasksTx,
    ref: TaskRef,
    override_body: str | None,
    force_async: bool,
    trace_id: str,
    secrets: TaskSecrets,
) -> Started:
    """Make a run within the task's concurrency limit. A refusal is raised before anything is
    written."""
    task = find_task(tx, ref, lock=True)
    definition = task.definition
    if force_async and definition.options.type != "http":
        raise InvalidError(
            f"a task of type {definition.options.type} takes no callback", field="force_async"
        )
    counts = tx.runs.count_open([task.id]).get(task.id, Counts())
    start, reason = firing.admit(
        definition.concurrency_policy,
        definition.max_concurrency,
        definition.options.max_queued,
        counts,
    )
    if start == "skip":
        raise TriggerRefusedError(task, reason, counts)
    return start_run(
        tx,
        task,
        trigger="manual",
        reason=reason,
        is_ready=start == "start",
        is_counted=True,
        trace_id=trace_id,
        exec_type="ASYNC" if force_async else definition.exec_type,
        secrets=secrets,
        override_body=override_body,
    )


def run_task_now(tx: TasksTx, ref: TaskRef, trace_id: str, secrets: TaskSecrets) -> Started:
    """Make a run beside whatever runs; it is not counted."""
    task = find_task(tx, ref)
    return start_run(
        tx,
        task,
        trigger="manual",
        reason="RUN_NOW",
        is_ready=True,
        is_counted=False,
        trace_id=trace_id,
        exec_type=task.definition.exec_type,
        secrets=secrets,
    )


def start_run(
    tx: TasksTx,
    task: Task,
    *,
    trigger: Trigger,
    reason: str,
    is_ready: bool,
    is_counted: bool,
    trace_id: str,
    exec_type: ExecType,
    secrets: TaskSecrets,
    override_body: str | None = None,
    retry_of: int | None = None,
) -> Started:
    """Write a run that is not of a slot: about to start, or waiting for its turn."""
    uid, host = new_run_uid(tx.now), place_of(task.definition)
    if override_body is not None:
        override_body = secrets.seal_override(override_body, task.definition, task.job_id)
    run = NewRun(
        uid=uid,
        task_id=task.id,
        slot_at=None,
        scheduled_time=tx.now,
        status="SCHEDULED",
        trigger=trigger,
        exec_type=exec_type,
        is_counted=is_counted,
        host=host,
        is_ready=is_ready,
        held_by=None,
        token=new_token(),
        reason=reason,
        trace_id=trace_id,
        callback_hash=secrets.hash_new_token(uid) if exec_type == "ASYNC" else None,
        override_body=override_body,
        retry_of=retry_of,
    )
    return Started(write_runs(tx, [run])[0], uid, host, is_ready)
