"""Claims: the endpoint, and how one is read and answered, alone or with a release."""

from typing import Any

from ksana.api.core.routing import Answer, Call
from ksana.api.queue.shapes import ClaimBody
from ksana.api.queue.views import show_claim, show_claimed_job, show_held_lease
from ksana.base.errors import InvalidError
from ksana.base.instant import SECOND
from ksana.domain.queue.classes import Wants
from ksana.service.queue.claims import Claim, Claimed
from ksana.service.queue.service import QueueService


class ClaimEndpoints:
    """The handlers."""

    def __init__(self, service: QueueService) -> None:
        self._service = service

    async def claim(self, call: Call, body: ClaimBody) -> Answer:
        """Hand out the next jobs."""
        wait_us = round(body.wait_sec * SECOND)
        claimed = await self._service.claim(read_claim(body), wait_us, call.is_gone)
        answer = show_claimed(body, claimed)
        return Answer(204) if answer is None else Answer(200, answer)


def read_claim(body: ClaimBody, inside: str = "") -> Claim:
    """What a worker takes; `inside` stands before the names of its members."""
    if body.ahead and not (body.lease and body.ahead <= body.limit):
        raise InvalidError(
            f"'{inside}ahead': {body.ahead} of {body.limit} jobs cannot be begun later; "
            "allowed: 0 to 'limit', with 'lease': true",
            field=f"{inside}ahead",
        )
    capabilities = body.constraints_capabilities or {}
    wants = Wants(
        addon_id=body.addon_id,
        job_types=frozenset(body.accept_job_types or ()),
        max_cost_units=body.max_cost_units,
        capabilities=tuple(sorted((name, bool(value)) for name, value in capabilities.items())),
    )
    return Claim(
        worker_id=body.worker_id,
        wants=wants,
        limit=body.limit,
        has_lease=body.lease,
        ttl_sec=float(body.ttl_sec),
        ahead=body.ahead,
    )


def read_next(body: ClaimBody) -> Claim:
    """The claim that comes with a release: the release is answered at once, so it cannot wait."""
    if body.wait_sec:
        raise InvalidError(
            "'next.wait_sec': a claim with a release does not wait; allowed: 0",
            field="next.wait_sec",
        )
    return read_claim(body, "next.")


def show_claimed(body: ClaimBody, claimed: Claimed) -> Any:
    """What a claim got; None: nothing."""
    if not claimed.taken:
        return None
    if body.brief:
        return show_claim(claimed)
    jobs = [show_claimed_job(job) for job in claimed.jobs]
    answer: dict[str, Any] = {"job": jobs[0]}
    if body.limit > 1:
        answer["jobs"] = jobs
    if body.lease:
        leases = [show_held_lease(lease) for lease in claimed.leases]
        answer["lease"] = leases[0]
        answer["leases"] = leases
    return answer
