"""Runs that are done by a job of another surface: handed over, ended by the job's end, or refused.
Pure: a run and a job in, one RunChange out.

A run that waits for a queue job is RUNNING and nobody holds it: no instance's death concerns it. It
is looked at again when its job ends, and at the latest when its time is over (`wake_at`).
"""

from typing import Final

import msgspec

from ksana.base.errors import InvalidError
from ksana.base.instant import Instant, format_instant
from ksana.domain.handover import EndKind, HandedEnd, HandedJob
from ksana.domain.tasks.changes import AttemptRecord, RunChange, facts, move, start
from ksana.domain.tasks.outcome import (
    UNKNOWN,
    Outcome,
    Verdict,
    VerdictKind,
    clip_error,
    decide_outcome,
    end_attempt,
)
from ksana.domain.tasks.records import ClaimedRun, Definition, Run

OVERDUE: Final = "the job did not end in time"
GONE: Final = "the job is gone, and nobody knows what came of it"

_OUTCOMES: Final[dict[EndKind, VerdictKind]] = {
    "done": "success",
    "failed": "retry",
    "gave_up": "fail",
    "timeout": "timeout-retry",
    "lost": "retry",
}
_ERRORS: Final[dict[EndKind, str]] = {
    "failed": "the job failed",
    "gave_up": "the job failed for good",
    "timeout": "the job timed out",
    "canceled": "the job was cancelled",
    "lost": GONE,
}
_DONE: Final = Outcome("SUCCESS", "JOB_DONE")
_CANCELED: Final = Outcome("CANCELED", "JOB_CANCELED")
_encode = msgspec.json.Encoder().encode


class JobTiming(msgspec.Struct, frozen=True, gc=False):
    """How long a job took, in the shape of a call's timing."""

    total_ms: float
    dns_ms: float = 0.0
    connect_ms: float = 0.0
    tls_ms: float = 0.0
    first_byte_ms: float = 0.0


class JobAttempt(msgspec.Struct, frozen=True, gc=False):
    """One entry of `attempts[]` of a run that was handed over."""

    attempt: int
    started_at: str
    ended_at: str
    status: str
    response_code: None
    error: str | None
    instance: str
    job_id: str
    timing: JobTiming


def check_job(definition: Definition) -> None:
    """Raise InvalidError unless a task has the job of its type and nothing of another. The members
    are named as in `jobs.json`, where people may write anything."""
    kind, options = definition.options.type, definition.options
    for name, job in (("queue", options.queue), ("node", options.node)):
        if (job is not None) != (name == kind):
            field = f"task.options.{name}"
            raise InvalidError(f"{field} is there where type is {name}, only there", field=field)
    if kind == "http":
        return
    if definition.target_url or definition.headers or definition.exec_type != "SYNC":
        raise InvalidError(f"a task of type {kind} makes no call", field="http")
    try:
        msgspec.json.decode(definition.body or "{}")
    except msgspec.DecodeError:
        raise InvalidError("http.body must be JSON: it is the payload", field="http.body") from None


def is_waiting_for_job(run: Run) -> bool:
    """Tell whether a run waits for a job that no instance watches."""
    return run.status == "RUNNING" and run.held_by is None


def is_taken_up(run: Run, held: ClaimedRun) -> bool:
    """Tell whether another took a run, as it stands, from its former holder together with the job
    of the same attempt: it holds it, or is about to."""
    attempt = run.attempt + (run.status == "RETRYING")
    is_open = run.status in ("RUNNING", "RETRYING")
    return is_open and run.token != held.token and attempt == held.attempt


def hand_over(run: Run, job_id: str, deadline: Instant, now: Instant, new_token: int) -> RunChange:
    """A run starts by a job that is submitted with it."""
    started = start(run, "", now, new_token)
    data = (
        f'{{"task_id":{run.task_id},"attempt":{started.attempt},"reason":"JOB_SUBMITTED"'
        f',"job_id":"{job_id}"}}'
    )
    return msgspec.structs.replace(
        started, held_by=None, wake_at=deadline, reason="JOB_SUBMITTED", data=data
    )


def refuse_job(run: Run, error: str, now: Instant, new_token: int) -> RunChange:
    """The job of a run cannot be: it fails without an attempt."""
    error = clip_error(error)
    return move(
        run,
        "FAILED",
        now,
        new_token,
        reason="JOB_REFUSED",
        error=error,
        data=facts(run, "JOB_REFUSED", error=error, alert=True),
        frees_slot=run.is_counted,
    )


def decide_job_end(run: ClaimedRun, end: HandedEnd, has_begun: bool, now: Instant) -> Outcome:
    """What the end of its job means for a run. `has_begun`: somebody may have worked on it."""
    if end.kind == "canceled":
        return _CANCELED
    definition = run.task.definition
    decided = decide_outcome(
        Verdict(_OUTCOMES[end.kind]),
        definition.retry,
        run.attempt,
        run.uid,
        now,
        is_async=False,
        callback_timeout_us=0,
    )
    if decided.status == "SUCCESS":
        return _DONE
    if (
        decided.status == "RETRYING"
        and definition.options.delivery == "at_most_once"
        and end.kind in ("timeout", "lost")
        and has_begun
    ):
        return UNKNOWN
    return decided


def end_by_job(
    run: ClaimedRun, job: HandedJob, end: HandedEnd, ended_at: Instant, now: Instant
) -> RunChange:
    """The change that the end of its job makes of a run."""
    decided = decide_job_end(run, end, job.has_begun, now)
    job_id, started_at = job.job_id, min(job.created_at, ended_at)
    error = None if end.kind == "done" else clip_error(end.error or _ERRORS[end.kind])
    entry = JobAttempt(
        attempt=run.attempt,
        started_at=format_instant(started_at),
        ended_at=format_instant(ended_at),
        status=decided.status,
        response_code=None,
        error=error,
        instance=run.held_by,
        job_id=job_id,
        timing=JobTiming(max(0, ended_at - started_at) / 1000),
    )
    change = end_attempt(
        run, decided, error, _record(run, job.payload, end), _encode(entry), started_at, ended_at
    )
    return msgspec.structs.replace(change, data=f'{change.data[:-1]},"job_id":"{job_id}"}}')


def _record(run: ClaimedRun, payload: str, end: HandedEnd) -> AttemptRecord:
    limit = run.task.definition.options.response_limit
    result, is_cut = end.result, False
    if result is not None and limit is not None and len(result.encode()) > limit:
        result, is_cut = result.encode()[:limit].decode("utf-8", "ignore"), True
    return AttemptRecord(
        request_headers=None,
        request_body=payload,
        response_code=None,
        response_body=result,
        response_truncated=is_cut,
        response_encoding=None,
    )
