"""Handlers of governance jobs: parse, one call of the service, render."""

from collections.abc import Sequence
from typing import Any

from ksana.api.core.reading import find_instant, read_instant
from ksana.api.core.routing import Answer, Call
from ksana.api.governance.reading import (
    read_ack,
    read_cursor,
    read_who,
)
from ksana.api.governance.shapes import (
    AckBatch,
    AckBody,
    EnqueueBody,
    FailBatch,
    FailBody,
    JobsQuery,
    PullBody,
    RenewBatch,
    RenewBody,
    RequeueBody,
)
from ksana.api.governance.views import GovernanceJobView, show_handed, show_job
from ksana.base.errors import KsanaError
from ksana.base.ids import read_token
from ksana.base.instant import SECOND
from ksana.domain.governance.jobs import AttemptFailure, NewGovernanceJob, Renewal
from ksana.domain.governance.records import MAX_ERROR, URGENCY
from ksana.engine.governance.ending import Ended
from ksana.engine.governance.pulling import Pull
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.service.governance.explain import GovernanceExplainer
from ksana.service.governance.service import GovernanceService


class GovernanceJobEndpoints:
    """`/scheduler/jobs`."""

    def __init__(self, service: GovernanceService, explainer: GovernanceExplainer) -> None:
        self._service = service
        self._explainer = explainer

    async def enqueue(self, call: Call, body: EnqueueBody) -> Answer:
        """Take one job."""
        new = NewGovernanceJob(
            job_id=self._service.new_id(),
            object_type=body.object_type,
            object_id=body.object_id,
            action=body.action,
            urgency=URGENCY[body.priority],
            run_at=read_instant("run_at", body.run_at),
            max_attempts=body.max_attempts,
            idempotency_key=body.idempotency_key,
            is_past_allowed=body.allow_past,
        )
        made = await self._service.enqueue(new, read_who(call))
        if made.is_duplicate:
            return Answer(200, show_job(made.job, duplicate=True))
        return Answer(201, show_job(made.job))

    async def pull(self, call: Call, body: PullBody) -> Any:
        """Hand out due jobs."""
        pull = Pull(
            worker_id=body.worker_id,
            limit=body.limit,
            lease_us=round(body.lease_sec * SECOND),
            now=find_instant("now", body.now),
            order=body.order,
            actions=tuple(body.actions or ()),
            object_types=tuple(body.object_types or ()),
        )
        who = read_who(call, body.worker_id)
        pulled = await self._service.pull(pull, who, round(body.wait_sec * SECOND), call.is_gone)
        return {"jobs": [show_handed(one) for one in pulled.handed]}

    async def ack(self, call: Call, body: AckBody) -> GovernanceJobView:
        """End a job."""
        who = read_who(call, body.worker_id)
        return show_job(await self._service.ack(read_ack(call.params["job_id"], body), who))

    async def ack_batch(self, call: Call, body: AckBatch) -> Any:
        """End many jobs, each answered on its own."""
        acks = [
            read_ack(item.job_id, item, f"items[{place}].") for place, item in enumerate(body.items)
        ]
        worker_id = body.items[0].worker_id if body.items else None
        ended = await self._service.ack_batch(acks, read_who(call, worker_id)) if acks else []
        return _show_each(ended, call)

    async def fail(self, call: Call, body: FailBody) -> GovernanceJobView:
        """End an attempt."""
        failure = _read_failure(call.params["job_id"], body)
        return show_job(await self._service.fail(failure, read_who(call, body.worker_id)))

    async def fail_batch(self, call: Call, body: FailBatch) -> Any:
        """End many attempts, each answered on its own."""
        failures = [_read_failure(item.job_id, item) for item in body.items]
        worker_id = body.items[0].worker_id if body.items else None
        who = read_who(call, worker_id)
        return _show_each(await self._service.fail_batch(failures, who) if failures else [], call)

    async def renew(self, call: Call, body: RenewBody) -> GovernanceJobView:
        """Hold a job longer."""
        renewal = Renewal(job_id=call.params["job_id"], token=_find_token(body.lease_token))
        return show_job(await self._service.renew(renewal, round(body.lease_sec * SECOND)))

    async def renew_batch(self, call: Call, body: RenewBatch) -> Any:
        """Hold many jobs longer, each answered on its own."""
        renewals = [
            Renewal(job_id=item.job_id, token=_find_token(item.lease_token)) for item in body.items
        ]
        lease_us = round(body.lease_sec * SECOND)
        renewed = await self._service.renew_batch(renewals, lease_us) if renewals else []
        return _show_each(renewed, call)

    async def get(self, call: Call) -> GovernanceJobView:
        """One job."""
        return show_job(await self._service.get_job(call.params["job_id"]))

    async def list(self, call: Call) -> Any:
        """Some jobs, newest first."""
        query: JobsQuery = call.query
        wanted = GovernanceJobFilter(
            status=query.status,
            object_type=query.object_type,
            object_id=query.object_id,
            action=query.action,
            worker_id=query.worker_id,
            run_after=find_instant("run_after", query.run_after),
            run_before=find_instant("run_before", query.run_before),
        )
        page = await self._service.list_jobs(wanted, read_cursor(query.cursor), query.limit)
        cursor = None if page.next_before is None else str(page.next_before)
        return {"jobs": [show_job(job) for job in page.jobs], "next_cursor": cursor}

    async def requeue(self, call: Call) -> GovernanceJobView:
        """Queue one dead letter again."""
        return show_job(await self._service.requeue(call.params["job_id"], read_who(call)))

    async def requeue_all(self, call: Call, body: RequeueBody) -> Any:
        """Queue all dead letters again that match, or count them."""
        given = body.filter
        wanted = GovernanceJobFilter(
            object_type=given.object_type,
            object_id=given.object_id,
            action=given.action,
            run_after=find_instant("filter.run_after", given.run_after),
            run_before=find_instant("filter.run_before", given.run_before),
        )
        if body.dry_run:
            matched = await self._service.count_dead_letters(wanted)
            return {"matched": matched, "requeued": 0, "dry_run": True}
        requeued = await self._service.requeue_all(wanted, read_who(call))
        return {"matched": requeued, "requeued": requeued, "dry_run": False}

    async def explain(self, call: Call) -> Any:
        """Why a job waits, or ended as it did."""
        job_id = call.params["job_id"]
        explained = await self._explainer.explain_job(job_id)
        return {"job_id": job_id, "summary": explained.summary, "reasons": explained.reasons}


def _find_token(text: str | None) -> int | None:
    return None if text is None else read_token(text)


def _read_failure(job_id: str, body: FailBody) -> AttemptFailure:
    error = body.error
    return AttemptFailure(
        job_id=job_id,
        error=error if len(error) <= MAX_ERROR else error[: MAX_ERROR - 1] + "…",
        token=_find_token(body.lease_token),
        retry_delay_us=round(body.retry_delay_sec * SECOND),
        is_final=not body.retry,
    )


def _show_each(ended: Sequence[Ended], call: Call) -> dict[str, Any]:
    return {
        "results": [
            _refused(one, call) if isinstance(one, KsanaError) else show_job(one) for one in ended
        ]
    }


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
