"""Every move of a queue job: what it was, what it becomes, why, what is written and recorded, and
what moves add up to. Pure: rows, a command and `now` in, a `JobChange` out.

`engine.queue.job_writer` writes changes, and nothing else moves a job. Leases are granted and
denied in `admission`; they end, and claims run out, in `attempt_ends`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from ksana.base.instant import Instant
from ksana.domain import lifecycle
from ksana.domain.queue import events
from ksana.domain.queue.events import Facts
from ksana.domain.queue.jobs import (
    CLAIM_HELD,
    ENDED,
    URGENCY,
    DueJob,
    Job,
    JobPosition,
    NewJob,
    ReadyJob,
)
from ksana.domain.queue.turns import TurnGiver, Turns

READY: Final = int(JobPosition.READY)
SCHEDULED: Final = int(JobPosition.SCHEDULED)
CLAIMED: Final = int(JobPosition.CLAIMED)
PENDING: Final = int(JobPosition.PENDING)
RUNNING: Final = int(JobPosition.RUNNING)

Move = Literal[
    "promote",
    "claim",
    "start",
    "grant",
    "deny",
    "report",
    "cancel",
    "finish",
    "requeue",
    "take_back",
]
"""Which guarded write carries a change: a method of `ports.queue.tables.JobChangeTable`."""


DATED: Final = frozenset({"start", "finish"})
"""Moves whose instant the job's row keeps, or the row of an earlier lease: their events are found
by it."""

LeaseEnd = Literal["RELEASED", "EXPIRED"]


class JobChange(msgspec.Struct, frozen=True, gc=False):
    """One move of one job. What does not belong to the move keeps its default. What most moves have
    comes first: the two that every job makes in batches are put together by place, which takes a
    third of the time."""

    move: Move
    seq: int
    job_id: str
    old: str
    new: str
    events: Facts = ()
    position: int | None = None
    cost_units: int = 0
    lease_id: str = ""
    lease_token: int = 0
    """A lease's new token, or of an ending one the token it must have."""
    lease_end: LeaseEnd | None = None
    release_status: str | None = None
    release_digest: str | None = None
    started_at: Instant | None = None
    error: str | None = None
    result_json: str | None = None
    metrics_json: str | None = None
    due_at: Instant = 0
    claim_token: int = 0
    """A claim's new token, or of a held one the token it must have."""
    claims: int = 0
    old_attempts: int = 0
    attempts: int = 0
    addon_id: str = ""
    worker_id: str | None = None
    until: Instant = 0
    """When the claim, or the lease, runs out."""
    ttl_sec: float = 0
    heartbeat_at: Instant = 0
    """When the holder of an ending lease last gave a sign of life."""
    turn: int = 0
    next_retry_at: Instant | None = None
    progress: float | None = None
    note: str | None = None
    reason: str | None = None


# Submit, promote, claim


def submit_job(job: NewJob, now: Instant, turns: TurnGiver) -> Job:
    """A job as it enters: ready, or scheduled if its time is to come."""
    kind, run_at, urgency = job.job_class, job.run_at, URGENCY[job.priority]
    is_ready = run_at is None or run_at <= now
    return Job(  # by place: one of the three that are made for every job
        0,
        job.job_id,
        kind.addon_id,
        kind.job_type,
        job.priority,
        kind.cost_units,
        job.constraints_json,
        job.payload_json,
        "QUEUED",
        job.max_attempts,
        now,
        now,
        READY if is_ready else SCHEDULED,
        urgency,
        kind.id,
        turns.give(urgency, job.fairness_key) if is_ready else 0,
        now if is_ready or run_at is None else run_at,
        run_at,
        job.fairness_key,
        job.client_request_id,
    )


def promote_jobs(jobs: Iterable[DueJob], turns: Turns) -> list[JobChange]:
    """Scheduled jobs whose time has come get their turns. Nobody sees a change of state."""
    return [
        JobChange(
            move="promote",
            seq=job.seq,
            job_id=job.job_id,
            old="QUEUED",
            new="QUEUED",
            position=READY,
            turn=turns.give(job.urgency, job.fairness_key),
        )
        for job in jobs
    ]


def claim_jobs(
    jobs: Sequence[ReadyJob], tokens: Sequence[int], worker_id: str, until: Instant
) -> list[JobChange]:
    """Ready jobs become a worker's."""
    facts = events.claimed(worker_id)
    return [
        JobChange(
            move="claim",
            seq=job.seq,
            job_id=job.job_id,
            old="QUEUED",
            new="CLAIMED",
            events=facts,
            position=CLAIMED,
            claim_token=token,
            claims=job.claims + 1,
            worker_id=worker_id,
            until=until,
        )
        for job, token in zip(jobs, tokens, strict=True)
    ]


def start_jobs(
    jobs: Sequence[ReadyJob],
    lease_ids: Sequence[str],
    tokens: Sequence[int],
    worker_id: str,
    ttl_sec: float,
    until: Instant,
) -> list[JobChange]:
    """Ready jobs are claimed and leased in one. Claim and lease have one token: they have one
    holder, and begin together."""
    worker_json, recorded = events.encode(worker_id), events.started
    changes: list[JobChange] = []
    for job, lease_id, token in zip(jobs, lease_ids, tokens, strict=True):
        job_id, cost_units, attempts = job.job_id, job.cost_units, job.attempts
        changes.append(
            JobChange(  # by place, see there
                "start",
                job.seq,
                job_id,
                "QUEUED",
                "RUNNING",
                recorded(lease_id, job_id, worker_json, cost_units, attempts + 1),
                RUNNING,
                cost_units,
                lease_id,
                token,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                job.due_at,
                token,
                job.claims + 1,
                attempts,
                attempts + 1,
                job.addon_id,
                worker_id,
                until,
                ttl_sec,
            )
        )
    return changes


def claimed_job(job: ReadyJob, change: JobChange, now: Instant) -> Job:
    """The whole job once its claim is written, with or without a lease."""
    row = msgspec.structs.asdict(job)
    is_running = change.new == "RUNNING"
    row |= {
        "state": change.new,
        "updated_at": now,
        "position": change.position,
        "claims": change.claims,
        "claim_token": change.claim_token,
        "claimed_by": change.worker_id,
    }
    if is_running:
        row |= {
            "attempts": change.attempts,
            "next_retry_at": None,
            "started_at": now,
            **lease_members(change, now),
        }
    else:
        row["claim_expires_at"] = change.until
    return Job(**row)


def lease_members(change: JobChange, now: Instant) -> dict[str, Any]:
    """What a new lease adds to its job."""
    return {
        "lease_id": change.lease_id,
        "lease_token": change.lease_token,
        "lease_ttl_sec": change.ttl_sec,
        "heartbeat_at": now,
        "lease_expires_at": change.until,
    }


# What a holder of a claim may do


def can_report(state: str, to: str) -> bool:
    """Tell whether a worker may report this state of a claimed job: only a lease makes a job run,
    only its end ends it. The same state again carries a note."""
    if state not in CLAIM_HELD or to not in CLAIM_HELD:
        return False
    return state == to or lifecycle.JOB.allows(state, to)


def report_state(
    job: Job, to: str, progress: float | None, note: str | None, until: Instant
) -> JobChange:
    """A worker's word on its claimed job. The claim is extended. Raise ILLEGAL_TRANSITION for a
    state that is not a worker's to report."""
    if not can_report(job.state, to):
        raise lifecycle.JOB.refuse(job.state, to)
    is_move = to != job.state
    return JobChange(
        move="report",
        seq=job.seq,
        job_id=job.job_id,
        old=job.state,
        new=to,
        events=events.reported(to, job.claimed_by, note) if is_move else (),
        position=PENDING if job.position == PENDING else CLAIMED,
        claim_token=job.claim_token,
        until=until,
        progress=job.progress if progress is None else progress,
        note=job.note if note is None else note,
    )


def cancel_job(job: Job, reason: str | None) -> JobChange:
    """A job that does not run is cancelled at once."""
    lifecycle.JOB.require(job.state, "CANCELED")
    return JobChange(
        move="cancel",
        seq=job.seq,
        job_id=job.job_id,
        old=job.state,
        new="CANCELED",
        events=events.canceled(reason, job.state),
        reason=reason,
    )


# What changes add up to


class ChangeCounts(msgspec.Struct):
    """How the figures of the queue change. `waited_since` and `ran_since` tell from when to count
    the wait and the run of each job that started or ended."""

    queued: int = 0
    running: int = 0
    leases: int = 0
    units: int = 0
    arrivals: int = 0
    """How often something became claimable, or units became free."""
    ended_leases: int = 0
    freed_units: int = 0
    expired: int = 0
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    waited_since: Counter[Instant] = msgspec.field(default_factory=Counter)
    ran_since: Counter[Instant] = msgspec.field(default_factory=Counter)


ChangeKind = tuple[str, str, str, str | None]
"""(move, old state, new state, how the lease ended) of a change."""


def group_changes(changes: Sequence[JobChange]) -> dict[ChangeKind, Sequence[JobChange]]:
    """Changes by their kind, in the order of the first of each. A batch is mostly of one."""
    kinds = [(change.move, change.old, change.new, change.lease_end) for change in changes]
    if kinds.count(kinds[0]) == len(kinds):
        return {kinds[0]: changes}
    groups: dict[ChangeKind, list[JobChange]] = {}
    for kind, change in zip(kinds, changes, strict=True):
        groups.setdefault(kind, []).append(change)
    return dict(groups)


def count_changes(groups: Mapping[ChangeKind, Sequence[JobChange]], now: Instant) -> ChangeCounts:
    """Add up what grouped changes do to the figures."""
    counts = ChangeCounts()
    for (_, old, new, lease_end), changes in groups.items():
        number = len(changes)
        if old == "QUEUED":
            counts.queued -= number
        elif old == "RUNNING":
            counts.running -= number
        if new == "QUEUED":
            counts.queued += number
        elif new == "RUNNING":
            counts.running += number
            counts.leases += number
            counts.units += sum([change.cost_units for change in changes])
            counts.waited_since.update([change.due_at for change in changes])
        elif new in ENDED:
            counts.ended[new] += number
        if new == "QUEUED" or lease_end is not None:
            counts.arrivals += number
        if lease_end is not None:
            counts.ended_leases += number
            counts.freed_units += sum([change.cost_units for change in changes])
            counts.expired += number if lease_end == "EXPIRED" else 0
            if new != "QUEUED":
                counts.ran_since.update([change.started_at or now for change in changes])
    counts.leases -= counts.ended_leases
    counts.units -= counts.freed_units
    return counts
