"""When a task that is made, changed or enabled fires first. Pure."""

from ksana.base.instant import Instant, Micros
from ksana.domain import schedule
from ksana.domain.schedule import Cron, Once
from ksana.domain.tasks.records import Definition, Task


def arm(
    job_id: str, definition: Definition, status: str, now: Instant, once_grace_us: Micros
) -> tuple[Instant | None, Instant | None, str]:
    """The first slot of a schedule that is set now, when it fires, and `missed` for a one-time slot
    that is past."""
    chosen = definition.schedule
    if isinstance(chosen, Once):
        if chosen.run_at < now - once_grace_us:
            return None, None, "missed"
        slot: Instant | None = chosen.run_at
    else:
        slot = schedule.next_after(chosen, now)
    if slot is None or status != "ENABLED":
        return slot, None, ""
    return slot, schedule.fire_at(chosen, job_id, slot), ""


def rearm(
    task: Task, definition: Definition, status: str, now: Instant
) -> tuple[Instant | None, Instant | None]:
    """The next slot from now on; slots while disabled are not made up. A one-time slot keeps its
    place."""
    chosen = definition.schedule
    if definition.options.max_runs is not None and task.runs_fired >= definition.options.max_runs:
        return None, None
    if isinstance(chosen, Once):
        slot = task.next_slot_at
        if slot is None or slot <= now:
            slot = None if task.runs_fired else schedule.next_after(chosen, now)
    else:
        slot = schedule.next_after(chosen, now)
    if slot is None or status != "ENABLED":
        return slot, None
    return slot, schedule.fire_at(chosen, task.job_id, slot)


def find_moved_slot(task: Task, now: Instant) -> tuple[Instant | None, Instant | None] | None:
    """The next slot of an enabled task by the zone rules in use and when it fires; None if it is
    the one the task is armed for. A slot that is due is not moved."""
    chosen, armed = task.definition.schedule, task.next_slot_at
    if task.status != "ENABLED" or not isinstance(chosen, Cron) or armed is None:
        return None
    if armed <= now or task.fire_at is None or task.fire_at <= now:
        return None
    slot = schedule.next_after(chosen, now)
    if slot == armed:
        return None
    return slot, None if slot is None else schedule.fire_at(chosen, task.job_id, slot)
