"""How held jobs end, as transactions: ack, fail, renew, and leases that run out. Each proves its
holder by the lease token, and each answers many jobs on their own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ksana.base.errors import KsanaError, NotFoundError
from ksana.base.ids import new_run_uids
from ksana.base.instant import Micros
from ksana.domain.governance.acks import decide_ack, is_over, is_same_ack
from ksana.domain.governance.audit import SYSTEM
from ksana.domain.governance.changes import GovernanceJobChange, ObjectChange
from ksana.domain.governance.jobs import (
    Ack,
    AttemptFailure,
    Renewal,
    decide_failure,
    expire,
    refuse_holder,
    renew,
)
from ksana.domain.governance.objects import forget_next_action
from ksana.domain.governance.records import GovernanceJob, GovernedObject, Rules, Who
from ksana.engine.governance.writer import write_changes
from ksana.ports.governance.tables import GovernanceTx, LockedJob

_Item = TypeVar("_Item", Ack, AttemptFailure)

Ended = GovernanceJob | KsanaError
"""A job as it is now, or why the call changed nothing."""


def not_found(job_id: str) -> NotFoundError:
    """The error for a job that is not there."""
    return NotFoundError(f"there is no governance job {job_id[:64]}")


def new_job_ids(at: int, count: int) -> list[str]:
    """Ids of jobs to be, in the order of time."""
    return [f"job_{uid}" for uid in new_run_uids(at, count)]


class _Ending:
    """What one transaction knows while it ends jobs: rows it holds, with the changes so far."""

    def __init__(
        self,
        tx: GovernanceTx,
        jobs: Sequence[GovernanceJob],
        written: Sequence[GovernanceJob] = (),
    ) -> None:
        """`written` are the jobs whose objects change with them."""
        # The object first: who holds it is the only one to change its follow-up.
        self.objects: dict[str, GovernedObject] = tx.objects.lock(
            sorted({job.key for job in written})
        )
        self.queued = tx.governance.lock_follow_ups(sorted({job.key for job in jobs}))
        self.jobs: list[GovernanceJobChange] = []
        self.changed: list[ObjectChange] = []

    def note(self, change: GovernanceJobChange) -> None:
        """Take a change of a job into account."""
        self.jobs.append(change)
        key = change.job.key
        if change.new is not None and change.new.follow_key is not None:
            self.queued[key] = change.new
        elif key in self.queued and self.queued[key].job_id == change.job.job_id:
            del self.queued[key]


def ack_jobs(tx: GovernanceTx, acks: Sequence[Ack], rules: Rules, who: Who) -> list[Ended]:
    """End jobs, write their objects and queue their follow-ups: each all or not at all."""
    results: list[Ended] = []
    for part in _unique(acks):
        results += _ack_part(tx, part, rules, who)
    return results


def _unique(items: Sequence[_Item]) -> Iterator[list[_Item]]:
    """Pieces in which no job comes twice: a repeat sees what the first one did."""
    part: list[_Item] = []
    seen: set[str] = set()
    for item in items:
        if item.job_id in seen:
            yield part
            part, seen = [], set()
        seen.add(item.job_id)
        part.append(item)
    if part:
        yield part


def _ack_part(tx: GovernanceTx, acks: Sequence[Ack], rules: Rules, who: Who) -> list[Ended]:
    now = tx.now
    locked = tx.governance.lock([ack.job_id for ack in acks])
    judged = [_judge_ack(locked.get(ack.job_id), ack, rules) for ack in acks]
    held = [job for job, refusal in judged if job is not None and refusal is None]
    late = _late(job for job, _ in judged)
    ending = _Ending(tx, [*held, *late], held)
    ids = iter(new_job_ids(now, len(acks)))
    results: list[Ended] = []
    for ack, (job, refusal) in zip(acks, judged, strict=True):
        if refusal is not None or job is None:
            results.append(refusal or locked[ack.job_id])
            continue
        done = decide_ack(
            job,
            ending.objects.get(job.key),
            ending.queued.get(job.key),
            ack,
            rules,
            now,
            follow_up_id=next(ids),
        )
        if isinstance(done, KsanaError):
            results.append(done)
            continue
        ending.note(done.job)
        if done.governed is not None:
            ending.changed.append(done.governed)
            ending.objects[job.key] = done.governed.new
        if done.follow_up is not None:
            ending.note(done.follow_up)
        results.append(done.job.job)
    _expire_late(ending, late, now)
    write_changes(tx, who, ending.jobs, ending.changed)
    return results


def _judge_ack(
    job: LockedJob | None, ack: Ack, rules: Rules
) -> tuple[LockedJob | None, KsanaError | None]:
    """The job if this ack may end it; else None and why, or None and None if it did already."""
    if job is None:
        return None, not_found(ack.job_id)
    if is_same_ack(job, ack):
        return None, None
    refusal = refuse_holder(job, ack.token, bool(job.is_expired), "succeeded", rules)
    return job, refusal


def _late(jobs: Iterable[LockedJob | None]) -> list[LockedJob]:
    """Running jobs whose lease is over: the call that found them out expires them."""
    return [job for job in jobs if job is not None and job.status == "running" and job.is_expired]


def _expire_late(ending: _Ending, late: Sequence[GovernanceJob], now: int) -> None:
    for job in late:
        ending.note(expire(job, now, job.key in ending.queued))


def fail_jobs(
    tx: GovernanceTx, failures: Sequence[AttemptFailure], rules: Rules, who: Who
) -> list[Ended]:
    """End attempts that came to nothing, each on its own."""
    results: list[Ended] = []
    for part in _unique(failures):
        results += _fail_part(tx, part, rules, who)
    return results


def _fail_part(
    tx: GovernanceTx, failures: Sequence[AttemptFailure], rules: Rules, who: Who
) -> list[Ended]:
    now = tx.now
    locked = tx.governance.lock([failure.job_id for failure in failures])
    final = {failure.job_id for failure in failures if failure.is_final}
    ending = _Ending(
        tx,
        list(locked.values()),
        [job for job in locked.values() if job.job_id in final and job.is_follow_up],
    )
    results: list[Ended] = []
    late: list[LockedJob] = []
    for failure in failures:
        job = locked.get(failure.job_id)
        if job is None:
            results.append(not_found(failure.job_id))
            continue
        refusal = refuse_holder(job, failure.token, bool(job.is_expired), "queued", rules)
        if refusal is not None:
            late += _late([job])
            results.append(refusal)
            continue
        change = decide_failure(job, failure, now, job.key in ending.queued)
        governed = ending.objects.get(job.key)
        if failure.is_final and governed is not None and is_over(job, ending.queued.get(job.key)):
            over = forget_next_action(governed, job.job_id, change.reason, now)
            ending.changed += [] if over is None else [over]
        ending.note(change)
        results.append(change.job)
    _expire_late(ending, late, now)
    write_changes(tx, who, ending.jobs, ending.changed)
    return results


def renew_jobs(
    tx: GovernanceTx, renewals: Sequence[Renewal], lease_us: Micros, rules: Rules
) -> list[Ended]:
    """Hold jobs longer, by the store's clock, each on its own."""
    now = tx.now
    locked = tx.governance.lock(sorted({renewal.job_id for renewal in renewals}))
    held: dict[str, tuple[GovernanceJob, GovernanceJob]] = {}
    late: dict[str, LockedJob] = {}
    results: list[Ended] = []
    for renewal in renewals:
        job = locked.get(renewal.job_id)
        if job is None:
            results.append(not_found(renewal.job_id))
            continue
        refusal = refuse_holder(job, renewal.token, bool(job.is_expired), "running", rules)
        if refusal is None:
            held[job.job_id] = (job, renew(job, now + lease_us, now))
            results.append(held[job.job_id][1])
            continue
        late |= {one.job_id: one for one in _late([job])}
        results.append(refusal)
    if late:
        ending = _Ending(tx, list(late.values()))
        _expire_late(ending, list(late.values()), now)
        write_changes(tx, Who(actor=SYSTEM), ending.jobs)
    if held:
        tx.governance.write(list(held.values()))
    return results


def expire_leases(tx: GovernanceTx, limit: int) -> list[GovernanceJob]:
    """Queue jobs again whose lease ran out, or make them dead letters; answer what they are now."""
    late = tx.governance_due.lock_expired(limit)
    if not late:
        return []
    ending = _Ending(tx, late)
    _expire_late(ending, late, tx.now)
    write_changes(tx, Who(actor=SYSTEM), ending.jobs)
    return [change.job for change in ending.jobs]
