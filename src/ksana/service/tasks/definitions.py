"""Use cases of task definitions, for both dialects: check, one transaction, signal. Knows no JSON
and no status codes."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.ids import new_ordered_uuids, new_token, new_uid
from ksana.base.instant import Instant, Micros, format_instant
from ksana.domain.lifecycle import TASK
from ksana.domain.schedule import Once
from ksana.domain.tasks.arming import arm, rearm
from ksana.domain.tasks.changes import cancel
from ksana.domain.tasks.records import Definition, Dialect, Run, Status, Task
from ksana.domain.tasks.sealing import drop_secrets
from ksana.engine.tasks.firing import drop_due_slots
from ksana.engine.tasks.run_writer import write_changes
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.pages import PageRows, Total
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TaskFilter, TasksTx
from ksana.service.core.batching import Batcher
from ksana.service.core.idempotency import IdempotentRequest, once_only
from ksana.service.tasks import reading
from ksana.service.tasks.triggers import (
    Started,
    TaskRef,
    find_task,
    record_refusal,
    run_task_now,
    trigger_task,
)

MAX_CANCELED: Final = 10_000
"""Runs cancelled with their task in one transaction; a task may have no more waiting."""


class Hints(Protocol):
    """What the engine would like to know at once. Hints may be lost; the engine's polls are the net
    under them."""

    def due(self, at: Instant | None) -> None:
        """A task may be due earlier than known."""
        ...

    def made(self, tasks: Sequence[Task]) -> None:
        """These tasks are committed as they are here."""
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


class TaskService:
    """Create, read, change, delete, trigger."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        hints: Hints,
        once_grace_us: Micros,
        secrets: TaskSecrets = CLEAR,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._clock = clock
        self._hints = hints
        self._once_grace_us = once_grace_us
        self._intake: Batcher[NewTask, Task] = Batcher(store, self._create_many, self._announce)

    async def create(self, new: NewTask, idempotency: IdempotentRequest | None = None) -> Task:
        """Make a task. A living C name or a job id that is taken is ALREADY_EXISTS."""
        if new.dialect == "T" and new.job_id is None and idempotency is None:
            return await self._intake.add(new)  # nothing can refuse it
        task = await self._store.transact(
            once_only(_create, idempotency), new, self._once_grace_us, self._secrets
        )
        self._hints.due(task.fire_at)
        return task

    def _create_many(self, tx: TasksTx, news: Sequence[NewTask]) -> list[Task]:
        return _create_many(tx, news, self._once_grace_us, self._secrets)

    def _announce(self, _: Sequence[NewTask], tasks: Sequence[Task]) -> None:
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
        self, wanted: TaskFilter, *, page: int, page_size: int, after: int | None = None
    ) -> tuple[PageRows[Task], Total]:
        """One page of living tasks, by its number or after an id, and how many there are."""
        return await self._store.read_list(reading.list_tasks, wanted, page, page_size, after)

    async def list_timers(self, after: int, limit: int) -> PageRows[Task]:
        """Living SYNC tasks that call a target, oldest first, after an id."""
        return await self._store.read_list(reading.list_timers, after, limit)

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
        task = await self._store.transact(
            _change, ref, make, version, status, self._once_grace_us, self._secrets
        )
        self._hints.due(task.fire_at)
        return task

    async def set_enabled(self, ref: TaskRef, enabled: bool) -> Task:
        """Pause or resume. Resuming takes the next slot from now; a repeat changes nothing."""
        task = await self._store.transact(set_enabled, ref, enabled)
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
        """Run a task by hand, within its concurrency limit. At the limit it is refused, and the
        refusal is recorded."""
        work = once_only(trigger_task, idempotency)
        started = await self._store.transact(
            record_refusal,
            work,
            ref,
            override_body,
            force_async,
            trace_id or new_uid(),
            self._secrets,
        )
        if isinstance(started, ConflictError):
            raise started
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
            once_only(run_task_now, idempotency), ref, trace_id or new_uid(), self._secrets
        )
        self._hints.ready(started.host)
        return started


def _get(tx: TasksTx, ref: TaskRef) -> Task:
    return find_task(tx, ref)


def _get_with_last_run(tx: TasksTx, ref: TaskRef) -> tuple[Task, Run | None]:
    task = find_task(tx, ref)
    newest = tx.runs.list_runs(task_id=task.id, limit=1)
    return task, newest[0] if newest else None


def _create(tx: TasksTx, new: NewTask, once_grace_us: Micros, secrets: TaskSecrets) -> Task:
    if new.job_id and tx.tasks.find_id(job_id=new.job_id) is not None:
        raise ConflictError(
            f"a job with the id {new.job_id} exists already", code="ALREADY_EXISTS", field="id"
        )
    if new.dialect == "C":
        _check_name(tx, new.definition.name, None)
    return _create_many(tx, [new], once_grace_us, secrets)[0]


def _create_many(
    tx: TasksTx, news: Sequence[NewTask], once_grace_us: Micros, secrets: TaskSecrets
) -> list[Task]:
    """Make tasks whose names and ids are free."""
    now = tx.now
    # Ids of ours are new, and ids that grow with time stand side by side in their index.
    job_ids = [
        new.job_id or fresh
        for new, fresh in zip(news, new_ordered_uuids(now, len(news)), strict=True)
    ]
    made = []
    for new, job_id in zip(news, job_ids, strict=True):
        slot, fire_at, last_status = arm(job_id, new.definition, new.status, now, once_grace_us)
        made.append(
            Task(
                id=0,
                job_id=job_id,
                dialect=new.dialect,
                definition=secrets.seal(new.definition, job_id),
                status=new.status,
                version=1,
                created_at=now,
                updated_at=now,
                is_deleted=False,
                next_slot_at=slot,
                fire_at=fire_at,
                runs_fired=0,
                last_run_at=None,
                last_status=last_status,
                last_error="",
            )
        )
    tasks = [
        msgspec.structs.replace(task, id=task_id)
        for task, task_id in zip(made, tx.tasks.insert(made), strict=True)
    ]
    for task in tasks:
        data = {
            "name": task.definition.name,
            "job_id": task.job_id,
            "dialect": task.dialect,
            "status": task.status,
        }
        tx.events.append("TASK", task.id, "TASK_CREATED", data)
        if task.last_status == "missed":
            _write_missed(tx, task.id, task.definition)
    return tasks


def _check_name(tx: TasksTx, name: str, task_id: int | None) -> None:
    holder = tx.tasks.find_id(name=name)
    if holder is not None and holder != task_id:
        raise ConflictError(
            f"a task named {name!r} exists already (id {holder})",
            code="ALREADY_EXISTS",
            field="name",
        )


def _write_missed(tx: TasksTx, task_id: int, definition: Definition) -> None:
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
    secrets: TaskSecrets,
) -> Task:
    task = find_task(tx, ref, lock=True)
    if version is not None and version != task.version:
        raise ConflictError(
            f"version {version} is not current, {task.version} is: read the task again",
            code="VERSION_CONFLICT",
            current={"version": task.version},
        )
    definition = secrets.seal(make(task, tx.now), task.job_id)
    new_status = status or task.status
    if new_status != task.status:
        TASK.require(task.status, new_status)
    if task.dialect == "C" and definition.name != task.definition.name:
        _check_name(tx, definition.name, task.id)
    slot, fire_at, last_status, runs_fired = (
        task.next_slot_at,
        task.fire_at,
        task.last_status,
        task.runs_fired,
    )
    if definition.schedule != task.definition.schedule:
        drop_due_slots(tx, task, "SCHEDULE_CHANGED")
        slot, fire_at, missed = arm(task.job_id, definition, new_status, tx.now, once_grace_us)
        last_status, runs_fired = missed or last_status, 0
        if missed:
            _write_missed(tx, task.id, definition)
    elif (
        new_status != task.status or definition.options.max_runs != task.definition.options.max_runs
    ):
        is_disabled = new_status == "DISABLED"
        drop_due_slots(tx, task, "TASK_DISABLED" if is_disabled else "SCHEDULE_CHANGED")
        slot, fire_at = rearm(task, definition, new_status, tx.now)
        last_status = (
            "paused" if new_status == "DISABLED" and task.status == "ENABLED" else last_status
        )
    if not tx.tasks.change_if_version(
        task, definition, new_status, slot, fire_at, runs_fired, last_status
    ):
        raise ConflictError("the task changed meanwhile: read it again", code="VERSION_CONFLICT")
    data: dict[str, Any] = {
        "version": task.version + 1,
        "status": new_status,
        "schedule": definition.schedule,
    }
    if definition.schedule != task.definition.schedule:
        data["schedule_was"] = task.definition.schedule
    tx.events.append("TASK", task.id, "TASK_CHANGED", data | _note_end(task))
    return find_task(tx, task.id)


def set_enabled(tx: TasksTx, ref: TaskRef, enabled: bool) -> Task:
    """Pause or resume a task. A repeat changes nothing."""
    task = find_task(tx, ref, lock=True)
    status = "ENABLED" if enabled else "DISABLED"
    if task.status == status:
        return task
    TASK.require(task.status, status)
    if not enabled:
        drop_due_slots(tx, task, "TASK_DISABLED")
    slot, fire_at = rearm(task, task.definition, status, tx.now)
    last_status = task.last_status if enabled else "paused"
    if not tx.tasks.change_if_version(
        task, task.definition, status, slot, fire_at, task.runs_fired, last_status
    ):
        raise ConflictError("the task changed meanwhile: read it again", code="VERSION_CONFLICT")
    tx.events.append(
        "TASK",
        task.id,
        "TASK_ENABLED" if enabled else "TASK_DISABLED",
        {"version": task.version + 1} | _note_end(task),
    )
    return find_task(tx, task.id)


def _note_end(task: Task) -> dict[str, Any]:
    """What the event of a change says of a task that had no slot left before it."""
    is_ended = task.status == "ENABLED" and task.next_slot_at is None
    return {"ended": True} if is_ended else {}


def _delete(tx: TasksTx, ref: TaskRef) -> None:
    task = find_task(tx, ref, lock=True)
    TASK.require(task.status, "DELETED")
    drop_due_slots(tx, task, "TASK_DELETED")
    if not tx.tasks.delete_if_living(task, drop_secrets(task.definition)):
        raise NotFoundError(f"no task has the id {ref}")
    if task.definition.options.secret_body:
        tx.task_seals.drop_override_bodies(task.id)
    tx.events.append(
        "TASK", task.id, "TASK_DELETED", {"name": task.definition.name} | _note_end(task)
    )
    waiting = [
        run
        for run in reversed(tx.runs.list_runs(task_id=task.id, is_open=True, limit=MAX_CANCELED))
        if run.status in ("SCHEDULED", "RETRYING")
    ]
    changes = [cancel(run, "TASK_DELETED", tx.now, new_token()) for run in waiting]
    write_changes(tx, [msgspec.structs.replace(change, frees_slot=False) for change in changes])
