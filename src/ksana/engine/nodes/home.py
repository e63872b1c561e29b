"""The node jobs that this instance is in charge of: from the request to the outcome.

Whoever takes a request becomes the home of its job: it finds a node, watches the deadlines of each
attempt, tries another node, and tells the session. The record in the fabric is fenced by the
attempt, so that of a late result and a new attempt exactly one happens. Everything here can be
built again from the records by another instance (`adoption`).

A job is in `jobs` from its creation to its outcome. `watch` calls back when an attempt is overdue,
and when a slot may be free for a job that waits.
"""

from collections.abc import Callable
from typing import Final

import structlog

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError, UnavailableError
from ksana.base.instant import SECOND, Instant
from ksana.domain.nodes.attempts import (
    Again,
    AttemptTimes,
    FailureKind,
    decide_after_failure,
    next_deadline,
    result_deadline,
)
from ksana.domain.nodes.choice import Wanted
from ksana.domain.nodes.frames import JobUpdate
from ksana.domain.nodes.messages import Assign, Withdraw
from ksana.domain.nodes.moves import Moved, MoveName, NodeJobChange
from ksana.domain.nodes.records import (
    JobError,
    JobOutcome,
    JobProgress,
    JobRequest,
    NodeJob,
    NodeRecord,
)
from ksana.domain.nodes.waiting import WaitingJob
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.job_notes import JobNotes
from ksana.engine.nodes.job_watch import HomeJob, JobWatch, RecentIds, times_of
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.placing import Placing
from ksana.engine.nodes.results import ResultWriter, result_frame
from ksana.engine.nodes.sessions import Sessions
from ksana.ports.fabric import Fabric

NO_NODE: Final = "NO_AVAILABLE_NODE"

_LOOK_AGAIN: Final = SECOND

_log = structlog.get_logger("ksana.nodes")


class NoNodeError(ConflictError):
    """No node can take the job, and it does not wait."""

    default_code = NO_NODE


class HomeJobs:
    """The jobs, their deadlines and their line."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Clock,
        courier: Courier,
        placing: Placing,
        sessions: Sessions,
        results: ResultWriter,
        notes: JobNotes,
        background: Background,
        settings: NodeParameters,
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._placing = placing
        self._sessions = sessions
        self._results = results
        self._notes = notes
        self._background = background
        self._settings = settings
        self.jobs: dict[str, HomeJob] = {}
        self._told = RecentIds()
        self.watch = JobWatch(clock, background, self)
        fabric.signals.subscribe("nodes.free", lambda _: self.watch.offer.signal())

    # ---- a new job ----

    async def submit(self, request: JobRequest, announce: Callable[[str], None]) -> str:
        """Take a new job: to a node at once, or in line if it may wait. `announce` is called with
        the state before anything can happen to it. Answers the state. Raise NoNodeError."""
        now = self._clock.now()
        job = HomeJob(request, now + request.wait_us)
        choice = await self._placing.reserve(request, ())
        if choice.node is None:
            if request.wait_us <= 0:
                reason = choice.message(request.model)
                self._notes.refused(request, reason)
                raise NoNodeError(reason, current=dict(choice.obstacles))
            await self._fabric.jobs.create(request, self._fabric.instance_id, self._life(job))
            self._enter(job)
            announce("CREATED")
            self._wait(job, choice.message(request.model))
            return "CREATED"
        dispatch = self._dispatch(job, choice.node, now)
        try:
            created = await self._fabric.jobs.create(
                request, self._fabric.instance_id, self._life(job), dispatch
            )
        except UnavailableError:
            self._background.spawn(self._placing.release(job.node_id, request.job_id))
            raise
        if not created.is_new:
            self._background.spawn(self._placing.release(job.node_id, request.job_id))
            announce(created.state)
            return created.state
        self._enter(job)
        announce("DISPATCHED")
        await self._assign(job)
        return "DISPATCHED"

    def _enter(self, job: HomeJob) -> None:
        request = job.request
        self.jobs[request.job_id] = job
        self._notes.created(request)

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

    def _dispatch(self, job: HomeJob, node: NodeRecord, now: Instant) -> NodeJobChange:
        """Note the attempt, and make the change that records it."""
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
            keep_us=self._life(job),
            progress=job.progress,
        )

    async def _assign(self, job: HomeJob) -> None:
        """Send the attempt to its node."""
        request, attempt = job.request, job.attempt
        deadline_at = result_deadline(
            self._settings.limits, job.times.dispatched_at, request.timeout_us
        )
        self._notes.dispatched(request.job_id, attempt, job.node_id, deadline_at)
        self.arm(job)
        message = Assign(
            node_id=job.node_id,
            attempt=attempt,
            home=self._fabric.instance_id,
            deadline_at=deadline_at,
            request=request,
        )
        try:
            result = await self._courier.tell(job.instance_id, message)
        except UnavailableError:
            return  # nobody knows whether it was sent: the deadline of the acknowledgement decides
        if result != "sent":
            await self.fail(request.job_id, attempt, "INSTANCE_GONE")

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
        await self.end(job, JobOutcome(success=False, error=error))

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
            await self.end(job, JobOutcome(success=False, error=error))

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
        if at <= self._clock.now():
            # If the fabric is away the attempt stands, and is looked at again.
            self.watch.arm(job_id, attempt, self._clock.now() + _LOOK_AGAIN)
            await self.fail(job_id, attempt, kind)
        else:
            self.watch.arm(job_id, attempt, at)

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
        moved = await self._fabric.jobs.move(
            job_id, self._dispatch(job, choice.node, self._clock.now())
        )
        if moved.result != "moved":
            await self._placing.release(job.node_id, job_id)
            job.node_id = ""
            await self._resolve(job, moved)
            return True
        await self._assign(job)
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
        if job is None or job.attempt != attempt or not job.node_id or job.is_moving:
            return
        decision = decide_after_failure(
            self._settings.limits, job.progress, job.node_id, kind, error
        )
        if not isinstance(decision, Again):
            await self.end(job, JobOutcome(success=False, error=decision.error), kind)
            return
        job.is_moving = True
        try:
            change = self._change(job, "again", progress=decision.progress)
            moved = await self._fabric.jobs.move(job_id, change)
            if moved.result != "moved":
                await self._resolve(job, moved)
                return
            error = decision.progress.last_error
            self._notes.retried(job_id, job.attempt, job.node_id, kind, error)
            self._let_go(job, kind)
            job.attempt, job.node_id, job.progress = moved.attempt, "", decision.progress
        finally:
            job.is_moving = False
        await self._update(job, "CREATED", kind)
        await self.resume(job)

    async def end(self, job: HomeJob, outcome: JobOutcome, reason: str = "") -> bool:
        """End a job from here: failed, or canceled. False if it ended otherwise meanwhile."""
        job_id = job.request.job_id
        self.watch.line.remove(job_id)
        moved = await self._fabric.jobs.move(job_id, self._change(job, "finish", None, outcome))
        if moved.result not in ("moved", "missing"):
            await self._resolve(job, moved)
            return False
        self._let_go(job, reason or "the job has ended")
        await self.deliver(job.request, job.attempt, job.node_id, outcome)
        self._background.spawn(self._results.release_record(job_id, job.attempt))
        return True

    async def deliver(
        self, request: JobRequest, attempt: int, node_id: str, outcome: JobOutcome
    ) -> None:
        """The outcome is recorded: tell the session, once, and forget the job."""
        self.jobs.pop(request.job_id, None)
        if not self._told.add(request.job_id):
            return
        self.watch.line.remove(request.job_id)
        self._notes.finished(request.job_id, attempt, node_id, outcome)
        frame = result_frame(request, attempt, outcome)
        await self._sessions.push(request.session_id, frame, keep=True)
        self.watch.offer.signal()

    async def _resolve(self, job: HomeJob, moved: Moved) -> None:
        """A change did not happen because the record is further than we are: follow it."""
        job_id = job.request.job_id
        record = await self._fabric.jobs.find(job_id)
        if record is not None and record.outcome is not None:
            if job_id in self.jobs:
                self._let_go(job, "the job has ended")
                await self.deliver(job.request, record.attempt, record.node_id, record.outcome)
        elif record is None:
            error = JobError(code="JOB_LOST", message="the record of the job was lost")
            await self.deliver(
                job.request, job.attempt, job.node_id, JobOutcome(success=False, error=error)
            )
        elif record.home != self._fabric.instance_id:
            self.jobs.pop(job_id, None)  # another instance is in charge of it by now
        else:
            _log.warning("a job did not move", job_id=job_id, result=moved.result)

    def _let_go(self, job: HomeJob, reason: str) -> None:
        """Give the slot back, and tell the node that nobody waits for it."""
        if job.node_id:
            message = Withdraw(
                node_id=job.node_id,
                job_id=job.request.job_id,
                attempt=job.attempt,
                reason=reason,
            )
            self._background.spawn(self._courier.tell(job.instance_id, message))
            self._background.spawn(self._placing.release(job.node_id, job.request.job_id))

    def _change(
        self,
        job: HomeJob,
        name: MoveName,
        progress: JobProgress | None = None,
        outcome: JobOutcome | None = None,
    ) -> NodeJobChange:
        keep_us = self._settings.keep_us if outcome is not None else self._life(job)
        return NodeJobChange(
            name=name, attempt=job.attempt, keep_us=keep_us, progress=progress, outcome=outcome
        )

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

    def _life(self, job: HomeJob) -> int:
        """How long the record must live while the job has not ended."""
        limits = self._settings.limits
        each_us = job.request.timeout_us or limits.result_us
        return job.request.wait_us + limits.attempts * each_us + self._settings.keep_us
