"""Use cases of past slots that are fired on purpose: a range, or what passed while a task was
disabled. One transaction each: all of it happens, or nothing."""

from typing import Any, Final, Protocol

import msgspec

from ksana.base.errors import ConflictError, InvalidError
from ksana.base.ids import new_run_uids, new_token, new_tokens
from ksana.base.instant import MINUTE, SECOND, Instant, Micros, format_instant
from ksana.domain import schedule as schedules
from ksana.domain.tasks import backfill, resuming
from ksana.domain.tasks.backfill import BackfillPlan, Caps, Span
from ksana.domain.tasks.changes import cancel
from ksana.domain.tasks.firing import place_of
from ksana.domain.tasks.records import NewRun, Task
from ksana.engine.tasks.run_writer import let_in_runs, write_changes, write_held_back
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.store import Store
from ksana.ports.tasks.history import HistoryTx
from ksana.ports.tasks.tables import TasksTx
from ksana.service.tasks.definitions import set_enabled
from ksana.service.tasks.triggers import TaskRef, find_task

_PORTION: Final = 500
_EVENTS: Final = 100
_NEWEST: Final = 2**62


class BackfillHints(Protocol):
    """What the engine would like to know at once."""

    def due(self, at: Instant | None) -> None:
        """A task may be due earlier than known."""
        ...

    def ready(self, host: str) -> None:
        """A run of this host is about to start."""
        ...

    def paced(self) -> None:
        """Runs were made that are let in later."""
        ...


class Filled(msgspec.Struct, frozen=True):
    """What a backfill fires, or would fire."""

    task: Task
    plan: BackfillPlan
    starts: tuple[Instant, ...]
    run_ids: tuple[int, ...] = ()
    hosts: frozenset[str] = frozenset()


class BackfillService:
    """Fires past slots."""

    def __init__(
        self,
        store: Store,
        hints: BackfillHints,
        once_grace_us: Micros,
        secrets: TaskSecrets = CLEAR,
    ) -> None:
        self._store = store
        self._hints = hints
        # What is newer may still be fired by the scheduler.
        self._edge_us = once_grace_us + SECOND
        self._secrets = secrets

    async def preview(self, ref: TaskRef, asked: Span, caps: Caps) -> Filled:
        """What a backfill of a range would fire now."""
        return await self._store.read(_preview, ref, asked, caps, self._edge_us)

    async def backfill(self, ref: TaskRef, asked: Span, caps: Caps) -> Filled:
        """Fire the slots of a range that have no run, the oldest first. Asked for again it fires
        what is left."""
        filled = await self._store.transact(
            _backfill, ref, asked, caps, self._edge_us, self._secrets
        )
        self._announce(filled)
        return filled

    async def cancel(self, ref: TaskRef) -> int:
        """Cancel the runs of backfills of a task that wait; answer how many."""
        return await self._store.transact(_cancel_waiting, ref)

    async def preview_resume(self, ref: TaskRef, caps: Caps) -> Filled | None:
        """What enabling a task with a catch-up would make up; None if it is enabled."""
        return await self._store.read(_preview_resume, ref, caps, self._edge_us)

    async def resume(self, ref: TaskRef, caps: Caps) -> Filled | None:
        """Enable a task, and make up the newest slots that passed while it was disabled. None if it
        was enabled: then nothing happens."""
        filled = await self._store.transact(_resume, ref, caps, self._edge_us, self._secrets)
        if filled is not None:
            self._hints.due(filled.task.fire_at)
            self._announce(filled)
        return filled

    def _announce(self, filled: Filled) -> None:
        for host in filled.hosts:
            self._hints.ready(host)
        if filled.run_ids:
            self._hints.paced()


def _preview(tx: TasksTx, ref: TaskRef, asked: Span, caps: Caps, edge_us: Micros) -> Filled:
    task = find_task(tx, ref)
    plan = _plan(tx, task, asked, caps, edge_us)
    return Filled(task, plan, tuple(backfill.starts_of(plan, caps, tx.now)))


def _backfill(
    tx: TasksTx,
    ref: TaskRef,
    asked: Span,
    caps: Caps,
    edge_us: Micros,
    secrets: TaskSecrets,
) -> Filled:
    task = find_task(tx, ref, lock=True)
    return _write(tx, task, _plan(tx, task, asked, caps, edge_us), caps, secrets)


def _plan(tx: TasksTx, task: Task, asked: Span, caps: Caps, edge_us: Micros) -> BackfillPlan:
    """The oldest slots of a range that have no run."""
    if asked.until - asked.since > backfill.LONGEST:
        raise InvalidError("the range is longer than ten years: ask for less at once", field="from")
    schedule = task.definition.schedule
    span = backfill.bound_span(task, asked, caps, tx.now, edge_us)
    chosen: list[Instant] = []
    at, looked, recorded = span.since - 1, 0, 0
    while len(chosen) < caps.count and looked < backfill.LOOK:
        portion = backfill.next_slots(schedule, at, span.until, _PORTION)
        if not portion:
            break
        known = {slot for _, slot in tx.runs.list_claimed([task.id], portion[0], portion[-1])}
        for slot in portion:
            if len(chosen) == caps.count:
                break
            at, looked = slot, looked + 1
            if slot in known:
                recorded += 1
            else:
                chosen.append(slot)
    more = backfill.next_slots(schedule, at, span.until, 1)
    in_span = schedules.count_between(schedule, span.since - 1, span.until - 1)
    return BackfillPlan(span, tuple(chosen), in_span, recorded, more[0] if more else None)


def _plan_resume(tx: HistoryTx, task: Task, caps: Caps, edge_us: Micros) -> BackfillPlan | None:
    """The newest slots that passed while a task was disabled."""
    facts = tx.history.list_events_down("TASK", task.id, _NEWEST, _EVENTS)
    disabled_at = resuming.disabled_since(task, facts)
    if disabled_at is None:
        return None
    schedule = task.definition.schedule
    asked = resuming.missed_while_disabled(disabled_at, tx.now)
    span = backfill.bound_span(task, asked, caps, tx.now, edge_us)
    newest = schedules.latest_n(schedule, span.until - 1, caps.count, span.since - 1)
    known: set[Instant] = set()
    if newest:
        claimed = tx.runs.list_claimed([task.id], newest[0], newest[-1])
        known = {slot for _, slot in claimed}
    slots = tuple(slot for slot in newest if slot not in known)
    in_span = schedules.count_between(schedule, span.since - 1, span.until - 1)
    return BackfillPlan(span, slots, in_span, len(known), None)


def _preview_resume(tx: HistoryTx, ref: TaskRef, caps: Caps, edge_us: Micros) -> Filled | None:
    task = find_task(tx, ref)
    plan = _plan_resume(tx, task, caps, edge_us)
    if plan is None:
        return None
    return Filled(task, plan, tuple(backfill.starts_of(plan, caps, tx.now)))


def _resume(
    tx: HistoryTx, ref: TaskRef, caps: Caps, edge_us: Micros, secrets: TaskSecrets
) -> Filled | None:
    task = find_task(tx, ref, lock=True)
    plan = _plan_resume(tx, task, caps, edge_us)
    if plan is None:
        return None
    enabled = set_enabled(tx, ref, True)
    return _write(tx, enabled, plan, caps, secrets, {"resumed": True})


def _write(
    tx: TasksTx,
    task: Task,
    plan: BackfillPlan,
    caps: Caps,
    secrets: TaskSecrets,
    more: dict[str, Any] | None = None,
) -> Filled:
    slots = plan.slots
    starts = tuple(backfill.starts_of(plan, caps, tx.now))
    if not slots:
        return Filled(task, plan, starts)
    waiting = tx.run_due.count_unfinished(task.id, backfill.MOST + 1)
    if waiting + len(slots) > backfill.MOST:
        raise ConflictError(
            f"{waiting} runs of the task are unfinished, and {backfill.MOST} may be with those of a"
            " backfill: ask again when they are done, or for fewer",
            code="QUEUE_FULL",
            current={"unfinished": waiting},
        )
    runs = _new_runs(tx.now, task, slots, secrets)
    ids = write_held_back(tx, runs, starts)
    data: dict[str, Any] = {
        "from": format_instant(plan.span.since),
        "to": format_instant(plan.span.until),
        "count": len(slots),
        "first": format_instant(slots[0]),
        "last": format_instant(slots[-1]),
        "per_minute": MINUTE // caps.interval_us,
    }
    tx.events.append("TASK", task.id, "TASK_BACKFILLED", data | (more or {}))
    due = [run for run in tx.run_due.list_held_back(task.id, 1) if (run.wake_at or 0) <= tx.now]
    hosts = let_in_runs(tx, task.id, due) if due else set()
    return Filled(task, plan, starts, tuple(ids), frozenset(hosts))


def _new_runs(
    now: Instant, task: Task, slots: tuple[Instant, ...], secrets: TaskSecrets
) -> list[NewRun]:
    definition, count = task.definition, len(slots)
    exec_type, host = definition.exec_type, place_of(definition)
    return [
        NewRun(
            uid=uid,
            task_id=task.id,
            slot_at=slot,
            scheduled_time=slot,
            status="SCHEDULED",
            trigger=backfill.TRIGGER,
            exec_type=exec_type,
            is_counted=False,
            host=host,
            is_ready=False,
            held_by=None,
            token=token,
            reason="BACKFILL",
            trace_id=uid,
            callback_hash=secrets.hash_new_token(uid) if exec_type == "ASYNC" else None,
        )
        for slot, uid, token in zip(slots, new_run_uids(now, count), new_tokens(count), strict=True)
    ]


def _cancel_waiting(tx: TasksTx, ref: TaskRef) -> int:
    task = find_task(tx, ref, lock=True)
    waiting = tx.run_due.list_held_back(task.id, backfill.MOST)
    changes = [cancel(run, "BACKFILL_CANCELED", tx.now, new_token()) for run in waiting]
    count = sum(write_changes(tx, changes).done)
    if count:
        tx.events.append("TASK", task.id, "BACKFILL_CANCELED", {"count": count})
    return count
