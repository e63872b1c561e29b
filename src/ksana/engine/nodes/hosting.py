"""The nodes connected to this instance, and the attempts they work on.

    home instance --Assign--> here --job_assign--> node
    home instance <--Progressed, Failed, Finished-- here <--job_ack, job_started, job_result-- node

A result goes to the home instance, which records it (`endings`). If this side dies before it is
told, the home instance tries another node.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import SECOND, Instant, format_instant
from ksana.domain.nodes import frames
from ksana.domain.nodes.messages import Assign, Progressed, Push, Rehome, Withdraw
from ksana.domain.nodes.moves import MoveName, NodeJobChange
from ksana.domain.nodes.records import JobOutcome, NodeRecord
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.assignments import Assignment, HostedNode
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import Peer
from ksana.engine.nodes.recorder import EventRecorder
from ksana.engine.nodes.results import ResultWriter
from ksana.engine.nodes.view import NodeView
from ksana.ports.fabric import Fabric

_AT_ONCE: Final = 64
"""Attempts told of at a time: they share round trips."""

MODEL_NOT_AVAILABLE: Final = "MODEL_NOT_AVAILABLE"


class Hosting:
    """What happens between this instance and its nodes."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Clock,
        courier: Courier,
        view: NodeView,
        recorder: EventRecorder,
        results: ResultWriter,
        background: Background,
        settings: NodeParameters,
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._view = view
        self._recorder = recorder
        self._results = results
        self._background = background
        self._settings = settings
        self.nodes: dict[str, HostedNode] = {}
        self.coming: set[str] = set()
        """Ids that are being registered."""
        self.changed: set[str] = set()
        """Nodes whose snapshot is to be written again."""
        self.on_enter: Callable[[], None] = lambda: None
        """A node came."""
        self.stale = 0
        self.partials_lost = 0
        self._untold: dict[tuple[str, str], Instant] = {}
        """Attempts (node, job) that got further, and when that is told; the soonest first."""
        self.progress = Pump("node-progress", clock, self._tell_progress, poll_us=30 * SECOND)
        courier.on(Assign, self._on_assign)
        courier.on(Withdraw, self._on_withdraw)
        courier.on(Rehome, self._on_rehome)

    # ---- nodes come and go ----

    def enter(self, record: NodeRecord, peer: Peer) -> HostedNode:
        """A node is registered here."""
        hosted = self.nodes[record.node_id] = HostedNode(record, peer)
        self._view.put(record)
        self.changed.add(record.node_id)
        self.on_enter()
        return hosted

    async def leave(self, hosted: HostedNode) -> None:
        """Its socket ended: what it worked on is for others."""
        hosted.peer.is_open = False
        node_id = hosted.record.node_id
        if self.nodes.get(node_id) is hosted:
            del self.nodes[node_id]
            self.changed.discard(node_id)
            self._view.remove(node_id)
            self._background.spawn(self._withdraw_node(node_id))
        for assignment in list(hosted.assigned.values()):
            if not assignment.is_ending:
                assignment.is_ending = True
                self._background.spawn(
                    self._results.tell_failed(node_id, assignment, "NODE_GONE", None)
                )
        hosted.assigned.clear()
        parked, hosted.parked = hosted.parked, {}
        for message in parked.values():
            self._background.spawn(self._tell_gone(message))

    async def _withdraw_node(self, node_id: str) -> None:
        """Give up the id of a node that left, unless it is back already: then the owner key is that
        of the new socket."""
        if node_id in self.coming or node_id in self.nodes:
            return
        await self._fabric.owners.drop_if_ours("node", node_id)
        if node_id not in self.coming and node_id not in self.nodes:
            await self._fabric.snapshots.withdraw([node_id])
        if node_id in self.nodes:
            self.changed.add(node_id)  # it came back meanwhile: write it again

    def heartbeat(self, hosted: HostedNode, frame: frames.NodeHeartbeat) -> None:
        """A node tells how it fares."""
        record = hosted.record
        models = record.models if frame.models is None else tuple(dict.fromkeys(frame.models))
        changed = msgspec.structs.replace(
            record, load=frame.load, models=models, seen_at=self._clock.now()
        )
        hosted.record = changed
        if self.nodes.get(record.node_id) is hosted:
            self._view.put(changed)
            self.changed.add(record.node_id)

    def set_draining(self, node_id: str, is_draining: bool) -> None:
        """A node of ours gets no more jobs, or gets jobs again."""
        hosted = self.nodes.get(node_id)
        if hosted is not None:
            hosted.record.is_draining = is_draining
            self.changed.add(node_id)

    # ---- from the home instance ----

    async def _on_assign(self, message: Assign) -> None:
        hosted = self.nodes.get(message.node_id)
        job_id = message.request.job_id
        if hosted is not None:
            known = hosted.assigned.get(job_id)
            if known is not None and known.attempt >= message.attempt:
                return  # the message came twice
            if known is None and hosted.is_full:
                parked = hosted.parked.get(job_id)
                if parked is None or parked.attempt < message.attempt:
                    hosted.parked[job_id] = message
                return
        if hosted is None or not self._hand_over(hosted, message):
            await self._tell_gone(message)

    def _hand_over(self, hosted: HostedNode, message: Assign) -> bool:
        """Give a job to its node; False if it cannot be reached. Nothing is waited for: a slot that
        was found free is taken before anybody else looks."""
        request = message.request
        frame = frames.JobAssign(
            job_id=request.job_id,
            attempt_id=message.attempt,
            model=request.model,
            deadline=format_instant(message.deadline_at),
            session_id=request.session_id,
            trace_id=request.trace_id,
            payload=request.payload,
        )
        if not hosted.peer.send(frame):
            return False
        replaced = hosted.assigned.get(request.job_id)
        assignment = Assignment(request, message.attempt, message.home)
        hosted.assigned[request.job_id] = assignment
        self._count(hosted, assignment, 1)
        if replaced is not None and not replaced.is_ending:
            # Nobody answers for that attempt any more: its slot is the new one's.
            self._count(hosted, replaced, -1)
        self.changed.add(message.node_id)
        return True

    def _count(self, hosted: HostedNode, assignment: Assignment, change: int) -> None:
        """A slot of a node that is still here is taken or free again. Our own jobs are counted by
        their home, which is here."""
        node_id = hosted.record.node_id
        if assignment.home != self._fabric.instance_id and self.nodes.get(node_id) is hosted:
            self._view.count(node_id, change)

    async def _tell_gone(self, message: Assign) -> None:
        assignment = Assignment(message.request, message.attempt, message.home)
        await self._results.tell_failed(message.node_id, assignment, "NODE_GONE", None)

    async def _on_withdraw(self, message: Withdraw) -> None:
        hosted = self.nodes.get(message.node_id)
        if hosted is None:
            return
        parked = hosted.parked.get(message.job_id)
        if parked is not None and parked.attempt == message.attempt:
            del hosted.parked[message.job_id]
        assignment = hosted.assigned.get(message.job_id)
        if assignment is None or assignment.attempt != message.attempt:
            return
        del hosted.assigned[message.job_id]
        self._freed(hosted, assignment)
        hosted.peer.send(
            frames.NodeJobCancel(
                job_id=message.job_id, attempt_id=message.attempt, reason=message.reason
            )
        )

    async def _on_rehome(self, message: Rehome) -> None:
        hosted = self.nodes.get(message.node_id)
        assignment = None if hosted is None else hosted.assigned.get(message.job_id)
        if assignment is not None and assignment.attempt == message.attempt:
            assignment.home = message.home

    # ---- from the node ----

    def find_assignment(self, hosted: HostedNode, job_id: str, attempt: int) -> Assignment | None:
        """The attempt that a frame is about. None, counted, if it is not this node's, or not its
        present one."""
        assignment = hosted.assigned.get(job_id)
        if assignment is None or assignment.attempt != attempt:
            self.stale += 1
            return None
        return assignment

    def on_ack(self, hosted: HostedNode, frame: frames.JobAck) -> None:
        """`job_ack`."""
        assignment = self.find_assignment(hosted, frame.job_id, frame.attempt_id)
        if assignment is not None and not assignment.acked_at:
            assignment.acked_at = self._clock.now()
            self._progressed(hosted, assignment)

    def on_started(self, hosted: HostedNode, job_id: str, attempt: int) -> Assignment | None:
        """`job_started`, or a partial that says as much."""
        assignment = self.find_assignment(hosted, job_id, attempt)
        if assignment is not None and not assignment.started_at:
            assignment.started_at = self._clock.now()
            self._progressed(hosted, assignment)
        return assignment

    async def on_partial(self, hosted: HostedNode, frame: frames.JobPartial) -> None:
        """`job_partial`: on to the session, by way of the home instance."""
        assignment = self.on_started(hosted, frame.job_id, frame.attempt_id)
        if assignment is None or not assignment.request.session_id:
            return
        told = frames.SessionPartial(
            job_id=frame.job_id,
            attempt_id=frame.attempt_id,
            request_id=assignment.request.request_id,
            data=frame.data,
        )
        push = Push(
            session_id=assignment.request.session_id, frame=msgspec.Raw(frames.encode(told))
        )
        try:
            if await self._courier.tell(assignment.home, push) != "sent":
                self.partials_lost += 1
        except UnavailableError:
            self.partials_lost += 1

    async def on_result(self, hosted: HostedNode, frame: frames.NodeJobResult) -> None:
        """`job_result`: record it, then tell the home instance."""
        assignment = self.find_assignment(hosted, frame.job_id, frame.attempt_id)
        if assignment is None or assignment.is_ending:
            return
        node_id = hosted.record.node_id
        error = frame.error
        if not frame.success and error is not None and error.code == MODEL_NOT_AVAILABLE:
            assignment.is_ending = True
            del hosted.assigned[frame.job_id]
            await self._mark_away(hosted, assignment.request.model)
            self._freed(hosted, assignment)
            await self._results.tell_failed(node_id, assignment, MODEL_NOT_AVAILABLE, error)
            return
        assignment.is_ending = True
        outcome = JobOutcome(
            success=frame.success,
            data=frame.data,
            error=None if frame.success else error,
            finished_at=self._clock.now(),
        )
        await self._results.finish(node_id, assignment, outcome)
        if hosted.assigned.get(frame.job_id) is assignment:
            del hosted.assigned[frame.job_id]
        self._freed(hosted, assignment)

    async def _mark_away(self, hosted: HostedNode, model: str) -> None:
        record = hosted.record
        try:
            result = await self._fabric.marks.mark_away(record.node_id, model, self._settings.storm)
            if result != "marked":
                return
            away = await self._fabric.marks.list_away(record.node_id)
        except UnavailableError:
            return
        now = self._clock.now()
        hosted.record = msgspec.structs.replace(
            hosted.record, away={name: now + rest_us for name, rest_us in away.items()}
        )
        if self.nodes.get(record.node_id) is hosted:
            self._view.put(hosted.record)
            self.changed.add(record.node_id)
        until = format_instant(now + self._settings.storm.away_us)
        self._recorder.note(
            "NODE", record.node_id, "NODE_MODEL_AWAY", {"model": model, "until": until}
        )

    def _freed(self, hosted: HostedNode, assignment: Assignment) -> None:
        """A slot is free again, for a job that waits for it at once: one that comes a moment later
        would take it too."""
        self.changed.add(hosted.record.node_id)
        self._count(hosted, assignment, -1)
        if hosted.parked and not hosted.is_full:
            message = hosted.parked.pop(next(iter(hosted.parked)))
            if not self._hand_over(hosted, message):
                self._background.spawn(self._tell_gone(message))

    # ---- to the home instance ----

    def _progressed(self, hosted: HostedNode, assignment: Assignment) -> None:
        if not self._untold:
            self.progress.signal()
        key = (hosted.record.node_id, assignment.request.job_id)
        self._untold.setdefault(key, self._clock.now() + self._settings.progress_us)

    async def _tell_progress(self) -> Instant | None:
        """Tell how far attempts are whose result has not come in the meantime."""
        while self._untold:
            now = self._clock.now()
            due = [key for key, at in self._untold.items() if at <= now][:_AT_ONCE]
            if not due:
                return next(iter(self._untold.values()))
            told = [
                (node_id, assignment)
                for node_id, job_id in due
                if (assignment := self._find_untold(node_id, job_id)) is not None
            ]
            try:
                await asyncio.gather(*(self._tell_one(*one) for one in told))
            except UnavailableError:
                again_at = self._clock.now() + SECOND
                for key in due:
                    self._untold.pop(key, None)
                    self._untold[key] = again_at
                raise
            for key in due:
                self._untold.pop(key, None)
        return None

    def _find_untold(self, node_id: str, job_id: str) -> Assignment | None:
        hosted = self.nodes.get(node_id)
        found = None if hosted is None else hosted.assigned.get(job_id)
        return None if found is None or found.is_ending or found.told == found.state else found

    async def _tell_one(self, node_id: str, assignment: Assignment) -> None:
        job_id, state = assignment.request.job_id, assignment.state
        name: MoveName = "start" if state == "RUNNING" else "ack"
        change = NodeJobChange(
            name=name,
            attempt=assignment.attempt,
            node_id=node_id,
            keep_us=self._record_life(assignment),
        )
        message = Progressed(
            job_id=job_id,
            attempt=assignment.attempt,
            node_id=node_id,
            state=state,
            at=assignment.started_at or assignment.acked_at,
        )
        if self._courier.is_here(assignment.home):
            moved = await self._fabric.jobs.move(job_id, change)
            await self._courier.tell(assignment.home, message)
        else:
            post = self._courier.post(assignment.home, message)
            moved, _ = await self._fabric.jobs.move_and_post(job_id, change, post)
        assignment.told = state
        if moved.result == "moved":
            self._recorder.note(
                "NODE_JOB",
                job_id,
                "NODE_JOB_RUNNING" if name == "start" else "NODE_JOB_ACCEPTED",
                {"attempt": assignment.attempt, "node_id": node_id},
            )

    def _record_life(self, assignment: Assignment) -> int:
        timeout_us = assignment.request.timeout_us or self._settings.limits.result_us
        return timeout_us + self._settings.keep_us
