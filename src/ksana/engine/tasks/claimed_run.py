"""The end of one attempt, as it passes from sending to recording, and the claim of a ready run."""

import msgspec

from ksana.base.instant import Instant
from ksana.domain.handover import HandedEnd, HandedJob
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.firing import prompt_due_at
from ksana.domain.tasks.records import ClaimedRun, Run, Task
from ksana.ports.caller import Reply, Request, Timing


class AttemptOver(msgspec.Struct, frozen=True, gc=False):
    """One attempt that ended, not yet recorded. Without a request nothing was sent."""

    held: ClaimedRun
    request: Request | None
    kept_headers: str | None
    """As `call_records` has them."""
    reply: Reply
    started_at: Instant
    ended_at: Instant
    job: HandedJob | None = None
    """The job that it was handed over to, with its end; None for a call."""


def claimed_run_of(
    run: Run, task: Task, start: RunChange, instance_id: str, lease: int
) -> ClaimedRun:
    """What delivery needs of a run that was just taken."""
    return ClaimedRun(
        run_id=run.id,
        uid=run.uid,
        task=task,
        token=start.new_token,
        attempt=start.attempt,
        scheduled_time=run.scheduled_time,
        exec_type=run.exec_type,
        trace_id=run.trace_id,
        host=run.host,
        is_counted=run.is_counted,
        held_by=instance_id,
        callback_hash=run.callback_hash,
        override_body=run.override_body,
        attempts=run.attempts,
        lease=lease,
        due_at=prompt_due_at(task, run.slot_at, run.trigger, run.reason)
        if start.attempt == 1
        else None,
    )


def waiting_run_of(run: Run, task: Task, instance_id: str) -> ClaimedRun:
    """A run that waits for its job, in the form in which ends of attempts are decided.
    `instance_id` is who looks at it."""
    return ClaimedRun(
        run_id=run.id,
        uid=run.uid,
        task=task,
        token=run.token,
        attempt=run.attempt,
        scheduled_time=run.scheduled_time,
        exec_type=run.exec_type,
        trace_id=run.trace_id,
        host=run.host,
        is_counted=run.is_counted,
        held_by=instance_id,
        override_body=run.override_body,
        attempts=run.attempts,
    )


def reply_of(end: HandedEnd, started_at: Instant, ended_at: Instant) -> Reply:
    """The end of a job in the form of a reply, for those who observe attempts."""
    return Reply(
        "answered" if end.kind in ("done", "canceled") else "refused",
        Timing(total_ms=max(0, ended_at - started_at) / 1000),
        error=end.error,
        sends=0,
    )
