"""Node jobs for tests of runs: a port that does what it is told, and outlives instances if it is
durable."""

from collections.abc import Callable

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError, DependencyDownError
from ksana.domain.handover import HandedEnd, HandedJob
from ksana.ports.handover import NodeOrder


class ScriptedNodes:
    """`ports.handover.RunNodeJobs`. `homes` tells which instance is in charge of a job."""

    def __init__(self, clock: Clock, *, is_durable: bool = True) -> None:
        self._clock = clock
        self.is_durable = is_durable
        self.orders: list[NodeOrder] = []
        self.jobs: dict[str, HandedJob] = {}
        self.here: set[str] = set()
        self.canceled: list[str] = []
        self.is_away = False
        self.has_node = True
        self._hear: Callable[[str, HandedEnd], None] = lambda _, __: None

    async def submit(self, order: NodeOrder) -> None:
        if self.is_away:
            raise DependencyDownError("Redis is away")
        if order.job_id in self.jobs:
            return
        if not self.has_node:
            raise ConflictError("no node has the model echo", code="NO_AVAILABLE_NODE")
        self.orders.append(order)
        self.here.add(order.job_id)
        self.jobs[order.job_id] = HandedJob(
            order.job_id, order.request_id, "RUNNING", order.payload_json, self._clock.now()
        )

    async def find_job(self, job_id: str) -> HandedJob | None:
        if self.is_away:
            raise DependencyDownError("Redis is away")
        return self.jobs.get(job_id)

    async def cancel(self, job_id: str, reason: str) -> None:
        self.canceled.append(job_id)
        self.end(job_id, HandedEnd("canceled", reason))

    def is_here(self, job_id: str) -> bool:
        return job_id in self.here

    def subscribe(self, hear: Callable[[str, HandedEnd], None]) -> None:
        self._hear = hear

    # what tests do

    def end(self, job_id: str, end: HandedEnd) -> None:
        """A job ends; who is in charge tells."""
        job = self.jobs.get(job_id)
        if job is not None and job.end is None:
            self.jobs[job_id] = msgspec.structs.replace(
                job, state="FINISHED", ended_at=self._clock.now(), end=end
            )
            if job_id in self.here:
                self.here.discard(job_id)
                self._hear(job_id, end)

    def lose_instance(self) -> None:
        """The instance in charge died: others adopt its jobs, or they are lost with it."""
        self.here.clear()
        if not self.is_durable:
            self.jobs.clear()
