"""A run this instance holds, and the end of one attempt: what passes between firing, delivery and
recording."""

import msgspec

from ksana.base.instant import Instant
from ksana.domain.tasks.records import ExecType, Run, Task
from ksana.ports.caller import Reply, Request


class ClaimedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that is ours under a token."""

    run_id: int
    uid: str
    task: Task
    token: int
    attempt: int
    scheduled_time: Instant
    exec_type: ExecType
    trace_id: str
    host: str
    is_counted: bool
    held_by: str
    callback_token: str | None = None
    override_body: str | None = None
    attempts: str = "[]"


class AttemptOver(msgspec.Struct, frozen=True, gc=False):
    """One attempt that ended, not yet recorded."""

    held: ClaimedRun
    request: Request | None
    shown_headers: str | None
    reply: Reply
    started_at: Instant
    ended_at: Instant


def claimed_run_of(run: Run, task: Task, host: str, instance_id: str) -> ClaimedRun:
    """What delivery needs of a run just taken."""
    return ClaimedRun(
        run_id=run.id,
        uid=run.uid,
        task=task,
        token=run.token,
        attempt=run.attempt,
        scheduled_time=run.scheduled_time,
        exec_type=run.exec_type,
        trace_id=run.trace_id,
        host=host,
        is_counted=run.is_counted,
        held_by=instance_id,
        callback_token=run.callback_token,
        override_body=run.override_body,
        attempts=run.attempts,
    )
