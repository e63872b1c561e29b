"""`/ws/session`: frames of a caller to calls of the service (N4)."""

import contextlib
from typing import Any

from starlette.websockets import WebSocket

from ksana.api.core.routing import Call
from ksana.api.nodes.key_watch import KeyWatch
from ksana.api.nodes.sockets import FrameReader, SocketOutgoing, error_frame, first_frame
from ksana.base.errors import KsanaError, UnavailableError
from ksana.base.ids import new_uid
from ksana.domain.nodes import frames
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.peers import INTERNAL, Peer
from ksana.service.nodes.jobs import NodeJobService


class SessionSocket:
    """Serves the sockets of sessions."""

    def __init__(self, engine: NodesEngine, service: NodeJobService, keys: KeyWatch) -> None:
        self._engine = engine
        self._service = service
        self._keys = keys

    async def serve(self, socket: WebSocket, call: Call) -> None:
        """From the handshake to the end of the socket."""
        await socket.accept()
        outgoing = SocketOutgoing(socket)
        outgoing.start()
        reader = FrameReader(socket, outgoing, frames.from_session)
        principal = call.principal
        caller = "" if principal is None else principal.key_id
        peer = Peer(outgoing, self._engine.clock.monotonic(), caller)
        try:
            with self._keys.watching(peer, call):
                await self._converse(reader, outgoing, peer)
        finally:
            peer.is_open = False
            await outgoing.stop()

    async def _converse(self, reader: FrameReader, outgoing: SocketOutgoing, peer: Peer) -> None:
        init = await first_frame(reader, frames.SessionInit, outgoing)
        if init is None:
            return
        shown_id = init.session_id or new_uid()
        # Two keys never share a session, whatever ids they choose.
        session_id = f"{peer.key_id}.{shown_id}" if peer.key_id else shown_id
        sessions = self._engine.sessions
        try:
            self._service.check_served()
            await sessions.enter(session_id, peer)
        except KsanaError as error:
            peer.send(error_frame(error))
            peer.close(INTERNAL, error.code)
            return
        instance_id = self._engine.fabric.instance_id
        data: dict[str, Any] = {"instance": instance_id}
        if init.session_id is not None:
            data["resumed"] = True
        self._engine.recorder.note("SESSION", session_id, "SESSION_CONNECTED", data)
        peer.send(
            frames.SessionInitAck(
                session_id=shown_id, instance_id=instance_id, durable=self._service.durable
            )
        )
        sessions.arrived(session_id)
        try:
            while (frame := await reader.read()) is not None:
                peer.hear(self._engine.clock.monotonic())
                if isinstance(frame, frames.AskJob | frames.SessionJobCancel):
                    await reader.work(self._serve(session_id, peer, frame))
                elif isinstance(frame, frames.Ping):
                    peer.send(frames.Pong(id=frame.id))
                elif isinstance(frame, frames.SessionInit):
                    told = frames.ErrorFrame(code="PROTOCOL", message="the session has begun")
                    peer.send(told)
            await reader.stop()
        finally:
            await self._leave(session_id, peer, reader.reason)

    async def _leave(self, session_id: str, peer: Peer, reason: str) -> None:
        data = {"instance": self._engine.fabric.instance_id, "reason": reason}
        self._engine.recorder.note("SESSION", session_id, "SESSION_DISCONNECTED", data)
        with contextlib.suppress(UnavailableError):  # the owner key runs out by itself
            await self._engine.sessions.leave(session_id, peer)

    async def _serve(
        self, session_id: str, peer: Peer, frame: frames.AskJob | frames.SessionJobCancel
    ) -> None:
        try:
            if isinstance(frame, frames.AskJob):
                await self._service.request(frame, peer.send, session_id, peer.key_id)
            else:
                await self._service.cancel_job(frame.job_id, session_id)
        except KsanaError as error:
            request_id = frame.request_id or "" if isinstance(frame, frames.AskJob) else ""
            job_id = "" if isinstance(frame, frames.AskJob) else frame.job_id
            peer.send(error_frame(error, request_id, job_id))
