"""What becomes of a RUNNING run whose holder is gone or did not send it. Pure: a run, its task and
the clock in, one RunChange out."""

import msgspec

from ksana.base.instant import Instant, format_instant
from ksana.domain.tasks.changes import MAX_ERROR, RunChange, facts, move
from ksana.domain.tasks.outcome import append_attempt
from ksana.domain.tasks.records import NODE_PLACE, Definition, Run, Task

_encode = msgspec.json.Encoder().encode


def rescue_orphan(
    run: Run,
    task: Task | None,
    watermark: int | None,
    now: Instant,
    new_token: int,
    *,
    keeps_jobs: bool = False,
) -> RunChange:
    """Take a RUNNING run from a holder that died. `watermark` is the highest run id the holder may
    have sent; None if that is not known. `keeps_jobs`: node jobs outlive who submitted them."""
    if run.host == NODE_PLACE:
        if keeps_jobs and task is not None and _may_take_up(task):
            return _take_up(run, now, new_token)
        return _rescue_sent(run, task, "died while it held the run", now, new_token)
    if watermark is None or run.id <= watermark or task is None or task.is_deleted:
        return _rescue_sent(run, task, "died while it held the run", now, new_token)
    return _give_back(run, f"instance {run.held_by} died before it began the run", now, new_token)


def _may_take_up(task: Task) -> bool:
    return not task.is_deleted and task.definition.options.on_orphan == "retry"


def _take_up(run: Run, now: Instant, new_token: int) -> RunChange:
    # The same attempt: its job is found by its id, or submitted under it if it never was.
    reason, error = "NODE_JOB_TAKEN_UP", f"instance {run.held_by} died while it waited for the job"
    return move(
        run,
        "RETRYING",
        now,
        new_token,
        reason=reason,
        error=error[:MAX_ERROR],
        data=facts(run, reason, error=error[:MAX_ERROR], instance=run.held_by),
        retry_at=now,
        attempt=run.attempt - 1,
    )


def rescue_forgotten(run: Run, task: Task | None, now: Instant, new_token: int) -> RunChange:
    """Take a RUNNING run from an instance that does not know it: the answer to the commit that
    gave it the run was lost for good."""
    return _rescue_sent(run, task, "never learned that it holds the run", now, new_token)


def give_back(run: Run, now: Instant, new_token: int) -> RunChange:
    """The holder never sent the run, because its lease ran out first."""
    error = f"the lease of instance {run.held_by} ran out before it began the run"
    return _give_back(run, error, now, new_token)


def _give_back(run: Run, error: str, now: Instant, new_token: int) -> RunChange:
    # Nobody was called, so this was no attempt, whatever the task says about retries.
    return move(
        run,
        "RETRYING",
        now,
        new_token,
        reason="HELD_NEVER_BEGUN",
        error=error[:MAX_ERROR],
        data=facts(run, "HELD_NEVER_BEGUN", error=error[:MAX_ERROR], instance=run.held_by),
        retry_at=now,
        attempt=run.attempt - 1,
    )


def _rescue_sent(run: Run, task: Task | None, what: str, now: Instant, new_token: int) -> RunChange:
    error = f"instance {run.held_by} {what}: what came of attempt {run.attempt} is not known"
    error = error[:MAX_ERROR]
    retry_at, reason = _judge_orphan(task, run, now)
    data = facts(run, reason, error=error, instance=run.held_by, alert=retry_at is None)
    return move(
        run,
        "FAILED" if retry_at is None else "RETRYING",
        now,
        new_token,
        reason=reason,
        error=error,
        data=data,
        retry_at=retry_at,
        attempts=append_attempt(run.attempts, _lost_attempt(run, now, error)),
        frees_slot=run.is_counted and retry_at is None,
    )


def _judge_orphan(task: Task | None, run: Run, now: Instant) -> tuple[Instant | None, str]:
    if task is None or task.is_deleted:
        return None, "ORPHANED_TASK_DELETED"
    return judge_orphan(task.definition, run.attempt, now)


def judge_orphan(definition: Definition, attempt: int, now: Instant) -> tuple[Instant | None, str]:
    """Whether a run whose call was under way when its holder died is tried again, when, and why."""
    options = definition.options
    if options.delivery == "at_most_once":
        return None, "OUTCOME_UNKNOWN_AT_MOST_ONCE"
    if options.on_orphan == "fail":
        return None, "ORPHANED_ON_ORPHAN_FAIL"
    if attempt > definition.retry.max_retries:
        return None, "ORPHANED_NO_RETRY_LEFT"
    return now, "ORPHANED_RETRY_LEFT"


def _lost_attempt(run: Run, now: Instant, error: str) -> bytes:
    started = format_instant(run.start_time) if run.start_time is not None else None
    return _encode(
        {
            "attempt": run.attempt,
            "started_at": started,
            "ended_at": format_instant(now),
            "status": "LOST",
            "response_code": None,
            "error": error,
            "instance": run.held_by,
        }
    )
