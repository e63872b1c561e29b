"""How a node job ends: its outcome is recorded, its slot given back, its session told.

The home instance records the outcome, fenced by the attempt and the node, before it tells anybody.
Of a late result, a new attempt and a cancel exactly one happens to the record, and the others
follow it. Whatever waits for a fabric that is away waits here, in memory; a home that dies
meanwhile has heirs who begin the attempt anew.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.domain.handover import pick_handed_over
from ksana.domain.nodes.messages import Finished, Withdraw
from ksana.domain.nodes.moves import Moved, NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, JobRequest, NodeJob
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.job_notes import JobNotes
from ksana.engine.nodes.job_watch import HomeJob, HomeJobTable, JobWatch, RecentIds
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.placing import Placing
from ksana.engine.nodes.results import result_frame
from ksana.engine.nodes.sessions import Sessions
from ksana.ports.fabric import Fabric, JobEnd

_AGAIN_US: Final = 250 * MILLISECOND
_WITHIN_US: Final = 60 * SECOND
"""How long an outcome waits for a fabric that is away."""

_HINT_EVERY_US: Final = 10 * MILLISECOND
"""How often other instances are told that a slot is free: many of one name are one."""

_STRIKE_AT: Final = 64
"""Ended jobs are taken off the list of their home together: so many at a time, or with the next
refresh of the view."""


class HomeParts(NamedTuple):
    """What those in charge of jobs work with."""

    fabric: Fabric
    clock: Clock
    courier: Courier
    placing: Placing
    sessions: Sessions
    notes: JobNotes
    background: Background
    settings: NodeParameters


class JobEndings:
    """The end of the jobs in our charge. `resume` finds a node for a job that has none."""

    def __init__(
        self,
        parts: HomeParts,
        jobs: HomeJobTable,
        watch: JobWatch,
        resume: Callable[[HomeJob], Awaitable[None]],
    ) -> None:
        self._fabric, self._clock, self._courier, self._placing = parts[:4]
        self._sessions, self._notes, self._background, self._settings = parts[4:]
        self._jobs = jobs
        self._watch = watch
        self._resume = resume
        self._told = RecentIds()
        self._ended: list[str] = []
        self._hinted_mono = self._clock.monotonic() - _HINT_EVERY_US
        self._is_hint_due = False
        self.stale = 0
        self.on_handed_over: Callable[[JobRequest, JobOutcome], None] = lambda _, __: None
        """A job that a run waits for has ended."""

    @property
    def has_ended(self) -> bool:
        """Whether records of ended jobs wait to be struck from our list."""
        return bool(self._ended)

    # ---- a node answered ----

    async def finished(self, messages: Sequence[Finished]) -> None:
        """Outcomes of attempts have come: record them and tell their sessions. Done when they are
        recorded, or will be as soon as the fabric is back."""
        ours: list[tuple[HomeJob, Finished]] = []
        for message in messages:
            job = self._jobs.get(message.request.job_id)
            if job is None:
                await self._finished_elsewhere(message)
            elif message.attempt < job.attempt:
                self.stale += 1
            else:
                job.is_ending = True  # its deadlines do not matter any more
                ours.append((job, message))
        if not ours:
            return
        try:
            await self._conclude(ours)
        except UnavailableError:
            for job, message in ours:
                if self._sessions.is_here(job.request.session_id):
                    # Nobody else can take the job over meanwhile: work goes on without the fabric.
                    await self._tell(job, message)
            self._background.spawn(self._conclude_later(ours))

    async def _conclude(self, ours: Sequence[tuple[HomeJob, Finished]]) -> None:
        ends = [self._end_of(message) for _, message in ours]
        settled = await self._fabric.jobs.settle(ends, hint=self._is_hint_now())
        for (job, message), moved in zip(ours, settled, strict=True):
            job.is_ending = False
            await self._concluded(job, message, moved)

    async def _concluded(self, job: HomeJob, message: Finished, moved: Moved) -> None:
        if moved.result in ("moved", "missing"):
            # missing: the fabric was wiped. We know the job, and its outcome is here.
            if message.node_id == job.node_id:
                self._placing.uncount(message.node_id)
            await self._tell(job, message)
            self._settled(job.request.job_id, message.attempt, message.node_id, moved)
            return
        if moved.result != "repeat":
            self.stale += 1
        await self.follow(job, moved)

    async def _conclude_later(self, ours: Sequence[tuple[HomeJob, Finished]]) -> None:
        give_up_mono = self._clock.monotonic() + _WITHIN_US
        while self._clock.monotonic() < give_up_mono:
            await self._clock.sleep_until(self._clock.now() + _AGAIN_US)
            left = [one for one in ours if one[0].is_ending]
            try:
                if left:
                    await self._conclude(left)
            except UnavailableError:
                continue
            return
        # It cannot be recorded. Whoever asked should have it nevertheless.
        for job, message in ours:
            if job.is_ending:
                job.is_ending = False
                await self._tell(job, message)

    async def _tell(self, job: HomeJob, message: Finished) -> None:
        await self.deliver(job.request, message.attempt, message.node_id, message.outcome)

    async def _finished_elsewhere(self, message: Finished) -> None:
        """A result of a job that is not ours (any more): told before, or read from the inbox of a
        dead instance."""
        request = message.request
        record = await self._fabric.jobs.find(request.job_id)
        if record is None:
            return
        if record.outcome is not None:
            if record.home != self._fabric.instance_id:
                await self.deliver(request, record.attempt, record.node_id, record.outcome)
            return
        living = {one.instance_id for one in await self._fabric.presence.list_living()}
        if record.home in living and record.home != self._fabric.instance_id:
            await self._courier.tell(record.home, message)
            return
        (moved,) = await self._fabric.jobs.settle([self._end_of(message)])
        if moved.result == "moved":
            await self.deliver(request, message.attempt, message.node_id, message.outcome)
            self._settled(request.job_id, message.attempt, message.node_id, moved)

    # ---- we end it ----

    async def end(self, job: HomeJob, outcome: JobOutcome, reason: str = "") -> bool:
        """End a job from here: failed, or canceled. False if it ended otherwise meanwhile."""
        job_id, node_id = job.request.job_id, job.node_id
        self._watch.line.remove(job_id)
        end = JobEnd(job_id=job_id, node_id=node_id, change=self._finish(job.attempt, outcome))
        (moved,) = await self._fabric.jobs.settle([end], hint=self._is_hint_now())
        if moved.result not in ("moved", "missing"):
            await self.follow(job, moved)
            return False
        if node_id:
            self._placing.uncount(node_id)
            self.withdraw(job, reason or "the job has ended")
        await self.deliver(job.request, job.attempt, node_id, outcome)
        self._settled(job_id, job.attempt, node_id, moved)
        return True

    async def write_off(self, job: HomeJob, outcome: JobOutcome) -> None:
        """End what may be there of a job that nobody asks for any more, as soon as the fabric is
        back. Nobody is told."""
        job_id, change = job.request.job_id, self._finish(job.attempt, outcome)
        end = JobEnd(job_id=job_id, node_id=job.node_id, change=change)
        give_up_mono = self._clock.monotonic() + _WITHIN_US
        while self._clock.monotonic() < give_up_mono:
            try:
                await self._fabric.jobs.settle([end])
            except UnavailableError:
                await self._clock.sleep_until(self._clock.now() + _AGAIN_US)
                continue
            self._ended.append(job_id)
            return

    def let_go(self, job: HomeJob, reason: str) -> None:
        """Give the slot back, and tell the node that nobody waits for it."""
        if job.node_id:
            self.withdraw(job, reason)
            self._background.spawn(self._free(job.node_id, job.request.job_id))

    async def _free(self, node_id: str, job_id: str) -> None:
        await self._placing.release(node_id, job_id)
        self._fabric.signals.publish("nodes.free")

    def withdraw(self, job: HomeJob, reason: str) -> None:
        """Tell the node that nobody waits for this attempt any more."""
        message = Withdraw(
            node_id=job.node_id, job_id=job.request.job_id, attempt=job.attempt, reason=reason
        )
        self._background.spawn(self._courier.tell(job.instance_id, message))

    async def deliver(
        self, request: JobRequest, attempt: int, node_id: str, outcome: JobOutcome
    ) -> None:
        """The outcome is recorded: tell the session, once, and forget the job."""
        self._jobs.pop(request.job_id, None)
        if not self._told.add(request.job_id):
            return
        self._watch.line.remove(request.job_id)
        self._notes.finished(request.job_id, attempt, node_id, outcome)
        if pick_handed_over((request.job_id,)):
            self.on_handed_over(request, outcome)
        frame = result_frame(request, attempt, outcome)
        await self._sessions.push(request.session_id, frame, keep=True)
        self._watch.offer.signal()

    async def follow(self, job: HomeJob, moved: Moved) -> None:
        """A change did not happen because the record stands elsewhere than we thought: an answer
        was lost on the way, or somebody else moved it. The record is right."""
        job_id = job.request.job_id
        record = await self._fabric.jobs.find(job_id)
        if record is not None and record.outcome is not None:
            if job_id in self._jobs:
                self.let_go(job, "the job has ended")
                await self.deliver(job.request, record.attempt, record.node_id, record.outcome)
        elif record is None:
            error = JobError(code="JOB_LOST", message="the record of the job was lost")
            self.let_go(job, "the job was lost")
            await self.deliver(
                job.request, job.attempt, job.node_id, JobOutcome(success=False, error=error)
            )
        elif record.home != self._fabric.instance_id:
            self._jobs.pop(job_id, None)  # another instance is in charge of it by now
        elif job_id in self._jobs and _differs(job, record):
            log.info("a job stands elsewhere than thought", job_id=job_id, result=moved.result)
            self.let_go(job, "another attempt is made")
            job.attempt, job.node_id = record.attempt, record.node_id
            job.progress = record.progress
            if not job.node_id:
                await self._resume(job)

    # ---- afterwards ----

    async def strike(self) -> None:
        """Take what has ended off our list, so that nobody who inherits it tells it again."""
        ended, self._ended = self._ended, []
        try:
            await self._fabric.jobs.strike_homed(self._fabric.instance_id, ended)
        except UnavailableError:
            self._ended += ended
            raise

    async def release_record(self, job_id: str, attempt: int) -> None:
        """FINISHED → RELEASED, once the reservation is gone."""
        change = NodeJobChange(name="release", attempt=attempt, keep_us=self._settings.keep_us)
        moved = await self._fabric.jobs.move(job_id, change)
        if moved.result == "moved":
            self._notes.released(job_id, attempt)

    def _settled(self, job_id: str, attempt: int, node_id: str, moved: Moved) -> None:
        """Do what `settle` left undone."""
        if moved.state == "RELEASED":
            self._notes.released(job_id, attempt)
            self._ended.append(job_id)
            if len(self._ended) >= _STRIKE_AT:
                self._background.spawn(self.strike())
        else:
            self._background.spawn(self._release(job_id, attempt, node_id, moved))

    async def _release(self, job_id: str, attempt: int, node_id: str, moved: Moved) -> None:
        if node_id:
            await self._placing.free(node_id, job_id)
            self._fabric.signals.publish("nodes.free")
        if moved.result != "missing":
            await self.release_record(job_id, attempt)
        else:
            self._ended.append(job_id)

    def _end_of(self, message: Finished) -> JobEnd:
        change = self._finish(message.attempt, message.outcome, message.node_id)
        return JobEnd(job_id=message.request.job_id, node_id=message.node_id, change=change)

    def _finish(self, attempt: int, outcome: JobOutcome, node_id: str = "") -> NodeJobChange:
        return NodeJobChange(
            name="finish",
            attempt=attempt,
            node_id=node_id,
            keep_us=self._settings.keep_us,
            outcome=outcome,
        )

    def _is_hint_now(self) -> bool:
        """Whether `nodes.free` goes along now. If not, it follows a moment later: a hint that is
        swallowed would leave somebody waiting for the next reading of the view."""
        now = self._clock.monotonic()
        rest_us = self._hinted_mono + _HINT_EVERY_US - now
        if rest_us <= 0:
            self._hinted_mono = now
            self._is_hint_due = False
            return True
        if not self._is_hint_due:
            self._is_hint_due = True
            self._background.spawn(self._hint_later(rest_us))
        return False

    async def _hint_later(self, rest_us: Micros) -> None:
        await self._clock.sleep_until(self._clock.now() + rest_us)
        if self._is_hint_due:
            self._is_hint_due = False
            self._hinted_mono = self._clock.monotonic()
            self._fabric.signals.publish("nodes.free")


def _differs(job: HomeJob, record: NodeJob) -> bool:
    return (job.attempt, job.node_id) != (record.attempt, record.node_id)
