"""When an attempt is overdue, and what follows a failed one (N12). Pure."""

from typing import Final, Literal

import msgspec

from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.nodes.records import JobError, JobProgress

FailureKind = Literal[
    "NO_ACK",
    "NO_START",
    "NO_RESULT",
    "NODE_GONE",
    "INSTANCE_GONE",
    "MODEL_NOT_AVAILABLE",
    "JOB_FAILED",
]
"""Why an attempt failed. JOB_FAILED: the node itself answered with an error; that is final."""

MOST_REFUSALS: Final = 10
"""Nodes that may say MODEL_NOT_AVAILABLE to one job. These do not count as failures, so they need
a bound of their own."""

_MESSAGES: Final[dict[FailureKind, str]] = {
    "NO_ACK": "the node did not acknowledge the job in time",
    "NO_START": "the node did not start the job in time",
    "NO_RESULT": "the node did not finish the job in time",
    "NODE_GONE": "the node went away",
    "INSTANCE_GONE": "the instance that the node was connected to went away",
    "MODEL_NOT_AVAILABLE": "the node does not have the model at the moment",
    "JOB_FAILED": "the node reported a failure",
}


class AttemptLimits(msgspec.Struct, frozen=True):
    """How long each stage of an attempt may take, and how many attempts there are."""

    ack_us: Micros = 10 * SECOND
    start_us: Micros = 30 * SECOND
    result_us: Micros = 60 * SECOND
    attempts: int = 3


DEFAULT_LIMITS: Final = AttemptLimits()


class AttemptTimes(msgspec.Struct, frozen=True):
    """When an attempt reached its stages; 0 means not yet."""

    dispatched_at: Instant
    acked_at: Instant = 0
    started_at: Instant = 0


class Again(msgspec.Struct, frozen=True):
    """Try another node."""

    progress: JobProgress


class GiveUp(msgspec.Struct, frozen=True):
    """The job has failed; this is what its session is told."""

    error: JobError


def result_deadline(
    limits: AttemptLimits, dispatched_at: Instant, timeout_us: Micros | None
) -> Instant:
    """By when the result of an attempt must be there: what `job_assign` shows as its deadline."""
    return dispatched_at + (limits.result_us if timeout_us is None else timeout_us)


def next_deadline(
    limits: AttemptLimits, times: AttemptTimes, timeout_us: Micros | None
) -> tuple[Instant, FailureKind]:
    """What the attempt must do next, and by when.

    The acknowledgement counts from the dispatch, the start from the acknowledgement. The result
    counts from the dispatch and bounds the other two.
    """
    result_at = result_deadline(limits, times.dispatched_at, timeout_us)
    if times.started_at:
        return result_at, "NO_RESULT"
    if times.acked_at:
        start_at = times.acked_at + limits.start_us
        return (start_at, "NO_START") if start_at < result_at else (result_at, "NO_RESULT")
    ack_at = times.dispatched_at + limits.ack_us
    return (ack_at, "NO_ACK") if ack_at < result_at else (result_at, "NO_RESULT")


def decide_after_failure(
    limits: AttemptLimits,
    progress: JobProgress,
    node_id: str,
    kind: FailureKind,
    error: JobError | None = None,
) -> Again | GiveUp:
    """Another attempt on another node, or the end."""
    told = error or JobError(code=kind, message=_MESSAGES[kind])
    tried = progress.tried if node_id in progress.tried else (*progress.tried, node_id)
    is_refusal = kind == "MODEL_NOT_AVAILABLE"
    failures = progress.failures + (0 if is_refusal else 1)
    refusals = len(tried) - failures
    if kind == "JOB_FAILED" or failures >= limits.attempts or refusals >= MOST_REFUSALS:
        return GiveUp(error=told)
    return Again(
        progress=JobProgress(
            tried=tried,
            failures=failures,
            last_error=told,
            dispatched_at=progress.dispatched_at,
        )
    )


def reservation_life(limits: AttemptLimits, timeout_us: Micros | None) -> Micros:
    """How long a slot is kept without a release: longer than the attempt can last, so that it runs
    out only where every instance that could release it is gone."""
    result_us = limits.result_us if timeout_us is None else timeout_us
    return result_us + limits.ack_us
