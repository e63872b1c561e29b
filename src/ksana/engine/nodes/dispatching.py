"""One attempt at a node job, as it is recorded and sent to the instance of its node."""

from ksana.base.clock import Clock
from ksana.base.instant import Instant, Micros
from ksana.domain.nodes.attempts import AttemptTimes, result_deadline
from ksana.domain.nodes.messages import Assign
from ksana.domain.nodes.moves import Moved, MoveResult, NodeJobChange
from ksana.domain.nodes.records import JobProgress, NodeRecord
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.job_watch import HomeJob
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import Post, SendResult


class Dispatching:
    """Begins attempts."""

    def __init__(
        self, fabric: Fabric, clock: Clock, courier: Courier, settings: NodeParameters
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._settings = settings

    def begin(self, job: HomeJob, node: NodeRecord) -> NodeJobChange:
        """Note the attempt, and make the change that records it."""
        now = self._clock.now()
        job.node_id, job.instance_id = node.node_id, node.instance_id
        job.times = AttemptTimes(dispatched_at=now)
        progress = job.progress
        job.progress = JobProgress(
            tried=(*progress.tried, node.node_id),
            failures=progress.failures,
            last_error=progress.last_error,
            dispatched_at=now,
        )
        return NodeJobChange(
            name="dispatch",
            attempt=job.attempt,
            node_id=node.node_id,
            keep_us=self.life(job),
            progress=job.progress,
        )

    async def write(self, job: HomeJob, change: NodeJobChange) -> tuple[Moved, SendResult | None]:
        """Record the attempt of a job that waited, and send it if its node is elsewhere."""
        jobs, post = self._fabric.jobs, self.post(job)
        job_id, sent = job.request.job_id, None
        if post is None:
            moved = await jobs.move(job_id, change)
        else:
            moved, sent = await jobs.move_and_post(job_id, change, post)
        if moved.result == "missing":
            # The fabric was wiped. We know all there was to know of the job.
            me = self._fabric.instance_id
            made = await jobs.create(job.request, me, self.life(job), change)
            result: MoveResult = "moved" if made.is_new else "stale"
            moved = Moved(result=result, state=made.state, attempt=made.attempt)
        return moved, sent

    def post(self, job: HomeJob) -> Post | None:
        """The attempt as a message; None if its node is here."""
        if self._courier.is_here(job.instance_id):
            return None
        return self._courier.post(job.instance_id, self.assignment(job))

    def assignment(self, job: HomeJob) -> Assign:
        """What the instance of the node is told."""
        return Assign(
            node_id=job.node_id,
            attempt=job.attempt,
            home=self._fabric.instance_id,
            deadline_at=self.deadline(job),
            request=job.request,
        )

    def deadline(self, job: HomeJob) -> Instant:
        """By when the result of the attempt must be there."""
        return result_deadline(
            self._settings.limits, job.times.dispatched_at, job.request.timeout_us
        )

    def life(self, job: HomeJob) -> Micros:
        """How long the record must live while the job has not ended."""
        limits = self._settings.limits
        each_us = job.request.timeout_us or limits.result_us
        return job.request.wait_us + limits.attempts * each_us + self._settings.keep_us
