"""The one writer of queue jobs and leases: every change of state goes through here.

A change comes decided (`domain.queue.changes`). It is checked against `domain.lifecycle`, written
by the guarded statement of its move together with its lease, counted, and recorded in events, all
in the transaction it is called in.
"""

from collections.abc import Sequence
from itertools import chain

from ksana.domain.histogram import bucket_counts
from ksana.domain.lifecycle import JOB, LEASE
from ksana.domain.queue import events
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.effects import count_changes
from ksana.domain.queue.jobs import CLAIM_HELD, Job
from ksana.ports.queue.tables import QueueTx

_TALLIES = {
    "DONE": "queue.done",
    "FAILED": "queue.failed",
    "CANCELED": "queue.canceled",
    "TIMEOUT": "queue.timeout",
}


def enter_jobs(tx: QueueTx, jobs: Sequence[Job], *, once: bool) -> bool:
    """Write new jobs. False: with `once`, one of them was submitted before; the caller must raise,
    so that nothing of this stays."""
    for job in jobs:
        if job.state not in JOB.initial:
            raise AssertionError(f"a job does not begin as {job.state}")
    tx.events.append_texts(
        [events.submitted(job.job_id, job.priority, job.cost_units) for job in jobs]
    )
    if tx.jobs.insert(jobs, once=once) < len(jobs):
        return False
    tx.series.add("queue.submitted", len(jobs))
    tx.series.add("queue.queued", len(jobs))
    tx.gauges.add(len(jobs), 0, len(jobs))
    return True


def write_changes(tx: QueueTx, changes: Sequence[JobChange]) -> bool:
    """Write changes of jobs, no two of the same. Raise ILLEGAL_TRANSITION for a move that is in no
    table. False: a guard said no for one of them; the caller must raise, so that nothing of this
    stays."""
    if not changes:
        return True
    _check(changes)
    moves: dict[str, list[JobChange]] = {}
    for change in changes:
        moves.setdefault(change.move, []).append(change)
    ended = [change for change in changes if change.lease_end is not None]
    if tx.leases.end(ended) != len(ended):
        return False
    for move, alike in moves.items():
        if getattr(tx.job_changes, move)(alike) != len(alike):
            return False
    tx.leases.insert([change for change in changes if change.new == "RUNNING"])
    tx.events.append_texts(chain.from_iterable([change.events for change in changes]))
    for change in moves.get("cancel", ()):
        if change.old in CLAIM_HELD:
            tx.capacity.drop_reserve(change.job_id)
    _count(tx, changes, ended)
    return True


def _check(changes: Sequence[JobChange]) -> None:
    for old, new in {(change.old, change.new) for change in changes}:
        if old != new:
            JOB.require(old, new)
        elif old in JOB.final:
            raise JOB.refuse(old, new)
    for end in {change.lease_end for change in changes if change.lease_end is not None}:
        LEASE.require("ACTIVE", end)


def _count(tx: QueueTx, changes: Sequence[JobChange], ended: Sequence[JobChange]) -> None:
    now, series = tx.now, tx.series
    counts = count_changes(changes, now)
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
        series.add(_TALLIES[state], count)
    if counts.waited_since:
        series.observe("queue.wait", bucket_counts(now, counts.waited_since))
    if counts.ran_since:
        series.observe("queue.run", bucket_counts(now, counts.ran_since))
    if ended:
        tx.capacity.free(sum([change.cost_units for change in ended]), len(ended))
