"""Why a run is in its state and what it waits for. Pure: the run, its recorded events and the
present counts in; words out."""

from typing import Any, Literal

import msgspec

from ksana.base.instant import Instant
from ksana.domain.explain import Fact, Reason, reason, recorded, show, span_words, tell
from ksana.domain.handover import HandedJob, job_id_of
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks.backfill import is_held_back
from ksana.domain.tasks.call_records import read_attempts
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.job_runs import is_waiting_for_job
from ksana.domain.tasks.records import NODE_PLACE, Run, Task

MASK = "***"


class RunFacts(msgspec.Struct, frozen=True):
    """What is known about a run."""

    run: Run
    task: Task | None
    now: Instant
    events: tuple[Fact, ...]
    """All of the run's events that are kept, oldest first."""
    counts: Counts
    ahead: int
    """Runs before it: in its task's line if it waits for its turn, at its host if it waits for a
    place."""
    is_ahead_cut: bool
    """Whether there are more than were counted."""
    holder_lease_until: Instant | None
    """Until when its holder's lease lasts; None: no such instance is known."""
    job: HandedJob | None = None
    """The queue job it waits for, if it is there."""


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an unfinished run waits for, and who or what can end it."""

    what: Literal["place", "turn", "answer", "retry", "callback", "job"]
    until: str | None = None
    job_id: str | None = None
    state: str | None = None
    host: str | None = None
    position: int | None = None
    instance: str | None = None
    lease_until: str | None = None


class Moment(msgspec.Struct, frozen=True):
    """One recorded event, in words."""

    at: str
    event_id: int
    type: str
    words: str
    reason: str | None
    data: dict[str, Any]


class RunExplanation(msgspec.Struct, frozen=True):
    """The answer."""

    reasons: list[Reason]
    waits_for: Waiting | None
    timeline: list[Moment]
    attempts: dict[str, Any]


def explain_run(facts: RunFacts) -> RunExplanation:
    """Say why."""
    run = facts.run
    reasons = [*_explain_state(facts)]
    waits_for = None
    if run.status not in RUN.final:
        waits_for, why = _explain_waiting(facts)
        reasons.append(why)
        if facts.task is not None and facts.task.is_deleted:
            reasons.append(reason("TASK_DELETED"))
    timeline = [_moment(fact) for fact in facts.events]
    return RunExplanation(reasons, waits_for, timeline, _sum_up(facts))


def _explain_state(facts: RunFacts) -> list[Reason]:
    """The recorded reason of the state it is in, and before it how the run came to be if that is
    another."""
    run = facts.run
    reasons: list[Reason] = []
    of_state = [
        fact
        for fact in facts.events
        if fact.type.startswith("RUN_") and fact.type != "RUN_RESULT_REFUSED"
    ]
    last = next(
        (fact for fact in reversed(of_state) if fact.data.get("reason") == run.reason), None
    )
    if run.reason is not None:
        data = {"status": run.status, "error": run.error_message}
        reasons.append(
            recorded(last, run.reason) if last is not None else reason(run.reason, **data)
        )
    first = of_state[0] if of_state else None
    if (
        first is not None
        and first is not last
        and isinstance(code := first.data.get("reason"), str)
    ):
        reasons.append(recorded(first, code))
    return reasons


def _explain_waiting(facts: RunFacts) -> tuple[Waiting, Reason]:
    run, now = facts.run, facts.now
    if is_waiting_for_job(run):
        return _explain_job(facts)
    if run.status == "RUNNING":
        return _explain_held(facts)
    if run.status == "CALLBACK_PENDING":
        until = run.callback_deadline or run.wake_at or now
        waits_for = Waiting("callback", until=show(until))
        if until <= now:
            return waits_for, reason("OVERDUE", what="the callback", at=show(until))
        return waits_for, reason(
            "WAITS_FOR_CALLBACK", deadline=show(until), rest=span_words(until - now)
        )
    if run.status == "RETRYING" and run.ready_host is None:
        at = run.next_retry_time or run.wake_at or now
        waits_for = Waiting("retry", until=show(at))
        if at <= now:
            return waits_for, reason("OVERDUE", what="the next attempt", at=show(at))
        return waits_for, reason(
            "WAITS_FOR_RETRY", attempt=run.attempt, at=show(at), rest=span_words(at - now)
        )
    if run.ready_host is not None:
        ahead = f"{facts.ahead} or more" if facts.is_ahead_cut else facts.ahead
        return (
            Waiting("place", host=run.ready_host, position=facts.ahead + 1),
            reason("WAITS_FOR_PLACE", host=run.ready_host, ahead=ahead),
        )
    if is_held_back(run):
        at = run.wake_at or now
        return Waiting("turn", until=show(at)), reason("WAITS_FOR_BACKFILL", at=show(at))
    limit = 1 if facts.task is None else facts.task.definition.max_concurrency
    position = facts.ahead + 1
    return (
        Waiting("turn", position=position),
        reason(
            "WAITS_FOR_TURN", position=position, active=facts.counts.active, max_concurrency=limit
        ),
    )


def _explain_held(facts: RunFacts) -> tuple[Waiting, Reason]:
    run, lease_until = facts.run, facts.holder_lease_until
    holder = run.held_by or "?"
    waits_for = Waiting("answer", instance=run.held_by, lease_until=show(lease_until))
    job_id = job_id_of(run.uid, run.attempt)
    if run.host == NODE_PLACE:
        waits_for = msgspec.structs.replace(waits_for, what="job", job_id=job_id)
    if lease_until is None or lease_until <= facts.now:
        return waits_for, reason("HOLDER_LOST", instance=holder, lease_until=show(lease_until))
    data = {"since": show(run.start_time), "lease_until": show(lease_until)}
    if run.host == NODE_PLACE:
        data["job_id"] = job_id
        return waits_for, reason("WAITS_FOR_NODE_JOB", instance=holder, attempt=run.attempt, **data)
    return waits_for, reason("HELD", instance=holder, attempt=run.attempt, **data)


def _explain_job(facts: RunFacts) -> tuple[Waiting, Reason]:
    run, job, until = facts.run, facts.job, facts.run.wake_at or facts.now
    job_id = job_id_of(run.uid, run.attempt)
    waits_for = Waiting(
        "job", until=show(until), job_id=job_id, state=None if job is None else job.state
    )
    if until <= facts.now:
        return waits_for, reason("OVERDUE", what="the end of its job", at=show(until))
    if job is None:
        return waits_for, reason("JOB_GONE", job_id=job_id, deadline=show(until))
    data = {"deadline": show(until), "rest": span_words(until - facts.now)}
    if job.end is not None:
        return waits_for, reason("JOB_JUST_ENDED", job_id=job_id, state=job.state, **data)
    return waits_for, reason("WAITS_FOR_JOB", job_id=job_id, state=job.state, **data)


def _moment(fact: Fact) -> Moment:
    code = fact.data.get("reason")
    return Moment(
        show(fact.at) or "",
        fact.id,
        fact.type,
        tell(fact),
        code if isinstance(code, str) else None,
        fact.data,
    )


def _sum_up(facts: RunFacts) -> dict[str, Any]:
    """How many attempts were made, how many may be, and what came of each."""
    run = facts.run
    made = read_attempts(run.attempts)
    allowed = None if facts.task is None else facts.task.definition.retry.max_retries + 1
    kept = (
        "attempt",
        "started_at",
        "ended_at",
        "status",
        "response_code",
        "error",
        "instance",
        "job_id",
    )
    ended = [{name: one[name] for name in kept if name in one} for one in made]
    tries = f"{len(made)} of {allowed}" if allowed is not None else str(len(made))
    words = f"{tries} attempts are over"
    if made and made[-1].get("error"):
        words += f"; the last one ended with: {made[-1]['error']}"
    return {
        "current": run.attempt,
        "ended": len(made),
        "allowed": allowed,
        "words": words,
        "list": ended,
    }
