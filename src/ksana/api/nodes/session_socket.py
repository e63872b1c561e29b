"""`/ws/session`: frames of a caller to calls of the service (N4)."""

import contextlib
from typing import Any, NamedTuple

from ksana.api.nodes.conversation import Conversation, Work
from ksana.api.nodes.sockets import error_frame
from ksana.base.errors import KsanaError, UnavailableError
from ksana.base.ids import new_uid
from ksana.domain.nodes import frames
from ksana.engine.nodes.peers import Peer


class Session(NamedTuple):
    """A session by the name it knows, and by the one it has here: two keys never share a session,
    whatever ids they choose."""

    shown_id: str
    session_id: str


class SessionSocket(Conversation[frames.SessionInit, Session]):
    """Serves the sockets of sessions."""

    decoder = frames.from_session
    first = frames.SessionInit

    async def _enter(self, first: frames.SessionInit, peer: Peer) -> Session:
        shown_id = first.session_id or new_uid()
        session_id = f"{peer.key_id}.{shown_id}" if peer.key_id else shown_id
        await self._engine.sessions.enter(session_id, peer)
        return Session(shown_id, session_id)

    def _welcome(self, guest: Session, first: frames.SessionInit, peer: Peer) -> None:
        instance_id = self._engine.fabric.instance_id
        data: dict[str, Any] = {"instance": instance_id}
        if first.session_id is not None:
            data["resumed"] = True
        self._engine.recorder.note("SESSION", guest.session_id, "SESSION_CONNECTED", data)
        peer.send(
            frames.SessionInitAck(
                session_id=guest.shown_id, instance_id=instance_id, durable=self._service.durable
            )
        )
        self._engine.sessions.arrived(guest.session_id)

    def _take(self, guest: Session, peer: Peer, frame: Any) -> Work | None:
        return self._serve(guest.session_id, peer, frame)

    async def _leave(self, guest: Session, peer: Peer, reason: str) -> None:
        data = {"instance": self._engine.fabric.instance_id, "reason": reason}
        self._engine.recorder.note("SESSION", guest.session_id, "SESSION_DISCONNECTED", data)
        with contextlib.suppress(UnavailableError):  # the owner key runs out by itself
            await self._engine.sessions.leave(guest.session_id, peer)

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
