"""Every way a run is moved or ended, as pure decisions: a run, a command and the clock in, one
RunChange out.

`engine/tasks/run_writer.py` writes RunChanges and nothing else writes a run's state. The end of an
attempt is decided in `outcome.py`, runs without a living holder in `rescue.py`, both into the same
RunChange. Functions that need a fresh token are given one: nothing
here draws random numbers.
"""

from typing import Any, Final

import msgspec

from ksana.base.instant import Instant, format_instant
from ksana.domain.dead_letters import NewLetter
from ksana.domain.lifecycle import RUN
from ksana.domain.retry import Backoff, delay_after
from ksana.domain.tasks.records import RetryPolicy, Run, Task

MAX_ERROR: Final = 1024
NO_CALLBACK: Final = "no callback came by the deadline"

LAST_STATUS: Final[dict[str, str]] = {
    "SUCCESS": "success",
    "CALLBACK_SUCCESS": "success",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "FAILED_TIMEOUT": "timeout",
}
"""What a task's `last_status` says of the end of a run; an end that is not here is not noted."""

DEAD: Final = frozenset({"FAILED", "TIMEOUT", "FAILED_TIMEOUT"})
"""Ends that make a run a dead letter."""

ALERTING: Final = DEAD
"""Ends whose event should raise an alert."""

EVENT_OF: Final[dict[str, str]] = {state: f"RUN_{state}" for state in RUN.states}
METRIC_OF: Final[dict[str, str]] = {state: f"runs_{state.lower()}" for state in RUN.states}

_encode = msgspec.json.Encoder().encode


class AttemptRecord(msgspec.Struct, frozen=True, gc=False):
    """The request and the answer of one attempt, as they are stored with the run."""

    request_headers: str | None
    request_body: str | None
    response_code: int | None
    response_body: str | None
    response_truncated: bool
    response_encoding: str | None


class RunChange(msgspec.Struct, frozen=True, gc=False):
    """One move of one run: what it must be, what it becomes, and everything that follows from it.

    The write happens only if the run is still in state `old` under `token`. All other members are
    the new values; what a change leaves alone it repeats.
    """

    run_id: int
    task_id: int
    old: str
    token: int
    new: str
    new_token: int
    attempt: int
    reason: str | None
    error: str | None
    start_time: Instant | None
    end_time: Instant | None
    ready_host: str | None
    """The host at which it is about to start; None if it is not."""
    wake_at: Instant | None
    """When somebody must look at it again."""
    held_by: str | None
    next_retry_time: Instant | None
    callback_deadline: Instant | None
    callback_data: str | None
    attempts: str
    event: str
    """The event to record; empty for none."""
    data: str
    """The event's data, a JSON object."""
    metric: str | None = None
    """The series in which it is counted."""
    duration_us: int = 0
    last_status: str | None = None
    """What becomes of the task's `last_status`; None leaves it alone."""
    frees_slot: bool = False
    """Whether a run of its task that waits for its turn may start now."""
    record: AttemptRecord | None = None
    """Set by the end of an attempt only."""


def cancel(run: Run, reason: str, now: Instant, new_token: int) -> RunChange:
    """End an unfinished run. The new token is how its holder, on whichever instance, finds out."""
    data = {"task_id": run.task_id, "from": run.status, "reason": reason}
    return move(
        run,
        "CANCELED",
        now,
        new_token,
        reason=reason,
        error=run.error_message,
        data=data,
        frees_slot=run.is_counted,
    )


def start(run: Run, instance_id: str, now: Instant, new_token: int) -> RunChange:
    """An instance takes a ready run to deliver it. A retry counts as a new attempt."""
    attempt = run.attempt + (run.status == "RETRYING")
    return RunChange(
        run_id=run.id,
        task_id=run.task_id,
        old=run.status,
        token=run.token,
        new="RUNNING",
        new_token=new_token,
        attempt=attempt,
        reason=run.reason,
        error=run.error_message,
        start_time=run.start_time if run.start_time is not None else now,
        end_time=None,
        ready_host=None,
        wake_at=None,
        held_by=instance_id,
        next_retry_time=None,
        callback_deadline=run.callback_deadline,
        callback_data=run.callback_data,
        attempts=run.attempts,
        event="RUN_STARTED",
        data=f'{{"task_id":{run.task_id},"attempt":{attempt},"reason":"PLACE_FREE"}}',
    )


def bury(change: RunChange) -> NewLetter:
    """The dead letter of a run that failed for good."""
    return NewLetter(
        entity_id=str(change.run_id),
        source=str(change.task_id),
        status=change.new,
        error=change.error or change.reason or change.new,
    )


def make_ready(run: Run) -> RunChange:
    """A retry's pause is over: it is about to start."""
    return step(run, ready_host=run.host, next_retry_time=run.next_retry_time)


def promote(run: Run) -> RunChange:
    """A waiting run's turn has come: it is about to start."""
    data = f'{{"task_id":{run.task_id},"reason":"TURN_CAME"}}'
    return step(run, ready_host=run.host, event="RUN_PROMOTED", data=data)


def extend_deadline(run: Run, deadline: Instant) -> RunChange:
    """The target of a pending run asked for more time."""
    return step(run, wake_at=deadline, callback_deadline=deadline)


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


def retry_delay(policy: RetryPolicy, attempt: int, uid: str) -> int:
    """The pause after failed attempt `attempt` of a run."""
    backoff = Backoff(
        policy.initial_delay_us, policy.strategy, policy.max_delay_us, policy.jitter_us
    )
    return delay_after(backoff, attempt, uid)


def facts(
    run: Run,
    reason: str,
    *,
    error: str | None = None,
    instance: str | None = None,
    alert: bool = False,
) -> dict[str, Any]:
    """The data of the event that tells a move made without the holder."""
    data: dict[str, Any] = {"task_id": run.task_id, "from": run.status, "reason": reason}
    if error is not None:
        data["error"] = error
    if instance is not None:
        data["instance"] = instance
    if alert:
        data["alert"] = True
    return data


def move(
    run: Run,
    new: str,
    now: Instant,
    new_token: int,
    *,
    reason: str,
    error: str | None,
    data: dict[str, Any],
    retry_at: Instant | None = None,
    attempt: int | None = None,
    attempts: str | None = None,
    callback_data: str | msgspec.UnsetType | None = msgspec.UNSET,
    frees_slot: bool = False,
) -> RunChange:
    """Move a run to another state without its holder: nobody holds it then. What is not given stays
    as it is."""
    is_final = new in RUN.final
    if retry_at is not None:
        data["next_retry_time"] = format_instant(retry_at)
    return RunChange(
        run_id=run.id,
        task_id=run.task_id,
        old=run.status,
        token=run.token,
        new=new,
        new_token=new_token,
        attempt=run.attempt if attempt is None else attempt,
        reason=reason,
        error=error,
        start_time=run.start_time,
        end_time=now if is_final else None,
        ready_host=None,
        wake_at=retry_at,
        held_by=None,
        next_retry_time=retry_at,
        callback_deadline=run.callback_deadline,
        callback_data=run.callback_data if callback_data is msgspec.UNSET else callback_data,
        attempts=run.attempts if attempts is None else attempts,
        event=EVENT_OF[new],
        data=_encode(data).decode(),
        metric=METRIC_OF[new] if is_final else None,
        last_status=LAST_STATUS.get(new),
        frees_slot=frees_slot,
    )


def step(
    run: Run,
    *,
    ready_host: str | None = None,
    wake_at: Instant | None = None,
    next_retry_time: Instant | None = None,
    callback_deadline: Instant | None = None,
    event: str = "",
    data: str = "{}",
) -> RunChange:
    """A change that leaves the state and the token alone."""
    return RunChange(
        run_id=run.id,
        task_id=run.task_id,
        old=run.status,
        token=run.token,
        new=run.status,
        new_token=run.token,
        attempt=run.attempt,
        reason=run.reason,
        error=run.error_message,
        start_time=run.start_time,
        end_time=run.end_time,
        ready_host=ready_host,
        wake_at=wake_at,
        held_by=run.held_by,
        next_retry_time=next_retry_time,
        callback_deadline=run.callback_deadline if callback_deadline is None else callback_deadline,
        callback_data=run.callback_data,
        attempts=run.attempts,
        event=event,
        data=data,
    )
