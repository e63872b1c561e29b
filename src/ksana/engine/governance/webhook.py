"""Actions performed by a webhook: the job and its object go out as JSON, and what the answer says
is what became of them."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant, Micros, format_instant, parse_instant
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import GovernanceJob, GovernedObject
from ksana.engine.governance.worker import PERFORM_US, Perform, Performed
from ksana.ports.caller import Caller, Reply, Request

TIMEOUT: Final[Micros] = 30 * SECOND
_CHANGED: Final = ("status", "epistemic_state", "unknown_type", "weight", "reinforcement_count")

_encode = msgspec.json.Encoder().encode


def perform_by_webhook(url: str, find_caller: Callable[[], Caller], clock: Clock) -> Perform:
    """An action as one POST to `url`. `find_caller` answers the Caller, on the loop. Nothing is
    sent once the time to perform it is over: another worker may have the job by then."""

    async def perform(job: GovernanceJob, governed: GovernedObject | None) -> Performed:
        until = clock.boottime() + PERFORM_US
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request = Request(
            method="POST",
            url=url,
            headers=(
                ("Content-Type", "application/json"),
                ("X-Ksana-Job-Id", job.job_id),
                ("X-Ksana-Attempt", str(job.attempt + 1)),
            ),
            body=_encode(_told(job, governed)),
            timeout_us=TIMEOUT,
            may_resend=False,
        )

        def done(got: Reply) -> None:
            if not reply.done():
                reply.set_result(got)

        call = find_caller().call(request, done, lambda: clock.boottime() < until)
        try:
            return read_reply(await reply)
        finally:
            call.abort()

    return perform


def _told(job: GovernanceJob, governed: GovernedObject | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "job_id": job.job_id,
        "object_type": job.object_type,
        "object_id": job.object_id,
        "action": job.action,
        "attempt": job.attempt,
        "run_at": format_instant(job.run_at),
        "object": None,
    }
    if governed is not None:
        told["object"] = {
            "status": governed.status,
            "epistemic_state": governed.epistemic_state,
            "unknown_type": governed.unknown_type,
            "risk_tier": governed.risk_tier,
            "impact_tier": governed.impact_tier,
            "auto_verify_budget": governed.auto_verify_budget,
            "verify_count": governed.verify_count,
            "weight": governed.weight,
            "evidence_refs": msgspec.Raw(governed.evidence_refs.encode()),
            "data": msgspec.Raw(governed.data.encode()),
        }
    return told


def read_reply(reply: Reply) -> Performed:
    """What an answer says. A success is a 2xx with no body, or with `"result":"succeeded"`."""
    if reply.kind != "answered" or reply.status is None:
        return Performed(error=reply.error or reply.kind)
    if not 200 <= reply.status < 300:
        return Performed(error=f"the webhook answered {reply.status}")
    if not reply.body:
        return Performed()
    try:
        said = msgspec.json.decode(reply.body, type=dict[str, Any])
        if said.get("result", "succeeded") != "succeeded":
            return Performed(error=str(said.get("error") or said["result"]))
        return _read_success(said)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        return Performed(error=f"the webhook's answer cannot be read: {error}")


def _read_success(said: dict[str, Any]) -> Performed:
    next_at: Instant | UnsetType | None = UNSET
    if "next_action_at" in said:
        text = said["next_action_at"]
        next_at = None if text is None else parse_instant(str(text))
    given: dict[str, Any] = said.get("object") or {}
    changed = {name: given[name] for name in _CHANGED if given.get(name) is not None}
    return Performed(
        next_action_at=next_at,
        next_action=said.get("next_action"),
        fields=msgspec.convert(changed, ObjectFields),
    )
