"""Sessions connected here, and the way of a frame to a session wherever it is."""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import Micros
from ksana.domain.nodes.frames import encode
from ksana.domain.nodes.messages import Push
from ksana.domain.nodes.records import SessionRecord
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import REPLACED, Peer
from ksana.engine.nodes.session_roll import SessionRoll
from ksana.ports.fabric import Fabric

_MOST_KEPT: Final = 1_000
_MOST_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Results that wait for sessions that are not connected, and their bytes."""


class Sessions:
    """Who asks, and how it is answered."""

    def __init__(
        self, fabric: Fabric, clock: Clock, courier: Courier, settings: NodeParameters
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._settings = settings
        self.local: dict[str, Peer] = {}
        self.roll = SessionRoll(fabric, settings)
        self._kept: deque[tuple[Micros, str, bytes]] = deque()
        """(when it is thrown away, session, frame)"""
        self._kept_bytes = 0
        self._returned: set[str] = set()
        self.undelivered = 0
        self.on_enter: Callable[[], None] = lambda: None
        """A session came."""
        courier.on(Push, self._on_push)
        fabric.signals.subscribe("nodes.session", self._on_session)

    async def enter(self, session_id: str, peer: Peer) -> None:
        """A session is connected here. An older socket of it is closed: a caller that reconnects
        often does so before the old connection is known to be dead."""
        ttl_us = self._settings.owner_ttl_us
        holder = await self._fabric.owners.claim("session", session_id, ttl_us)
        if holder != self._fabric.instance_id:
            await self._fabric.owners.replace_if("session", session_id, holder, ttl_us)
        former = self.local.get(session_id)
        self.local[session_id] = peer
        self.roll.enter(
            SessionRecord(
                session_id=session_id,
                instance_id=self._fabric.instance_id,
                key_id=peer.key_id,
                connected_at=self._clock.now(),
            )
        )
        self.on_enter()
        if former is not None:
            former.close(REPLACED, "SESSION_REPLACED")

    def arrived(self, session_id: str) -> None:
        """It can be sent to: what was kept for it goes out, from here and from elsewhere."""
        self._send_kept(session_id)
        self._fabric.signals.publish("nodes.session", session_id)

    async def leave(self, session_id: str, peer: Peer) -> None:
        """Its socket ended."""
        peer.is_open = False
        if self.local.get(session_id) is peer:
            del self.local[session_id]
            self.roll.leave(session_id)
            await self._fabric.owners.drop_if_ours("session", session_id)

    @property
    def has_kept(self) -> bool:
        """Whether frames wait for sessions that are not connected."""
        return bool(self._kept)

    def is_here(self, session_id: str) -> bool:
        """Whether a frame to this session needs nobody else."""
        peer = self.local.get(session_id)
        return peer is not None and peer.is_open

    async def push(self, session_id: str, frame: msgspec.Struct, *, keep: bool = False) -> None:
        """Send a frame to a session, here or elsewhere. With `keep` it waits a while for a session
        that is nowhere."""
        if session_id:
            await self._push_text(session_id, encode(frame), keep)

    async def _push_text(self, session_id: str, text: bytes, keep: bool) -> None:
        peer = self.local.get(session_id)
        if peer is not None and peer.is_open and peer.outgoing.send(text):
            return
        owner = await self._fabric.owners.find("session", session_id)
        if owner is not None and owner != self._fabric.instance_id:
            message = Push(session_id=session_id, frame=msgspec.Raw(text))
            if await self._courier.tell(owner, message) == "sent":
                return
        if keep:
            self._keep(session_id, text)

    def _keep(self, session_id: str, frame: bytes) -> None:
        until = self._clock.monotonic() + self._settings.reconnect_us
        self._kept.append((until, session_id, frame))
        self._kept_bytes += len(frame)
        while len(self._kept) > _MOST_KEPT or self._kept_bytes > _MOST_KEPT_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._kept_bytes -= len(self._kept.popleft()[2])
        self.undelivered += 1

    def _take_kept(self, session_id: str) -> list[bytes]:
        mine = [kept[2] for kept in self._kept if kept[1] == session_id]
        if mine:
            self._kept = deque(kept for kept in self._kept if kept[1] != session_id)
            self._kept_bytes -= sum(map(len, mine))
        return mine

    async def tend(self) -> None:
        """Send what was kept to sessions that came back elsewhere, and throw away what waited too
        long."""
        while self._returned:
            session_id = self._returned.pop()
            for frame in self._take_kept(session_id):
                await self._push_text(session_id, frame, keep=True)
        now = self._clock.monotonic()
        while self._kept and self._kept[0][0] <= now:
            self._drop_oldest()

    def _on_session(self, session_id: str) -> None:
        if any(kept[1] == session_id for kept in self._kept):
            self._returned.add(session_id)

    def _send_kept(self, session_id: str) -> None:
        peer = self.local.get(session_id)
        if peer is not None:
            for frame in self._take_kept(session_id):
                peer.outgoing.send(frame)

    async def _on_push(self, message: Push) -> None:
        peer = self.local.get(message.session_id)
        if peer is None or not peer.outgoing.send(bytes(message.frame)):
            self._keep(message.session_id, bytes(message.frame))
