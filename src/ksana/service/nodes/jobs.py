"""Node jobs: ask, look, cancel (N4, N8)."""

import hashlib
from collections.abc import Callable
from typing import Final

from ksana.base.errors import ConflictError, DependencyDownError, NotFoundError, UnavailableError
from ksana.base.ids import new_ordered_uuid, new_uid
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.domain.lifecycle import NODE_JOB
from ksana.domain.nodes.frames import AskJob, JobCreated
from ksana.domain.nodes.messages import Cancel
from ksana.domain.nodes.records import Binding, JobRequest, NodeJob, NodeRecord
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.home import NoNodeError
from ksana.engine.nodes.results import result_frame

_LOCK_US: Final[Micros] = 10 * SECOND
_RECORD_WITHIN_US: Final[Micros] = SECOND
_LOOK_EVERY_US: Final[Micros] = 20 * MILLISECOND

Announce = Callable[[JobCreated], object]


class NodeJobService:
    """What callers may ask about node jobs."""

    def __init__(
        self, engine: NodesEngine, find_refusal: Callable[[], str | None] = lambda: None
    ) -> None:
        """`find_refusal` says why nodes cannot be served here at all, if so (X3)."""
        self._engine = engine
        self._fabric = engine.fabric
        self._find_refusal = find_refusal

    @property
    def durable(self) -> bool:
        """Whether jobs survive the end of this process."""
        return self._fabric.durable

    def check_served(self) -> None:
        """Raise 503 SCHEDULER_DEPENDENCY_DOWN where nodes cannot be served."""
        reason = self._find_refusal()
        if reason is not None:
            raise DependencyDownError(reason, retry_after_sec=10)
        if self._engine.is_closing:
            raise DependencyDownError("the server is going down")

    async def request(
        self,
        ask: AskJob,
        announce: Announce,
        session_id: str = "",
        caller: str = "",
        trace_id: str = "",
    ) -> JobCreated:
        """Make a job of a request, once for each request id. `announce` is called before anything
        can be told about the job. Raise 409 NO_AVAILABLE_NODE or IDEMPOTENCY_MISMATCH."""
        self.check_served()
        self._engine.home.check_room(len(ask.payload))
        now = self._engine.clock.now()
        request = JobRequest(
            job_id=new_ordered_uuid(now),
            model=ask.model,
            request_id=ask.request_id or "",
            session_id=session_id,
            labels=ask.labels,
            priority=ask.priority,
            payload=ask.payload,
            wait_us=round(ask.wait_sec * SECOND),
            timeout_us=None if ask.timeout_sec is None else max(1, round(ask.timeout_sec * SECOND)),
            trace_id=trace_id or new_uid(),
            caller=caller,
            created_at=now,
        )
        if ask.request_id is None:
            return await self._submit(request, announce)
        bound_as = f"{caller}/{ask.request_id}" if caller else ask.request_id
        binding = Binding(
            job_id=request.job_id,
            digest=_digest(request),
            instance_id=self._fabric.instance_id,
        )
        bound, held = await self._engine.placing.bind(request, bound_as, binding)
        if bound.job_id != request.job_id:
            return await self._repeat(request, bound_as, bound, binding.digest, announce)
        try:
            return await self._submit(request, announce, held)
        except (NoNodeError, UnavailableError):
            self._engine.background.spawn(self._unbind(bound_as, request.job_id))
            raise

    async def get_job(self, job_id: str) -> NodeJob:
        """Find a job. Raise 404."""
        job = await self._fabric.jobs.find(job_id)
        if job is None:
            raise NotFoundError(f"there is no node job {job_id[:64]!r}, or it was forgotten")
        return job

    async def cancel_job(
        self, job_id: str, session_id: str | None = None, reason: str = ""
    ) -> NodeJob:
        """End a job. A session may end its own only. Raise 404, or 409 ILLEGAL_TRANSITION if it
        has ended."""
        self.check_served()
        job = await self.get_job(job_id)
        if session_id is not None and job.request.session_id != session_id:
            raise NotFoundError(f"this session has no job {job_id[:64]!r}")
        if job.has_ended:
            raise NODE_JOB.refuse(job.state, "FINISHED")
        if not await self._engine.cancel_here(job_id, reason):
            if job.home == self._fabric.instance_id:
                raise ConflictError(
                    "the job is ending at this moment", current={"state": job.state}
                )
            message = Cancel(job_id=job_id, reason=reason)
            if await self._engine.courier.tell(job.home, message) != "sent":
                raise DependencyDownError("the instance in charge of the job cannot be reached")
        return await self.get_job(job_id)

    async def _submit(
        self, request: JobRequest, announce: Announce, held: NodeRecord | None = None
    ) -> JobCreated:
        made: list[JobCreated] = []

        def tell(state: str) -> None:
            made.append(self._created(request, state, is_repeat=False))
            announce(made[0])

        await self._engine.home.submit(request, tell, held)
        return made[0]

    async def _repeat(
        self, request: JobRequest, bound_as: str, bound: Binding, digest: str, announce: Announce
    ) -> JobCreated:
        """The request was made before, here or elsewhere, perhaps this very moment."""
        if bound.digest != digest:
            raise ConflictError(
                "this request_id stands for another request",
                code="IDEMPOTENCY_MISMATCH",
                current={"job_id": bound.job_id},
            )
        first = _with_id(request, bound.job_id)
        job = await self._find_soon(bound.job_id)
        if job is None and await self._fabric.requests.lock(bound_as, _LOCK_US):
            return await self._submit(first, announce)  # whoever bound it never made the job
        state = "CREATED" if job is None else job.state
        created = self._created(first, state, is_repeat=True)
        announce(created)
        if job is not None and job.outcome is not None:
            frame = result_frame(first, job.attempt, job.outcome)
            await self._engine.sessions.push(request.session_id, frame)
        return created

    async def _find_soon(self, job_id: str) -> NodeJob | None:
        clock = self._engine.clock
        give_up_mono = clock.monotonic() + _RECORD_WITHIN_US
        while True:
            job = await self._fabric.jobs.find(job_id)
            if job is not None or clock.monotonic() >= give_up_mono:
                return job
            await clock.sleep_until(clock.now() + _LOOK_EVERY_US)

    async def _unbind(self, bound_as: str, job_id: str) -> None:
        await self._fabric.requests.unbind_if(bound_as, job_id)

    def _created(self, request: JobRequest, state: str, is_repeat: bool) -> JobCreated:
        return JobCreated(
            request_id=request.request_id,
            job_id=request.job_id,
            state=state,
            durable=self._fabric.durable,
            is_repeat=is_repeat,
        )


def _digest(request: JobRequest) -> str:
    """What makes two requests the same one."""
    text = "\n".join(
        (
            request.model,
            repr(sorted(request.labels.items())),
            str(request.priority),
            str(request.wait_us),
            str(request.timeout_us),
        )
    )
    made = hashlib.blake2b(text.encode(), digest_size=12)
    made.update(bytes(request.payload))
    return made.hexdigest()


def _with_id(request: JobRequest, job_id: str) -> JobRequest:
    return JobRequest(
        job_id=job_id,
        model=request.model,
        request_id=request.request_id,
        session_id=request.session_id,
        labels=request.labels,
        priority=request.priority,
        payload=request.payload,
        wait_us=request.wait_us,
        timeout_us=request.timeout_us,
        trace_id=request.trace_id,
        caller=request.caller,
        created_at=request.created_at,
    )
