"""Endpoints of leases: parse, one call of the service, render."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ksana.api.core.routing import Call
from ksana.api.queue.claims import read_next, show_claimed, show_held_lease, show_job, show_lease
from ksana.api.queue.reading import read_id, read_proof
from ksana.api.queue.shapes import (
    ClaimBody,
    HeartbeatBatch,
    HeartbeatBody,
    HoldersQuery,
    LeaseBody,
    ReleaseAlone,
    ReleaseBatch,
    ReleaseBody,
)
from ksana.api.queue.views import (
    HeartbeatAnswer,
    ReleaseAnswer,
    show_compactly,
    show_heartbeat,
    show_holder,
    show_release,
)
from ksana.base.errors import InvalidError, KsanaError
from ksana.base.instant import SECOND
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.jobs import MAX_ERROR
from ksana.service.queue.leases import Heartbeat, LeaseDenied
from ksana.service.queue.releases import Released
from ksana.service.queue.service import QueueService


class LeaseEndpoints:
    """The handlers."""

    def __init__(self, service: QueueService) -> None:
        self._service = service

    async def list_holders(self, call: Call) -> Any:
        """Who holds the capacity."""
        query: HoldersQuery = call.query
        found = await self._service.list_holders(query.limit)
        return {"leases": [show_lease(lease) for lease in found]}

    async def request_lease(self, _: Call, body: LeaseBody) -> Any:
        """Ask to run a claimed job."""
        repeated = tuple(
            (name, value)
            for name in ("addon_id", "job_type", "cost_units", "priority", "constraints")
            if (value := getattr(body, name)) is not UNSET
        )
        job_id = read_id("job_id", body.job_id)
        proof = read_proof(body.claim_token, body.worker_id)
        answer = await self._service.request_lease(job_id, float(body.ttl_sec), proof, repeated)
        if not isinstance(answer, LeaseDenied):
            return {
                "approved": True,
                "lease": show_held_lease(answer.lease),
                "job": show_job(answer.job),
            }
        return {
            "approved": False,
            "retry_after_sec": answer.retry_after_us // SECOND,
            "reason": answer.denial.reason,
            "code": answer.denial.code,
            "position": answer.position,
            "holders": [show_holder(lease) for lease in answer.holders],
            "job": show_job(answer.job),
        }

    async def heartbeat(self, call: Call, body: HeartbeatBody) -> HeartbeatAnswer:
        """A sign of life."""
        beat = _heartbeat(call.params["lease_id"], body)
        return show_heartbeat(await self._service.heartbeat(beat))

    async def heartbeat_batch(self, call: Call, body: HeartbeatBatch) -> Any:
        """Many signs of life, each answered on its own."""
        beats = [_heartbeat(read_id("lease_id", item.lease_id), item) for item in body.items]
        answers = await self._service.heartbeat_batch(beats) if beats else []
        return {
            "results": [
                _refused(one, call) if isinstance(one, KsanaError) else show_heartbeat(one)
                for one in answers
            ]
        }

    async def release(self, call: Call, body: ReleaseAlone) -> ReleaseAnswer | dict[str, Any]:
        """End an attempt, and claim what to go on with if that is asked for."""
        item = _release(call.params["lease_id"], body)
        if body.next is None:
            return show_release(await self._service.release(item))
        claim = read_next(body.next)
        leased, claimed = await self._service.release_and_claim(item, claim, call.is_gone)
        released = msgspec.structs.asdict(show_release(leased))
        return {**released, "next": show_claimed(body.next, claimed)}

    async def release_batch(self, call: Call, body: ReleaseBatch) -> Any:
        """End many attempts, each answered on its own."""
        items = [_release(read_id("lease_id", item.lease_id), item) for item in body.items]
        if body.next is not None:
            return await self._release_and_claim(call, body, body.next, items)
        if not items:
            return {"results": []}
        if body.brief:
            return _show_released(await self._service.release_batch_compactly(items), call)
        return {
            "results": [
                _refused(one, call) if isinstance(one, KsanaError) else show_release(one)
                for one in await self._service.release_batch(items)
            ]
        }

    async def _release_and_claim(
        self, call: Call, body: ReleaseBatch, wanted: ClaimBody, items: Sequence[Release]
    ) -> Any:
        claim = read_next(wanted)
        if not (body.brief and items):
            raise InvalidError("'next' needs 'brief': true, and an item to release", field="next")
        released, claimed = await self._service.release_batch_and_claim(items, claim, call.is_gone)
        return _show_released(released, call) | {"next": show_claimed(wanted, claimed)}

    async def get_lease(self, call: Call) -> Any:
        """One lease."""
        return {"lease": show_lease(await self._service.get_lease(call.params["lease_id"]))}


def _heartbeat(lease_id: str, body: HeartbeatBody) -> Heartbeat:
    return Heartbeat(
        lease_id=lease_id,
        job_id=body.job_id,
        proof=read_proof(body.lease_token, body.worker_id),
        progress=body.progress,
        message=body.message,
        ttl_sec=None if body.ttl_sec is None else float(body.ttl_sec),
    )


def _release(lease_id: str, body: ReleaseBody) -> Release:
    error = body.error
    if error is not None and len(error) > MAX_ERROR:
        error = error[: MAX_ERROR - 1] + "…"
    return Release(
        lease_id=lease_id,
        status=body.status,
        job_id=body.job_id,
        proof=read_proof(body.lease_token, body.worker_id),
        result_json=_text(body.result_data),
        error=error,
        metrics_json=_text(body.metrics),
        may_retry=body.retry,
    )


def _show_released(released: Sequence[Released | KsanaError], call: Call) -> dict[str, Any]:
    return {
        "results": [
            _refused(one, call) if isinstance(one, KsanaError) else show_compactly(one)
            for one in released
        ]
    }


def _text(raw: Raw | UnsetType) -> str | None:
    """The JSON as it was sent; null counts as nothing."""
    if isinstance(raw, UnsetType):
        return None
    text = bytes(raw)
    return None if text == b"null" else text.decode()


def _refused(error: KsanaError, call: Call) -> dict[str, Any]:
    """One item's refusal, in the shape every refusal has, with its status."""
    return {
        "code": error.code,
        "message": error.message,
        "detail": error.message,
        "request_id": call.request_id,
        "status": error.status,
        **error.extra,
    }
