"""Takes over what a dead instance left: its jobs, then its inbox, then its place in the list.

One survivor does it, by a right that runs out (`Inbox.begin_drain`). Everything may be done twice:
jobs are adopted by a guarded write, messages may come again anyhow.
"""

from collections.abc import Callable
from typing import Final

import structlog

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.nodes.messages import Rehome
from ksana.domain.nodes.records import NodeJob
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.home import HomeJobs
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.view import NodeView
from ksana.ports.fabric import Fabric

_LOOK_EVERY: Final[Micros] = 2 * SECOND
_RIGHT_US: Final[Micros] = 15 * SECOND
_JOBS_AT_ONCE: Final = 200

_log = structlog.get_logger("ksana.nodes")


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
        self.pump = Pump("node-adoption", clock, self._look, poll_us=_LOOK_EVERY)

    async def _look(self) -> Instant | None:
        dead = await self._fabric.presence.list_dead()
        if self._fabric.instance_id in dead or not self._can_judge():
            return None  # presence itself is in doubt, ours too
        for instance_id in dead:
            if await self._fabric.inbox.begin_drain(instance_id, _RIGHT_US):
                await self.take_over(instance_id)
        return None

    async def take_over(self, instance_id: str) -> None:
        """Adopt, drain, delete, forget."""
        _log.info("taking over what a dead instance left", instance=instance_id)
        await self._adopt_jobs(instance_id)
        while True:
            if not await self._fabric.inbox.begin_drain(instance_id, _RIGHT_US):
                return
            found = await self._fabric.inbox.drain(instance_id, self._settings.stream_count)
            if found is None:
                return
            if not found:
                break
            done = await self._courier.handle(found)
            self.drained += len(done)
            await self._fabric.inbox.done(done, instance_id)
        if await self._fabric.inbox.end_drain(instance_id):
            await self._fabric.presence.forget(instance_id)

    async def _adopt_jobs(self, instance_id: str) -> None:
        while True:
            job_ids = await self._fabric.jobs.list_homed(instance_id, _JOBS_AT_ONCE)
            if not job_ids:
                return
            for job_id in job_ids:
                record = await self._fabric.jobs.find(job_id)
                if record is not None:
                    await self._adopt(instance_id, record)
            await self._fabric.jobs.strike_homed(instance_id, job_ids)
            await self._fabric.inbox.begin_drain(instance_id, _RIGHT_US)

    async def _adopt(self, former: str, record: NodeJob) -> None:
        request = record.request
        job_id = request.job_id
        if record.outcome is not None:
            # It is still on the list: the former home may not have told anybody.
            endings = self._home.endings
            await endings.deliver(request, record.attempt, record.node_id, record.outcome)
            if record.state == "FINISHED":
                await self._fabric.reservations.release(record.node_id, job_id)
                await endings.release_record(job_id, record.attempt)
            return
        life_us = request.wait_us + self._settings.keep_us
        if not await self._fabric.jobs.adopt_if(job_id, former, life_us):
            return
        self.adopted += 1
        job = self._home.take_in(record)
        if not record.node_id:
            await self._home.resume(job)
            return
        node = self._view.get(record.node_id)
        if node is None or node.instance_id == former:
            await self._home.fail(job_id, record.attempt, "INSTANCE_GONE")
            return
        job.instance_id = node.instance_id
        message = Rehome(
            node_id=record.node_id,
            job_id=job_id,
            attempt=record.attempt,
            home=self._fabric.instance_id,
        )
        await self._courier.tell(node.instance_id, message)
        self._home.arm(job)
