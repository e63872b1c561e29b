"""The one writer of runs: everything that makes, moves or ends a run goes through here.

What should happen is decided in `domain/tasks` into NewRuns and RunChanges. Here each is checked
against the lifecycle, written under its guard, and everything that follows is written with it: the
event, the counts, the task's last status, and the start of runs that wait for their turn.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from ksana.base.instant import SECOND, Instant, format_instant
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks import backfill
from ksana.domain.tasks import changes as decide
from ksana.domain.tasks.changes import DEAD, RunChange
from ksana.domain.tasks.firing import Counts, Firing
from ksana.domain.tasks.records import NewRun, Run, Task
from ksana.ports.tasks.tables import TasksTx

SURFACE: Final = "tasks"
"""Under which name its dead letters are kept."""

_show_slot = lru_cache(maxsize=1024)(format_instant)
"""Tasks that are due together have one slot."""

RunEvent = tuple[int, str, str]
"""The id of a run, the type of an event of it, and its data, a JSON object."""

_FIRST_EVENT = {"RUNNING": "RUN_STARTED", "SCHEDULED": "RUN_SCHEDULED", "SKIPPED": "RUN_SKIPPED"}


class Written(msgspec.Struct, gc=False):
    """What became of a set of changes."""

    done: list[bool]
    """For each change whether it was written; if not, the run was changed by somebody else."""
    ready_hosts: set[str]
    """Hosts with runs that are about to start now."""
    wakes: bool
    """Whether a run must be looked at later."""


def write_runs(tx: TasksTx, runs: Sequence[NewRun]) -> list[int]:
    """Write new runs with their events; answer their ids in order."""
    events: list[RunEvent] = []
    skipped = 0
    ids = tx.run_changes.insert(runs)
    for run_id, run in zip(ids, runs, strict=True):
        status = run.status
        if status not in RUN.initial:
            raise AssertionError(f"a run cannot begin as {status}")
        skipped += status == "SKIPPED"
        slot = "" if run.slot_at is None else f'"slot":"{_show_slot(run.slot_at)}",'
        # A task, an instant and words of ours: nothing in them needs escaping.
        data = (
            f'{{"task_id":{run.task_id},{slot}"trigger":"{run.trigger}","reason":"{run.reason}"'
            f"{run.more}}}"
        )
        events.append((run_id, _FIRST_EVENT[status], data))
    _record_dated(tx, events)
    if skipped:
        tx.rollups.add("runs_skipped", count=skipped)
    return ids


def write_changes(tx: TasksTx, changes: Sequence[RunChange], *, lock: bool = True) -> Written:
    """Write changes of different runs; then let waiting runs start where one ended.

    With `lock` the rows of the tasks whose slot is freed are locked first, in one order: otherwise
    a run that starts to wait and one that ends could each miss the other. A store with one writer
    needs no lock.
    """
    freed = sorted({change.task_id for change in changes if change.frees_slot})
    if lock and freed:
        tx.tasks.lock(freed)
    written = _write(tx, changes)
    pairs = zip(changes, written.done, strict=True)
    dead = [decide.bury(change) for change, is_done in pairs if is_done and change.new in DEAD]
    if dead:
        tx.dead_letters.add(SURFACE, dead)
    if freed:
        written.ready_hosts |= promote_waiting(tx, freed)
    return written


def promote_waiting(tx: TasksTx, task_ids: Sequence[int]) -> set[str]:
    """Make as many waiting runs ready as each task has room for; answer the hosts that have ready
    runs now. The caller holds the locks on the tasks' rows, or the store has one writer."""
    promotions: list[RunChange] = []
    for task_id, counts in tx.runs.count_open(task_ids).items():
        if not counts.waiting:
            continue
        task = tx.tasks.find(task_id)
        room = 0 if task is None else task.definition.max_concurrency - counts.active
        if room > 0:
            promotions += [decide.promote(run) for run in tx.run_due.list_waiting(task_id, room)]
    return _write(tx, promotions).ready_hosts if promotions else set()


def write_held_back(tx: TasksTx, runs: Sequence[NewRun], wake_at: Sequence[Instant]) -> list[int]:
    """Write runs that wait outside of their task's line until they are let in."""
    ids = write_runs(tx, runs)
    tx.run_changes.pace(list(zip(ids, wake_at, strict=True)))
    return ids


def let_in_runs(tx: TasksTx, task_id: int, due: Sequence[Run]) -> set[str]:
    """Let runs of one task into its line as far as it has room, and put off the rest; answer the
    hosts that have ready runs now. `due` are in their order."""
    task = tx.tasks.find(task_id, lock=True)
    if task is None:
        return set()
    counts = tx.runs.count_open([task_id]).get(task_id, Counts())
    decision = backfill.let_in(task, due, counts, tx.now)
    entering = [(change.run_id, change.token) for change in decision.changes]
    # A run that is not as it was seen was cancelled: it has ended, and its change is refused too.
    tx.run_changes.count_in(entering)
    ready_hosts = _write(tx, decision.changes).ready_hosts if entering else set()
    if decision.put_off_us:
        tx.run_changes.put_off(task_id, decision.put_off_us)
    return ready_hosts


def write_misfire(tx: TasksTx, task: Task, decision: Firing) -> None:
    """Record the slots of one task that nobody was there for."""
    misfire = decision.misfire
    assert misfire is not None
    data: dict[str, Any] = {
        "first": format_instant(misfire.first),
        "last": format_instant(misfire.last),
        "count": misfire.count,
        "policy": misfire.policy,
    }
    tx.events.append("TASK", task.id, "TASK_MISFIRED", data)
    tx.rollups.add("misfires", count=misfire.count)
    if decision.is_missed:
        data = {"slot": format_instant(misfire.last), "reason": "NO_INSTANCE_RAN", "alert": True}
        tx.events.append("TASK", task.id, "TASK_MISSED", data)


def _record_dated(tx: TasksTx, events: Sequence[RunEvent]) -> None:
    """Record the making or the ends of runs: a run's row keeps the instants of both (`created_at`,
    and `updated_at` of one that ended), so those of several runs lie together."""
    if len(events) < 2:
        tx.events.append_texts([("RUN", str(run_id), name, data) for run_id, name, data in events])
        return
    tx.events.append_dated(
        [
            ("RUN", str(run_id), (name,), f'[["{name}",{data},"RUN","{run_id}"]]')
            for run_id, name, data in events
        ]
    )


def _write(tx: TasksTx, changes: Sequence[RunChange]) -> Written:
    """Check the moves, run the guarded UPDATEs, and write what follows from those that were done.
    The end of an attempt writes its record too; mostly all changes are of one kind."""
    for old, new in {(change.old, change.new) for change in changes}:
        RUN.require_change(old, new)
    ends = [change for change in changes if change.record is not None]
    if len(ends) == len(changes):
        done = tx.run_changes.finish(changes)
    elif not ends:
        done = tx.run_changes.move(changes)
    else:
        ended = iter(tx.run_changes.finish(ends))
        moved = iter(tx.run_changes.move([one for one in changes if one.record is None]))
        done = [next(moved if change.record is None else ended) for change in changes]
    written = [change for change, is_done in zip(changes, done, strict=True) if is_done]
    final = RUN.final
    dated = [(one.run_id, one.event, one.data) for one in written if one.event and one.new in final]
    if dated:
        _record_dated(tx, dated)
    own = [] if len(dated) == len(written) else [one for one in written if one.new not in final]
    texts = [("RUN", str(one.run_id), one.event, one.data) for one in own if one.event]
    if texts:
        tx.events.append_texts(texts)
    _count_ends(tx, written)
    last = {
        one.task_id: (one.task_id, one.last_status, one.error or "")
        for one in written
        if one.last_status is not None
    }
    if last:
        tx.tasks.note_last(list(last.values()), tx.now)
    ready_hosts = {one.ready_host for one in written if one.ready_host is not None}
    return Written(done, ready_hosts, any(one.wake_at is not None for one in written))


def _count_ends(tx: TasksTx, written: Sequence[RunChange]) -> None:
    """Count what was written, and how long it took, by series."""
    metrics = [one.metric for one in written]
    for metric in dict.fromkeys(metrics):
        if metric is None:
            continue
        took_us = sum([one.duration_us for one in written if one.metric == metric])
        tx.rollups.add(metric, count=metrics.count(metric), total=took_us / SECOND)
