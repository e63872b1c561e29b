"""`/ws/node`: frames of a node to calls of the engine (N3)."""

from typing import Any

from starlette.websockets import WebSocket

from ksana.api.core.routing import Call
from ksana.api.nodes.key_watch import KeyWatch
from ksana.api.nodes.sockets import FrameReader, SocketOutgoing, error_frame, first_frame
from ksana.base.errors import ConflictError, KsanaError
from ksana.base.instant import SECOND
from ksana.domain.nodes import frames
from ksana.engine.nodes.assignments import HostedNode
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.peers import CONFLICT, INTERNAL, Peer
from ksana.service.nodes.jobs import NodeJobService


class NodeSocket:
    """Serves the sockets of nodes."""

    def __init__(self, engine: NodesEngine, service: NodeJobService, keys: KeyWatch) -> None:
        self._engine = engine
        self._service = service
        self._keys = keys

    async def serve(self, socket: WebSocket, call: Call) -> None:
        """From the handshake to the end of the socket."""
        await socket.accept()
        outgoing = SocketOutgoing(socket)
        outgoing.start()
        reader = FrameReader(socket, outgoing, frames.from_node)
        principal = call.principal
        peer = Peer(
            outgoing,
            self._engine.clock.monotonic(),
            "" if principal is None else principal.key_id,
        )
        try:
            with self._keys.watching(peer, call):
                await self._converse(reader, outgoing, peer)
        finally:
            peer.is_open = False
            await outgoing.stop()

    async def _converse(self, reader: FrameReader, outgoing: SocketOutgoing, peer: Peer) -> None:
        register = await first_frame(reader, frames.NodeRegister, outgoing)
        if register is None:
            return
        hosted = await self._register(register, peer)
        if hosted is None:
            return
        try:
            while (frame := await reader.read()) is not None:
                peer.hear(self._engine.clock.monotonic())
                if isinstance(frame, frames.NodeJobResult | frames.JobPartial):
                    await reader.work(self._report(hosted, frame))
                else:
                    self._take(hosted, peer, frame)
            await reader.stop()
        finally:
            await self._engine.registration.leave(hosted, reader.reason)

    async def _register(self, frame: frames.NodeRegister, peer: Peer) -> HostedNode | None:
        try:
            self._service.check_served()
            hosted = await self._engine.registration.register(frame, peer)
        except KsanaError as error:
            peer.send(error_frame(error))
            code = CONFLICT if isinstance(error, ConflictError) else INTERNAL
            peer.close(code, error.code)
            return None
        settings = self._engine.settings
        peer.send(
            frames.NodeRegisterAck(
                node_id=hosted.record.node_id,
                instance_id=hosted.record.instance_id,
                heartbeat_sec=settings.heartbeat_us / SECOND,
                dead_after_sec=settings.dead_after_us / SECOND,
                durable=self._service.durable,
            )
        )
        return hosted

    def _take(self, hosted: HostedNode, peer: Peer, frame: Any) -> None:
        """Frames that need no waiting."""
        hosting = self._engine.hosting
        if isinstance(frame, frames.JobAck):
            hosting.on_ack(hosted, frame)
        elif isinstance(frame, frames.JobStarted):
            hosting.on_started(hosted, frame.job_id, frame.attempt_id)
        elif isinstance(frame, frames.NodeHeartbeat):
            hosting.heartbeat(hosted, frame)
        elif isinstance(frame, frames.Ping):
            peer.send(frames.Pong(id=frame.id))
        elif isinstance(frame, frames.NodeError):
            data = {"code": frame.code, "message": frame.message}
            self._engine.recorder.note("NODE", hosted.record.node_id, "NODE_ERROR", data)
        elif isinstance(frame, frames.NodeRegister):
            peer.send(frames.ErrorFrame(code="PROTOCOL", message="the node is registered already"))

    async def _report(
        self, hosted: HostedNode, frame: frames.NodeJobResult | frames.JobPartial
    ) -> None:
        if isinstance(frame, frames.NodeJobResult):
            await self._engine.hosting.on_result(hosted, frame)
        else:
            await self._engine.hosting.on_partial(hosted, frame)
