"""Why a task did, did not, or has not yet run. Pure: recorded facts in; verdict, reasons and the
decision out.

The question is about one slot: the latest at or before the instant asked about, or, for an instant
to come, the next one. What was recorded of it wins; what was not recorded is judged by the same
functions that fire in production.
"""

from typing import Any, Final, Literal

import msgspec

from ksana.base.instant import DAY, Instant, Micros
from ksana.domain import schedule
from ksana.domain.explain import Fact, Reason, reason, recorded, show, span_words
from ksana.domain.schedule import Schedule
from ksana.domain.tasks import firing
from ksana.domain.tasks.firing import Counts, Outage
from ksana.domain.tasks.records import Run, Task

Verdict = Literal[
    "ran",
    "running",
    "waiting",
    "skipped",
    "canceled",
    "missed",
    "due",
    "not_due",
    "disabled",
    "ended",
    "not_created",
    "deleted",
    "will_run",
    "will_not_run",
    "unknown",
]

COUNT_WITHIN: Final[Micros] = 366 * DAY
"""Slots to come are counted this far: the end of time may be asked about, and counting to it takes
half a minute."""

_OF_STATUS: dict[str, Verdict] = {
    "SCHEDULED": "waiting",
    "SKIPPED": "skipped",
    "CANCELED": "canceled",
    "RUNNING": "running",
    "RETRYING": "running",
    "CALLBACK_PENDING": "running",
}
_SETTING = ("TASK_CREATED", "TASK_CHANGED", "TASK_ENABLED")


class SlotRun(msgspec.Struct, frozen=True):
    """The run of a slot and its first event, which holds the decision."""

    run: Run
    first: Fact | None


class TaskFacts(msgspec.Struct, frozen=True):
    """What is known about a task for one question."""

    task: Task
    at: Instant
    now: Instant
    before: tuple[Fact, ...]
    """Events of the task up to `at`, newest first."""
    after: tuple[Fact, ...]
    """Events of the task after `at`, oldest first."""
    slot: Instant | None
    """The latest slot at or before `at`."""
    slot_run: SlotRun | None
    last_by_hand: Run | None
    """The newest run, if it was started by hand and is newer than the slot's."""
    counts: Counts
    outages: tuple[Outage, ...]
    is_anybody_alive: bool
    schedule: Schedule | None = None
    """The schedule in force at `at`, as far as is recorded."""

    @property
    def schedule_then(self) -> Schedule:
        """The schedule to judge by."""
        return self.task.definition.schedule if self.schedule is None else self.schedule


class Decision(msgspec.Struct, frozen=True):
    """What is done about a slot, as recorded or as it would be decided now, with everything it was
    decided from."""

    source: Literal["recorded", "replayed"]
    slot: str
    action: Literal["start", "wait", "skip", "misfire", "none"]
    reason: str
    inputs: dict[str, Any]


class TaskExplanation(msgspec.Struct, frozen=True):
    """The answer."""

    verdict: Verdict
    reasons: list[Reason]
    next_run_at: Instant | None
    decision: Decision | None


def slot_in_question(task: Task, at: Instant, in_force: Schedule | None = None) -> Instant | None:
    """The latest slot at or before an instant by the schedule in force then; none before the task
    was made."""
    if at < task.created_at:
        return None
    return schedule.latest_at_or_before(in_force or task.definition.schedule, at)


def explain_task(facts: TaskFacts) -> TaskExplanation:
    """Say why."""
    task = facts.task
    next_run_at = None if task.fire_at is None else task.next_slot_at
    if facts.at < task.created_at:
        reasons = [reason("NOT_CREATED_YET", created_at=show(task.created_at))]
        return TaskExplanation("not_created", reasons, next_run_at, None)
    if task.is_deleted and facts.at >= task.updated_at:
        return TaskExplanation("deleted", [_deleted(facts)], None, None)
    if facts.at > facts.now:
        verdict, reasons = _explain_future(facts)
        return TaskExplanation(verdict, reasons, next_run_at, replay(facts))
    verdict, reasons = _explain_slot(facts)
    if facts.last_by_hand is not None:
        run = facts.last_by_hand
        reasons.append(
            reason("RUN_BY_HAND", run_id=run.id, at=show(run.created_at), status=run.status)
        )
    codes = {one.code for one in reasons}
    reasons += [one for one in _explain_next(facts) if one.code not in codes]
    decision = _recorded_decision(facts) or replay(facts)
    return TaskExplanation(verdict, reasons, next_run_at, decision)


def _explain_slot(facts: TaskFacts) -> tuple[Verdict, list[Reason]]:
    """What became of the slot in question: by its run, by the events, or else by inference."""
    slot, task = facts.slot, facts.task
    if facts.slot_run is not None:
        return _explain_run_of_slot(facts, facts.slot_run)
    missed = _find_miss(facts)
    if missed is not None:
        return "missed", [missed]
    if slot is None:
        return _explain_no_slot(facts)
    if not _is_enabled(facts, slot):
        return "disabled", [_disabled(facts)]
    if task.fire_at is not None and task.next_slot_at is not None and slot >= task.next_slot_at:
        return _explain_due(facts, task.next_slot_at, task.fire_at)
    set_at = _set_at(facts)
    if slot <= set_at:
        past = reason("SET_AFTER_SLOT", slot=show(slot), set_at=show(set_at))
        return ("not_due" if task.status == "ENABLED" else "disabled"), [past]
    if _is_used_up(task):
        return "ended", [_used_up(task)]
    reasons = [reason("NOT_RECORDED", slot=show(slot))]
    changed = next((fact for fact in facts.after if fact.type == "TASK_CHANGED"), None)
    if changed is not None and facts.schedule is None:
        reasons.append(reason("CHANGED_SINCE", changed.id, changed_at=show(changed.at)))
    return "unknown", reasons


def _explain_run_of_slot(facts: TaskFacts, found: SlotRun) -> tuple[Verdict, list[Reason]]:
    run, first = found.run, found.first
    verdict = _OF_STATUS.get(run.status, "ran")
    reasons = [
        reason("SLOT_RAN", slot=show(run.slot_at), run_id=run.id, uid=run.uid, status=run.status)
    ]
    admitted = first.data.get("reason") if first is not None else None
    if first is not None and isinstance(admitted, str):
        reasons.append(recorded(first, admitted))
    if run.reason is not None and run.reason != admitted:
        data = {"run_id": run.id, "attempt": run.attempt, "response_code": run.response_code}
        reasons.append(reason(run.reason, **data))
    if verdict == "skipped":
        reasons = [*reasons[1:], reasons[0]]
    misfire = _find_misfire(facts)
    if misfire is not None and not any(one.event_id == misfire.event_id for one in reasons):
        reasons.append(misfire)
    return verdict, reasons


def _explain_no_slot(facts: TaskFacts) -> tuple[Verdict, list[Reason]]:
    if not _is_enabled(facts, facts.at):
        return "disabled", [_disabled(facts)]
    return ("not_due", []) if facts.task.next_slot_at is not None else ("ended", [])


def _explain_due(facts: TaskFacts, slot: Instant, fire_at: Instant) -> tuple[Verdict, list[Reason]]:
    if fire_at > facts.at:
        rest = span_words(fire_at - facts.at)
        return "not_due", [
            reason("WAITS_FOR_JITTER", slot=show(slot), fire_at=show(fire_at), rest=rest)
        ]
    reasons = [reason("DUE", slot=show(slot), late=span_words(facts.at - fire_at))]
    if not facts.is_anybody_alive:
        reasons.append(reason("NO_INSTANCE_ALIVE"))
    return "due", reasons


def _explain_next(facts: TaskFacts) -> list[Reason]:
    """What stands in the way of the next slot, or when it is."""
    task, at = facts.task, facts.at
    if at < facts.now:  # about the past only what the schedule says
        upcoming = schedule.next_after(facts.schedule_then, at)
        return [] if upcoming is None else [reason("NEXT_SLOT", slot=show(upcoming))]
    if task.status != "ENABLED":
        return [_disabled(facts)]
    if _is_used_up(task):
        return [_used_up(task)]
    if task.next_slot_at is None:
        return [reason("NO_MORE_SLOTS", after=show(facts.now))]
    if task.next_slot_at <= facts.now:
        return []
    return [
        reason(
            "NOT_DUE", slot=show(task.next_slot_at), rest=span_words(task.next_slot_at - facts.now)
        )
    ]


def _explain_future(facts: TaskFacts) -> tuple[Verdict, list[Reason]]:
    task, slot = facts.task, facts.task.next_slot_at
    if task.status != "ENABLED":
        return "will_not_run", [_disabled(facts)]
    if _is_used_up(task):
        return "will_not_run", [_used_up(task)]
    if slot is None:
        return "will_not_run", [reason("NO_MORE_SLOTS", after=show(facts.now))]
    if slot > facts.at:
        return "not_due", [reason("NOT_DUE", slot=show(slot), rest=span_words(slot - facts.now))]
    until = min(facts.at, slot + COUNT_WITHIN)
    count = schedule.count_between(task.definition.schedule, slot - 1, until)
    max_runs = task.definition.options.max_runs
    count = count if max_runs is None else min(count, max_runs - task.runs_fired)
    counted = count if until == facts.at else f"{count} or more"
    start, _ = _admit(facts)
    would = {"start": "WOULD_START", "wait": "WOULD_WAIT", "skip": "WOULD_SKIP"}[start]
    limit = {"active": facts.counts.active, "waiting": facts.counts.waiting}
    return "will_run", [
        reason("SLOTS_TO_COME", count=counted, slot=show(slot)),
        reason(would, **limit, max_concurrency=task.definition.max_concurrency),
    ]


# -- what was recorded -----------------------------------------------------------------------------


def _find_miss(facts: TaskFacts) -> Reason | None:
    """A recorded miss of the slot, or of the only slot a one-time task had."""
    for fact in (*facts.after, *facts.before):
        if (
            fact.type == "TASK_MISSED"
            and fact.instant("slot") == facts.slot
            and facts.slot is not None
        ):
            return recorded(fact, str(fact.data.get("reason", "NO_INSTANCE_RAN")))
    return _find_misfire(facts)


def _find_misfire(facts: TaskFacts) -> Reason | None:
    slot = facts.slot
    for fact in (*facts.after, *facts.before):
        if slot is None or fact.type != "TASK_MISFIRED":
            continue
        first, last = fact.instant("first"), fact.instant("last")
        if first is not None and last is not None and first <= slot <= last:
            return recorded(fact, f"MISFIRE_{fact.data.get('policy')}")
    return None


def _recorded_decision(facts: TaskFacts) -> Decision | None:
    if facts.slot_run is not None and facts.slot_run.first is not None:
        first = facts.slot_run.first
        slot, code = first.data.get("slot"), first.data.get("reason")
        if isinstance(slot, str) and isinstance(code, str):
            action: Literal["start", "wait", "skip"] = (
                "skip" if first.type == "RUN_SKIPPED" else "start"
            )
            action = "wait" if code == "QUEUED_BEHIND_ACTIVE" else action
            return Decision("recorded", slot, action, code, first.data)
    missed = _find_miss(facts)
    if missed is not None and facts.slot is not None:
        return Decision("recorded", str(show(facts.slot)), "misfire", missed.code, missed.data)
    return None


def _is_enabled(facts: TaskFacts, at: Instant) -> bool:
    """Whether the task was enabled at an instant, by the nearest event that tells."""
    for fact in facts.before:
        if fact.at <= at and (status := _status_in(fact)) is not None:
            return status == "ENABLED"
    later = [*(fact for fact in reversed(facts.before) if fact.at > at), *facts.after]
    for fact in later:
        if fact.type in ("TASK_ENABLED", "TASK_DISABLED"):
            return fact.type == "TASK_DISABLED"  # it was the other before
        if _status_in(fact) is not None:
            break
    return facts.task.status == "ENABLED"


def _status_in(fact: Fact) -> str | None:
    if fact.type == "TASK_CHANGED":
        status = fact.data.get("status")
        return status if isinstance(status, str) else None
    return {"TASK_ENABLED": "ENABLED", "TASK_DISABLED": "DISABLED"}.get(fact.type)


def _disabled(facts: TaskFacts) -> Reason:
    for fact in facts.before:
        if _status_in(fact) == "DISABLED":
            return reason("DISABLED", fact.id, since=show(fact.at))
    return reason("DISABLED")


def _deleted(facts: TaskFacts) -> Reason:
    deletion = next((fact for fact in facts.before if fact.type == "TASK_DELETED"), None)
    event_id = None if deletion is None else deletion.id
    return reason("DELETED", event_id, at=show(facts.task.updated_at))


def _set_at(facts: TaskFacts) -> Instant:
    """When the schedule was last armed anew, as far as is known."""
    known = (fact.at for fact in facts.before if fact.type in _SETTING)
    return max(facts.task.created_at, next(known, facts.task.created_at))


def _is_used_up(task: Task) -> bool:
    max_runs = task.definition.options.max_runs
    return max_runs is not None and task.runs_fired >= max_runs


def _used_up(task: Task) -> Reason:
    return reason(
        "MAX_RUNS_REACHED", runs_fired=task.runs_fired, max_runs=task.definition.options.max_runs
    )


# -- what would be decided -------------------------------------------------------------------------


def _admit(facts: TaskFacts) -> tuple[firing.Start, str]:
    definition = facts.task.definition
    return firing.admit(
        definition.concurrency_policy,
        definition.max_concurrency,
        definition.options.max_queued,
        facts.counts,
    )


def replay(facts: TaskFacts) -> Decision | None:
    """Decide the task's next slot as firing would: now if it is due, else at its instant as things
    stand now."""
    task = facts.task
    slot = task.next_slot_at
    if slot is None:
        return None
    definition, options = task.definition, task.definition.options
    fire_at = schedule.fire_at(definition.schedule, task.job_id, slot)
    when = max(facts.now, fire_at)
    inputs = {
        "at": show(when),
        "status": task.status,
        "active": facts.counts.active,
        "waiting": facts.counts.waiting,
        "concurrency_policy": definition.concurrency_policy,
        "max_concurrency": definition.max_concurrency,
        "max_queued": options.max_queued,
        "misfire_policy": definition.misfire_policy,
        "runs_fired": task.runs_fired,
        "max_runs": options.max_runs,
    }
    if task.fire_at is None:
        return Decision("replayed", str(show(slot)), "none", "DISABLED", inputs)
    decided = firing.decide_firing(task, when, list(facts.outages), facts.counts)
    if not decided.runs:
        code = (
            "MAX_RUNS_REACHED"
            if decided.misfire is None
            else f"MISFIRE_{definition.misfire_policy}"
        )
        return Decision(
            "replayed",
            str(show(slot)),
            "none" if decided.misfire is None else "misfire",
            code,
            inputs,
        )
    planned = decided.runs[0]
    return Decision("replayed", str(show(planned.slot_at)), planned.start, planned.reason, inputs)
