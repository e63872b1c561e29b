"""The endpoints of governance under `/scheduler`, as a table."""

from typing import Any, Final

from ksana.api.core.routing import AnyRoute, Converter, Route
from ksana.api.governance.answers import (
    AuditCheck,
    AuditPage,
    GateList,
    GovernanceJobExplained,
    GovernanceJobPage,
    GovernanceResults,
    ObjectExplained,
    ObjectPage,
    PulledJobs,
    Requeued,
)
from ksana.api.governance.jobs import GovernanceJobEndpoints
from ksana.api.governance.objects import AuditEndpoints, ObjectEndpoints
from ksana.api.governance.reading import (
    to_entry_id,
    to_gate,
    to_job_id,
    to_object_id,
    to_object_type,
)
from ksana.api.governance.shapes import (
    AckBatch,
    AckBody,
    AuditQuery,
    EnqueueBody,
    FailBatch,
    FailBody,
    GateBody,
    JobsQuery,
    ObjectBody,
    ObjectsQuery,
    PullBody,
    RenewBatch,
    RenewBody,
    RequeueBody,
    VerifyQuery,
)
from ksana.api.governance.views import AuditView, GateView, GovernanceJobView, ObjectView
from ksana.service.governance.audit import AuditService
from ksana.service.governance.explain import GovernanceExplainer
from ksana.service.governance.figures import GovernanceMetrics, GovernanceStats
from ksana.service.governance.service import GovernanceService

BASE: Final = "/scheduler"
BATCH_BODY: Final = 16 * 1024 * 1024
_TAGS: Final = ("governance",)
_CONVERTERS: Final[dict[str, Converter]] = {
    "job_id": to_job_id,
    "entry_id": to_entry_id,
    "object_type": to_object_type,
    "object_id": to_object_id,
    "gate": to_gate,
}


class Governance:
    """All handlers of governance."""

    def __init__(
        self,
        service: GovernanceService,
        explainer: GovernanceExplainer,
        audit: AuditService,
        stats: GovernanceStats,
    ) -> None:
        self.jobs = GovernanceJobEndpoints(service, explainer)
        self.objects = ObjectEndpoints(service, explainer)
        self.audit = AuditEndpoints(audit, stats)

    def routes(self) -> tuple[AnyRoute, ...]:
        """Every endpoint."""
        return (*_job_routes(self.jobs), *_other_routes(self))


def _route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
    scope = "governance:read" if method == "GET" else "governance:write"
    return Route(
        method,
        BASE + path,
        handler,
        scope=scope,
        summary=summary,
        tags=_TAGS,
        converters=_CONVERTERS,
        is_fastpath=method == "POST",
        **more,
    )


def _job_routes(jobs: GovernanceJobEndpoints) -> list[AnyRoute]:
    job: dict[int, Any] = {200: GovernanceJobView}
    each: dict[int, Any] = {200: GovernanceResults}
    return [
        _route(
            "POST",
            "/jobs",
            jobs.enqueue,
            "Enqueue a job.",
            body=EnqueueBody,
            answers={201: GovernanceJobView, 200: GovernanceJobView},
        ),
        _route(
            "POST",
            "/jobs/pull",
            jobs.pull,
            "Pull due jobs.",
            body=PullBody,
            answers={200: PulledJobs},
        ),
        _route(
            "POST",
            "/jobs/ack-batch",
            jobs.ack_batch,
            "Acknowledge up to 500 jobs.",
            body=AckBatch,
            answers=each,
            max_body=BATCH_BODY,
        ),
        _route(
            "POST",
            "/jobs/fail-batch",
            jobs.fail_batch,
            "Fail up to 500 jobs.",
            body=FailBatch,
            answers=each,
            max_body=BATCH_BODY,
        ),
        _route(
            "POST",
            "/jobs/renew-batch",
            jobs.renew_batch,
            "Hold up to 500 jobs longer.",
            body=RenewBatch,
            answers=each,
        ),
        _route(
            "POST",
            "/jobs/requeue",
            jobs.requeue_all,
            "Queue all dead letters again that match.",
            body=RequeueBody,
            empty_body_ok=True,
            answers={200: Requeued},
        ),
        _route(
            "GET",
            "/jobs",
            jobs.list,
            "List jobs, newest first.",
            query=JobsQuery,
            answers={200: GovernanceJobPage},
        ),
        _route("GET", "/jobs/{job_id}", jobs.get, "Get a job.", answers=job),
        _route(
            "POST",
            "/jobs/{job_id}/ack",
            jobs.ack,
            "Acknowledge a job.",
            body=AckBody,
            empty_body_ok=True,
            answers=job,
        ),
        _route("POST", "/jobs/{job_id}/fail", jobs.fail, "Fail a job.", body=FailBody, answers=job),
        _route(
            "POST",
            "/jobs/{job_id}/renew",
            jobs.renew,
            "Hold a job longer.",
            body=RenewBody,
            empty_body_ok=True,
            answers=job,
        ),
        _route(
            "POST",
            "/jobs/{job_id}/requeue",
            jobs.requeue,
            "Queue a dead letter again.",
            answers=job,
        ),
        _route(
            "GET",
            "/jobs/{job_id}/explain",
            jobs.explain,
            "Explain why a job waits, or ended as it did.",
            answers={200: GovernanceJobExplained},
        ),
    ]


def _other_routes(governance: Governance) -> list[AnyRoute]:
    objects, audit = governance.objects, governance.audit
    path = "/objects/{object_type}/{object_id}"
    shown: dict[int, Any] = {200: ObjectView}
    return [
        _route(
            "GET",
            "/objects",
            objects.list,
            "List objects by type and id.",
            query=ObjectsQuery,
            answers={200: ObjectPage},
        ),
        _route(
            "PUT",
            path,
            objects.put,
            "Register an object, or put another in its place.",
            body=ObjectBody,
            answers={201: ObjectView, 200: ObjectView},
        ),
        _route("GET", path, objects.get, "Get an object.", answers=shown),
        _route("PATCH", path, objects.patch, "Change an object.", body=ObjectBody, answers=shown),
        _route(
            "GET",
            f"{path}/explain",
            objects.explain,
            "Explain what comes next for an object.",
            answers={200: ObjectExplained},
        ),
        _route("GET", "/gates", objects.list_gates, "List the gates.", answers={200: GateList}),
        _route(
            "PUT",
            "/gates/{gate}",
            objects.set_gate,
            "Set a gate.",
            body=GateBody,
            answers={200: GateView},
        ),
        _route(
            "GET",
            "/audit",
            audit.list,
            "List audit entries, newest first.",
            query=AuditQuery,
            answers={200: AuditPage},
        ),
        _route(
            "GET",
            "/audit/verify",
            audit.verify,
            "Verify the audit, up to 5,000 entries at a time.",
            query=VerifyQuery,
            answers={200: AuditCheck},
        ),
        _route(
            "GET",
            "/audit/{entry_id}",
            audit.get,
            "Get an audit entry.",
            answers={200: AuditView},
        ),
        _route(
            "GET",
            "/metrics",
            audit.metrics,
            "Figures of governance.",
            answers={200: GovernanceMetrics},
        ),
    ]
