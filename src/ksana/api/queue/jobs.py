"""Endpoints of queue jobs: parse, one call of the service, render."""

from typing import Any

import msgspec
from msgspec import UnsetType
from msgspec.structs import astuple

from ksana.api.core.idempotency import answer_once, read_key
from ksana.api.core.routing import Answer, Call, Content
from ksana.api.queue.claims import show_job, show_lease, shown_at
from ksana.api.queue.reading import read_instant, read_proof
from ksana.api.queue.shapes import (
    CancelBody,
    ListQuery,
    StatusBody,
    SubmitBatch,
    SubmitJob,
)
from ksana.api.queue.views import JobAnswer, show_result
from ksana.base.errors import ConflictError, InvalidError
from ksana.domain.handover import MAX_CONSTRAINTS, MAX_PAYLOAD
from ksana.domain.queue.classes import class_of, needs_of
from ksana.domain.queue.jobs import Job, NewJob
from ksana.ports.queue.tables import JobFilter
from ksana.service.queue.explain import QueueExplainer
from ksana.service.queue.jobs import Report
from ksana.service.queue.service import QueueService

_encode = msgspec.json.Encoder().encode


class JobEndpoints:
    """The handlers."""

    def __init__(self, service: QueueService, explainer: QueueExplainer) -> None:
        self._service = service
        self._explainer = explainer

    async def submit(self, call: Call, body: SubmitJob) -> Answer | Content:
        """Take one job."""
        job = _new_job(body, self._service.new_id())
        request = read_key(call, "queue.submit", body, _render_job)
        try:
            if request is None:
                return Answer(201, JobAnswer(show_job(await self._service.submit(job))))
            return await answer_once(self._service.submit_once(job, request), _render_job, 201)
        except ConflictError as error:
            raise _with_job(error) from None

    async def submit_batch(self, _: Call, body: SubmitBatch) -> Answer:
        """Take up to a thousand jobs, all or none."""
        ids = self._service.new_ids(len(body.jobs))
        jobs = [_new_job(job, ids[index], index) for index, job in enumerate(body.jobs)]
        try:
            made = await self._service.submit_batch(jobs)
        except ConflictError as error:
            raise _with_job(error) from None
        return Answer(201, {"jobs": [show_job(job) for job in made]})

    async def get(self, call: Call) -> Any:
        """One job and how it ended."""
        job = await self._service.get_job(call.params["job_id"])
        return {"job": show_job(job), "result": show_result(job)}

    async def report(self, call: Call, body: StatusBody) -> JobAnswer:
        """A worker's word on its job."""
        report = Report(
            job_id=call.params["job_id"],
            state=body.state,
            progress=body.progress,
            note=body.note,
            proof=read_proof(body.claim_token, body.worker_id),
        )
        job = await self._service.report(report)
        return JobAnswer(show_job(job))

    async def cancel(self, call: Call, body: CancelBody) -> JobAnswer:
        """Cancel a job, or ask its worker to stop."""
        return JobAnswer(show_job(await self._service.cancel(call.params["job_id"], body.reason)))

    async def list(self, call: Call) -> Any:
        """Some jobs, newest first."""
        query: ListQuery = call.query
        wanted = JobFilter(
            query.state,
            query.addon_id,
            query.job_type,
            read_instant("created_after", query.created_after),
            read_instant("created_before", query.created_before),
        )
        page = await self._service.list_jobs(wanted, _read_cursor(query.cursor), query.limit)
        cursor = None if page.next_before is None else str(page.next_before)
        return {"jobs": [show_job(job) for job in page.jobs], "next_cursor": cursor}

    async def events(self, call: Call) -> Any:
        """What happened to a job and its leases, in order."""
        events = await self._service.list_events(call.params["job_id"])
        shown = [
            {
                "ts": shown_at(event.ts),
                "type": event.type,
                "data": event.data,
                "id": event.id,
                "entity_type": event.entity_type,
                "entity_id": event.entity_id,
            }
            for event in events
        ]
        return {"events": shown, "truncated": events.is_cut}

    async def explain(self, call: Call) -> Any:
        """Why a job waits, runs, or ended as it did."""
        found = await self._explainer.explain(call.params["job_id"])
        reasons = [
            dict(zip(("code", "message", "data", "event_id"), astuple(reason), strict=True))
            for reason in found.reasons
        ]
        messages = [reason["message"] for reason in reasons]
        return {
            "job_id": found.job.job_id,
            "state": found.job.state,
            "summary": " ".join(text[:1].upper() + text[1:] + "." for text in messages),
            "reasons": reasons,
            "position": found.position,
            "holders": [show_lease(lease) for lease in found.holders],
            "facts": found.facts,
            "events": [
                {"ts": shown_at(event.ts), "type": event.type, "data": event.data}
                for event in found.events
            ],
        }


def _new_job(body: SubmitJob, job_id: str, index: int | None = None) -> NewJob:
    run_at = None
    if body.run_at is not None:
        run_at = read_instant("run_at" if index is None else f"jobs[{index}].run_at", body.run_at)
    constraints = body.constraints
    if constraints:
        written = _encode(constraints)
        _check_size(written, MAX_CONSTRAINTS, "constraints", index)
        job_class = class_of(body.addon_id, body.job_type, body.cost_units, needs_of(constraints))
        constraints_json = written.decode()
    else:
        job_class = class_of(body.addon_id, body.job_type, body.cost_units, ())
        constraints_json = "{}"
    payload = body.payload
    payload_json = "{}"
    if not isinstance(payload, UnsetType):
        raw = bytes(payload)
        if index is not None:  # alone it is bounded by the size of the call
            _check_size(raw, MAX_PAYLOAD, "payload", index)
        payload_json = raw.decode()
    return NewJob(
        job_id=job_id,
        priority=body.priority,
        job_class=job_class,
        constraints_json=constraints_json,
        payload_json=payload_json,
        client_request_id=body.client_request_id,
        max_attempts=body.max_attempts,
        run_at=run_at,
        fairness_key=body.fairness_key,
    )


def _check_size(written: bytes, most: int, name: str, index: int | None) -> None:
    if len(written) > most:
        field = name if index is None else f"jobs[{index}].{name}"
        raise InvalidError(f"{field!r} may have {most} bytes as JSON", field=field)


def _with_job(error: ConflictError) -> ConflictError:
    job = error.extra.get("job")
    if isinstance(job, Job):
        error.extra["job"] = show_job(job)
    return error


def _read_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise InvalidError(
        "'cursor' is not one of ours: send back a next_cursor as it came", field="cursor"
    )


def _render_job(made: Job) -> bytes:
    return _encode(JobAnswer(show_job(made)))
