"""What a due task does now, and where. Pure: a task, the clock and the counts in; runs to write,
the next slot and the reasons out.

Production, preview, simulation and explain use these same functions, so a decision can be replayed
from its inputs.
"""

from collections.abc import Container
from typing import Final, Literal

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Once
from ksana.domain.tasks.clock_steps import ClockWindows, find_lived
from ksana.domain.tasks.records import MAX_CATCHUP, Definition, Task, Trigger, host_of

SLOTS_PER_PASS: Final = 100
"""Late slots of one task decided in one transaction at most; the rest follow in the next pass."""

_PROMPT: Final = frozenset({"BELOW_LIMIT", "PARALLEL"})
"""Reasons of runs that may start as soon as they are due."""

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
    last_status: str = ""
    """What becomes of the task's `last_status`; empty if it stays."""
    misfire: Misfire | None = None
    is_missed: bool = False
    """A one-time slot that passed while nobody ran and will not be made up."""


def admit(policy: str, max_concurrency: int, max_queued: int, counts: Counts) -> tuple[Start, str]:
    """Decide what becomes of one more run: start now, wait, or skip, with the reason code."""
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


def is_misfire(due_at: Instant, now: Instant, grace_us: Micros, outages: list[Outage]) -> bool:
    """Tell whether a slot that fires at `due_at`, jitter included, fell due while no instance ran,
    or is later than its grace allows."""
    if now - due_at > grace_us:
        return True
    return bool(outages) and any(began < due_at <= ended for began, ended in outages)


def decide_firing(task: Task, now: Instant, outages: list[Outage], counts: Counts) -> Firing:
    """Decide all that is due of one task at `now`: misfires first, then its slots one by one."""
    definition = task.definition
    schedule, grace = definition.schedule, definition.options.misfire_grace_us
    slot = task.next_slot_at
    assert slot is not None
    due_at = (
        schedules.fire_at(schedule, task.job_id, slot) if task.fire_at is None else task.fire_at
    )
    misfire: Misfire | None = None
    planned: list[tuple[Instant, Trigger]] = []
    following: Instant | None = slot
    if is_misfire(due_at, now, grace, outages):
        ended = [end for began, end in outages if began < due_at <= end]
        last = _last_due(task, slot, min(now, max([*ended, now - grace - 1])))
        count = schedules.count_between(schedule, slot - 1, last)
        misfire = Misfire(slot, last, count, definition.misfire_policy)
        planned = _make_up(task, misfire)
        following, due_at = _next(task, last, due_at)
    while following is not None and due_at <= now and len(planned) < SLOTS_PER_PASS:
        if following != slot and is_misfire(due_at, now, grace, outages):
            break
        planned.append((following, "schedule"))
        following, due_at = _next(task, following, due_at)
    return _plan(task, counts, planned, following, due_at, misfire)


def _next(task: Task, slot: Instant, due_at: Instant) -> tuple[Instant | None, Instant]:
    """The slot after one, and when it fires. Slots fire in their order: one whose jitter is short
    waits for one before it whose jitter is long, and is not late for that."""
    schedule = task.definition.schedule
    following = schedules.next_after(schedule, slot)
    if following is None:
        return None, due_at
    return following, max(due_at, schedules.fire_at(schedule, task.job_id, following))


def _last_due(task: Task, first: Instant, until: Instant) -> Instant:
    """The last slot from `first` on that fires by an instant, jitter included; `first` itself if
    none does."""
    schedule = task.definition.schedule
    slot = schedules.latest_at_or_before(schedule, until)
    while slot is not None and slot > first:
        if schedules.fire_at(schedule, task.job_id, slot) <= until:
            return slot
        slot = schedules.latest_at_or_before(schedule, slot - 1)
    return first


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
    due_at: Instant,
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
        # The slots of a catch-up all wait: which of them are made up was decided already.
        max_queued = MAX_CATCHUP + counts.waiting if trigger == "catchup" else options.max_queued
        start, reason = admit(
            definition.concurrency_policy, definition.max_concurrency, max_queued, counts
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
    fire_at = None if next_slot is None else due_at
    is_missed = misfire is not None and not runs and isinstance(definition.schedule, Once)
    last_status = "missed" if is_missed else "skipped" if runs and runs[-1].start == "skip" else ""
    return Firing(tuple(runs), next_slot, fire_at, started, last_status, misfire, is_missed)


def prompt_due_at(
    task: Task, slot_at: Instant | None, trigger: str, reason: str | None
) -> Instant | None:
    """When a run should have started, jitter included, if nothing but us stood in its way: not one
    that was missed, made by hand, or had to wait for its turn."""
    if slot_at is None or trigger != "schedule" or reason not in _PROMPT:
        return None
    return schedules.fire_at(task.definition.schedule, task.job_id, slot_at)


def leave_out(
    task: Task, decision: Firing, claimed: Container[tuple[int, Instant]], windows: ClockWindows
) -> Firing:
    """The decision without slots that were decided already, while the clock was ahead."""
    schedule = task.definition.schedule
    runs = tuple(
        run
        for run in decision.runs
        if (task.id, run.slot_at) not in claimed
        and find_lived(task, schedules.fire_at(schedule, task.job_id, run.slot_at), windows) is None
    )
    if len(runs) == len(decision.runs):
        return decision
    started = sum(run.start != "skip" for run in runs)
    last_status = "skipped" if runs and runs[-1].start == "skip" else ""
    return msgspec.structs.replace(decision, runs=runs, started=started, last_status=last_status)


def drop_due(task: Task, now: Instant, outages: list[Outage], reason: str) -> list[Firing]:
    """What to record of slots that are due and not fired yet when their task is disabled, deleted
    or given another schedule: misfires as such, every other slot as a skipped run with this reason.
    """
    dropped: list[Firing] = []
    while task.next_slot_at is not None and task.fire_at is not None and task.fire_at <= now:
        fired = decide_firing(task, now, outages, Counts())
        runs = tuple(PlannedRun(run.slot_at, run.trigger, "skip", reason) for run in fired.runs)
        dropped.append(msgspec.structs.replace(fired, runs=runs, started=0))
        task = msgspec.structs.replace(task, next_slot_at=fired.next_slot_at, fire_at=fired.fire_at)
    return dropped


def next_due(
    task_key: str, schedule: schedules.Schedule, after: Instant
) -> tuple[Instant | None, Instant | None]:
    """The first slot after an instant and when it fires, jitter included."""
    slot = schedules.next_after(schedule, after)
    return slot, None if slot is None else schedules.fire_at(schedule, task_key, slot)


def limits_of(definition: Definition) -> str:
    """What a slot was skipped by, as further members of its event."""
    return (
        f',"max_concurrency":{definition.max_concurrency}'
        f',"max_queued":{definition.options.max_queued}'
        f',"policy":"{definition.concurrency_policy}"'
    )


def place_of(definition: Definition) -> str:
    """Where runs of a task start: the key of its target's host, or of what else does them."""
    url = definition.target_url
    return host_of(url) if url else f"@{definition.options.type}"
