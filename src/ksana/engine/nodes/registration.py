"""How a node comes in (N3): one live socket for each node id, over all instances.

A node that comes with the id of a connected one is most often the same node after its network
failed, and the old socket is dead without anybody knowing. So the old one is pinged: if it answers
in time it is a second node, and refused; if not, it is replaced.
"""

import asyncio

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError
from ksana.base.ids import new_uid
from ksana.domain.nodes.frames import NodeRegister, Ping
from ksana.domain.nodes.messages import Drain, Probe, ProbeAnswer
from ksana.domain.nodes.records import NodeRecord
from ksana.engine.nodes.assignments import HostedNode
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.courier import Courier
from ksana.engine.nodes.hosting import Hosting
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import REPLACED, SILENT, Peer
from ksana.engine.nodes.recorder import EventRecorder
from ksana.ports.fabric import Fabric


class Registration:
    """Lets nodes in and out."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Clock,
        courier: Courier,
        hosting: Hosting,
        recorder: EventRecorder,
        background: Background,
        settings: NodeParameters,
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._courier = courier
        self._hosting = hosting
        self._recorder = recorder
        self._background = background
        self._settings = settings
        self._asked: dict[str, asyncio.Event] = {}
        self._alive: dict[str, bool] = {}
        courier.on(Probe, self._on_probe)
        courier.on(ProbeAnswer, self._on_answer)
        courier.on(Drain, self._on_drain)

    async def register(self, frame: NodeRegister, peer: Peer) -> HostedNode:
        """Let a node in. Raise 409 NODE_ID_CONFLICT if a live one has its id."""
        node_id = frame.node_id or f"node-{new_uid()[:16]}"
        coming = self._hosting.coming
        if node_id in coming:
            raise self._conflict(node_id, self._fabric.instance_id)
        coming.add(node_id)
        try:
            is_replaced = await self._take(node_id)
            record = await self._make_record(node_id, frame)
            hosted = self._hosting.enter(record, peer)
        finally:
            coming.discard(node_id)
        data = {
            "instance": self._fabric.instance_id,
            "slots": record.slots,
            "models": record.models,
        }
        if is_replaced:
            data["replaced"] = True
        self._recorder.note("NODE", node_id, "NODE_CONNECTED", data)
        return hosted

    async def leave(self, hosted: HostedNode, reason: str) -> None:
        """A node's socket ended."""
        data = {"instance": self._fabric.instance_id, "reason": reason[:200]}
        self._recorder.note("NODE", hosted.record.node_id, "NODE_DISCONNECTED", data)
        await self._hosting.leave(hosted)

    async def _take(self, node_id: str) -> bool:
        """Become the owner of the id. Answers whether another socket had it."""
        existing = self._hosting.nodes.get(node_id)
        if existing is not None:
            if await self._probe(existing.peer):
                raise self._conflict(node_id, self._fabric.instance_id)
            await self._replace(existing)
        ttl_us = self._settings.owner_ttl_us
        holder = await self._fabric.owners.claim("node", node_id, ttl_us)
        if holder == self._fabric.instance_id:
            return existing is not None
        if await self._probe_elsewhere(holder, node_id):
            raise self._conflict(node_id, holder)
        if not await self._fabric.owners.replace_if("node", node_id, holder, ttl_us):
            raise self._conflict(node_id, "another instance")
        return True

    async def _make_record(self, node_id: str, frame: NodeRegister) -> NodeRecord:
        now = self._clock.now()
        away = await self._fabric.marks.list_away(node_id)
        is_draining = await self._fabric.marks.is_draining(node_id)
        return NodeRecord(
            node_id=node_id,
            instance_id=self._fabric.instance_id,
            slots=frame.slots,
            models=tuple(dict.fromkeys(frame.models)),
            labels=dict(frame.labels),
            is_draining=is_draining,
            away={model: now + rest_us for model, rest_us in away.items()},
            version=frame.version,
            platform=frame.platform,
            connected_at=now,
            seen_at=now,
        )

    async def _replace(self, hosted: HostedNode) -> None:
        hosted.peer.close(REPLACED, "NODE_REPLACED")
        await self._hosting.leave(hosted)

    def _conflict(self, node_id: str, holder: str) -> ConflictError:
        data = {"instance": self._fabric.instance_id, "holder": holder}
        self._recorder.note("NODE", node_id, "NODE_ID_CONFLICT", data)
        return ConflictError(
            f"a node with the id {node_id!r} is connected and answers; "
            "choose another id, or leave it out to be given one",
            code="NODE_ID_CONFLICT",
            current={"node_id": node_id, "instance_id": holder},
        )

    # ---- does it still answer? ----

    async def _probe(self, peer: Peer) -> bool:
        heard = asyncio.Event()
        peer.probes.append(heard)
        if not peer.send(Ping(id="probe")):
            return False
        return await self._clock.wait(heard, self._clock.now() + self._settings.probe_us)

    async def _probe_elsewhere(self, holder: str, node_id: str) -> bool:
        token = new_uid()
        self._asked[token] = answered = asyncio.Event()
        try:
            message = Probe(
                owner_kind="node", id=node_id, token=token, reply_to=self._fabric.instance_id
            )
            if await self._courier.tell(holder, message) != "sent":
                return False
            # An instance that does not answer at all is as dead as its node.
            within_us = 2 * self._settings.probe_us
            await self._clock.wait(answered, self._clock.now() + within_us)
            return self._alive.pop(token, False)
        finally:
            del self._asked[token]

    async def _on_probe(self, message: Probe) -> None:
        # Not here and now: the inbox must not wait for a silent socket.
        self._background.spawn(self._answer_probe(message))

    async def _answer_probe(self, message: Probe) -> None:
        hosted = self._hosting.nodes.get(message.id)
        is_alive = hosted is not None and await self._probe(hosted.peer)
        if hosted is not None and not is_alive:
            hosted.peer.close(SILENT, "NODE_SILENT")
            await self._hosting.leave(hosted)
        answer = ProbeAnswer(token=message.token, is_alive=is_alive)
        await self._courier.tell(message.reply_to, answer)

    async def _on_answer(self, message: ProbeAnswer) -> None:
        answered = self._asked.get(message.token)
        if answered is not None:
            self._alive[message.token] = message.is_alive
            answered.set()

    # ---- draining ----

    async def set_draining(self, node_id: str, is_draining: bool, holder: str) -> None:
        """Mark a node, and let its instance know."""
        await self._fabric.marks.set_draining(node_id, is_draining, self._settings.remove_stale_us)
        name = "NODE_DRAINING" if is_draining else "NODE_UNDRAINED"
        self._recorder.note("NODE", node_id, name, {})
        await self._courier.tell(holder, Drain(node_id=node_id))

    async def _on_drain(self, message: Drain) -> None:
        if message.node_id in self._hosting.nodes:
            is_draining = await self._fabric.marks.is_draining(message.node_id)
            self._hosting.set_draining(message.node_id, is_draining)
