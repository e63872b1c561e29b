"""Why: gathers in one read what is recorded and what is so now about a task or a run, and has the
domain put it into words.

Everything is looked up by an index and bounded: an answer costs as much in a long history as in a
short one.
"""

from typing import Final

import msgspec

from ksana.base.instant import Instant
from ksana.domain.explain import Fact
from ksana.domain.handover import HandedJob, job_id_of
from ksana.domain.schedule import Schedule
from ksana.domain.tasks import explain_runs, explain_tasks, resuming
from ksana.domain.tasks.explain_runs import RunExplanation, RunFacts
from ksana.domain.tasks.explain_tasks import SlotRun, TaskExplanation, TaskFacts
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.job_runs import is_waiting_for_job
from ksana.domain.tasks.past_schedule import schedule_in_force
from ksana.domain.tasks.records import Run, Task
from ksana.domain.tasks.resuming import ResumeBill
from ksana.ports.handover import NO_QUEUE, QueueJobs
from ksana.ports.store import Store
from ksana.ports.tasks.history import HistoryTx
from ksana.service.tasks.runs import RunRef, find_run
from ksana.service.tasks.triggers import TaskRef, find_task

EVENTS_BEFORE: Final = 100
EVENTS_AFTER: Final = 50
"""Events of a task looked at around the instant asked about."""

EVENTS_PAGE: Final = 500
PAGES_BACK: Final = 10
"""How far back the schedule of a task is looked for."""

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

    def __init__(self, store: Store, jobs: QueueJobs = NO_QUEUE) -> None:
        self._store = store
        self._jobs = jobs

    async def explain_task(self, ref: TaskRef, at: Instant | None = None) -> TaskInsight:
        """Explain a task as of an instant, now if none is given. A deleted one is found by its
        integer id."""
        return await self._store.read(explain_task, ref, at)

    async def preview_resume(self, ref: TaskRef) -> tuple[Task, ResumeBill]:
        """What enabling a living task now would do."""
        return await self._store.read(preview_resume, ref)

    async def explain_run(self, ref: RunRef) -> RunInsight:
        """Explain a run as of now."""
        return await self._store.read(explain_run, ref, self._jobs)


def explain_task(tx: HistoryTx, ref: TaskRef, asked_at: Instant | None) -> TaskInsight:
    """Gather the facts about a task and say what they mean."""
    task = _find_even_deleted(tx, ref)
    now = tx.now
    at = now if asked_at is None else asked_at
    history = tx.history
    seen_to = history.find_event_id_at(at) if at < now else _NEWEST
    before = history.list_events_down("TASK", task.id, seen_to, EVENTS_BEFORE)
    after = history.list_events_up("TASK", task.id, seen_to, EVENTS_AFTER) if at < now else []
    in_force = _find_schedule(tx, task.id, before, after) if at < now else None
    slot = explain_tasks.slot_in_question(task, min(at, now), in_force)
    slot_run = None if slot is None else _find_slot_run(tx, task.id, slot)
    due = task.next_slot_at
    facts = TaskFacts(
        task=task,
        at=at,
        now=now,
        before=tuple(before),
        after=tuple(after),
        slot=slot,
        slot_run=slot_run,
        last_by_hand=_find_last_by_hand(tx, task.id, slot_run) if at == now else None,
        counts=_count_open(tx, task.id),
        outages=tuple(tx.instances.list_outages(due)) if due is not None else (),
        is_anybody_alive=history.count_alive() > 0,
        schedule=in_force,
    )
    return TaskInsight(
        task, at, slot, slot_run.run if slot_run else None, explain_tasks.explain_task(facts)
    )


def preview_resume(tx: HistoryTx, ref: TaskRef) -> tuple[Task, ResumeBill]:
    """Find when the task was disabled, and what passed since."""
    task = find_task(tx, ref)
    facts = tx.history.list_events_down("TASK", task.id, _NEWEST, EVENTS_PAGE)
    return task, resuming.preview_resume(task, resuming.disabled_since(task, facts), tx.now)


def _find_even_deleted(tx: HistoryTx, ref: TaskRef) -> Task:
    task = tx.tasks.find(ref) if isinstance(ref, int) else None
    return find_task(tx, ref) if task is None else task


def _find_schedule(
    tx: HistoryTx, task_id: int, before: list[Fact], after: list[Fact]
) -> Schedule | None:
    """The schedule in force between two lists of events. Behind many events that do not tell it is
    looked for further back."""
    facts = before
    for _ in range(PAGES_BACK):
        found = schedule_in_force(facts, ())
        if found is not None or len(facts) < EVENTS_BEFORE:
            break
        facts = tx.history.list_events_down("TASK", task_id, facts[-1].id - 1, EVENTS_PAGE)
    return schedule_in_force(facts, after)


def explain_run(tx: HistoryTx, ref: RunRef, jobs: QueueJobs = NO_QUEUE) -> RunInsight:
    """Gather the facts about a run and say what they mean."""
    run = find_run(tx, ref)
    history = tx.history
    is_waiting = run.status == "SCHEDULED" and run.ready_host is None
    is_queued = is_waiting or run.ready_host is not None
    ahead = history.count_before(run, COUNT_TO) if is_queued else 0
    facts = RunFacts(
        run=run,
        task=tx.tasks.find(run.task_id),
        now=tx.now,
        events=tuple(history.list_events_up("RUN", run.id, 0, TIMELINE)),
        counts=_count_open(tx, run.task_id),
        ahead=ahead,
        is_ahead_cut=ahead >= COUNT_TO,
        holder_lease_until=None if run.held_by is None else history.find_lease_until(run.held_by),
        job=_find_job(tx, run, jobs),
    )
    return RunInsight(run, tx.now, explain_runs.explain_run(facts))


_NEWEST: Final = 2**62


def _find_job(tx: HistoryTx, run: Run, jobs: QueueJobs) -> HandedJob | None:
    """The queue job that a run waits for."""
    if not is_waiting_for_job(run):
        return None
    job_id = job_id_of(run.uid, run.attempt)
    return jobs.find_jobs(tx, [job_id]).get(job_id)


def _count_open(tx: HistoryTx, task_id: int) -> Counts:
    return tx.runs.count_open([task_id]).get(task_id, Counts())


def _find_slot_run(tx: HistoryTx, task_id: int, slot: Instant) -> SlotRun | None:
    found = tx.runs.list_runs(task_id=task_id, slot_at=slot, limit=1)
    if not found:
        return None
    events = tx.history.list_events_up("RUN", found[0].id, 0, 1)
    return SlotRun(found[0], events[0] if events else None)


def _find_last_by_hand(tx: HistoryTx, task_id: int, slot_run: SlotRun | None) -> Run | None:
    """The newest run, if people started it and it is newer than the slot's."""
    newest = tx.runs.list_runs(task_id=task_id, limit=1)
    if not newest or newest[0].trigger not in ("manual", "retry"):
        return None
    return newest[0] if slot_run is None or newest[0].id >= slot_run.run.id else None
