"""Takes over what a dead instance left: its jobs, then its inbox, then its place in the list.

One survivor does it, by a right that runs out (`Inbox.begin_drain`). Everything may be done twice:
jobs are adopted by a guarded write, messages may come again anyhow.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.nodes.messages import Rehome
from ksana.domain.nodes.records import NodeJob
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.home import HomeJobs
from ksana.engine.nodes.job_watch import HomeJob
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.view import NodeView
from ksana.ports.fabric import Fabric

_LOOK_EVERY: Final[Micros] = 2 * SECOND
_LOOK_ALONE: Final[Micros] = 60 * SECOND
_RIGHT_US: Final[Micros] = 15 * SECOND
_JOBS_AT_ONCE: Final = 200


class Adoption:
    """Looks for dead instances."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Clock,
        courier: Courier,
        home: HomeJobs,
        view: NodeView,
        settings: NodeParameters,
        can_judge: Callable[[], bool],
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._home = home
        self._view = view
        self._settings = settings
        self._can_judge = can_judge
        self.adopted = 0
        self.drained = 0
        every_us = _LOOK_ALONE if fabric.is_alone else _LOOK_EVERY
        self.pump = Pump("node-adoption", clock, self._look, poll_us=every_us)

    async def _look(self) -> Instant | None:
        dead = await self._fabric.presence.list_dead()
        if self._fabric.instance_id in dead or not self._can_judge():
            return None  # presence itself is in doubt, ours too
        for instance_id in dead:
            if await self._fabric.inbox.begin_drain(instance_id, _RIGHT_US):
                await self.take_over(instance_id)
        return None

    async def take_over(self, instance_id: str) -> None:
        """Adopt, drain, decide, delete, forget. What is in the inbox may be the outcome of a job
        that we adopt: nothing is decided about one before that is read."""
        log.info("taking over what a dead instance left", instance=instance_id)
        adopted = await self._adopt_jobs(instance_id)
        while True:
            if not await self._fabric.inbox.begin_drain(instance_id, _RIGHT_US):
                break
            found = await self._fabric.inbox.drain(instance_id, self._settings.stream_count)
            if not found:
                break
            done = await self._courier.handle(found)
            self.drained += len(done)
            await self._fabric.inbox.done(done, instance_id)
        for job, record in adopted:
            await self._decide(instance_id, job, record)
        if await self._fabric.inbox.end_drain(instance_id):
            await self._fabric.presence.forget(instance_id)

    async def _adopt_jobs(self, instance_id: str) -> list[tuple[HomeJob, NodeJob]]:
        adopted: list[tuple[HomeJob, NodeJob]] = []
        while True:
            job_ids = await self._fabric.jobs.list_homed(instance_id, _JOBS_AT_ONCE)
            if not job_ids:
                return adopted
            records = await asyncio.gather(*map(self._fabric.jobs.find, job_ids))
            for record in records:
                job = None if record is None else await self._adopt(instance_id, record)
                if job is not None and record is not None:
                    adopted.append((job, record))
            await self._fabric.jobs.strike_homed(instance_id, job_ids)
            await self._fabric.inbox.begin_drain(instance_id, _RIGHT_US)

    async def _adopt(self, former: str, record: NodeJob) -> HomeJob | None:
        request = record.request
        job_id = request.job_id
        if record.outcome is not None:
            # It is still on the list: the former home may not have told anybody.
            endings = self._home.endings
            await endings.deliver(request, record.attempt, record.node_id, record.outcome)
            if record.state == "FINISHED":
                await self._fabric.reservations.release(record.node_id, job_id)
                await endings.release_record(job_id, record.attempt)
            return None
        life_us = request.wait_us + self._settings.keep_us
        if not await self._fabric.jobs.adopt_if(job_id, former, life_us):
            return None
        self.adopted += 1
        return self._home.take_in(record)

    async def _decide(self, former: str, job: HomeJob, record: NodeJob) -> None:
        """Go on with a job that was adopted, where it stood."""
        job_id = record.request.job_id
        if self._home.jobs.get(job_id) is not job or job.attempt != record.attempt:
            return  # it has ended, or is further by now
        if not job.node_id:
            await self._home.resume(job)
            return
        node = self._view.get(job.node_id)
        if node is None or node.instance_id == former:
            await self._home.fail(job_id, job.attempt, "INSTANCE_GONE")
            return
        job.instance_id = node.instance_id
        message = Rehome(
            node_id=job.node_id,
            job_id=job_id,
            attempt=job.attempt,
            home=self._fabric.instance_id,
        )
        await self._courier.tell(node.instance_id, message)
        self._home.arm(job)
