"""What a due task does now. Pure: a task, the clock and the counts in; runs to write, the next slot
and the reasons out.

Production, preview, simulation and explain use these same functions, so a decision can be replayed
from its inputs.
"""

from typing import Final, Literal

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Once
from ksana.domain.tasks.records import Task, Trigger

SLOTS_PER_PASS: Final = 100
"""Late slots of one task decided in one transaction at most; the rest follow in the next pass."""

Outage = tuple[Instant, Instant]
Start = Literal["start", "wait", "skip"]


class Counts(msgspec.Struct, frozen=True, gc=False):
    """Counted runs of the task that are not finished."""

    active: int = 0
    """RUNNING, CALLBACK_PENDING, RETRYING, and SCHEDULED ones about to start."""
    waiting: int = 0
    """SCHEDULED ones that wait for their turn."""


class PlannedRun(msgspec.Struct, frozen=True, gc=False):
    """A run to write for a slot."""

    slot_at: Instant
    trigger: Trigger
    start: Start
    reason: str


class Misfire(msgspec.Struct, frozen=True, gc=False):
    """Slots nobody was there for."""

    first: Instant
    last: Instant
    count: int
    policy: str


class Firing(msgspec.Struct, frozen=True, gc=False):
    """The decision for one due task."""

    runs: tuple[PlannedRun, ...]
    next_slot_at: Instant | None
    fire_at: Instant | None
    started: int
    misfire: Misfire | None = None
    is_missed: bool = False
    """A one-time slot that passed while nobody ran and will not be made up."""


def admit(policy: str, max_concurrency: int, max_queued: int, counts: Counts) -> tuple[Start, str]:
    """Decide what becomes of one more run: start now, wait in line, or skip, with the reason code."""
    if policy == "PARALLEL":
        return "start", "PARALLEL"
    if counts.active < max_concurrency and counts.waiting == 0:
        return "start", "BELOW_LIMIT"
    if policy == "SKIP":
        if counts.active < max_concurrency:
            return "start", "BELOW_LIMIT"
        return "skip", "CONCURRENCY_LIMIT"
    if counts.waiting < max_queued:
        return "wait", "QUEUED_BEHIND_ACTIVE"
    return "skip", "QUEUE_FULL"


def is_misfire(slot: Instant, now: Instant, grace_us: Micros, outages: list[Outage]) -> bool:
    """Tell whether a slot fell due while no instance ran, or is later than its grace allows."""
    return now - slot > grace_us or any(began < slot <= ended for began, ended in outages)


def decide_firing(task: Task, now: Instant, outages: list[Outage], counts: Counts) -> Firing:
    """Decide all that is due of one task at `now`: its misfires first, then its slots one by one."""
    definition = task.definition
    schedule = definition.schedule
    slot = task.next_slot_at
    assert slot is not None
    grace = definition.options.misfire_grace_us
    misfire: Misfire | None = None
    planned: list[tuple[Instant, Trigger]] = []
    if is_misfire(slot, now, grace, outages):
        ended = [end for began, end in outages if began < slot <= end]
        boundary = min(now, max([*ended, now - grace - 1]))
        last = schedules.latest_at_or_before(schedule, boundary) or slot
        count = schedules.count_between(schedule, slot - 1, last)
        misfire = Misfire(slot, last, count, definition.misfire_policy)
        planned = _make_up(task, misfire)
        slot = schedules.next_after(schedule, last)
    while slot is not None and len(planned) < SLOTS_PER_PASS:
        due_at = schedules.fire_at(schedule, task.job_id, slot)
        if due_at > now or (
            slot is not task.next_slot_at and is_misfire(slot, now, grace, outages)
        ):
            break
        planned.append((slot, "schedule"))
        slot = schedules.next_after(schedule, slot)
    return _plan(task, counts, planned, slot, misfire)


def _make_up(task: Task, misfire: Misfire) -> list[tuple[Instant, Trigger]]:
    definition = task.definition
    if definition.misfire_policy == "FIRE_NOW":
        return [(misfire.last, "schedule")]
    if definition.misfire_policy == "CATCH_UP_LIMITED":
        slots = schedules.latest_n(
            definition.schedule,
            misfire.last,
            min(definition.catchup_limit, misfire.count),
            misfire.first - 1,
        )
        return [(slot, "catchup") for slot in slots]
    return []


def _plan(
    task: Task,
    counts: Counts,
    planned: list[tuple[Instant, Trigger]],
    next_slot: Instant | None,
    misfire: Misfire | None,
) -> Firing:
    definition = task.definition
    options = definition.options
    runs: list[PlannedRun] = []
    started = 0
    room = None if options.max_runs is None else options.max_runs - task.runs_fired
    for slot, trigger in planned:
        if room is not None and started >= room:
            break
        start, reason = admit(
            definition.concurrency_policy, definition.max_concurrency, options.max_queued, counts
        )
        if start == "start":
            counts = Counts(counts.active + 1, counts.waiting)
        elif start == "wait":
            counts = Counts(counts.active, counts.waiting + 1)
        if start != "skip":
            started += 1
        if misfire is not None and slot <= misfire.last:
            reason = f"MISFIRE_{definition.misfire_policy}" if start != "skip" else reason
        runs.append(PlannedRun(slot, trigger, start, reason))
    if room is not None and started >= room:
        next_slot = None
    fire_at = (
        None
        if next_slot is None
        else schedules.fire_at(definition.schedule, task.job_id, next_slot)
    )
    is_missed = misfire is not None and not runs and isinstance(definition.schedule, Once)
    return Firing(tuple(runs), next_slot, fire_at, started, misfire, is_missed)


def next_due(
    task_key: str, schedule: schedules.Schedule, after: Instant
) -> tuple[Instant | None, Instant | None]:
    """The first slot after an instant and when it fires, jitter included."""
    slot = schedules.next_after(schedule, after)
    return slot, None if slot is None else schedules.fire_at(schedule, task_key, slot)
