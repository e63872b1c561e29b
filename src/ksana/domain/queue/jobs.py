"""Queue jobs, leases and lines: their types, the legal moves, and every rule that needs no store
and no clock.

Who waits where is a lane; what callers see is a state. What may run at once is decided in
`domain.admission`.
"""

import hashlib
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from ksana.base.instant import SECOND, Instant, Micros

PRIORITIES: Final = ("URGENT", "HIGH", "NORMAL", "LOW")
URGENCY: Final[Mapping[str, int]] = {name: place for place, name in enumerate(PRIORITIES)}
"""The place of a priority in the order of claims: the least number goes first."""

FINAL_STATUSES: Final = ("SUCCEEDED", "FAILED", "CANCELED", "TIMEOUT")
FINAL_OF: Final[Mapping[str, str]] = {
    "DONE": "SUCCEEDED",
    "FAILED": "FAILED",
    "CANCELED": "CANCELED",
    "TIMEOUT": "TIMEOUT",
}
"""The final status of a job by the state it ended in."""

ENDED: Final = frozenset(FINAL_OF)
HELD: Final = frozenset({"CLAIMED", "PREPARING", "LEASE_PENDING"})
"""States in which a worker holds the claim and no lease."""

MANY: Final = 8
"""From so many jobs on their leases and events are written in sets, not row by row."""

CLAIM_TTL_US: Final[Micros] = 60 * SECOND
MAX_ERROR: Final = 1024
_BACKOFF_FIRST: Final[Micros] = 5 * SECOND
_BACKOFF_MOST: Final[Micros] = 300 * SECOND

JOB_MOVES: Final = frozenset(
    {
        ("QUEUED", "claim", "CLAIMED"),
        ("QUEUED", "claim_with_lease", "RUNNING"),
        ("QUEUED", "cancel", "CANCELED"),
        ("CLAIMED", "status", "PREPARING"),
        ("CLAIMED", "status", "LEASE_PENDING"),
        ("PREPARING", "status", "LEASE_PENDING"),
        ("CLAIMED", "grant", "RUNNING"),
        ("PREPARING", "grant", "RUNNING"),
        ("LEASE_PENDING", "grant", "RUNNING"),
        ("CLAIMED", "deny", "LEASE_PENDING"),
        ("PREPARING", "deny", "LEASE_PENDING"),
        ("LEASE_PENDING", "deny", "LEASE_PENDING"),
        ("CLAIMED", "claim_expired", "QUEUED"),
        ("PREPARING", "claim_expired", "QUEUED"),
        ("LEASE_PENDING", "claim_expired", "QUEUED"),
        ("CLAIMED", "cancel", "CANCELED"),
        ("PREPARING", "cancel", "CANCELED"),
        ("LEASE_PENDING", "cancel", "CANCELED"),
        ("RUNNING", "release", "DONE"),
        ("RUNNING", "release", "FAILED"),
        ("RUNNING", "release", "CANCELED"),
        ("RUNNING", "release", "TIMEOUT"),
        ("RUNNING", "release", "QUEUED"),
        ("RUNNING", "lease_expired", "TIMEOUT"),
        ("RUNNING", "lease_expired", "CANCELED"),
        ("RUNNING", "lease_expired", "QUEUED"),
    }
)
"""Every legal (from, event, to) of a job."""

LEASE_MOVES: Final = frozenset({("ACTIVE", "release", "RELEASED"), ("ACTIVE", "expire", "EXPIRED")})
"""Every legal (from, event, to) of a lease."""


class Lane(IntEnum):
    """Where a job that has not ended waits; an ended one is in none."""

    SCHEDULED = 0
    READY = 1
    CLAIMED = 2
    PENDING = 3
    RUNNING = 4


class Job(msgspec.Struct, frozen=True, gc=False):
    """One row of `scheduler_job_runs`. JSON members are kept as the text that was sent."""

    seq: int
    job_id: str
    addon_id: str
    job_type: str
    priority: str
    cost_units: int
    constraints_json: str
    payload_json: str
    state: str
    attempts: int
    max_attempts: int
    created_at: Instant
    updated_at: Instant
    run_at: Instant | None
    claimed_by: str | None
    claim_expires_at: Instant | None
    lease_id: str | None
    next_retry_at: Instant | None
    fairness_key: str | None
    client_request_id: str | None
    cancel_requested: int
    cancel_reason: str | None
    progress: float | None
    note: str | None
    started_at: Instant | None
    finished_at: Instant | None
    final_status: str | None
    error_text: str | None
    result_json: str | None
    metrics_json: str | None
    lane: int | None
    urgency: int
    line_id: int
    turn: int
    due_at: Instant
    pending_at: Instant | None

    @property
    def is_ended(self) -> bool:
        """Whether it will never change again."""
        return self.state in ENDED


class ReadyJob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A ready job as a claim takes it: what ready jobs do not all have in common."""

    seq: int
    job_id: str
    addon_id: str
    job_type: str
    priority: str
    cost_units: int
    constraints_json: str
    payload_json: str
    attempts: int
    max_attempts: int
    created_at: Instant
    run_at: Instant | None
    next_retry_at: Instant | None
    started_at: Instant | None
    fairness_key: str | None
    client_request_id: str | None
    error_text: str | None
    metrics_json: str | None
    urgency: int
    line_id: int
    turn: int
    due_at: Instant

    def claimed(self, worker_id: str, until: Instant, now: Instant) -> Job:
        """The job with its claim."""
        return Job(
            self.seq,
            self.job_id,
            self.addon_id,
            self.job_type,
            self.priority,
            self.cost_units,
            self.constraints_json,
            self.payload_json,
            "CLAIMED",
            self.attempts,
            self.max_attempts,
            self.created_at,
            now,
            self.run_at,
            worker_id,
            until,
            None,
            self.next_retry_at,
            self.fairness_key,
            self.client_request_id,
            0,
            None,
            None,
            None,
            self.started_at,
            None,
            None,
            self.error_text,
            None,
            self.metrics_json,
            Lane.CLAIMED,
            self.urgency,
            self.line_id,
            self.turn,
            self.due_at,
            None,
        )

    def running(self, worker_id: str, lease_id: str, now: Instant) -> Job:
        """The job in its next attempt."""
        return Job(
            self.seq,
            self.job_id,
            self.addon_id,
            self.job_type,
            self.priority,
            self.cost_units,
            self.constraints_json,
            self.payload_json,
            "RUNNING",
            self.attempts + 1,
            self.max_attempts,
            self.created_at,
            now,
            self.run_at,
            worker_id,
            None,
            lease_id,
            None,
            self.fairness_key,
            self.client_request_id,
            0,
            None,
            None,
            None,
            now,
            None,
            None,
            self.error_text,
            None,
            self.metrics_json,
            4,
            self.urgency,
            self.line_id,
            self.turn,
            self.due_at,
            None,
        )


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One row of `scheduler_lease_runs`: the right to run a job, and the fencing token of its
    attempt."""

    lease_id: str
    job_id: str
    addon_id: str
    worker_id: str | None
    cost_units: int
    ttl_sec: float
    state: str
    granted_at: Instant
    last_heartbeat_at: Instant
    expires_at: Instant
    released_at: Instant | None
    release_status: str | None
    release_digest: str | None


class Hold(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A lease, and of its job what it takes to end the attempt. `is_live`: active, and lasting by
    the store's clock."""

    lease_id: str
    job_id: str
    worker_id: str | None
    cost_units: int
    ttl_sec: float
    lease_state: str
    release_digest: str | None
    is_live: int
    seq: int
    job_state: str
    attempts: int
    max_attempts: int
    cancel_requested: int
    started_at: Instant | None
    urgency: int


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What a job has become by the end of its attempt. `lane` is set when it is queued again."""

    seq: int
    job_id: str
    lease_id: str
    state: str
    error: str | None = None
    result_json: str | None = None
    metrics_json: str | None = None
    lane: int | None = None
    turn: int = 0
    due_at: Instant = 0

    @property
    def next_retry_at(self) -> Instant | None:
        """When a job that rests is tried again."""
        return self.due_at if self.lane == Lane.SCHEDULED else None


class Line(msgspec.Struct, frozen=True, gc=False):
    """All jobs that a claim's filters cannot tell apart: same addon, type, cost and needs. The id
    follows from these."""

    id: int
    addon_id: str
    job_type: str
    cost_units: int
    needs: tuple[str, ...]


class Wants(msgspec.Struct, frozen=True):
    """What a worker takes; None or empty means anything."""

    addon_id: str | None = None
    job_types: frozenset[str] = frozenset()
    max_cost_units: int | None = None
    capabilities: tuple[tuple[str, bool], ...] = ()


def needs_of(constraints: Mapping[str, Any]) -> tuple[str, ...]:
    """The constraints that bind: those given a true value."""
    return tuple(sorted(name for name, value in constraints.items() if value))


@lru_cache(maxsize=4096)
def line_of(addon_id: str, job_type: str, cost_units: int, needs: tuple[str, ...]) -> Line:
    """Name the line of such jobs. The id is a hash, so every instance and every retry finds the
    same one."""
    text = msgspec.json.encode((addon_id, job_type, cost_units, needs))
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
    return Line(number, addon_id, job_type, cost_units, needs)


def accepts(line: Line, wants: Wants) -> bool:
    """Tell whether a worker takes the jobs of a line."""
    if wants.addon_id is not None and line.addon_id != wants.addon_id:
        return False
    if wants.job_types and line.job_type not in wants.job_types:
        return False
    if wants.max_cost_units is not None and line.cost_units > wants.max_cost_units:
        return False
    if not line.needs:
        return True
    capabilities = dict(wants.capabilities)
    return all(_is_met(need, capabilities) for need in line.needs)


def _is_met(need: str, capabilities: Mapping[str, bool]) -> bool:
    if not capabilities.get(need, True):
        return False
    if need.endswith("_required"):
        return capabilities.get(need.removesuffix("_required") + "_available", False)
    return True


def backoff_us(attempts: int) -> Micros:
    """How long a failed job rests before its next attempt."""
    return min(_BACKOFF_FIRST << min(max(attempts, 1) - 1, 10), _BACKOFF_MOST)


def next_turn(has_key: bool, head: int | None, tail: int | None, key_tail: int | None) -> int:
    """Give a job that becomes ready its turn: the least turn is served first, and then age decides.

    Jobs without a fairness key go to the tail, so among themselves they are served by age. A job
    with a key comes one turn after the last waiting job of its key, or at the head if its key has
    none waiting: keys are served in rotation, however many jobs one of them has. Nothing is stored
    per key; what waits is all there is to know.
    """
    if not has_key:
        return tail or 0
    return (head or 0) if key_tail is None else max(head or 0, key_tail + 1)


class Ending(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a job whose lease ended. `rest_us` is set when it is queued again."""

    state: str
    rest_us: Micros | None = None

    @property
    def is_requeue(self) -> bool:
        """Whether the job gets another attempt."""
        return self.rest_us is not None


_DONE: Final = Ending("DONE")
_CANCELED: Final = Ending("CANCELED")
_TIMEOUT: Final = Ending("TIMEOUT")
_AGAIN: Final = Ending("QUEUED", 0)


def after_release(job: Job | Hold, status: str) -> Ending:
    """Decide a job's state once its worker released the lease. A cancelled job is never tried
    again."""
    if job.cancel_requested or status == "CANCELED":
        return _CANCELED
    if status == "SUCCEEDED":
        return _DONE
    if status == "TIMEOUT":
        return _TIMEOUT
    if job.attempts < job.max_attempts:
        return Ending("QUEUED", backoff_us(job.attempts))
    return Ending("FAILED")


def after_expiry(job: Job | Hold) -> Ending:
    """Decide a job's state once its lease ran out. The attempt was counted when the lease was
    granted."""
    if job.cancel_requested:
        return _CANCELED
    return _AGAIN if job.attempts < job.max_attempts else _TIMEOUT


def can_report(state: str, to: str) -> bool:
    """Tell whether a worker may report this state: a legal move, or the same state again while the
    job is alive."""
    return (state, "status", to) in JOB_MOVES or (
        state == to and state not in ENDED and state != "QUEUED"
    )


@lru_cache(maxsize=256)
def release_digest(status: str, result: str, error: str | None, metrics: str) -> str:
    """Name what a release said, so that the same one sent again is known."""
    # Lengths keep one member's end from passing for another's beginning.
    lengths = f"{len(result)} {len(metrics)} {-1 if error is None else len(error)}"
    return hashlib.blake2b(
        f"{status} {lengths} {result}{metrics}{error or ''}".encode(), digest_size=16
    ).hexdigest()
