"""The events of node jobs, each with its members."""

from typing import Any

from ksana.base.instant import Instant, format_instant
from ksana.domain.nodes.records import JobError, JobOutcome, JobRequest
from ksana.engine.nodes.recorder import EventRecorder


class JobNotes:
    """Says what happened to a node job."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._note = recorder.note

    def created(self, request: JobRequest) -> None:
        data: dict[str, Any] = {"model": request.model, "priority": request.priority}
        for name in ("session_id", "request_id", "trace_id"):
            if value := getattr(request, name):
                data[name] = value
        self._note("NODE_JOB", request.job_id, "NODE_JOB_CREATED", data)

    def refused(self, request: JobRequest, reason: str) -> None:
        data: dict[str, Any] = {"reason": reason, "model": request.model}
        for name in ("session_id", "request_id"):
            if value := getattr(request, name):
                data[name] = value
        self._note("NODE_JOB", request.job_id, "NODE_JOB_REFUSED", data)

    def waiting(self, job_id: str, reason: str, until: Instant) -> None:
        data = {"reason": reason, "until": format_instant(until)}
        self._note("NODE_JOB", job_id, "NODE_JOB_WAITING", data)

    def dispatched(self, job_id: str, attempt: int, node_id: str, deadline_at: Instant) -> None:
        deadline = format_instant(deadline_at)
        data = {"attempt": attempt, "node_id": node_id, "deadline": deadline}
        self._note("NODE_JOB", job_id, "NODE_JOB_DISPATCHED", data)

    def retried(
        self, job_id: str, attempt: int, node_id: str, reason: str, error: JobError | None
    ) -> None:
        data: dict[str, Any] = {"attempt": attempt, "node_id": node_id, "reason": reason}
        if error is not None:
            data["error"] = error.message[:1024]
        self._note("NODE_JOB", job_id, "NODE_JOB_RETRIED", data)

    def finished(self, job_id: str, attempt: int, node_id: str, outcome: JobOutcome) -> None:
        data: dict[str, Any] = {"attempt": attempt, "success": outcome.success}
        if node_id:
            data["node_id"] = node_id
        if outcome.error is not None:
            data["error"] = {"code": outcome.error.code, "message": outcome.error.message[:1024]}
        self._note("NODE_JOB", job_id, "NODE_JOB_FINISHED", data)

    def released(self, job_id: str, attempt: int) -> None:
        self._note("NODE_JOB", job_id, "NODE_JOB_RELEASED", {"attempt": attempt})
