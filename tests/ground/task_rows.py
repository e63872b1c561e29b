"""Rows of tasks and runs for tests that write to a store without the services."""

from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.domain.tasks.changes import AttemptRecord, RunChange
from ksana.domain.tasks.records import Definition, Task


def a_task(
    job_id: str, definition: Definition, now: Instant, due_at: Instant | None, dialect: str = "C"
) -> Task:
    """An enabled task, not stored yet."""
    return Task(
        id=0,
        job_id=job_id,
        dialect=dialect,  # type: ignore[arg-type]
        definition=definition,
        status="ENABLED",
        version=1,
        created_at=now,
        updated_at=now,
        is_deleted=False,
        next_slot_at=due_at,
        fire_at=due_at,
        runs_fired=0,
        last_run_at=None,
        last_status="",
        last_error="",
    )


def a_finish(run_id: int, token: int, task_id: int, **members: Any) -> RunChange:
    """The end of an attempt that was answered 200."""
    record = AttemptRecord("{}", None, 200, "", False, None)
    change = RunChange(
        run_id=run_id,
        task_id=task_id,
        old="RUNNING",
        token=token,
        new="SUCCESS",
        new_token=token,
        attempt=1,
        reason="ANSWERED_2XX",
        error=None,
        start_time=1,
        end_time=2,
        ready_host=None,
        wake_at=None,
        held_by=None,
        next_retry_time=None,
        callback_deadline=None,
        callback_data=None,
        attempts="[]",
        event="RUN_SUCCESS",
        data="{}",
        record=record,
    )
    in_record = {name: members.pop(name) for name in list(members) if hasattr(record, name)}
    return msgspec.structs.replace(
        change, **members, record=msgspec.structs.replace(record, **in_record)
    )
