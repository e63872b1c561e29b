"""Use cases of task definitions, for both dialects: check, one transaction, signal. Knows no JSON
and no status codes."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.ids import new_ordered_uuids, new_run_uid, new_token, new_uid
from ksana.base.instant import Instant, Micros, format_instant
from ksana.domain import schedule
from ksana.domain.lifecycle import RUN
from ksana.domain.schedule import Once
from ksana.domain.tasks import firing
from ksana.domain.tasks.records import (
    Definition,
    Dialect,
    ExecType,
    Run,
    Status,
    Task,
    Trigger,
    host_of,
)
from ksana.ports.store import Store
from ksana.ports.tasks.tables import NewRun, RunEnd, TasksTx
from ksana.service.core.batching import Batcher
from ksana.service.core.idempotency import IdempotentRequest, once_only

TaskRef = int | str
"""A task by its integer id (C) or its job id (T)."""


class Hints(Protocol):
    """What the engine would like to know at once. Hints may be lost; the engine's polls are the net
    under them."""

    def due(self, at: Instant | None) -> None:
        """A task may be due earlier than known."""
        ...

    def made(self, tasks: Sequence[Task]) -> None:
        """These tasks were just committed, as they are here."""
        ...

    def ready(self, host: str) -> None:
        """A run of this host is about to start."""
        ...

    def canceled(self, run_id: int) -> None:
        """A run that may be in flight here was cancelled."""
        ...


class NewTask(msgspec.Struct, frozen=True):
    """A task to make. The definition is complete and checked."""

    dialect: Dialect
    definition: Definition
    status: Status = "ENABLED"
    job_id: str | None = None


class Started(msgspec.Struct, frozen=True):
    """A run made by hand."""

    run_id: int
    uid: str
    host: str
    is_ready: bool


class TaskService:
    """Create, read, change, delete, trigger."""

    def __init__(self, store: Store, clock: Clock, hints: Hints, once_grace_us: Micros) -> None:
        self._store = store
        self._clock = clock
        self._hints = hints
        self._once_grace_us = once_grace_us
        self._intake: Batcher[NewTask, Task] = Batcher(store, self._enter, self._tell_created)

    async def create(self, new: NewTask, idempotency: IdempotentRequest | None = None) -> Task:
        """Make a task. A living C name or a job id that is taken is ALREADY_EXISTS."""
        if new.dialect == "T" and new.job_id is None and idempotency is None:
            return await self._intake.add(new)  # nothing can refuse it
        task = await self._store.transact(once_only(_create, idempotency), new, self._once_grace_us)
        self._hints.due(
            task.fire_at
        )  # not told as made: under an Idempotency-Key it may have been made long ago
        return task

    def _enter(self, tx: TasksTx, news: Sequence[NewTask]) -> list[Task]:
        return _create_many(tx, news, self._once_grace_us)

    def _tell_created(self, _: Sequence[NewTask], tasks: Sequence[Task]) -> None:
        self._hints.made(tasks)
        self._hints.due(
            min([task.fire_at for task in tasks if task.fire_at is not None], default=None)
        )

    async def get(self, ref: TaskRef) -> Task:
        """Read a living task."""
        return await self._store.read(_get, ref)

    async def get_with_last_run(self, ref: TaskRef) -> tuple[Task, Run | None]:
        """Read a living task and its newest run."""
        return await self._store.read(_get_with_last_run, ref)

    async def list_page(
        self, *, status: str | None, name: str | None, tag: str | None, page: int, page_size: int
    ) -> tuple[list[Task], int]:
        """One page of living tasks and how many there are."""
        return await self._store.read(_list_page, status, name, tag, page, page_size)

    async def list_timers(self, after: int, limit: int) -> list[Task]:
        """Living SYNC tasks, oldest first, after an id."""
        return await self._store.read(_list_timers, after, limit)

    async def change(
        self,
        ref: TaskRef,
        make: Callable[[Task, Instant], Definition],
        *,
        version: int | None = None,
        status: str | None = None,
    ) -> Task:
        """Change a task to what `make` answers for its present state; a `version` that is not
        current is VERSION_CONFLICT."""
        task = await self._store.transact(_change, ref, make, version, status, self._once_grace_us)
        self._hints.due(task.fire_at)
        return task

    async def set_enabled(self, ref: TaskRef, enabled: bool) -> Task:
        """Pause or resume. Resuming takes the next slot from now; doing it twice changes nothing."""
        task = await self._store.transact(_set_enabled, ref, enabled)
        self._hints.due(task.fire_at)
        return task

    async def delete(self, ref: TaskRef) -> None:
        """Delete a task: waiting and retrying runs are cancelled, what is in flight finishes,
        history stays."""
        await self._store.transact(_delete, ref)

    async def trigger(
        self,
        ref: TaskRef,
        *,
        override_body: str | None = None,
        force_async: bool = False,
        trace_id: str | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> Started:
        """Run a task by hand, within its concurrency limit."""
        work = once_only(_trigger, idempotency)
        started = await self._store.transact(
            work, ref, override_body, force_async, trace_id or new_uid()
        )
        if started.is_ready:
            self._hints.ready(started.host)
        return started

    async def run_now(
        self,
        ref: TaskRef,
        *,
        trace_id: str | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> Started:
        """Run a task at once, beside whatever runs, uncounted."""
        started = await self._store.transact(
            once_only(_run_now, idempotency), ref, trace_id or new_uid()
        )
        self._hints.ready(started.host)
        return started


def find_task(tx: TasksTx, ref: TaskRef, *, lock: bool = False) -> Task:
    """Find a living task by either id, or raise NOT_FOUND."""
    task_id = ref if isinstance(ref, int) else tx.tasks.find_id(ref)
    task = None if task_id is None else tx.tasks.find(task_id, lock=lock)
    if task is None or task.is_deleted:
        raise NotFoundError(f"no task has the id {ref}")
    return task


def _get(tx: TasksTx, ref: TaskRef) -> Task:
    return find_task(tx, ref)


def _get_with_last_run(tx: TasksTx, ref: TaskRef) -> tuple[Task, Run | None]:
    task = find_task(tx, ref)
    return task, tx.runs.find_last(task.id)


def _list_page(
    tx: TasksTx, status: str | None, name: str | None, tag: str | None, page: int, page_size: int
) -> tuple[list[Task], int]:
    tasks = tx.tasks.list_tasks(
        status=status, name=name, tag=tag, limit=page_size, skip=(page - 1) * page_size
    )
    return tasks, tx.tasks.count(status=status, name=name, tag=tag)


def _list_timers(tx: TasksTx, after: int, limit: int) -> list[Task]:
    return tx.tasks.list_tasks(exec_type="SYNC", after=after, limit=limit)


def _create(tx: TasksTx, new: NewTask, once_grace_us: Micros) -> Task:
    if new.job_id and tx.tasks.find_id(new.job_id) is not None:
        raise ConflictError(
            f"a job with the id {new.job_id} exists already", code="ALREADY_EXISTS", field="id"
        )
    if new.dialect == "C":
        _check_name(tx, new.definition.name, None)
    return _create_many(tx, [new], once_grace_us)[0]


def _create_many(tx: TasksTx, news: Sequence[NewTask], once_grace_us: Micros) -> list[Task]:
    """Make tasks whose names and ids are free."""
    now = tx.now
    # Ids of ours are new, and ids that grow with time stand side by side in their index.
    job_ids = [
        new.job_id or fresh
        for new, fresh in zip(news, new_ordered_uuids(now, len(news)), strict=True)
    ]
    made = [
        Task(
            0,
            job_id,
            new.dialect,
            new.definition,
            new.status,
            1,
            now,
            now,
            False,
            slot,
            fire_at,
            0,
            None,
            last_status,
            "",
        )
        for new, job_id in zip(news, job_ids, strict=True)
        for slot, fire_at, last_status in [
            _arm(job_id, new.definition, new.status, now, once_grace_us)
        ]
    ]
    tasks = [
        msgspec.structs.replace(task, id=task_id)
        for task, task_id in zip(made, tx.tasks.insert_many(made), strict=True)
    ]
    for task in tasks:
        data = {"name": task.definition.name, "job_id": task.job_id, "dialect": task.dialect}
        tx.events.append("TASK", task.id, "TASK_CREATED", data)
        if task.last_status == "missed":
            _tell_missed(tx, task.id, task.definition)
    return tasks


def _check_name(tx: TasksTx, name: str, task_id: int | None) -> None:
    holder = tx.tasks.find_by_name(name)
    if holder is not None and holder != task_id:
        raise ConflictError(
            f"a task named {name!r} exists already (id {holder})",
            code="ALREADY_EXISTS",
            field="name",
        )


def _arm(
    job_id: str, definition: Definition, status: str, now: Instant, once_grace_us: Micros
) -> tuple[Instant | None, Instant | None, str]:
    """The first slot of a schedule that is set now, when it fires, and `missed` for a one-time slot
    that is past."""
    chosen = definition.schedule
    if isinstance(chosen, Once):
        if chosen.run_at < now - once_grace_us:
            return None, None, "missed"
        slot: Instant | None = chosen.run_at
    else:
        slot = schedule.next_after(chosen, now)
    if slot is None or status != "ENABLED":
        return slot, None, ""
    return slot, schedule.fire_at(chosen, job_id, slot), ""


def _tell_missed(tx: TasksTx, task_id: int, definition: Definition) -> None:
    assert isinstance(definition.schedule, Once)
    data = {
        "slot": format_instant(definition.schedule.run_at),
        "reason": "PAST_WHEN_SET",
        "alert": True,
    }
    tx.events.append("TASK", task_id, "TASK_MISSED", data)


def _change(
    tx: TasksTx,
    ref: TaskRef,
    make: Callable[[Task, Instant], Definition],
    version: int | None,
    status: str | None,
    once_grace_us: Micros,
) -> Task:
    task = find_task(tx, ref, lock=True)
    if version is not None and version != task.version:
        raise ConflictError(
            f"version {version} is not current, {task.version} is: read the task again",
            code="VERSION_CONFLICT",
            current={"version": task.version},
        )
    definition = make(task, tx.now)
    new_status = status or task.status
    if task.dialect == "C" and definition.name != task.definition.name:
        _check_name(tx, definition.name, task.id)
    slot, fire_at, last_status, runs_fired = (
        task.next_slot_at,
        task.fire_at,
        task.last_status,
        task.runs_fired,
    )
    if definition.schedule != task.definition.schedule:
        slot, fire_at, missed = _arm(task.job_id, definition, new_status, tx.now, once_grace_us)
        last_status, runs_fired = missed or last_status, 0
        if missed:
            _tell_missed(tx, task.id, definition)
    elif (
        new_status != task.status or definition.options.max_runs != task.definition.options.max_runs
    ):
        slot, fire_at = _rearm(task, definition, new_status, tx.now)
        last_status = (
            "paused" if new_status == "DISABLED" and task.status == "ENABLED" else last_status
        )
    if not tx.tasks.change_if_version(
        task, definition, new_status, slot, fire_at, runs_fired, last_status
    ):
        raise ConflictError("the task changed meanwhile: read it again", code="VERSION_CONFLICT")
    tx.events.append(
        "TASK", task.id, "TASK_CHANGED", {"version": task.version + 1, "status": new_status}
    )
    return find_task(tx, task.id)


def _rearm(
    task: Task, definition: Definition, status: str, now: Instant
) -> tuple[Instant | None, Instant | None]:
    """The next slot from now on; slots while disabled are not made up. A one-time slot keeps its
    place."""
    chosen = definition.schedule
    if definition.options.max_runs is not None and task.runs_fired >= definition.options.max_runs:
        return None, None
    if isinstance(chosen, Once):
        slot = (
            task.next_slot_at if task.next_slot_at is not None and task.next_slot_at > now else None
        )
        slot = (
            slot
            if slot is not None
            else schedule.next_after(chosen, now)
            if not task.runs_fired
            else None
        )
    else:
        slot = schedule.next_after(chosen, now)
    if slot is None or status != "ENABLED":
        return slot, None
    return slot, schedule.fire_at(chosen, task.job_id, slot)


def _set_enabled(tx: TasksTx, ref: TaskRef, enabled: bool) -> Task:
    task = find_task(tx, ref, lock=True)
    status = "ENABLED" if enabled else "DISABLED"
    if task.status == status:
        return task
    slot, fire_at = _rearm(task, task.definition, status, tx.now)
    last_status = task.last_status if enabled else "paused"
    if not tx.tasks.change_if_version(
        task, task.definition, status, slot, fire_at, task.runs_fired, last_status
    ):
        raise ConflictError("the task changed meanwhile: read it again", code="VERSION_CONFLICT")
    tx.events.append(
        "TASK",
        task.id,
        "TASK_ENABLED" if enabled else "TASK_DISABLED",
        {"version": task.version + 1},
    )
    return find_task(tx, task.id)


def _delete(tx: TasksTx, ref: TaskRef) -> None:
    task = find_task(tx, ref, lock=True)
    if not tx.tasks.delete_if_living(task):
        raise NotFoundError(f"no task has the id {ref}")
    tx.events.append("TASK", task.id, "TASK_DELETED", {"name": task.definition.name})
    for run_id in tx.runs.list_open_of_task(task.id):
        run = tx.runs.find(run_id, lock=True)
        if run is not None and run.status in ("SCHEDULED", "RETRYING"):
            cancel_run(tx, run, "TASK_DELETED")


def cancel_run(tx: TasksTx, run: Run, reason: str) -> bool:
    """Move an unfinished run to CANCELED. Its token changes, so a holder's late result is refused."""
    if run.status in RUN.final:
        return False
    # The new token is how a holder, on whichever instance, finds out and aborts the call.
    end = RunEnd(
        status="CANCELED",
        end_time=tx.now,
        open_task=None,
        wake_at=None,
        held_by=None,
        new_token=new_token(),
        error_message=run.error_message,
        reason=reason,
        next_retry_time=None,
        callback_deadline=run.callback_deadline,
        callback_data=run.callback_data,
        attempts=run.attempts,
    )
    if not tx.runs.end_if_unchanged(run, end):
        return False
    tx.events.append(
        "RUN",
        run.id,
        "RUN_CANCELED",
        {"task_id": run.task_id, "from": run.status, "reason": reason},
    )
    tx.rollups.add("runs_canceled")
    return True


def _trigger(
    tx: TasksTx, ref: TaskRef, override_body: str | None, force_async: bool, trace_id: str
) -> Started:
    task = find_task(tx, ref, lock=True)
    definition = task.definition
    counts = tx.runs.count_open(task.id)
    start, reason = firing.admit(
        definition.concurrency_policy,
        definition.max_concurrency,
        definition.options.max_queued,
        counts,
    )
    if start == "skip":
        full = reason == "QUEUE_FULL"
        raise ConflictError(
            f"{counts.waiting} runs wait already, {definition.options.max_queued} may"
            if full
            else f"{counts.active} of {definition.max_concurrency} runs are active and the policy is SKIP",
            code=reason,
            current={"active": counts.active, "waiting": counts.waiting},
        )
    exec_type: ExecType = "ASYNC" if force_async else definition.exec_type
    return start_run(
        tx,
        task,
        trigger="manual",
        reason=reason,
        is_ready=start == "start",
        is_counted=True,
        trace_id=trace_id,
        exec_type=exec_type,
        override_body=override_body,
    )


def _run_now(tx: TasksTx, ref: TaskRef, trace_id: str) -> Started:
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
    override_body: str | None = None,
    retry_of: int | None = None,
) -> Started:
    """Write a run that is not of a slot: about to start, or waiting for its turn."""
    uid, host = new_run_uid(tx.now), host_of(task.definition.target_url)
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
        callback_token=new_uid() if exec_type == "ASYNC" else None,
        override_body=override_body,
        retry_of=retry_of,
    )
    run_id = tx.runs.insert_many([run])[0]
    tx.events.append(
        "RUN", run_id, "RUN_SCHEDULED", {"task_id": task.id, "trigger": trigger, "reason": reason}
    )
    return Started(run_id, uid, host, is_ready)
