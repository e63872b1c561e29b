"""Reasons in words: the one table from every recorded reason code, and every code explain adds, to
a plain sentence.

Pure. What is asked and answered about a task is in `explaining_tasks`, about a run in
`explaining_runs`.
"""

from typing import Any, Final

import msgspec

from ksana.base.durations import format_duration
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros, format_instant, parse_instant

RECORDED: Final[dict[str, str]] = {
    # what became of a slot or a trigger when it was admitted
    "BELOW_LIMIT": "fewer runs than the limit were active, so it could start",
    "PARALLEL": "the concurrency policy is PARALLEL, so it starts beside whatever runs",
    "CONCURRENCY_LIMIT": "as many runs as allowed were active, and the concurrency policy is SKIP",
    "QUEUED_BEHIND_ACTIVE": "as many runs as allowed were active, so it waits in line for its turn",
    "QUEUE_FULL": "as many runs as allowed were active and the line of waiting runs was full",
    "MISFIRE_FIRE_NOW": (
        "the slot was missed; the misfire policy FIRE_NOW makes one run up for all that were missed"
    ),
    "MISFIRE_SKIP": "the slot was missed, and the misfire policy SKIP makes nothing up",
    "MISFIRE_CATCH_UP_LIMITED": (
        "the slot was missed; the misfire policy CATCH_UP_LIMITED makes up the latest ones"
    ),
    "NO_INSTANCE_RAN": "its only slot passed while no instance ran, and it is not made up",
    "PAST_WHEN_SET": "its only slot had passed already when it was set",
    "TASK_DISABLED": "the task was disabled before the slot could be fired",
    "SCHEDULE_CHANGED": "the schedule was changed before the slot could be fired",
    "BACKFILL": "somebody asked for this past slot to be fired",
    "BACKFILL_TURN": "its turn in the backfill came, and the task had room for it",
    "BACKFILL_CANCELED": "the backfill it belonged to was cancelled",
    "RUN_NOW": "somebody asked to run it at once, beside whatever runs",
    "RETRIED_BY_CALLER": "somebody asked to run a finished run again",
    # on the way to its end
    "PLACE_FREE": "a worker and a place at the target's host were free",
    "TURN_CAME": "a run before it ended, and its turn came",
    "ANSWERED_2XX": "the target answered with success",
    "ACCEPTED": "the target accepted the call and is to call back",
    "RETRY_LEFT": "the attempt failed in a way worth another try, and a try is left",
    "NOT_RETRYABLE": "the target's answer, or the rules, say that another try would not help",
    "RETRIES_USED_UP": "every try the retry policy allows was made",
    "NO_RETRIES": "the attempt failed, and the task has no retries",
    "OUTCOME_UNKNOWN_AT_MOST_ONCE": (
        "what came of the call is not known, and the task is delivered at most once"
    ),
    "TOKEN_VOID": (
        "the run was no longer the instance's to finish: it had been cancelled, ended or taken over"
    ),
    # jobs that runs are handed over to
    "JOB_SUBMITTED": "its job was submitted with its start, and the end of the job decides",
    "JOB_DONE": "its job was done",
    "JOB_CANCELED": "its job was cancelled",
    "JOB_REFUSED": "its job cannot be made as the task describes it",
    # callbacks
    "CALLBACK_SAID_SUCCESS": "the callback said SUCCESS",
    "CALLBACK_SAID_FAILED": "the callback said FAILED",
    "CALLBACK_FAILED_RETRY_LEFT": "the callback said FAILED, and a try is left",
    "NO_CALLBACK": "no callback came by the deadline",
    "NO_CALLBACK_RETRY_LEFT": "no callback came by the deadline, and a try is left",
    # holders that died
    "ORPHANED_RETRY_LEFT": "the instance that held it died, and a try is left",
    "HELD_NEVER_BEGUN": "the instance that held it died before it called anybody",
    "ORPHANED_NO_RETRY_LEFT": "the instance that held it died, and no try is left",
    "ORPHANED_ON_ORPHAN_FAIL": "the instance that held it died, and the task says on_orphan=fail",
    "ORPHANED_TASK_DELETED": "the instance that held it died, and its task is deleted",
    "NODE_JOB_TAKEN_UP": (
        "the instance that waited for its node job died, and another waits for the same job"
    ),
    # ended by people
    "CANCELED_BY_CALLER": "somebody cancelled it",
    "TASK_DELETED": "its task was deleted",
    "CLOCK_SET_BACK": "the clock had jumped ahead and was set back: the slot is to come after all",
    "DISMISSED_BY_CALLER": "somebody dismissed it",
}
"""Codes that stand in `reason` of runs and events."""

PRESENT: Final[dict[str, str]] = {
    # a task and its slots
    "NOT_DUE": "the next slot is at {slot}, in {rest}",
    "NEXT_SLOT": "the next slot after that was at {slot}",
    "WAITS_FOR_JITTER": "the slot {slot} is spread by its jitter and fires at {fire_at}, in {rest}",
    "DUE": "the slot {slot} is due since {late} and about to be fired",
    "NO_INSTANCE_ALIVE": "no instance gives a sign of life, so nothing fires",
    "DISABLED": "the task is disabled; slots that fall while it is are not made up",
    "NO_MORE_SLOTS": "the schedule has no slot after {after}",
    "MAX_RUNS_REACHED": "it has run {runs_fired} times, and max_runs is {max_runs}",
    "DELETED": "the task was deleted at {at}",
    "NOT_CREATED_YET": "the task was made later, at {created_at}",
    "SET_AFTER_SLOT": (
        "the slot {slot} was past when the task was made, changed or enabled at {set_at}"
    ),
    "CHANGED_SINCE": (
        "the task was changed at {changed_at}, and its schedule before is not recorded: it is"
        " judged by the one of today"
    ),
    "NOT_RECORDED": (
        "nothing is recorded of the slot {slot}: it is older than what is kept, or the "
        "schedule was another"
    ),
    "SLOT_RAN": "the slot {slot} was fired as run {run_id}, which is {status}",
    "RUN_BY_HAND": "run {run_id} was started by hand at {at} and is {status}",
    "SLOTS_TO_COME": "{count} slots fall due by then, the first at {slot}",
    "WOULD_START": (
        "as things stand the slot would start at once: {active} of {max_concurrency} runs are"
        " active"
    ),
    "WOULD_WAIT": "as things stand the slot would wait in line: {active} active, {waiting} waiting",
    "WOULD_SKIP": "as things stand the slot would be skipped: {active} active, {waiting} waiting",
    # what a run waits for
    "WAITS_FOR_PLACE": (
        "it waits for a worker and a place at {host}; {ahead} runs are before it there"
    ),
    "WAITS_FOR_TURN": (
        "it is number {position} in line: {active} of {max_concurrency} runs of the task are active"
    ),
    "WAITS_FOR_BACKFILL": (
        "it belongs to a backfill, which lets its runs in one by one; its turn is at {at}"
        " or later, when the task has room"
    ),
    "HELD": "instance {instance} holds it and is at attempt {attempt}",
    "HOLDER_LOST": (
        "instance {instance} held it and gives no sign of life; it is taken over as soon as "
        "this is noticed"
    ),
    "WAITS_FOR_RETRY": "attempt {attempt} is over; the next is made at {at}, in {rest}",
    "WAITS_FOR_CALLBACK": "the target has until {deadline} to call back, another {rest}",
    "WAITS_FOR_JOB": "its job {job_id} is {state}; it has until {deadline}, another {rest}",
    "WAITS_FOR_NODE_JOB": "instance {instance} waits for its node job {job_id}, attempt {attempt}",
    "JOB_JUST_ENDED": "its job {job_id} is {state}, and the run is about to be told",
    "JOB_GONE": "its job {job_id} is not there any more; the run ends at {deadline} at the latest",
    "OVERDUE": "{what} was due at {at} and is about to be looked at",
}
"""Codes explain adds for what is so right now. Their words take the reason's data."""

WORDS: Final[dict[str, str]] = {**RECORDED, **PRESENT}

EVENTS: Final[dict[str, str]] = {
    "TASK_CREATED": "the task was made",
    "TASK_IMPORTED": "the task came from a JSON file",
    "TASK_CHANGED": "the task was changed",
    "TASK_ENABLED": "the task was enabled",
    "TASK_DISABLED": "the task was disabled",
    "TASK_DELETED": "the task was deleted",
    "TASK_MISFIRED": "slots were missed",
    "TASK_BACKFILLED": "past slots were asked for",
    "BACKFILL_CANCELED": "the backfill was cancelled",
    "TRIGGER_REFUSED": "a trigger was refused",
    "TASK_REARMED": "the task was armed anew",
    "TASK_MISSED": "the only slot was missed",
    "RUN_SCHEDULED": "the run was made and has not started",
    "RUN_STARTED": "the run was started",
    "RUN_SKIPPED": "the slot was skipped",
    "RUN_PROMOTED": "the run may start",
    "RUN_RETRYING": "the attempt failed and is made again",
    "RUN_SUCCESS": "the run succeeded",
    "RUN_FAILED": "the run failed",
    "RUN_TIMEOUT": "the run timed out",
    "RUN_CALLBACK_PENDING": "the run waits for its callback",
    "RUN_CALLBACK_SUCCESS": "the run succeeded by its callback",
    "RUN_FAILED_TIMEOUT": "the run failed for want of a callback",
    "RUN_CANCELED": "the run was cancelled",
    "RUN_REPLAYED": "the failed run was run again as another",
    "RUN_DISMISSED": "the dead letter was settled without another run",
    "RUN_RESULT_REFUSED": "a late result was refused",
    "CALLBACKS_CAPPED": "no more callbacks are kept for the run",
    "CALLBACK_IGNORED": "a callback came after the end and changed nothing",
}
"""What each recorded event of tasks and runs says."""


class Fact(msgspec.Struct, frozen=True):
    """A recorded event, its data read."""

    id: int
    at: Instant
    type: str
    data: dict[str, Any]

    def instant(self, name: str) -> Instant | None:
        """An instant in the data, whether it stands there as text or as a number."""
        value = self.data.get(name)
        try:
            return (
                parse_instant(value)
                if isinstance(value, str)
                else value
                if isinstance(value, int)
                else None
            )
        except ValueError:
            return None


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason: a stable code, a sentence, what it rests on, and the event it was recorded in."""

    code: str
    words: str
    data: dict[str, Any]
    event_id: int | None = None


def reason(code: str, event_id: int | None = None, /, **data: Any) -> Reason:
    """Put a code into words. A code nobody knows is its own words: better odd than silent."""
    return Reason(
        code,
        WORDS[code].format(**data) if code in PRESENT else WORDS.get(code, code),
        data,
        event_id,
    )


def recorded(fact: Fact, code: str) -> Reason:
    """The same from an event, with its data."""
    return Reason(code, WORDS.get(code, code), fact.data, fact.id)


def tell(fact: Fact) -> str:
    """Put an event into one sentence without a full stop."""
    words = EVENTS.get(fact.type, fact.type)
    if fact.type == "TASK_MISFIRED":
        count, first, last = (fact.data.get(name) for name in ("count", "first", "last"))
        words = f"{count} slots were missed, from {first} to {last}"
    elif fact.type == "TASK_CHANGED":
        words = f"{words}: version {fact.data.get('version')}, {fact.data.get('status')}"
    code = fact.data.get("reason")
    if isinstance(code, str):
        words = f"{words}: {WORDS.get(code, code)}"
    error = fact.data.get("error")
    return f"{words} ({error})" if isinstance(error, str) and error else words


def span_words(span: Micros) -> str:
    """A span as people say it: no more digits than matter."""
    step = SECOND if span >= 10 * SECOND else MILLISECOND
    return format_duration(max(span - span % step, 0))


def show(at: Instant | None) -> str | None:
    """An instant as text."""
    return None if at is None else format_instant(at)
