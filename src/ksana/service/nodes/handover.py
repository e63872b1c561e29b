"""Node jobs as runs use them: `ports.handover.RunNodeJobs`."""

import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from ksana.base.errors import ConflictError, NotFoundError, UnavailableError
from ksana.domain.handover import EndKind, HandedEnd, HandedJob
from ksana.domain.nodes.records import JobOutcome, JobRequest, NodeJob
from ksana.engine.nodes.engine import NodesEngine
from ksana.ports.handover import NodeOrder
from ksana.service.nodes.jobs import NodeJobService

_ENDS: Final[dict[str, EndKind]] = {
    "CANCELED": "canceled",
    "JOB_LOST": "lost",
    "NO_RESULT": "timeout",
    "NO_START": "timeout",
    "NO_ACK": "timeout",
}
"""What the error of a failed job means for the run that waits for it; any other is a failure."""


class NodeHandover:
    """Submits, finds and cancels node jobs for runs."""

    def __init__(self, service: NodeJobService, engine: NodesEngine) -> None:
        self._service = service
        self._engine = engine
        self._hear: Callable[[str, HandedEnd], None] = lambda _, __: None
        engine.home.endings.on_handed_over = self._on_end

    @property
    def is_durable(self) -> bool:
        """Whether a job survives the end of this process."""
        return self._engine.fabric.durable

    async def submit(self, order: NodeOrder) -> None:
        """Have the job made, unless it is there already."""
        self._service.check_served()
        payload = order.payload_json.encode()
        if self.is_here(order.job_id) or await self._engine.fabric.jobs.find(order.job_id):
            return
        self._engine.home.check_room(len(payload))
        request = JobRequest(
            job_id=order.job_id,
            model=order.model,
            request_id=order.request_id,
            labels=dict(order.labels),
            priority=order.priority,
            payload=msgspec.Raw(payload),
            wait_us=order.wait_us,
            timeout_us=order.timeout_us,
            trace_id=order.trace_id,
            created_at=self._engine.clock.now(),
        )
        await self._engine.home.submit(request, lambda _: None)

    async def find_job(self, job_id: str) -> HandedJob | None:
        """The job; None if it is gone."""
        record = await self._engine.fabric.jobs.find(job_id)
        return None if record is None else _handed(record)

    async def cancel(self, job_id: str, reason: str) -> None:
        """End a job, if it can be reached."""
        with contextlib.suppress(ConflictError, NotFoundError, UnavailableError):
            await self._service.cancel_job(job_id, reason=reason)

    def is_here(self, job_id: str) -> bool:
        """Whether this instance is in charge of the job."""
        return job_id in self._engine.home.jobs

    def subscribe(self, hear: Callable[[str, HandedEnd], None]) -> None:
        """Be told of the ends of jobs that runs wait for."""
        self._hear = hear

    def _on_end(self, request: JobRequest, outcome: JobOutcome) -> None:
        self._hear(request.job_id, _end_of(outcome))


def _handed(record: NodeJob) -> HandedJob:
    request, outcome = record.request, record.outcome
    return HandedJob(
        job_id=request.job_id,
        request_id=request.request_id,
        state=record.state,
        payload=bytes(request.payload).decode("utf-8", "replace"),
        created_at=request.created_at,
        ended_at=None if outcome is None else outcome.finished_at,
        end=None if outcome is None else _end_of(outcome),
        has_begun=True,
    )


def _end_of(outcome: JobOutcome) -> HandedEnd:
    data: str | None = bytes(outcome.data).decode("utf-8", "replace")
    if outcome.success:
        return HandedEnd("done", result=data)
    error, data = outcome.error, None if data == "null" else data
    if error is None:
        return HandedEnd("failed", result=data)
    message = f"{error.code}: {error.message}" if error.message else error.code
    return HandedEnd(_ENDS.get(error.code, "failed"), message, data)
