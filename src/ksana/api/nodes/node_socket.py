"""`/ws/node`: frames of a node to calls of the engine (N3)."""

from typing import Any

from ksana.api.nodes.conversation import Conversation, Work
from ksana.base.instant import SECOND
from ksana.domain.nodes import frames
from ksana.engine.nodes.assignments import HostedNode
from ksana.engine.nodes.peers import Peer


class NodeSocket(Conversation[frames.NodeRegister, HostedNode]):
    """Serves the sockets of nodes."""

    decoder = frames.from_node
    first = frames.NodeRegister

    async def _enter(self, first: frames.NodeRegister, peer: Peer) -> HostedNode:
        return await self._engine.registration.register(first, peer)

    def _welcome(self, guest: HostedNode, first: frames.NodeRegister, peer: Peer) -> None:
        settings = self._engine.settings
        peer.send(
            frames.NodeRegisterAck(
                node_id=guest.record.node_id,
                instance_id=guest.record.instance_id,
                heartbeat_sec=settings.heartbeat_us / SECOND,
                dead_after_sec=settings.dead_after_us / SECOND,
                durable=self._service.durable,
            )
        )

    def _take(self, guest: HostedNode, peer: Peer, frame: Any) -> Work | None:
        hosting = self._engine.hosting
        if isinstance(frame, frames.NodeJobResult):
            return hosting.on_result(guest, frame)
        if isinstance(frame, frames.JobPartial):
            return hosting.on_partial(guest, frame)
        if isinstance(frame, frames.JobAck):
            hosting.on_ack(guest, frame)
        elif isinstance(frame, frames.JobStarted):
            hosting.on_started(guest, frame.job_id, frame.attempt_id)
        elif isinstance(frame, frames.NodeHeartbeat):
            hosting.heartbeat(guest, frame)
        elif isinstance(frame, frames.NodeError):
            data = {"code": frame.code, "message": frame.message}
            self._engine.recorder.note("NODE", guest.record.node_id, "NODE_ERROR", data)
        return None

    async def _leave(self, guest: HostedNode, peer: Peer, reason: str) -> None:
        await self._engine.registration.leave(guest, reason)
