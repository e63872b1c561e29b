"""What the sockets of nodes and sessions have in common: from the handshake to the end.

A subclass says which frame comes first, who enters by it, and what its other frames do. Everything
that bounds a peer is here or in `sockets`.
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from ksana.api.core.routing import Call
from ksana.api.nodes.key_watch import KeyWatch
from ksana.api.nodes.sockets import (
    FrameReader,
    SocketBounds,
    SocketOutgoing,
    WriteBudget,
    error_frame,
    first_frame,
)
from ksana.base.errors import ConflictError, KsanaError
from ksana.domain.nodes import frames
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.peers import CONFLICT, INTERNAL, Peer
from ksana.service.nodes.jobs import NodeJobService

if TYPE_CHECKING:  # loaded with the first socket
    from starlette.websockets import WebSocket

First = TypeVar("First")
Guest = TypeVar("Guest")

Work = Coroutine[Any, Any, None]


class Conversation(ABC, Generic[First, Guest]):
    """Serves sockets of one kind."""

    decoder: ClassVar[msgspec.json.Decoder[Any]]
    first: ClassVar[type[Any]]
    """The frame that must come first, and once."""

    def __init__(
        self,
        engine: NodesEngine,
        service: NodeJobService,
        keys: KeyWatch,
        bounds: SocketBounds,
        budget: WriteBudget,
    ) -> None:
        self._engine = engine
        self._service = service
        self._keys = keys
        self._bounds = bounds
        self._budget = budget

    async def serve(self, socket: "WebSocket", call: Call) -> None:
        """From the handshake to the end of the socket. Raise 429 before it if there are too many
        sockets."""
        principal = call.principal
        key_id = "" if principal is None else principal.key_id
        outgoing = SocketOutgoing(socket, self._bounds, self._budget)
        peer = Peer(outgoing, self._engine.clock.monotonic(), key_id)
        with self._keys.watching(peer, call):
            await socket.accept()
            outgoing.start()
            reader = FrameReader(socket, outgoing, self.decoder, self._bounds, self._engine.clock)
            try:
                await self._converse(reader, outgoing, peer)
            finally:
                peer.is_open = False
                await outgoing.stop()

    async def _converse(self, reader: FrameReader, outgoing: SocketOutgoing, peer: Peer) -> None:
        first = await first_frame(reader, self.first, outgoing)
        if first is None:
            return
        try:
            self._service.check_served()
            guest = await self._enter(first, peer)
        except KsanaError as error:
            peer.send(error_frame(error))
            peer.close(CONFLICT if isinstance(error, ConflictError) else INTERNAL, error.code)
            return
        try:
            self._welcome(guest, first, peer)
            while (frame := await reader.read()) is not None:
                peer.hear(self._engine.clock.monotonic())
                work = self._take_common(guest, peer, frame)
                if work is not None:
                    await reader.work(work)
            await reader.stop()
        finally:
            await self._leave(guest, peer, reader.reason)

    def _take_common(self, guest: Guest, peer: Peer, frame: Any) -> Work | None:
        if isinstance(frame, frames.Ping):
            peer.send(frames.Pong(id=frame.id))
        elif isinstance(frame, self.first):
            told = "it was sent before, and once is enough"
            peer.send(frames.ErrorFrame(code="PROTOCOL", message=told))
        elif not isinstance(frame, frames.Pong):
            return self._take(guest, peer, frame)
        return None

    @abstractmethod
    async def _enter(self, first: First, peer: Peer) -> Guest:
        """Let it in. Raise a KsanaError to refuse it."""

    @abstractmethod
    def _welcome(self, guest: Guest, first: First, peer: Peer) -> None:
        """Tell it that it is in."""

    @abstractmethod
    def _take(self, guest: Guest, peer: Peer, frame: Any) -> Work | None:
        """Do what a frame asks for: at once, or by the work that is answered."""

    @abstractmethod
    async def _leave(self, guest: Guest, peer: Peer, reason: str) -> None:
        """Its socket ended."""
