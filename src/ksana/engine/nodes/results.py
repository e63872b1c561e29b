"""Tells the home instance what came of an attempt.

The home records it and tells the session (`endings`). A result that cannot be told now waits here:
while the fabric is away, while the inbox of the home is full, and until somebody has taken over
from a home that is gone.
"""

from typing import Final

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.nodes.frames import SessionResult
from ksana.domain.nodes.messages import Failed, Finished, Message
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, JobRequest, empty_object
from ksana.engine.nodes.assignments import Assignment
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.sessions import Sessions
from ksana.ports.fabric import Fabric, JobEnd

_AGAIN_US: Final = 250 * MILLISECOND
_WITHIN_US: Final = 60 * SECOND
"""How long a result waits for a fabric that is away, or for a home that takes it."""


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
        background: Background,
        settings: NodeParameters,
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._sessions = sessions
        self._background = background
        self._settings = settings

    async def finish(self, node_id: str, assignment: Assignment, outcome: JobOutcome) -> None:
        """Tell the home of an attempt its outcome, now or as soon as it can be."""
        message = Finished(
            # Its home has the payload, and nobody else needs it any more.
            request=msgspec.structs.replace(assignment.request, payload=empty_object()),
            attempt=assignment.attempt,
            node_id=node_id,
            outcome=outcome,
        )
        if not await self.tell(assignment.home, message):
            self._background.spawn(self._tell_later(assignment.home, message))

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
            log.warning("a home instance could not be told", instance=home, err=str(error))
            return False
        if result != "sent":
            log.warning("a home instance could not be told", instance=home, err=result)
        return result == "sent"

    async def _tell_later(self, home: str, message: Finished) -> None:
        """Until it is told, to whoever is in charge of the job then. After a wipe its inbox is
        there again within a second, and only the home itself knows the job."""
        job_id = message.request.job_id
        give_up_mono = self._clock.monotonic() + _WITHIN_US
        while self._clock.monotonic() < give_up_mono:
            await self._clock.sleep_until(self._clock.now() + _AGAIN_US)
            try:
                record = await self._fabric.jobs.find(job_id)
            except UnavailableError:
                continue
            if record is not None:
                if record.has_ended:
                    return
                home = record.home
            if await self.tell(home, message):
                return
        await self._conclude_here(message)

    async def _conclude_here(self, message: Finished) -> None:
        """Nobody takes it. The outcome is recorded, and the session told, by us."""
        request, attempt, node_id = message.request, message.attempt, message.node_id
        change = NodeJobChange(
            name="finish",
            attempt=attempt,
            node_id=node_id,
            keep_us=self._settings.keep_us,
            outcome=message.outcome,
        )
        end = JobEnd(job_id=request.job_id, node_id=node_id, change=change)
        (moved,) = await self._fabric.jobs.settle([end])
        await self._fabric.reservations.release(node_id, request.job_id)
        if moved.result in ("moved", "missing"):
            frame = result_frame(request, attempt, message.outcome)
            await self._sessions.push(request.session_id, frame, keep=True)
