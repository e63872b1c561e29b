"""The queue's endpoints under `/api/scheduler`: parse, one call of the service, render."""

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ksana.api.core.idempotency import answer_once, read_key
from ksana.api.core.routing import Answer, AnyRoute, Call, Content, Route, to_uuid_text
from ksana.api.queue.shapes import (
    BeatBatch,
    BeatBody,
    Beaten,
    CancelBody,
    ClaimBody,
    JobAnswer,
    LeaseBody,
    ListQuery,
    PointView,
    ReleaseBatch,
    ReleaseBody,
    Released,
    SeriesQuery,
    StatusBody,
    SubmitBatch,
    SubmitJob,
    show_beat,
    show_briefly,
    show_claim,
    show_job,
    show_lease,
    show_release,
    show_result,
    shown,
    shown_at,
)
from ksana.base.durations import format_duration, parse_duration
from ksana.base.errors import ConflictError, InvalidError, KsanaError
from ksana.base.instant import SECOND, Instant, Micros, format_minute, parse_instant
from ksana.domain.queue.jobs import MAX_ERROR, Job, Wants, line_of, needs_of
from ksana.ports.queue.tables import JobFilter
from ksana.service.queue.explain import QueueExplainer
from ksana.service.queue.jobs import Claim, NewJob
from ksana.service.queue.leases import Beat, Denied, Held, Outcome, Release
from ksana.service.queue.service import QueueService
from ksana.service.queue.stats import QueueStats

BASE: Final = "/api/scheduler"
BATCH_BODY: Final = 16 * 1024 * 1024
"""A batch carries up to a thousand payloads."""

_USUAL_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_encode = msgspec.json.Encoder().encode
_TAGS: Final = ("queue",)


class Queue:
    """The handlers."""

    def __init__(self, service: QueueService, stats: QueueStats, explainer: QueueExplainer) -> None:
        self._service = service
        self._stats = stats
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

    async def claim(self, _: Call, body: ClaimBody) -> Answer:
        """Hand out the next jobs."""
        capabilities = tuple(
            sorted(
                (name, bool(value)) for name, value in (body.constraints_capabilities or {}).items()
            )
        )
        wants = Wants(
            body.addon_id, frozenset(body.accept_job_types or ()), body.max_cost_units, capabilities
        )
        claim = Claim(body.worker_id, wants, body.limit, body.lease, float(body.ttl_sec))
        claimed = await self._service.claim(claim, round(body.wait_sec * SECOND))
        if not claimed.taken:
            return Answer(204)
        if body.brief:
            return Answer(200, show_claim(claimed))
        jobs = [show_job(job) for job in claimed.jobs]
        answer: dict[str, Any] = {"job": jobs[0]}
        if body.limit > 1:
            answer["jobs"] = jobs
        if body.lease:
            leases = [show_lease(lease) for lease in claimed.leases]
            answer["lease"] = leases[0]
            answer["leases"] = leases
        return Answer(200, answer)

    async def get(self, call: Call) -> Any:
        """One job and how it ended."""
        job = await self._service.get_job(call.params["job_id"])
        return {"job": show_job(job), "result": show_result(job)}

    async def report(self, call: Call, body: StatusBody) -> JobAnswer:
        """A worker's word on its job."""
        job = await self._service.report(
            call.params["job_id"], body.state, body.progress, body.note, body.worker_id
        )
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
            _instant("created_after", query.created_after),
            _instant("created_before", query.created_before),
        )
        page = await self._service.list_jobs(wanted, _cursor(query.cursor), query.limit)
        cursor = None if page.next_before is None else str(page.next_before)
        return {"jobs": [show_job(job) for job in page.jobs], "next_cursor": cursor}

    async def events(self, call: Call) -> Any:
        """What happened to a job and its leases, in order."""
        events = await self._service.list_events(call.params["job_id"])
        return {
            "events": [
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
        }

    async def explain(self, call: Call) -> Any:
        """Why a job waits, runs, or ended as it did."""
        found = await self._explainer.explain(call.params["job_id"])
        return {
            "job_id": found.job.job_id,
            "state": found.job.state,
            "summary": ". ".join(
                reason.message[:1].upper() + reason.message[1:] for reason in found.reasons
            )
            + ".",
            "reasons": found.reasons,
            "position": found.position,
            "holders": [show_lease(lease) for lease in found.holders],
            "facts": found.facts,
            "events": [
                {"ts": shown_at(event.ts), "type": event.type, "data": event.data}
                for event in found.events
            ],
        }

    async def request_lease(self, _: Call, body: LeaseBody) -> Any:
        """Ask to run a claimed job."""
        repeated = tuple(
            (name, value)
            for name in ("addon_id", "job_type", "cost_units", "priority", "constraints")
            if (value := getattr(body, name)) is not UNSET
        )
        job_id = _id("job_id", body.job_id)
        answer = await self._service.request_lease(
            job_id, float(body.ttl_sec), body.worker_id, repeated
        )
        if not isinstance(answer, Denied):
            return {
                "approved": True,
                "lease": show_lease(answer.lease),
                "job": show_job(answer.job),
            }
        return {
            "approved": False,
            "retry_after_sec": answer.retry_after_us // SECOND,
            "reason": answer.denial.reason,
            "code": answer.denial.code,
            "position": answer.position,
            "holders": [
                {
                    "lease_id": lease.lease_id,
                    "job_id": lease.job_id,
                    "addon_id": lease.addon_id,
                    "worker_id": lease.worker_id,
                    "cost_units": lease.cost_units,
                    "expires_at": shown(lease.expires_at),
                }
                for lease in answer.holders
            ],
            "job": show_job(answer.job),
        }

    async def beat(self, call: Call, body: BeatBody) -> Beaten:
        """A sign of life."""
        return show_beat(await self._service.beat(_beat(call.params["lease_id"], body)))

    async def beat_batch(self, call: Call, body: BeatBatch) -> Any:
        """Many signs of life, each answered on its own."""
        beats = [_beat(_id("lease_id", item.lease_id), item) for item in body.items]
        outcomes = await self._service.beat_batch(beats) if beats else []
        return {
            "results": [
                show_beat(one) if isinstance(one, Held) else _refused(one, call) for one in outcomes
            ]
        }

    async def release(self, call: Call, body: ReleaseBody) -> Released:
        """End an attempt."""
        return show_release(await self._service.release(_release(call.params["lease_id"], body)))

    async def release_batch(self, call: Call, body: ReleaseBatch) -> Any:
        """End many attempts, each answered on its own."""
        items = [_release(_id("lease_id", item.lease_id), item) for item in body.items]
        if body.brief:
            settled = await self._service.release_batch_briefly(items) if items else []
            return {
                "results": [
                    _refused(one, call) if isinstance(one, KsanaError) else show_briefly(one)
                    for one in settled
                ]
            }
        outcomes: list[Outcome] = await self._service.release_batch(items) if items else []
        return {
            "results": [
                show_release(one) if isinstance(one, Held) else _refused(one, call)
                for one in outcomes
            ]
        }

    async def get_lease(self, call: Call) -> Any:
        """One lease."""
        return {"lease": show_lease(await self._service.get_lease(call.params["lease_id"]))}

    async def snapshot(self, _: Call) -> Any:
        """The queue at this moment."""
        return await self._stats.snapshot()

    async def series(self, call: Call) -> Any:
        """A figure over time."""
        query: SeriesQuery = call.query
        series = await self._stats.series(
            query.metric, _span("bucket", query.bucket), _span("range", query.range)
        )
        first_at, width = series.first_at, series.bucket_us
        points = [
            PointView(format_minute(first_at + n * width), _plain(value))
            for n, value in enumerate(series.values)
        ]
        return {
            "metric": series.metric,
            "bucket": format_duration(series.bucket_us),
            "points": points,
        }

    def routes(self) -> tuple[AnyRoute, ...]:
        """Every endpoint."""
        return tuple(_routes(self))


def _routes(queue: Queue) -> list[AnyRoute]:
    def route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
        scope = "queue:read" if method == "GET" else "queue:write"
        # Every write but a claim, which may wait for jobs, awaits the store and nothing else.
        is_fastpath = method == "POST" and handler != queue.claim
        return Route(
            method,
            BASE + path,
            handler,
            scope=scope,
            summary=summary,
            tags=_TAGS,
            is_fastpath=is_fastpath,
            **more,
        )

    job: dict[int, Any] = {200: JobAnswer}
    return [
        route(
            "POST",
            "/jobs/submit",
            queue.submit,
            "Submit a job.",
            body=SubmitJob,
            answers={201: JobAnswer},
        ),
        route(
            "POST",
            "/jobs/submit-batch",
            queue.submit_batch,
            "Submit up to 1,000 jobs, all or none.",
            body=SubmitBatch,
            answers={201: Any},
            max_body=BATCH_BODY,
        ),
        route(
            "POST",
            "/jobs/claim",
            queue.claim,
            "Claim the next jobs.",
            body=ClaimBody,
            answers={200: Any, 204: None},
        ),
        route("GET", "/jobs", queue.list, "List jobs, newest first.", query=ListQuery),
        route("GET", "/jobs/{job_id:uuid}", queue.get, "Get a job and its result."),
        route(
            "POST",
            "/jobs/{job_id:uuid}/status",
            queue.report,
            "Report a job's state, note and progress.",
            body=StatusBody,
            answers=job,
        ),
        route(
            "POST",
            "/jobs/{job_id:uuid}/cancel",
            queue.cancel,
            "Cancel a job.",
            body=CancelBody,
            empty_body_ok=True,
            answers=job,
        ),
        route(
            "GET",
            "/jobs/{job_id:uuid}/events",
            queue.events,
            "List what happened to a job and its leases.",
        ),
        route(
            "GET",
            "/jobs/{job_id:uuid}/explain",
            queue.explain,
            "Explain why a job waits, runs or ended.",
        ),
        route(
            "POST",
            "/lease/request",
            queue.request_lease,
            "Ask to run a claimed job.",
            body=LeaseBody,
        ),
        route(
            "POST",
            "/lease/heartbeat-batch",
            queue.beat_batch,
            "Send up to 500 heartbeats.",
            body=BeatBatch,
            max_body=BATCH_BODY,
        ),
        route(
            "POST",
            "/lease/release-batch",
            queue.release_batch,
            "Release up to 500 leases.",
            body=ReleaseBatch,
            max_body=BATCH_BODY,
        ),
        route(
            "POST",
            "/lease/{lease_id:uuid}/heartbeat",
            queue.beat,
            "Keep a lease.",
            body=BeatBody,
            empty_body_ok=True,
            answers={200: Beaten},
        ),
        route(
            "POST",
            "/lease/{lease_id:uuid}/release",
            queue.release,
            "Release a lease with the job's result.",
            body=ReleaseBody,
            answers={200: Released},
        ),
        route("GET", "/lease/{lease_id:uuid}", queue.get_lease, "Get a lease."),
        route(
            "GET", "/stats/snapshot", queue.snapshot, "Capacity, jobs and leases at this moment."
        ),
        route(
            "GET",
            "/stats/timeseries",
            queue.series,
            "A figure of the queue over time.",
            query=SeriesQuery,
        ),
    ]


def _new_job(body: SubmitJob, job_id: str, index: int | None = None) -> NewJob:
    run_at = None
    if body.run_at is not None:
        run_at = _instant("run_at" if index is None else f"jobs[{index}].run_at", body.run_at)
    constraints = body.constraints
    if constraints:
        line = line_of(body.addon_id, body.job_type, body.cost_units, needs_of(constraints))
        constraints_json = _encode(constraints).decode()
    else:
        line = line_of(body.addon_id, body.job_type, body.cost_units, ())
        constraints_json = "{}"
    payload = body.payload
    payload_json = "{}" if isinstance(payload, UnsetType) else bytes(payload).decode()
    return NewJob(
        job_id,
        body.priority,
        line,
        constraints_json,
        payload_json,
        body.client_request_id,
        body.max_attempts,
        run_at,
        body.fairness_key,
    )


def _with_job(error: ConflictError) -> ConflictError:
    job = error.extra.get("job")
    if isinstance(job, Job):
        error.extra["job"] = show_job(job)
    return error


def _beat(lease_id: str, body: BeatBody) -> Beat:
    ttl = None if body.ttl_sec is None else float(body.ttl_sec)
    return Beat(lease_id, body.job_id, body.worker_id, body.progress, body.message, ttl)


def _release(lease_id: str, body: ReleaseBody) -> Release:
    error = body.error
    if error is not None and len(error) > MAX_ERROR:
        error = error[: MAX_ERROR - 1] + "…"
    return Release(
        lease_id,
        body.status,
        body.job_id,
        body.worker_id,
        _text(body.result_data),
        error,
        _text(body.metrics),
    )


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


def _id(field: str, text: str) -> str:
    if _USUAL_ID.fullmatch(text):  # as we wrote it; any other way to write a UUID is read in full
        return text
    try:
        return to_uuid_text(text)
    except ValueError as error:
        raise InvalidError(str(error), field=field) from None


def _instant(field: str, text: str | None) -> Instant | None:
    if text is None:
        return None
    try:
        return parse_instant(text)
    except ValueError as error:
        raise InvalidError(f"{field!r}: {error}", field=field) from None


def _span(field: str, text: str) -> Micros:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidError(f"{field!r}: {error}", field=field) from None


def _cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise InvalidError(
        "'cursor' is not one of ours: send back a next_cursor as it came", field="cursor"
    )


def _plain(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


def _render_job(made: Job) -> bytes:
    return _encode(JobAnswer(show_job(made)))
