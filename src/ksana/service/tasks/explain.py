"""Why: gathers in one read what is recorded and what is so now about a task or a run, and has the
domain put it into words.

Everything is looked up by an index and bounded: an answer costs as much in a long history as in a
short one.
"""

from typing import Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.tasks import explain_runs, explain_tasks
from ksana.domain.tasks.explain_runs import RunExplanation, RunFacts
from ksana.domain.tasks.explain_tasks import SlotRun, TaskExplanation, TaskFacts
from ksana.domain.tasks.records import Run, Task
from ksana.ports.store import Store
from ksana.ports.tasks.history import HistoryTx
from ksana.service.tasks.definitions import TaskRef, find_task
from ksana.service.tasks.runs import RunRef, find_run

EVENTS_BEFORE: Final = 100
EVENTS_AFTER: Final = 50
"""Events of a task looked at around the instant asked about."""

TIMELINE: Final = 500
"""Events of a run that are shown."""

COUNT_TO: Final = 10_000
"""Runs ahead are counted up to here."""


class TaskInsight(msgspec.Struct, frozen=True):
    """Why a task did, did not, or has not yet run."""

    task: Task
    at: Instant
    slot: Instant | None
    slot_run: Run | None
    why: TaskExplanation


class RunInsight(msgspec.Struct, frozen=True):
    """Why a run is in its state."""

    run: Run
    at: Instant
    why: RunExplanation


class ExplainService:
    """Answers why."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def explain_task(self, ref: TaskRef, at: Instant | None = None) -> TaskInsight:
        """Explain a living task as of an instant, now if none is given."""
        return await self._store.read(explain_task, ref, at)

    async def explain_run(self, ref: RunRef) -> RunInsight:
        """Explain a run as of now."""
        return await self._store.read(explain_run, ref)


def explain_task(tx: HistoryTx, ref: TaskRef, asked_at: Instant | None) -> TaskInsight:
    """Gather the facts about a task and say what they mean."""
    task = find_task(tx, ref)
    now = tx.now
    at = now if asked_at is None else asked_at
    history = tx.history
    seen_to = history.find_event_id_at(at) if at < now else _NEWEST
    slot = explain_tasks.slot_in_question(task, min(at, now))
    slot_run = None if slot is None else _find_slot_run(tx, task.id, slot)
    due = task.next_slot_at
    facts = TaskFacts(
        task=task,
        at=at,
        now=now,
        before=tuple(history.list_events_down("TASK", task.id, seen_to, EVENTS_BEFORE)),
        after=tuple(history.list_events_up("TASK", task.id, seen_to, EVENTS_AFTER))
        if at < now
        else (),
        slot=slot,
        slot_run=slot_run,
        last_by_hand=_find_last_by_hand(tx, task.id, slot_run) if at == now else None,
        counts=tx.runs.count_open(task.id),
        outages=tuple(tx.instances.list_outages(due)) if due is not None else (),
        is_anybody_alive=history.count_alive() > 0,
    )
    return TaskInsight(
        task, at, slot, slot_run.run if slot_run else None, explain_tasks.explain_task(facts)
    )


def explain_run(tx: HistoryTx, ref: RunRef) -> RunInsight:
    """Gather the facts about a run and say what they mean."""
    run = find_run(tx, ref)
    history = tx.history
    is_waiting = run.status == "SCHEDULED" and run.ready_host is None
    ahead = history.count_waiting_before(run.task_id, run.id) if is_waiting else 0
    if run.ready_host is not None:
        ahead = history.count_ready_before(run.ready_host, run.id, COUNT_TO)
    facts = RunFacts(
        run=run,
        task=tx.tasks.find(run.task_id),
        now=tx.now,
        events=tuple(history.list_events_up("RUN", run.id, 0, TIMELINE)),
        counts=tx.runs.count_open(run.task_id),
        ahead=ahead,
        is_ahead_cut=ahead >= COUNT_TO,
        holder_lease_until=None if run.held_by is None else history.find_lease_until(run.held_by),
    )
    return RunInsight(run, tx.now, explain_runs.explain_run(facts))


_NEWEST: Final = 2**62


def _find_slot_run(tx: HistoryTx, task_id: int, slot: Instant) -> SlotRun | None:
    run_id = tx.history.find_run_of_slot(task_id, slot)
    run = None if run_id is None else tx.runs.find(run_id)
    return None if run is None else SlotRun(run, tx.history.first_event("RUN", run.id))


def _find_last_by_hand(tx: HistoryTx, task_id: int, slot_run: SlotRun | None) -> Run | None:
    run_id = tx.history.find_last_by_hand(task_id)
    if run_id is None or (slot_run is not None and run_id < slot_run.run.id):
        return None
    return tx.runs.find(run_id)
