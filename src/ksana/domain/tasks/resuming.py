"""What enabling a task would do: which slots passed meanwhile, and when it fires next. Pure; the
next slot is the one that enabling itself arms."""

from collections.abc import Iterable

import msgspec

from ksana.base.instant import Instant
from ksana.domain import schedule as schedules
from ksana.domain.explain import Fact
from ksana.domain.tasks.arming import rearm
from ksana.domain.tasks.backfill import Span
from ksana.domain.tasks.records import Task


def missed_while_disabled(disabled_at: Instant, now: Instant) -> Span:
    """The slots that passed while a task was disabled."""
    return Span(disabled_at + 1, now + 1)


class ResumeBill(msgspec.Struct, frozen=True):
    """Slots that passed while the task was disabled are not made up, so enabling fires none of
    them."""

    disabled_at: Instant | None
    """None: it is enabled."""
    passed: int
    first_passed: Instant | None
    last_passed: Instant | None
    fires: int
    """Runs that enabling starts at once."""
    next_slot_at: Instant | None
    fire_at: Instant | None


def disabled_since(task: Task, facts: Iterable[Fact]) -> Instant | None:
    """When a task was disabled, from its events, newest first; None if it is enabled. Where no
    event tells any more, when it was last changed."""
    if task.status == "ENABLED":
        return None
    since = task.updated_at
    for fact in facts:
        status = {"TASK_DISABLED": "DISABLED", "TASK_ENABLED": "ENABLED"}.get(
            fact.type, fact.data.get("status")
        )
        if status == "ENABLED":
            break
        if status == "DISABLED":
            since = fact.at
    return since


def preview_resume(task: Task, disabled_at: Instant | None, now: Instant) -> ResumeBill:
    """What enabling the task now would do."""
    if disabled_at is None:
        return ResumeBill(None, 0, None, None, 0, task.next_slot_at, task.fire_at)
    chosen = task.definition.schedule
    slot, fire_at = rearm(task, task.definition, "ENABLED", now)
    last = schedules.latest_at_or_before(chosen, now)
    passed = schedules.count_between(chosen, disabled_at, now)
    return ResumeBill(
        disabled_at,
        passed,
        schedules.next_after(chosen, disabled_at) if passed else None,
        last if passed else None,
        int(fire_at is not None and fire_at <= now),
        slot,
        fire_at,
    )
