"""Instances of the nodes surface on one fabric, with nodes and sessions that talk in frames.

A peer here is an `Outgoing` that keeps what it is sent. It answers as it is told: a node that
echoes, one that falls silent, one that refuses a model.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ksana.base.clock import Clock, SystemClock
from ksana.base.instant import MILLISECOND
from ksana.domain.nodes import frames
from ksana.domain.nodes.attempts import AttemptLimits
from ksana.domain.nodes.records import InstanceInfo, JobError
from ksana.engine.core.supervisor import Supervisor
from ksana.engine.nodes.assignments import HostedNode
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import Peer
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.fabric.memory.hub import MemoryHub
from ksana.fabric.redis.fabric import RedisFabric
from ksana.ports.fabric import Fabric
from ksana.service.nodes.jobs import NodeJobService

T = TypeVar("T")
PATIENCE_S = 30.0


class QuietEvents:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str]] = []

    def append_texts(self, events: Any) -> None:
        self.rows += list(events)


class QuietStore:
    """A store that only takes events."""

    def __init__(self) -> None:
        self.events = QuietEvents()

    async def transact(self, fn: Callable[..., T], *args: Any) -> T:
        return fn(self, *args)


class Talker:
    """The other side of a socket."""

    def __init__(self, decoder: msgspec.json.Decoder[Any]) -> None:
        self._decode = decoder.decode
        self.heard: list[Any] = []
        self.closed: tuple[int, str] | None = None
        self.on_frame: Callable[[Any], None] = lambda frame: None
        self._news = asyncio.Event()

    def send(self, frame: bytes) -> bool:
        if self.closed is not None:
            return False
        decoded = self._decode(frame)
        self.heard.append(decoded)
        self._news.set()
        asyncio.get_running_loop().call_soon(self.on_frame, decoded)
        return True

    def close(self, code: int, reason: str) -> None:
        self.closed = self.closed or (code, reason)
        self._news.set()

    def all(self, kind: type[T]) -> list[T]:
        return [frame for frame in self.heard if isinstance(frame, kind)]

    async def wait(self, kind: type[T], count: int = 1, within_s: float = PATIENCE_S) -> list[T]:
        """Wait until so many frames of a kind came."""
        async with asyncio.timeout(within_s):
            while len(self.all(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return self.all(kind)


class World:
    """Instances that share a fabric."""

    def __init__(self, url: str | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._url = url
        self._hub = MemoryHub(self.clock)
        self.instances: list[Instance] = []

    async def start(self, name: str, settings: NodeParameters | None = None) -> "Instance":
        settings = settings or NodeParameters()
        fabric: Fabric
        if self._url is None:
            fabric = MemoryFabric(name, self.clock, settings.inbox, self._hub)
        else:
            fabric = RedisFabric(self._url, name, SystemClock(), "world", settings.inbox)
        instance = Instance(fabric, self.clock, settings)
        self.instances.append(instance)
        await instance.start()
        return instance

    async def close(self) -> None:
        for instance in self.instances:
            await instance.die()


class Instance:
    """One engine with its loops."""

    def __init__(self, fabric: Fabric, clock: Clock, settings: NodeParameters) -> None:
        self.fabric = fabric
        self.clock = clock
        self.store = QuietStore()
        info = InstanceInfo(instance_id=fabric.instance_id, started_at=clock.now())
        self.engine = NodesEngine(fabric, self.store, clock, info, settings)  # type: ignore[arg-type]
        self.service = NodeJobService(self.engine)
        self._supervisor: Supervisor | None = None

    async def start(self) -> None:
        from random import Random

        await self.fabric.start()
        await self.fabric.inbox.open()
        self._supervisor = Supervisor(self.clock, Random(1))
        for loop in self.engine.loops():
            self._supervisor.start(loop)

    async def die(self) -> None:
        """End as a killed process does: nothing is said, nothing is given back."""
        if self._supervisor is not None:
            await self._supervisor.stop(5_000_000)
            self._supervisor = None
            await self.engine.background.close(0)
            await self.fabric.close()

    async def node(self, name: str, slots: int = 1, model: str = "echo") -> "NodeTalker":
        talker = NodeTalker(self.engine)
        await talker.register(name, slots, model)
        return talker

    async def session(self, name: str) -> "SessionTalker":
        talker = SessionTalker(self, name)
        peer = Peer(talker, self.clock.monotonic())
        await self.engine.sessions.enter(name, peer)
        self.engine.sessions.arrived(name)
        talker.peer = peer
        return talker

    async def sees(self, node_id: str) -> None:
        """Wait until the view has a node."""
        await until(lambda: self.engine.view.get(node_id) is not None, f"{node_id} is seen")


class NodeTalker(Talker):
    """A node. `mode`: echo answers at once; work answers after `work_s`; silent takes the job and
    says nothing; away refuses the model; hold acknowledges and starts, and answers when told."""

    def __init__(self, engine: NodesEngine, mode: str = "echo") -> None:
        super().__init__(frames.to_node)
        self.engine = engine
        self.mode = mode
        self.work_s = 0.02
        self.hosted: HostedNode | None = None
        self.most_at_once = 0
        self._running: set[str] = set()
        self.on_frame = self._answer

    async def register(self, name: str, slots: int, model: str) -> None:
        frame = frames.NodeRegister(node_id=name, slots=slots, models=[model])
        peer = Peer(self, self.engine.clock.monotonic())
        self.hosted = await self.engine.registration.register(frame, peer)

    def _answer(self, frame: Any) -> None:
        assert self.hosted is not None
        if isinstance(frame, frames.Ping) and self.mode != "dead":
            self.hosted.peer.hear(self.engine.clock.monotonic())
        if isinstance(frame, frames.NodeJobCancel):
            self._running.discard(frame.job_id)
        if not isinstance(frame, frames.JobAssign):
            return
        self._running.add(frame.job_id)
        self.most_at_once = max(self.most_at_once, len(self._running))
        if self.mode == "echo":
            self.finish(frame)
        elif self.mode == "away":
            self.finish(frame, JobError(code="MODEL_NOT_AVAILABLE"))
        elif self.mode == "hold":
            self.begin(frame)
        elif self.mode == "work":
            self.begin(frame)
            asyncio.get_running_loop().call_later(self.work_s, self.finish, frame)

    def begin(self, frame: frames.JobAssign) -> None:
        assert self.hosted is not None
        hosting = self.engine.hosting
        hosting.on_ack(self.hosted, frames.JobAck(job_id=frame.job_id, attempt_id=frame.attempt_id))
        hosting.on_started(self.hosted, frame.job_id, frame.attempt_id)

    def finish(self, frame: frames.JobAssign, error: JobError | None = None) -> None:
        assert self.hosted is not None
        self._running.discard(frame.job_id)
        result = frames.NodeJobResult(
            job_id=frame.job_id,
            attempt_id=frame.attempt_id,
            success=error is None,
            data=frame.payload,
            error=error,
        )
        self.engine.background.spawn(self.engine.hosting.on_result(self.hosted, result))

    async def disconnect(self) -> None:
        assert self.hosted is not None
        self.closed = (1006, "gone")
        await self.engine.registration.leave(self.hosted, "gone")


class SessionTalker(Talker):
    """A session."""

    def __init__(self, instance: Instance, name: str) -> None:
        super().__init__(frames.to_session)
        self.instance = instance
        self.name = name
        self.peer: Peer | None = None

    async def ask(self, payload: bytes = b"{}", **members: Any) -> frames.JobCreated:
        frame = frames.AskJob(model="echo", payload=msgspec.Raw(payload), **members)
        assert self.peer is not None
        return await self.instance.service.request(frame, self.peer.send, self.name)

    async def disconnect(self) -> None:
        assert self.peer is not None
        self.closed = (1006, "gone")
        await self.instance.engine.sessions.leave(self.name, self.peer)


async def until(fact: Callable[[], object], what: str = "the fact") -> None:
    """Wait until it holds."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < give_up_at, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


FAST = NodeParameters(
    refresh_us=100 * MILLISECOND,
    progress_us=10 * MILLISECOND,
    probe_us=300 * MILLISECOND,
    limits=AttemptLimits(
        ack_us=300 * MILLISECOND, start_us=300 * MILLISECOND, result_us=600 * MILLISECOND
    ),
)
