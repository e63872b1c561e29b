"""What a callback, or its absence, means for a run. Pure: a run, its task and the clock in, one
RunChange out."""

from typing import Final

from ksana.base.instant import Instant
from ksana.domain.tasks.changes import MAX_ERROR, RunChange, facts, move, retry_delay
from ksana.domain.tasks.records import Run, Task

NO_CALLBACK: Final = "no callback came by the deadline"


def end_by_callback(
    run: Run,
    task: Task,
    said: str,
    data: str | None,
    error_message: str | None,
    now: Instant,
    new_token: int,
) -> RunChange:
    """A callback said SUCCESS or FAILED. It is taken in any unfinished state: also before the first
    call has returned, and between retries. A call still in flight loses its token."""
    if said == "SUCCESS":
        reason = "CALLBACK_SAID_SUCCESS"
        return move(
            run,
            "CALLBACK_SUCCESS",
            now,
            new_token,
            reason=reason,
            error=None,
            data={"task_id": run.task_id, "from": run.status, "reason": reason},
            callback_data=data,
            frees_slot=run.is_counted and task.definition.concurrency_policy == "QUEUE",
        )
    error = (error_message or "the callback said FAILED")[:MAX_ERROR]
    retry_at = _callback_retry(run, task, now)
    if retry_at is not None:
        reason = "CALLBACK_FAILED_RETRY_LEFT"
        return move(
            run,
            "RETRYING",
            now,
            new_token,
            reason=reason,
            error=error,
            data=facts(run, reason, error=error),
            retry_at=retry_at,
            callback_data=data,
        )
    reason = "CALLBACK_SAID_FAILED"
    return move(
        run,
        "FAILED",
        now,
        new_token,
        reason=reason,
        error=error,
        data=facts(run, reason, error=error, alert=True),
        callback_data=data,
        frees_slot=run.is_counted and task.definition.concurrency_policy == "QUEUE",
    )


def expire_callback(run: Run, task: Task | None, now: Instant, new_token: int) -> RunChange:
    """No callback came by the deadline."""
    retry_at = None if task is None else _callback_retry(run, task, now)
    if retry_at is not None:
        reason = "NO_CALLBACK_RETRY_LEFT"
        return move(
            run,
            "RETRYING",
            now,
            new_token,
            reason=reason,
            error=NO_CALLBACK,
            data=facts(run, reason, error=NO_CALLBACK),
            retry_at=retry_at,
        )
    return move(
        run,
        "FAILED_TIMEOUT",
        now,
        new_token,
        reason="NO_CALLBACK",
        error=NO_CALLBACK,
        data=facts(run, "NO_CALLBACK", error=NO_CALLBACK, alert=True),
        frees_slot=run.is_counted,
    )


def _callback_retry(run: Run, task: Task, now: Instant) -> Instant | None:
    """When a run whose callback failed or did not come is tried again; None if it is not."""
    definition = task.definition
    if (
        run.status != "CALLBACK_PENDING"
        or task.is_deleted
        or not definition.options.retry_on_callback_failure
        or run.attempt > definition.retry.max_retries
    ):
        return None
    return now + retry_delay(definition.retry, run.attempt, run.uid)
