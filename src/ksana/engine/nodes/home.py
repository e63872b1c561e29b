"""The node jobs that this instance is in charge of: from the request to the outcome.

Whoever takes a request becomes the home of its job: it finds a node, watches the deadlines of each
attempt, tries another node, and tells the session. The record in the fabric is fenced by the
attempt, so that of a late result and a new attempt exactly one happens. Everything here can be
built again from the records by another instance (`adoption`).

A job is in `jobs` from its creation to its outcome. `watch` calls back when an attempt is overdue,
and when a slot may be free for a job that waits. `endings` is about the outcome.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ksana.base.errors import ConflictError, UnavailableError
from ksana.base.instant import SECOND, Instant
from ksana.domain.nodes.attempts import (
    Again,
    AttemptTimes,
    FailureKind,
    decide_after_failure,
    next_deadline,
)
from ksana.domain.nodes.choice import Choice, Wanted
from ksana.domain.nodes.frames import JobUpdate
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import (
    JobError,
    JobOutcome,
    JobRequest,
    NodeJob,
    NodeRecord,
)
from ksana.domain.nodes.waiting import WaitingJob
from ksana.engine.nodes.dispatching import Dispatching
from ksana.engine.nodes.endings import HomeParts, JobEndings
from ksana.engine.nodes.job_watch import HomeJob, HomeJobTable, JobWatch, times_of
from ksana.ports.inbox import SendResult

NO_NODE: Final = "NO_AVAILABLE_NODE"

_LOOK_AGAIN: Final = SECOND
_AT_ONCE: Final = 64
_BLIND_US: Final = 3 * SECOND
"""So long after the fabric was away no attempt is overdue: what was to be told of it is still on
its way."""


class NoNodeError(ConflictError):
    """No node can take the job, and it does not wait."""

    default_code = NO_NODE


class HomeJobs:
    """The jobs, their deadlines and their line."""

    def __init__(self, parts: HomeParts) -> None:
        self._fabric, self._clock, self._courier, self._placing = parts[:4]
        self._sessions, self._notes, self._background, self._settings = parts[4:]
        fabric, clock = self._fabric, self._clock
        self._dispatching = Dispatching(fabric, clock, self._courier, self._settings)
        self.jobs = HomeJobTable()
        self.watch = JobWatch(clock, self._background, self)
        self.endings = JobEndings(parts, self.jobs, self.watch, self.resume)
        fabric.signals.subscribe("nodes.free", lambda _: self.watch.offer.signal())

    # ---- a new job ----

    def check_room(self, payload_bytes: int) -> None:
        """Raise 409 QUEUE_FULL if we are in charge of as much as we may be."""
        settings = self._settings
        if len(self.jobs) >= settings.max_jobs:
            raise ConflictError(
                f"{len(self.jobs)} node jobs have not ended on this instance, the most it takes",
                code="QUEUE_FULL",
                current={"jobs": len(self.jobs)},
            )
        if self.jobs.payload_bytes + payload_bytes > settings.max_job_bytes:
            raise ConflictError(
                "the payloads of the node jobs that have not ended take "
                f"{self.jobs.payload_bytes} bytes on this instance, and more do not fit",
                code="QUEUE_FULL",
                current={"payload_bytes": self.jobs.payload_bytes},
            )

    async def submit(
        self, request: JobRequest, announce: Callable[[str], None], held: NodeRecord | None = None
    ) -> str:
        """Take a new job: to a node at once, or in line if it may wait. A slot of `held` is held
        for it already. `announce` is called with the state before anything can happen to it.
        Answers the state. Raise NoNodeError."""
        now = self._clock.now()
        job = HomeJob(request, now + request.wait_us)
        choice = Choice(node=held)
        if held is None:
            choice = await self._placing.reserve(request, ())
        if choice.node is not None:
            return await self._submit_to(choice.node, job, announce)
        if request.wait_us <= 0:
            reason = choice.message(request.model)
            self._notes.refused(request, reason)
            raise NoNodeError(reason, current=dict(choice.obstacles))
        await self._fabric.jobs.create(
            request, self._fabric.instance_id, self._dispatching.life(job)
        )
        self.jobs[request.job_id] = job
        self._notes.created(request)
        announce("CREATED")
        self._wait(job, choice.message(request.model))
        return "CREATED"

    async def _submit_to(
        self, node: NodeRecord, job: HomeJob, announce: Callable[[str], None]
    ) -> str:
        request = job.request
        dispatch = self._dispatching.begin(job, node)
        # Known before it is written: the node may be faster than the answer.
        job.early = []
        self.jobs[request.job_id] = job
        try:
            created = await self._fabric.jobs.create(
                request,
                self._fabric.instance_id,
                self._dispatching.life(job),
                dispatch,
                self._dispatching.post(job),
            )
        except UnavailableError:
            del self.jobs[request.job_id]
            self._background.spawn(self._abandon(job))
            raise
        if not created.is_new:
            del self.jobs[request.job_id]
            self.endings.let_go(job, "another instance made the job")
            announce(created.state)
            return created.state
        self._notes.created(request)
        announce("DISPATCHED")
        await self._sent(job, created.sent)
        early, job.early = job.early, None
        for message in early:
            await self._courier.tell(self._fabric.instance_id, message)
        return "DISPATCHED"

    async def _abandon(self, job: HomeJob) -> None:
        """Whoever asked was told that there is no job; nobody knows how much of it there is."""
        self.endings.let_go(job, "the job could not be made")
        error = JobError(code="SCHEDULER_DEPENDENCY_DOWN", message="the job could not be made")
        await self.endings.write_off(job, JobOutcome(success=False, error=error))

    def _wait(self, job: HomeJob, reason: str) -> None:
        request = job.request
        wanted = Wanted(
            model=request.model,
            labels=request.labels,
            tried=job.progress.tried,
            key=request.job_id,
        )
        self.watch.wait(
            WaitingJob(
                job_id=request.job_id,
                priority=request.priority,
                until=job.wait_until,
                wanted=wanted,
            )
        )
        self._notes.waiting(request.job_id, reason, job.wait_until)

    async def _sent(self, job: HomeJob, result: SendResult | None) -> None:
        """The attempt is recorded, and sent to its node if that is elsewhere."""
        job_id, attempt = job.request.job_id, job.attempt
        self._notes.dispatched(job_id, attempt, job.node_id, self._dispatching.deadline(job))
        self.arm(job)
        if result is None:
            result = await self._courier.tell(job.instance_id, self._dispatching.assignment(job))
        if result != "sent":
            await self.fail(job_id, attempt, "INSTANCE_GONE")

    def take_in(self, record: NodeJob) -> HomeJob:
        """Take charge of a job that another instance had."""
        request = record.request
        job = HomeJob(request, request.created_at + request.wait_us)
        job.attempt, job.node_id, job.progress = record.attempt, record.node_id, record.progress
        job.times = times_of(record, self._clock.now())
        self.jobs[request.job_id] = job
        return job

    async def resume(self, job: HomeJob) -> None:
        """Find a node for a job that has none, or end it."""
        if await self._place(job):
            return
        if job.wait_until > self._clock.now():
            self._wait(job, "no node at the moment")
            return
        error = job.progress.last_error or JobError(code=NO_NODE, message="no node is free")
        await self.endings.end(job, JobOutcome(success=False, error=error))

    async def place_waiting(self, job_id: str) -> bool:
        """Send a job that waits to a node, if one is free. True too if it has ended."""
        job = self.jobs.get(job_id)
        if job is None or job.node_id:
            self.watch.line.remove(job_id)
            return True
        return await self._place(job)

    async def give_up_waiting(self, job_id: str) -> None:
        """Nothing became free in time."""
        job = self.jobs.get(job_id)
        if job is not None and not job.node_id:
            error = job.progress.last_error or JobError(
                code=NO_NODE, message="no node became free in time"
            )
            await self.endings.end(job, JobOutcome(success=False, error=error))

    async def hold_again(self) -> None:
        """The fabric lost its memory: hold the slots of the attempts that run."""
        held = [job for job in self.jobs.values() if job.node_id and not job.is_ending]
        for start in range(0, len(held), _AT_ONCE):
            part = held[start : start + _AT_ONCE]
            await asyncio.gather(*(self._placing.hold(job.request, job.node_id) for job in part))

    def node_gone(self, node_id: str) -> None:
        """A node left the view: what it had of our jobs goes to others."""
        for job_id, job in list(self.jobs.items()):
            if job.node_id == node_id:
                self._background.spawn(self.fail(job_id, job.attempt, "INSTANCE_GONE"))

    async def overdue(self, job_id: str, attempt: int) -> None:
        """A deadline passed: look which."""
        job = self.jobs.get(job_id)
        if job is None or job.attempt != attempt or not job.node_id:
            return
        at, kind = next_deadline(self._settings.limits, job.times, job.request.timeout_us)
        now = self._clock.now()
        if at > now:
            self.watch.arm(job_id, attempt, at)
            return
        # If the fabric is away the attempt stands, and is looked at again.
        self.watch.arm(job_id, attempt, now + _LOOK_AGAIN)
        if self._fabric.health().ok_us >= _BLIND_US:
            await self.fail(job_id, attempt, kind)

    def arm(self, job: HomeJob) -> None:
        """Watch the next deadline of the present attempt."""
        at, _ = next_deadline(self._settings.limits, job.times, job.request.timeout_us)
        self.watch.arm(job.request.job_id, job.attempt, at)

    async def _place(self, job: HomeJob) -> bool:
        """Send a CREATED job to a node, if there is one."""
        job_id = job.request.job_id
        choice = await self._placing.reserve(job.request, job.progress.tried)
        if choice.node is None:
            return False
        self.watch.line.remove(job_id)
        change = self._dispatching.begin(job, choice.node)
        try:
            moved, sent = await self._dispatching.write(job, change)
        except UnavailableError:
            # Nobody knows whether it was written, or sent: the deadline of the acknowledgement
            # finds out.
            self.arm(job)
            return True
        if moved.holds:
            await self._sent(job, sent)
        else:
            self.endings.let_go(job, "the job is not waiting any more")
            job.node_id = ""
            await self.endings.follow(job, moved)
        return True

    # ---- what happens to an attempt ----

    async def progressed(self, job_id: str, attempt: int, state: str, at: Instant) -> None:
        """The node acknowledged or started it."""
        job = self.jobs.get(job_id)
        if job is None or job.attempt != attempt:
            return
        times = job.times
        is_started = state == "RUNNING"
        job.times = AttemptTimes(
            dispatched_at=times.dispatched_at,
            acked_at=times.acked_at or at,
            started_at=at if is_started else times.started_at,
        )
        self.arm(job)
        await self._update(job, state)

    async def fail(
        self, job_id: str, attempt: int, kind: FailureKind, error: JobError | None = None
    ) -> None:
        """An attempt came to nothing: another one, or the end."""
        job = self.jobs.get(job_id)
        if job is None or job.attempt != attempt or not job.node_id:
            return
        if job.is_moving or job.is_ending:
            return
        decision = decide_after_failure(
            self._settings.limits, job.progress, job.node_id, kind, error
        )
        if not isinstance(decision, Again):
            await self.endings.end(job, JobOutcome(success=False, error=decision.error), kind)
            return
        job.is_moving = True
        try:
            change = NodeJobChange(
                name="again",
                attempt=attempt,
                keep_us=self._dispatching.life(job),
                progress=decision.progress,
            )
            moved = await self._fabric.jobs.move(job_id, change)
            if moved.result not in ("moved", "missing"):  # missing: wiped; it is written anew
                await self.endings.follow(job, moved)
                return
            error = decision.progress.last_error
            self._notes.retried(job_id, job.attempt, job.node_id, kind, error)
            self.endings.let_go(job, kind)
            job.attempt, job.node_id, job.progress = attempt + 1, "", decision.progress
        finally:
            job.is_moving = False
        await self._update(job, "CREATED", kind)
        await self.resume(job)

    async def _update(self, job: HomeJob, state: str, reason: str = "") -> None:
        frame = JobUpdate(
            job_id=job.request.job_id,
            state=state,
            attempt_id=job.attempt,
            request_id=job.request.request_id,
            node_id=job.node_id,
            reason=reason,
        )
        await self._sessions.push(job.request.session_id, frame)
