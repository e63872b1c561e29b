"""The moving parts of the nodes surface, put together."""

from collections.abc import Sequence

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.domain.nodes.attempts import FailureKind
from ksana.domain.nodes.messages import Cancel, Failed, Finished, Progressed
from ksana.domain.nodes.records import InstanceInfo, JobError, JobOutcome
from ksana.engine.core.supervisor import Loop
from ksana.engine.nodes.adoption import Adoption
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.endings import HomeParts
from ksana.engine.nodes.home import HomeJobs
from ksana.engine.nodes.hosting import Hosting
from ksana.engine.nodes.job_notes import JobNotes
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import GOING_DOWN
from ksana.engine.nodes.placing import Placing
from ksana.engine.nodes.recorder import EventRecorder
from ksana.engine.nodes.registration import Registration
from ksana.engine.nodes.results import ResultWriter
from ksana.engine.nodes.sessions import Sessions
from ksana.engine.nodes.upkeep import Upkeep
from ksana.engine.nodes.view import NodeView
from ksana.ports.fabric import Fabric
from ksana.ports.store import Store

_FAILURES: dict[str, FailureKind] = {
    "NODE_GONE": "NODE_GONE",
    "INSTANCE_GONE": "INSTANCE_GONE",
    "MODEL_NOT_AVAILABLE": "MODEL_NOT_AVAILABLE",
}


class NodesEngine:
    """One instance's share of all nodes and node jobs."""

    def __init__(
        self,
        fabric: Fabric,
        store: Store,
        clock: Clock,
        info: InstanceInfo,
        settings: NodeParameters | None = None,
    ) -> None:
        settings = settings or NodeParameters()
        self.settings = settings
        self.fabric = fabric
        self.clock = clock
        self.view = NodeView()
        self.background = Background()
        self.recorder = EventRecorder(store, clock)
        self.notes = JobNotes(self.recorder)
        self.courier = Courier(fabric, clock, settings)
        self.sessions = Sessions(fabric, clock, self.courier, settings)
        self.results = ResultWriter(
            fabric,
            clock,
            self.courier,
            self.sessions,
            self.background,
            settings,
        )
        self.hosting = Hosting(
            fabric,
            clock,
            self.courier,
            self.view,
            self.recorder,
            self.results,
            self.background,
            settings,
        )
        self.placing = Placing(fabric, clock, self.view, self.background, settings)
        self.home = HomeJobs(
            HomeParts(
                fabric,
                clock,
                self.courier,
                self.placing,
                self.sessions,
                self.notes,
                self.background,
                settings,
            )
        )
        self._add_upkeep(info)
        self.courier.on(Progressed, self._on_progressed)
        self.courier.on(Failed, self._on_failed)
        self.courier.on_many(Finished, self._on_finished)
        self.courier.on(Cancel, self._on_cancel)
        self.is_closing = False

    def _add_upkeep(self, info: InstanceInfo) -> None:
        fabric, clock, parameters = self.fabric, self.clock, self.settings
        self.registration = Registration(
            fabric,
            clock,
            self.courier,
            self.hosting,
            self.recorder,
            self.background,
            parameters,
        )
        self.upkeep = Upkeep(
            fabric, clock, info, self.hosting, self.sessions, self.home, self.view, parameters
        )
        self.adoption = Adoption(
            fabric,
            clock,
            self.courier,
            self.home,
            self.view,
            parameters,
            self.upkeep.can_judge,
        )

    def loops(self) -> tuple[Loop, ...]:
        """Everything that runs, in the order of its start."""
        pumps = (
            self.recorder.pump,
            self.upkeep.life,
            self.upkeep.view,
            self.upkeep.silence,
            self.home.watch.deadlines,
            self.home.watch.offer,
            self.hosting.progress,
            self.courier.chores,
            self.adoption.pump,
        )
        return (
            *(Loop(pump.name, pump.run) for pump in pumps),
            Loop("node-inbox", self.courier.read),
        )

    async def drain(self) -> None:
        """Take no more work; wait for the jobs that run here. Cancelled when the grace is over."""
        self.is_closing = True
        while self.home.jobs or any(hosted.assigned for hosted in self.hosting.nodes.values()):
            await self.clock.sleep_until(self.clock.now() + 50_000)

    async def close(self) -> None:
        """Close the sockets and say that we are gone, so that others need not wait to find out."""
        self.is_closing = True
        for hosted in list(self.hosting.nodes.values()):
            hosted.peer.close(GOING_DOWN, "GOING_DOWN")
            await self.hosting.leave(hosted)
        for session_id, peer in list(self.sessions.local.items()):
            peer.close(GOING_DOWN, "GOING_DOWN")
            try:
                await self.sessions.leave(session_id, peer)
            except UnavailableError as error:
                log.warning("a session could not be given up", err=str(error))
        await self.background.close()
        try:
            await self.sessions.roll.write()
            await self.fabric.presence.withdraw()
            await self.recorder.flush()
        except UnavailableError as error:
            log.warning("the end of this instance could not be told", err=str(error))

    # ---- messages to the home of a job ----

    async def _on_progressed(self, message: Progressed) -> None:
        if not self._is_early(message.job_id, message):
            await self.home.progressed(message.job_id, message.attempt, message.state, message.at)

    async def _on_failed(self, message: Failed) -> None:
        if not self._is_early(message.job_id, message):
            kind = _FAILURES.get(message.reason, "JOB_FAILED")
            await self.home.fail(message.job_id, message.attempt, kind, message.error)

    async def _on_finished(self, messages: Sequence[Finished]) -> None:
        await self.home.endings.finished(
            [one for one in messages if not self._is_early(one.request.job_id, one)]
        )

    def _is_early(self, job_id: str, message: Progressed | Failed | Finished) -> bool:
        """Whether it is about a job that nobody has been told of yet. It is handled afterwards."""
        job = self.home.jobs.get(job_id)
        if job is None or job.early is None:
            return False
        job.early.append(message)
        return True

    async def _on_cancel(self, message: Cancel) -> None:
        await self.cancel_here(message.job_id, message.reason)

    async def cancel_here(self, job_id: str, reason: str) -> bool:
        """Cancel a job of ours. False if it is not here, or ended otherwise."""
        job = self.home.jobs.get(job_id)
        if job is None:
            return False
        error = JobError(code="CANCELED", message=reason or "the job was canceled")
        outcome = JobOutcome(success=False, error=error, finished_at=self.clock.now())
        return await self.home.endings.end(job, outcome, "canceled")
