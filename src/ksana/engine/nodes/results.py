"""Writes results of attempts and tells the home instance.

Recorded first, told afterwards. If telling fails the result is not lost: the home instance finds it
in the record when the attempt is overdue. While the fabric is away a result waits here.
"""

from typing import Final

import structlog

from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.nodes.frames import SessionResult
from ksana.domain.nodes.messages import Failed, Finished, Message
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, JobRequest
from ksana.engine.nodes.assignments import Assignment
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.recorder import EventRecorder
from ksana.engine.nodes.sessions import Sessions
from ksana.ports.fabric import Fabric

_AGAIN_US: Final = 250 * MILLISECOND
_WITHIN_US: Final = 60 * SECOND
"""How long a result waits for a fabric that is away, or for a full inbox."""

_log = structlog.get_logger("ksana.nodes")


def result_frame(request: JobRequest, attempt: int, outcome: JobOutcome) -> SessionResult:
    """The end of a job as its session sees it."""
    return SessionResult(
        job_id=request.job_id,
        attempt_id=attempt,
        success=outcome.success,
        request_id=request.request_id,
        data=outcome.data,
        error=outcome.error,
    )


class ResultWriter:
    """From a node's answer to the home instance."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Clock,
        courier: Courier,
        sessions: Sessions,
        recorder: EventRecorder,
        background: Background,
        settings: NodeParameters,
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._sessions = sessions
        self._recorder = recorder
        self._background = background
        self._settings = settings
        self.stale = 0

    async def finish(self, node_id: str, assignment: Assignment, outcome: JobOutcome) -> None:
        """Record the outcome of an attempt and tell its home, now or as soon as it can be."""
        if not await self._try_finish(node_id, assignment, outcome):
            self._background.spawn(self._finish_later(node_id, assignment, outcome))

    async def tell_failed(
        self, node_id: str, assignment: Assignment, reason: str, error: JobError | None
    ) -> None:
        """Tell the home instance that an attempt came to nothing."""
        message = Failed(
            job_id=assignment.request.job_id,
            attempt=assignment.attempt,
            node_id=node_id,
            reason=reason,
            error=error,
        )
        await self.tell(assignment.home, message)

    async def tell(self, home: str, message: Message) -> bool:
        """Tell the home instance. One that cannot be told finds out by its deadlines, and one that
        is gone has heirs who read the record."""
        try:
            result = await self._courier.tell(home, message)
        except UnavailableError as error:
            _log.warning("a home instance could not be told", instance=home, err=str(error))
            return False
        if result != "sent":
            _log.warning("a home instance could not be told", instance=home, err=result)
        return result == "sent"

    async def _try_finish(self, node_id: str, assignment: Assignment, outcome: JobOutcome) -> bool:
        job_id = assignment.request.job_id
        change = NodeJobChange(
            name="finish",
            attempt=assignment.attempt,
            node_id=node_id,
            keep_us=self._settings.keep_us,
            outcome=outcome,
        )
        try:
            moved = await self._fabric.jobs.move(job_id, change)
        except UnavailableError:
            return False
        if moved.result in ("stale", "illegal"):
            self.stale += 1
            self._background.spawn(self._release_slot(node_id, job_id))
            return True
        # missing: the fabric was wiped. The home instance knows the job, and decides.
        is_recorded = moved.result != "missing"
        if await self._tell_finished(node_id, assignment, outcome):
            self._background.spawn(self._release(node_id, assignment, is_recorded))
        else:
            self._background.spawn(self._tell_later(node_id, assignment, outcome, is_recorded))
        return True

    async def _finish_later(
        self, node_id: str, assignment: Assignment, outcome: JobOutcome
    ) -> None:
        give_up_mono = self._clock.monotonic() + _WITHIN_US
        while self._clock.monotonic() < give_up_mono:
            await self._pause()
            if await self._try_finish(node_id, assignment, outcome):
                return
        if assignment.home == self._fabric.instance_id:
            await self._tell_finished(node_id, assignment, outcome)

    async def _tell_later(
        self, node_id: str, assignment: Assignment, outcome: JobOutcome, is_recorded: bool
    ) -> None:
        """The home is gone, or its inbox is full. The slot is free at once; the session is told
        by us if nobody else can."""
        await self._release_slot(node_id, assignment.request.job_id)
        give_up_mono = self._clock.monotonic() + _WITHIN_US
        while self._clock.monotonic() < give_up_mono:
            await self._pause()
            living = {one.instance_id for one in await self._fabric.presence.list_living()}
            if assignment.home not in living:
                break
            if await self._tell_finished(node_id, assignment, outcome):
                await self._release(node_id, assignment, is_recorded)
                return
        frame = result_frame(assignment.request, assignment.attempt, outcome)
        await self._sessions.push(assignment.request.session_id, frame, keep=True)
        await self._release(node_id, assignment, is_recorded)

    async def _tell_finished(
        self, node_id: str, assignment: Assignment, outcome: JobOutcome
    ) -> bool:
        message = Finished(
            request=assignment.request,
            attempt=assignment.attempt,
            node_id=node_id,
            outcome=outcome,
        )
        return await self.tell(assignment.home, message)

    async def _release(self, node_id: str, assignment: Assignment, is_recorded: bool) -> None:
        job_id = assignment.request.job_id
        await self._release_slot(node_id, job_id)
        if is_recorded:
            await self.release_record(job_id, assignment.attempt)

    async def release_record(self, job_id: str, attempt: int) -> None:
        """FINISHED → RELEASED, once the reservation is gone."""
        change = NodeJobChange(name="release", attempt=attempt, keep_us=self._settings.keep_us)
        moved = await self._fabric.jobs.move(job_id, change)
        if moved.result == "moved":
            self._recorder.note("NODE_JOB", job_id, "NODE_JOB_RELEASED", {"attempt": attempt})

    async def _release_slot(self, node_id: str, job_id: str) -> None:
        await self._fabric.reservations.release(node_id, job_id)

    async def _pause(self) -> None:
        await self._clock.sleep_until(self._clock.now() + _AGAIN_US)
