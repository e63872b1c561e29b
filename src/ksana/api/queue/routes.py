"""The queue's endpoints under `/api/scheduler`, as a table."""

from typing import Any, Final

from ksana.api.core.routing import AnyRoute, Route
from ksana.api.queue.answers import (
    ClaimAnswer,
    DepthAnswer,
    HeartbeatResults,
    HolderList,
    JobDetail,
    JobEvents,
    JobExplained,
    JobPage,
    JobsAnswer,
    LeaseAnswer,
    LeaseDecision,
    QueueFigures,
    ReleaseOutcome,
    ReleaseResults,
    SeriesAnswer,
)
from ksana.api.queue.claims import ClaimEndpoints
from ksana.api.queue.jobs import JobEndpoints
from ksana.api.queue.leases import LeaseEndpoints
from ksana.api.queue.shapes import (
    CancelBody,
    ClaimBody,
    HeartbeatBatch,
    HeartbeatBody,
    HoldersQuery,
    LeaseBody,
    ListQuery,
    ReleaseAlone,
    ReleaseBatch,
    SeriesQuery,
    StatusBody,
    SubmitBatch,
    SubmitJob,
)
from ksana.api.queue.stats import StatsEndpoints
from ksana.api.queue.views import HeartbeatAnswer, JobAnswer
from ksana.service.queue.explain import QueueExplainer
from ksana.service.queue.service import QueueService
from ksana.service.queue.stats import QueueStats

BASE: Final = "/api/scheduler"
BATCH_BODY: Final = 16 * 1024 * 1024
"""A batch carries up to a thousand payloads."""

_TAGS: Final = ("queue",)


class Queue:
    """All handlers of the queue."""

    def __init__(self, service: QueueService, stats: QueueStats, explainer: QueueExplainer) -> None:
        self.jobs = JobEndpoints(service, explainer)
        self.claims = ClaimEndpoints(service)
        self.leases = LeaseEndpoints(service)
        self.stats = StatsEndpoints(stats)

    def routes(self) -> tuple[AnyRoute, ...]:
        """Every endpoint."""
        return tuple(_routes(self))


def _routes(queue: Queue) -> list[AnyRoute]:
    jobs, leases, stats = queue.jobs, queue.leases, queue.stats

    def route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
        scope = "queue:read" if method == "GET" else "queue:write"
        return Route(
            method,
            BASE + path,
            handler,
            scope=scope,
            summary=summary,
            tags=_TAGS,
            is_fastpath=method == "POST",
            **more,
        )

    job: dict[int, Any] = {200: JobAnswer}
    return [
        route(
            "POST",
            "/jobs/submit",
            jobs.submit,
            "Submit a job.",
            body=SubmitJob,
            answers={201: JobAnswer},
            request_headers=("Idempotency-Key",),
            answer_headers=("Idempotency-Replayed",),
        ),
        route(
            "POST",
            "/jobs/submit-batch",
            jobs.submit_batch,
            "Submit up to 1,000 jobs, all or none.",
            body=SubmitBatch,
            answers={201: JobsAnswer},
            max_body=BATCH_BODY,
        ),
        route(
            "POST",
            "/jobs/claim",
            queue.claims.claim,
            "Claim the next jobs.",
            body=ClaimBody,
            answers={200: ClaimAnswer, 204: None},
        ),
        route(
            "GET",
            "/jobs",
            jobs.list,
            "List jobs, newest first.",
            query=ListQuery,
            answers={200: JobPage},
        ),
        route(
            "GET",
            "/jobs/{job_id:uuid}",
            jobs.get,
            "Get a job and its result.",
            answers={200: JobDetail},
        ),
        route(
            "POST",
            "/jobs/{job_id:uuid}/status",
            jobs.report,
            "Report a job's state, note and progress.",
            body=StatusBody,
            answers=job,
        ),
        route(
            "POST",
            "/jobs/{job_id:uuid}/cancel",
            jobs.cancel,
            "Cancel a job.",
            body=CancelBody,
            empty_body_ok=True,
            answers=job,
        ),
        route(
            "GET",
            "/jobs/{job_id:uuid}/events",
            jobs.events,
            "List what happened to a job and its leases.",
            answers={200: JobEvents},
        ),
        route(
            "GET",
            "/jobs/{job_id:uuid}/explain",
            jobs.explain,
            "Explain why a job waits, runs or ended.",
            answers={200: JobExplained},
        ),
        route(
            "POST",
            "/lease/request",
            leases.request_lease,
            "Ask to run a claimed job.",
            body=LeaseBody,
            answers={200: LeaseDecision},
        ),
        route(
            "POST",
            "/lease/heartbeat-batch",
            leases.heartbeat_batch,
            "Send up to 500 heartbeats.",
            body=HeartbeatBatch,
            answers={200: HeartbeatResults},
            max_body=BATCH_BODY,
        ),
        route(
            "POST",
            "/lease/release-batch",
            leases.release_batch,
            "Release up to 500 leases.",
            body=ReleaseBatch,
            answers={200: ReleaseResults},
            max_body=BATCH_BODY,
        ),
        route(
            "POST",
            "/lease/{lease_id:uuid}/heartbeat",
            leases.heartbeat,
            "Keep a lease.",
            body=HeartbeatBody,
            empty_body_ok=True,
            answers={200: HeartbeatAnswer},
        ),
        route(
            "POST",
            "/lease/{lease_id:uuid}/release",
            leases.release,
            "Release a lease with the job's result.",
            body=ReleaseAlone,
            answers={200: ReleaseOutcome},
        ),
        route(
            "GET",
            "/leases",
            leases.list_holders,
            "List active leases, the first to run out first.",
            query=HoldersQuery,
            answers={200: HolderList},
        ),
        route(
            "GET",
            "/lease/{lease_id:uuid}",
            leases.get_lease,
            "Get a lease.",
            answers={200: LeaseAnswer},
        ),
        route(
            "GET",
            "/stats/snapshot",
            stats.snapshot,
            "Capacity, jobs and leases at this moment.",
            answers={200: QueueFigures},
        ),
        route(
            "GET",
            "/stats/depth",
            stats.depth,
            "How many jobs wait and are held, by priority and state.",
            answers={200: DepthAnswer},
        ),
        route(
            "GET",
            "/stats/timeseries",
            stats.series,
            "A figure of the queue over time.",
            query=SeriesQuery,
            answers={200: SeriesAnswer},
        ),
    ]
