"""Tasks and runs as plain values, for tests of what is decided about them."""

from typing import Any

from ksana.base.instant import SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import ClaimedRun, Definition, Options, Run, Task

NOW = 1_000 * SECOND
EVERY_TEN = Every(10 * SECOND, 0, False)


def a_definition(schedule: Any = EVERY_TEN, **members: Any) -> Definition:
    """A definition; members of its options are told apart by name."""
    options = {
        name: members.pop(name) for name in list(members) if name in Options.__struct_fields__
    }
    return Definition("t", "", schedule, options=Options(**options), **members)


def a_task(schedule: Any = EVERY_TEN, **members: Any) -> Task:
    """A task that is enabled and armed for NOW."""
    given: dict[str, Any] = {
        "id": 7,
        "job_id": "j",
        "dialect": "C",
        "status": "ENABLED",
        "version": 3,
        "created_at": 0,
        "updated_at": 0,
        "is_deleted": False,
        "next_slot_at": NOW,
        "fire_at": NOW,
        "runs_fired": 0,
        "last_run_at": None,
        "last_status": "",
        "last_error": "",
    }
    given |= {name: members.pop(name) for name in list(members) if name in given}
    return Task(definition=a_definition(schedule, **members), **given)


def a_run(**members: Any) -> Run:
    """A run that an instance holds, in its second attempt."""
    given: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    given |= {
        "id": 60,
        "uid": "f" * 32,
        "task_id": 7,
        "slot_at": NOW,
        "scheduled_time": NOW,
        "start_time": NOW + 1,
        "status": "RUNNING",
        "attempt": 2,
        "trigger": "schedule",
        "exec_type": "SYNC",
        "is_counted": True,
        "held_by": "one",
        "token": 5,
        "response_truncated": False,
        "reason": "BELOW_LIMIT",
        "error_message": "before",
        "callback_data": "said before",
        "trace_id": "t",
        "attempts": '[{"attempt":1}]',
        "created_at": NOW,
        "updated_at": NOW,
        "host": "target",
    }
    return Run(**given | members)


def a_claimed_run(task: Task | None = None, **members: Any) -> ClaimedRun:
    """The same as its holder has it."""
    given: dict[str, Any] = {
        "run_id": 60,
        "uid": "f" * 32,
        "task": task or a_task(),
        "token": 5,
        "attempt": 2,
        "scheduled_time": NOW,
        "exec_type": "SYNC",
        "trace_id": "t",
        "host": "target",
        "is_counted": True,
        "held_by": "one",
    }
    return ClaimedRun(**given | members)
