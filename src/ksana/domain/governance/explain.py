"""Why a governance job has not been handed out, or ended as it did, and what comes next for an
object. Pure: facts in, reasons out."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant, Micros, format_instant
from ksana.domain.explain import Fact, show, span_words
from ksana.domain.governance.gates import is_gated, read_gates
from ksana.domain.governance.hand_out import has_reached_limit, has_spent_budget
from ksana.domain.governance.records import (
    DEFERRED_POSITION,
    VERIFYING,
    Gate,
    GovernanceJob,
    GovernedObject,
    Rules,
)

MESSAGES: Final[dict[str, str]] = {
    # what is so right now
    "NOT_DUE": "the job is due at {run_at}, in {rest}",
    "DUE": "the job is due since {late} and is given to the next worker that asks for it",
    "WAITS_FOR_GATE": "the gate {gate} is closed for it; it was deferred {deferrals} times",
    "GATE_WILL_DEFER": "the gate {gate} is closed for its object: it will be deferred when due",
    "GATE_DEGRADED": "a gate is degraded: the job is handed out with a warning",
    "BUDGET_WILL_END_IT": "the object is uncertain and its budget is spent: the job will fail",
    "LIMIT_WILL_END_IT": "the object is unknowable, verified {count} times; the limit is {limit}",
    "HELD": "{worker} holds it until {until}",
    "LEASE_OVER": "{worker} held it until {until}; it is queued again as soon as that is noticed",
    # what was decided
    "ENQUEUED": "a caller put it in the queue",
    "FOLLOW_UP": "it was queued as the object's next action",
    "FOLLOW_UP_MOVED": "the object's next action was set anew, and the job moved with it",
    "GATE_CLOSED": "it was due, and a gate was closed",
    "GATE_OPENED": "the gate that kept it opened",
    "ATTEMPT_FAILED": "its worker said that the attempt failed",
    "LEASE_EXPIRED": "the lease of its worker ran out",
    "ATTEMPTS_USED_UP": "every attempt it had was made: it is a dead letter",
    "REQUEUED": "somebody queued the dead letter again",
    "ACKED": "its worker acknowledged it",
    "VERIFY_LIMIT": "the object is unknowable, and every verification it may ever get was made",
    "BUDGET_SPENT": "the object is uncertain, and its budget for verifications is spent",
    "ILLEGAL_MOVE": "the object could not be moved as the action wanted",
    "ENDED_BY_WORKER": "its worker ended it for good",
    "NO_NEXT_ACTION": "the object has no next action any more",
    # an object
    "NOT_REGISTERED": "nobody registered the object: it counts as one of low risk",
    "NO_ACTION_PLANNED": "the object has no next action, so nothing is done to it",
    "ACTION_PLANNED": "{action} is planned for {at}",
    "ACTION_WITHOUT_JOB": "{action} was planned for {at}, and no job is left of it",
    "BUDGET_LEFT": "{budget} verifications are left in its budget",
}


class ExplainReason(msgspec.Struct, frozen=True):
    """One reason: a stable code, a sentence, what it rests on, and the event it was recorded in."""

    code: str
    message: str
    data: dict[str, Any]
    event_id: int | None = None


def _reason(code: str, event_id: int | None = None, /, **data: Any) -> ExplainReason:
    return ExplainReason(
        code=code, message=MESSAGES[code].format(**data), data=data, event_id=event_id
    )


def summarize(reasons: Sequence[ExplainReason]) -> str:
    """The reasons as sentences."""
    texts = [reason.message for reason in reasons]
    return " ".join(text[:1].upper() + text[1:] + "." for text in texts)


def explain_job(
    job: GovernanceJob,
    governed: GovernedObject | None,
    gates: Sequence[Gate],
    rules: Rules,
    facts: Sequence[Fact],
    now: Instant,
) -> list[ExplainReason]:
    """Why the job is where it is: what is so now first, then the decision that led there."""
    reasons: list[ExplainReason] = []
    if job.status == "queued":
        reasons += _explain_waiting(job, governed, gates, rules, now)
    elif job.status == "running":
        reasons.append(_explain_held(job, now))
    if job.reason in MESSAGES and job.reason != "DUE":
        reasons.append(_recorded(job.reason, facts))
    return reasons


def _explain_waiting(
    job: GovernanceJob,
    governed: GovernedObject | None,
    gates: Sequence[Gate],
    rules: Rules,
    now: Instant,
) -> list[ExplainReason]:
    reasons: list[ExplainReason] = []
    if job.position == DEFERRED_POSITION:
        return [_reason("WAITS_FOR_GATE", gate=job.gate_key, deferrals=job.deferrals)]
    if job.run_at > now:
        rest = span_words(job.run_at - now)
        reasons.append(_reason("NOT_DUE", run_at=format_instant(job.run_at), rest=rest))
    else:
        reasons.append(_reason("DUE", late=span_words(_since(job.run_at, now))))
    if is_gated(governed):
        verdict = read_gates(gates, job.object_type, job.action)
        if verdict.closed_by is not None:
            reasons.append(_reason("GATE_WILL_DEFER", gate=verdict.closed_by.key))
        elif verdict.is_degraded:
            reasons.append(_reason("GATE_DEGRADED", gates=verdict.states))
    if governed is not None and has_reached_limit(governed, job.action, rules):
        count, limit = governed.verify_count, rules.verify_limit
        reasons.append(_reason("LIMIT_WILL_END_IT", count=count, limit=limit))
    elif has_spent_budget(governed, job.action):
        reasons.append(_reason("BUDGET_WILL_END_IT"))
    return reasons


def _explain_held(job: GovernanceJob, now: Instant) -> ExplainReason:
    is_over = job.lease_expires_at is not None and job.lease_expires_at <= now
    return _reason(
        "LEASE_OVER" if is_over else "HELD", worker=job.worker_id, until=show(job.lease_expires_at)
    )


def _recorded(code: str, facts: Sequence[Fact]) -> ExplainReason:
    """The latest event that has this reason."""
    for fact in reversed(facts):
        if fact.data.get("reason") == code:
            return ExplainReason(
                code=code, message=MESSAGES[code], data=fact.data, event_id=fact.id
            )
    return ExplainReason(code=code, message=MESSAGES[code], data={})


def explain_object(
    governed: GovernedObject | None,
    jobs: Sequence[GovernanceJob],
    gates: Sequence[Gate],
    rules: Rules,
    facts: Sequence[Fact],
    now: Instant,
) -> list[ExplainReason]:
    """What comes next for an object, and what its latest jobs came to. `jobs` are its own, newest
    first."""
    reasons: list[ExplainReason] = []
    if governed is None:
        reasons.append(_reason("NOT_REGISTERED"))
    else:
        reasons.append(_explain_plan(governed, jobs))
        if governed.epistemic_state == "uncertain":
            reasons.append(_reason("BUDGET_LEFT", budget=governed.auto_verify_budget))
        if any(has_reached_limit(governed, action, rules) for action in VERIFYING):
            count, limit = governed.verify_count, rules.verify_limit
            reasons.append(_reason("LIMIT_WILL_END_IT", count=count, limit=limit))
    for job in jobs:
        about = {"job_id": job.job_id, "action": job.action, "status": job.status}
        for reason in explain_job(job, governed, gates, rules, facts, now):
            reasons.append(
                msgspec.structs.replace(
                    reason,
                    message=f"{job.action} ({job.status}): {reason.message}",
                    data={**reason.data, **about},
                )
            )
    return reasons


def _explain_plan(governed: GovernedObject, jobs: Sequence[GovernanceJob]) -> ExplainReason:
    at, action = governed.next_action_at, governed.next_action
    if at is None:
        return _reason("NO_ACTION_PLANNED")
    is_open = any(job.status in ("queued", "running") for job in jobs)
    code = "ACTION_PLANNED" if is_open else "ACTION_WITHOUT_JOB"
    return _reason(code, action=action, at=format_instant(at))


def _since(at: Instant, now: Instant) -> Micros:
    return max(now - at, 0)
