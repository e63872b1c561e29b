"""The one writer of queue jobs and leases: every change of state goes through here.

A change comes decided (`domain.queue.changes`). It is checked against `domain.lifecycle`, written
by the guarded statement of its move together with its lease, counted, and recorded in events, all
in the transaction it is called in.
"""

from collections.abc import Sequence
from typing import Final

from ksana.domain.dead_letters import NewLetter
from ksana.domain.handover import pick_handed_over
from ksana.domain.histogram import bucket_counts, sum_seconds
from ksana.domain.lifecycle import JOB, LEASE
from ksana.domain.queue import events
from ksana.domain.queue.changes import (
    DATED,
    ChangeCounts,
    JobChange,
    count_changes,
    group_changes,
)
from ksana.domain.queue.classes import TRUSTED, kept_until
from ksana.domain.queue.jobs import CLAIM_HELD, DEAD, Job
from ksana.ports.queue.tables import QueueTx

SURFACE: Final = "queue"
"""Under which name its dead letters are kept."""

TALLIES = {
    "DONE": "queue.done",
    "FAILED": "queue.failed",
    "CANCELED": "queue.canceled",
    "TIMEOUT": "queue.timeout",
}
"""The series in which an end is counted."""


def enter_jobs(tx: QueueTx, jobs: Sequence[Job], *, once: bool, is_checked: bool = False) -> bool:
    """Write new jobs. False: with `once`, one of them was submitted before; the caller must raise,
    so that nothing of this stays. `is_checked`: see `JobTable.insert`."""
    for job in jobs:
        if job.state not in JOB.initial:
            raise AssertionError(f"a job does not begin as {job.state}")
    tx.events.append_dated(
        [
            ("JOB", job.job_id, *events.submitted(job.job_id, job.priority, job.cost_units))
            for job in jobs
        ]
    )
    if tx.jobs.insert(jobs, once=once, is_checked=is_checked) < len(jobs):
        return False
    tx.series.add("queue.submitted", len(jobs))
    tx.series.add("queue.queued", len(jobs))
    tx.gauges.add(len(jobs), 0, len(jobs))
    return True


def write_changes(tx: QueueTx, changes: Sequence[JobChange]) -> bool:
    """Write changes of jobs, no two of the same. Raise ILLEGAL_TRANSITION for a move that is in no
    table. False: a guard said no for one of them; the caller must raise, so that nothing of this
    stays."""
    return _write(tx, changes, is_held=False) if changes else True


def write_held(tx: QueueTx, changes: Sequence[JobChange]) -> None:
    """Write changes of jobs that this transaction holds: no guard can say no."""
    if changes and not _write(tx, changes, is_held=True):
        raise AssertionError("a job or a lease that was held is no longer as it was found")


def _write(tx: QueueTx, changes: Sequence[JobChange], *, is_held: bool) -> bool:
    groups = group_changes(changes)
    for (move, old, new, lease_end), alike in groups.items():
        JOB.require_change(old, new)
        if lease_end is not None:
            LEASE.require("ACTIVE", lease_end)
        if getattr(tx.job_changes, move)(alike, is_held) != len(alike):
            return False
        if lease_end is not None:
            tx.leases.keep(alike)
        if move == "requeue":
            _keep_classes(tx, alike)
        if new in DEAD:
            _bury(tx, alike)
        if new in JOB.final:
            _note_handed_over(tx, alike)
        if move == "cancel" and old in CLAIM_HELD:
            for change in alike:
                tx.capacity.drop_reserve(change.job_id)
    for (move, _, _, _), alike in groups.items():
        packs = [("JOB", change.job_id, *change.events) for change in alike if change.events]
        if packs:
            (tx.events.append_dated if move in DATED else tx.events.append_packs)(packs)
    _count(tx, count_changes(groups, tx.now))
    return True


def _keep_classes(tx: QueueTx, changes: Sequence[JobChange]) -> None:
    """A job that waits for its next attempt is neither ready nor held, and needs its class."""
    due_ats = [change.due_at for change in changes]
    soon_at = max(tx.now, *due_ats) + TRUSTED
    tx.job_classes.keep([change.seq for change in changes], kept_until(tx.now, due_ats), soon_at)


def _bury(tx: QueueTx, changes: Sequence[JobChange]) -> None:
    """Jobs that failed for good become dead letters. Not those that runs wait for: the run tries
    again or becomes one."""
    handed_over = pick_handed_over([change.job_id for change in changes])
    if handed_over:
        changes = [change for change in changes if change.job_id not in handed_over]
    addons = tx.jobs.find_addons([change.seq for change in changes])
    letters = [
        NewLetter(
            entity_id=change.job_id,
            source=addons[change.seq],
            status=change.new,
            error=change.error or change.new,
        )
        for change in changes
    ]
    tx.dead_letters.add(SURFACE, letters)


def _note_handed_over(tx: QueueTx, ended: Sequence[JobChange]) -> None:
    """Note the ends that runs wait for. Most jobs are nobody's, and cost a glance at their id."""
    waited_for = pick_handed_over([change.job_id for change in ended])
    if waited_for:
        tx.handover_ends.note(waited_for)


def _count(tx: QueueTx, counts: ChangeCounts) -> None:
    now, series = tx.now, tx.series
    tx.gauges.add(counts.queued, counts.running, counts.arrivals)
    for metric, count in (
        ("queue.queued", counts.queued),
        ("queue.running", counts.running),
        ("queue.leases", counts.leases),
        ("queue.units", counts.units),
        ("queue.expired", counts.expired),
    ):
        series.add(metric, count)
    for state, count in counts.ended.items():
        series.add(TALLIES[state], count)
    if counts.waited_since:
        waited = counts.waited_since
        series.observe("queue.wait", bucket_counts(now, waited), sum_seconds(now, waited))
    if counts.ran_since:
        ran = counts.ran_since
        series.observe("queue.run", bucket_counts(now, ran), sum_seconds(now, ran))
    if counts.ended_leases:
        tx.capacity.free(counts.freed_units, counts.ended_leases)
