"""Request bindings and node jobs in memory."""

from collections.abc import Sequence

import msgspec

from ksana.base.instant import Micros
from ksana.domain.lifecycle import NODE_JOB
from ksana.domain.nodes.moves import MOVES, Moved, NodeJobChange, attempt_after, judge
from ksana.domain.nodes.records import Binding, JobProgress, JobRequest, NodeJob, empty_object
from ksana.fabric.memory.hub import MemoryHub
from ksana.fabric.memory.inbox import MemoryInbox
from ksana.fabric.memory.nodes import MemoryReservations
from ksana.ports.fabric import Created, JobEnd, ReserveResult, SlotWish
from ksana.ports.inbox import Post, SendResult


class MemoryRequests:
    """See `ports.fabric.RequestBindings`."""

    def __init__(self, hub: MemoryHub, instance_id: str, reservations: MemoryReservations) -> None:
        self._hub = hub
        self._instance_id = instance_id
        self._reservations = reservations

    async def bind_and_reserve(
        self, request_id: str, binding: Binding, ttl_us: Micros, wish: SlotWish
    ) -> tuple[Binding, ReserveResult | None]:
        bound = await self.bind(request_id, binding, ttl_us)
        reserved = await self._reservations.reserve(
            wish.node_id, wish.job_id, wish.slots, wish.model, wish.ttl_us
        )
        return bound, reserved

    async def bind(self, request_id: str, binding: Binding, ttl_us: Micros) -> Binding:
        bound = self._hub.bindings.get(request_id)
        if bound is None:
            self._hub.bindings.put(request_id, binding, ttl_us)
            self._hub.bound_by[binding.job_id] = request_id
            return binding
        return bound

    async def find(self, request_id: str) -> Binding | None:
        return self._hub.bindings.get(request_id)

    async def unbind_if(self, request_id: str, job_id: str) -> bool:
        bound = self._hub.bindings.get(request_id)
        if bound is None or bound.job_id != job_id:
            return False
        self._hub.bound_by.pop(job_id, None)
        return self._hub.bindings.pop(request_id)

    async def lock(self, request_id: str, ttl_us: Micros) -> bool:
        holder = self._hub.locks.get(request_id)
        if holder is not None and holder != self._instance_id:
            return False
        self._hub.locks.put(request_id, self._instance_id, ttl_us)
        return True


class MemoryJobs:
    """See `ports.fabric.NodeJobs`."""

    def __init__(
        self,
        hub: MemoryHub,
        instance_id: str,
        inbox: MemoryInbox,
        reservations: MemoryReservations,
    ) -> None:
        self._hub = hub
        self._instance_id = instance_id
        self._inbox = inbox
        self._reservations = reservations

    async def create(
        self,
        request: JobRequest,
        home: str,
        keep_us: Micros,
        dispatch: NodeJobChange | None = None,
        post: Post | None = None,
    ) -> Created:
        job_id = request.job_id
        job = self._hub.jobs.get(job_id)
        if job is None:
            job = NodeJob(request=request, state="CREATED", attempt=1, node_id="", home=home)
            if dispatch is not None:
                job = _apply(job, dispatch)
            self._hub.jobs.put(job_id, job, keep_us)
            self._hub.homed.setdefault(home, {})[job_id] = None
        return Created(
            is_new=job.home == home and job.request == request,
            state=job.state,
            attempt=job.attempt,
            sent=None if post is None else await self._inbox.send(post.instance_id, post.body),
        )

    async def move(self, job_id: str, change: NodeJobChange) -> Moved:
        job = self._hub.jobs.get(job_id)
        if job is None:
            return Moved(result="missing")
        result = judge(job.state, job.attempt, job.node_id, change)
        if result == "moved":
            job = _apply(job, change)
            self._hub.jobs.put(job_id, job, change.keep_us)
            if change.name == "finish":
                self._hub.note_ended(job_id)
            if job.state == "RELEASED":
                self._hub.homed.get(job.home, {}).pop(job_id, None)
        return Moved(result=result, state=job.state, attempt=job.attempt)

    async def move_and_post(
        self, job_id: str, change: NodeJobChange, post: Post
    ) -> tuple[Moved, SendResult]:
        moved = await self.move(job_id, change)
        return moved, await self._inbox.send(post.instance_id, post.body)

    async def settle(self, ends: Sequence[JobEnd], *, hint: bool = False) -> list[Moved]:
        moved = [await self._settle(end) for end in ends]
        if hint:
            self._hub.publish(self._instance_id, "nodes.free", "")
        return moved

    async def _settle(self, end: JobEnd) -> Moved:
        await self._reservations.release(end.node_id, end.job_id)
        moved = await self.move(end.job_id, end.change)
        if moved.state != "FINISHED" or not moved.holds:
            return moved
        job = self._hub.jobs.get(end.job_id)
        assert job is not None
        self._hub.jobs.put(end.job_id, _apply(job, _released(end.change)), end.change.keep_us)
        return msgspec.structs.replace(moved, state="RELEASED")

    async def find(self, job_id: str) -> NodeJob | None:
        return self._hub.jobs.get(job_id)

    async def adopt_if(self, job_id: str, former: str, keep_us: Micros) -> bool:
        job = self._hub.jobs.get(job_id)
        if job is None or job.has_ended or job.home not in (former, self._instance_id):
            return False
        self._hub.jobs.put(job_id, msgspec.structs.replace(job, home=self._instance_id), keep_us)
        self._hub.homed.setdefault(self._instance_id, {})[job_id] = None
        return True

    async def list_homed(self, instance_id: str, limit: int) -> list[str]:
        return list(self._hub.homed.get(instance_id, {}))[:limit]

    async def strike_homed(self, instance_id: str, job_ids: Sequence[str]) -> None:
        homed = self._hub.homed.get(instance_id, {})
        for job_id in job_ids:
            homed.pop(job_id, None)
        if not homed:
            self._hub.homed.pop(instance_id, None)


def _released(change: NodeJobChange) -> NodeJobChange:
    return NodeJobChange(name="release", attempt=change.attempt, keep_us=change.keep_us)


def _apply(job: NodeJob, change: NodeJobChange) -> NodeJob:
    move = MOVES[change.name]
    NODE_JOB.require(job.state, move.target)
    node_id = job.node_id
    if change.name == "dispatch":
        node_id = change.node_id
    elif change.name == "again":
        node_id = ""
    progress: JobProgress = job.progress if change.progress is None else change.progress
    request = job.request
    if change.name == "finish":  # nobody asks for the payload any more, and it may be large
        request = msgspec.structs.replace(request, payload=empty_object())
    return NodeJob(
        request=request,
        state=move.target,
        attempt=attempt_after(change),
        node_id=node_id,
        home=job.home,
        progress=progress,
        outcome=job.outcome if change.outcome is None else change.outcome,
    )
