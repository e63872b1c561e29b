"""Instances of the nodes surface without their loops: a test takes each step itself, on the virtual
clock, over a fabric in memory that fails where it is told to and answers what it is told to."""

import asyncio
import copy
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import DAY, SECOND, Instant, Micros
from ksana.domain.nodes import frames
from ksana.domain.nodes.events import KINDS
from ksana.domain.nodes.messages import Message, decode_message, encode_message
from ksana.domain.nodes.records import InstanceInfo, JobRequest, NodeRecord
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.assignments import HostedNode
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.peers import Peer
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.fabric.memory.hub import MemoryHub
from ksana.fabric.memory.nodes import MemorySnapshots
from ksana.ports.fabric import FabricHealth, NodeChanges
from tests.nodes.world import QuietStore

PORTS = (
    "presence",
    "owners",
    "inbox",
    "snapshots",
    "sessions",
    "requests",
    "reservations",
    "marks",
    "jobs",
)


KINDS_OF = {(kind.entity, kind.name): kind for kind in KINDS}


class CopiedSnapshots(MemorySnapshots):
    """As over a network: what one instance counts in its view does not change another's records."""

    async def read_changes(self, mark: int) -> NodeChanges:
        found = await super().read_changes(mark)
        return NodeChanges(nodes=copy.deepcopy(found.nodes), mark=found.mark)


class FaultyPort:
    """One part of the fabric: every call is noted, and fails or is answered as the test wants."""

    def __init__(self, fabric: "FaultyFabric", name: str, port: object) -> None:
        self._fabric = fabric
        self._name = name
        self._port = port

    def __getattr__(self, method: str) -> Any:
        inner = getattr(self._port, method)
        if not inspect.iscoroutinefunction(inner):
            return inner
        name, fabric = f"{self._name}.{method}", self._fabric

        async def call(*args: Any, **named: Any) -> Any:
            fabric.calls.append((name, args, named))
            if fabric.is_away or name in fabric.broken:
                raise DependencyDownError("the fabric is away")
            if fabric.answers.get(name):
                answer = fabric.answers[name].popleft()
                answer = answer(*args, **named) if callable(answer) else answer
                return await answer if inspect.isawaitable(answer) else answer
            return await inner(*args, **named)

        return call


class FaultyFabric(MemoryFabric):
    """A fabric in memory. `is_away` breaks all of it, `broken` some methods ("jobs.settle"),
    `answers` is what a method says next instead of doing anything."""

    def __init__(self, name: str, clock: VirtualClock, settings: NodeParameters, hub: MemoryHub):
        super().__init__(name, clock, settings.inbox, hub)
        self.snapshots = CopiedSnapshots(hub)
        self.is_away = False
        self.broken: set[str] = set()
        self.answers: dict[str, deque[Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.ok_us: Micros = DAY
        for port in PORTS:
            setattr(self, port, FaultyPort(self, port, getattr(self, port)))

    def health(self) -> FabricHealth:
        return FabricHealth(ok=not self.is_away, ok_us=self.ok_us)

    def answer(self, method: str, *answers: Any) -> None:
        """Say these instead, one after the other."""
        self.answers.setdefault(method, deque()).extend(answers)

    def count(self, method: str) -> int:
        """How often a method was called."""
        return sum(1 for name, _, _ in self.calls if name == method)

    def last(self, method: str) -> tuple[Any, ...]:
        """What a method was last called with."""
        return next(args for name, args, _ in reversed(self.calls) if name == method)


class Socket:
    """The other side of a socket: keeps what it is sent. One that is `stuck` takes nothing."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self.frames: list[Any] = []
        self.closed: tuple[int, str] | None = None
        self.is_stuck = False
        self.peer: Peer
        self.hosted: HostedNode

    def send(self, frame: bytes) -> bool:
        if self.closed is not None or self.is_stuck:
            return False
        self.frames.append(self._decode(frame))
        return True

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None, "a socket is closed once"
        self.closed = (code, reason)

    def take(self) -> list[Any]:
        """What came since the last look."""
        taken, self.frames = self.frames, []
        return taken


class Instance:
    """One engine whose loops do not run."""

    def __init__(self, world: "NodesWorld", name: str, settings: NodeParameters) -> None:
        self.name = name
        self.clock = world.clock
        self.fabric = FaultyFabric(name, world.clock, settings, world.hub)
        self.store = QuietStore()
        info = InstanceInfo(instance_id=name, host="h", version="1", started_at=world.clock.now())
        self.engine = NodesEngine(self.fabric, self.store, world.clock, info, settings)  # type: ignore[arg-type]
        self.home = self.engine.home
        self.hosting = self.engine.hosting

    async def node(self, name: str, slots: int = 1, *models: str, **more: Any) -> Socket:
        """A node that registers here."""
        socket = Socket(frames.to_node.decode)
        socket.peer = Peer(socket, self.clock.monotonic())
        frame = frames.NodeRegister(
            node_id=name, slots=slots, models=list(models or ("echo",)), **more
        )
        socket.hosted = await self.engine.registration.register(frame, socket.peer)
        return socket

    async def session(self, name: str) -> Socket:
        """A session that connects here."""
        socket = Socket(frames.to_session.decode)
        socket.peer = Peer(socket, self.clock.monotonic(), f"key-of-{name}")
        await self.engine.sessions.enter(name, socket.peer)
        self.engine.sessions.arrived(name)
        return socket

    async def submit(self, request: JobRequest) -> str:
        """Take a job in charge, and let its first attempt be sent."""
        state = await self.home.submit(request, lambda _: None)
        await self.clock.settle()
        return state

    def held(self, node_id: str) -> int:
        """Jobs that a node has, as the view counts them."""
        node = self.engine.view.get(node_id)
        assert node is not None
        return node.running

    async def take_messages(self) -> list[Any]:
        """What lies in the inbox, taken out unread."""
        found = await self.fabric.inbox.read(1_000, 0)
        await self.fabric.inbox.done([entry.id for entry in found])
        return [decode_message(entry.body) for entry in found]

    async def read(self) -> None:
        """Handle what lies in the inbox, and what follows from it at once."""
        found = await self.fabric.inbox.read(1_000, 0)
        await self.fabric.inbox.done(await self.engine.courier.handle(found))
        await self.clock.settle()

    async def hear(self, message: Message) -> None:
        """Handle one message as if it had come."""
        await self.fabric.inbox.open()
        await self.fabric.inbox.send(self.name, encode_message(message))
        await self.read()

    async def take_events(self, entity: str = "") -> list[tuple[str, str, Any]]:
        """What was noted since the last look: (id, name, data). Each is as it is declared."""
        await self.engine.recorder.flush()
        rows, self.store.events.rows = self.store.events.rows, []
        for row in rows:
            assert KINDS_OF[row[0], row[2]].allows(msgspec.json.decode(row[3])), row
        return [
            (row[1], row[2], msgspec.json.decode(row[3]))
            for row in rows
            if not entity or row[0] == entity
        ]

    async def refresh(self) -> None:
        """Write our nodes, read those of all."""
        await self.engine.upkeep.refresh()
        await self.clock.settle()


class NodesWorld:
    """Instances that share a fabric."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.hub = MemoryHub(clock)
        self.instances: list[Instance] = []

    async def start(self, name: str, settings: NodeParameters | None = None) -> Instance:
        """One more, with an inbox, and present."""
        instance = Instance(self, name, settings or NodeParameters())
        self.instances.append(instance)
        await instance.fabric.inbox.open()
        await instance.fabric.presence.renew(InstanceInfo(instance_id=name), 45 * SECOND)
        instance.fabric.calls.clear()
        return instance

    async def close(self) -> None:
        for instance in self.instances:
            await instance.engine.background.close(0)


async def count_steps(pump: Pump, clock: VirtualClock, within_us: int) -> int:
    """How often a pump steps in this time."""
    running = asyncio.create_task(pump.run())
    await clock.advance(within_us)
    running.cancel()
    return pump.steps


async def step(pump: Pump) -> Instant | None:
    """One step of a loop."""
    return await pump._step()


def is_signalled(pump: Pump) -> bool:
    """Whether a loop was hinted at; the hint is taken away."""
    was_set = pump._wake.is_set()
    pump._wake.clear()
    return was_set


def a_request(job_id: str = "j", **changes: Any) -> JobRequest:
    """A request of the session `s` for the model `echo`."""
    members: dict[str, Any] = {
        "model": "echo",
        "request_id": f"r-{job_id}",
        "session_id": "s",
        "payload": msgspec.Raw(b'{"a":1}'),
        "trace_id": "t",
    }
    return JobRequest(job_id=job_id, **{**members, **changes})


def a_node(node_id: str = "n", instance_id: str = "two", **changes: Any) -> NodeRecord:
    """A node of another instance, as its snapshot shows it."""
    members: dict[str, Any] = {"slots": 2, "models": ("echo",)}
    return NodeRecord(node_id=node_id, instance_id=instance_id, **{**members, **changes})
