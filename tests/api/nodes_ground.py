"""The nodes surface in the real server, and peers on real sockets."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from ksana.api.core.crowd import Crowd
from ksana.api.nodes.key_watch import KeyWatch
from ksana.api.nodes.routes import routes
from ksana.api.nodes.sockets import SocketBounds, WriteBudget
from ksana.domain.nodes.records import InstanceInfo
from ksana.engine.core.supervisor import Loop, Supervisor
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.parameters import NodeParameters
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.service.nodes.jobs import NodeJobService
from tests.api.ground import CoreServices, open_house
from tests.api.socket_ground import serving


class NodesServer:
    """One server with the nodes surface."""

    def __init__(
        self,
        core: CoreServices,
        engine: NodesEngine,
        port: int,
        crowd: Crowd,
        budget: WriteBudget,
    ) -> None:
        self.core = core
        self.engine = engine
        self.port = port
        self.crowd = crowd
        self.budget = budget
        self.base = f"http://127.0.0.1:{port}"

    @contextlib.asynccontextmanager
    async def socket(self, path: str, **options: Any) -> AsyncIterator["Wire"]:
        async with connect(f"ws://127.0.0.1:{self.port}{path}", max_size=None, **options) as made:
            yield Wire(made)

    @contextlib.asynccontextmanager
    async def node(
        self, *, receive_bytes: int | None = None, **members: Any
    ) -> AsyncIterator["Wire"]:
        """With `receive_bytes` the kernel keeps no more than about that for the node, and the node
        itself takes in no frame after one that nobody has read."""
        options: dict[str, Any] = {}
        if receive_bytes is not None:
            options["max_queue"] = 1
            plug = socket.socket()
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            plug.connect(("127.0.0.1", self.port))
            plug.setblocking(False)
            options["sock"] = plug
        async with self.socket("/ws/node", **options) as wire:
            plain = {"type": "node_register", "slots": 4, "models": ["echo"], "node_id": "n"}
            await wire.send({**plain, **members})
            assert (await wire.read())["type"] == "node_register_ack"
            yield wire

    @contextlib.asynccontextmanager
    async def session(self, **members: Any) -> AsyncIterator["Wire"]:
        async with self.socket("/ws/session") as wire:
            await wire.send({"type": "session_init", **members})
            assert (await wire.read())["type"] == "session_init_ack"
            yield wire


class Wire:
    """A socket that speaks JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, frame: Any) -> None:
        await self.socket.send(frame if isinstance(frame, str) else json.dumps(frame))

    async def read(self, kind: str | None = None) -> dict[str, Any]:
        """The next frame (of a kind)."""
        async with asyncio.timeout(15):
            while True:
                frame: dict[str, Any] = json.loads(await self.socket.recv())
                if kind is None or frame["type"] == kind:
                    return frame

    async def wait_closed(self) -> tuple[int | None, str | None]:
        # Read on: a client that does not read does not see the close either.
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await self.socket.recv()
        return self.socket.close_code, self.socket.close_reason

    async def echo(self, count: int = 1) -> None:
        """Serve jobs as a node does."""
        for _ in range(count):
            job = await self.read("job_assign")
            about = {"job_id": job["job_id"], "attempt_id": job["attempt_id"]}
            await self.send({"type": "job_ack", **about})
            await self.send({"type": "job_started", **about})
            await self.send(
                {"type": "job_result", **about, "success": True, "data": job["payload"]}
            )


@contextlib.asynccontextmanager
async def nodes_server(
    tmp_path: Path,
    settings: NodeParameters | None = None,
    *,
    bounds: SocketBounds | None = None,
    most_sockets: int = 1_000,
    most_of_a_key: int = 1_000,
    send_bytes: int | None = None,
    **options: Any,
) -> AsyncIterator[NodesServer]:
    """With `send_bytes` the kernel keeps no more than about that on our side of a socket."""
    async with open_house(tmp_path) as core:
        fabric = MemoryFabric("here", core.clock)
        info = InstanceInfo(instance_id="here", started_at=core.clock.now())
        engine = NodesEngine(fabric, core.store, core.clock, info, settings)
        keys = KeyWatch(core.clock, most=most_sockets, most_of_a_key=most_of_a_key)
        budget = WriteBudget()
        app = core.app(*routes(engine, NodeJobService(engine), keys, bounds, budget))
        supervisor = Supervisor(core.clock, Random(1))
        for loop in (*engine.loops(), Loop(keys.pump.name, keys.pump.run)):
            supervisor.start(loop)
        try:
            async with serving(app, core, **options) as server:
                listener = server.servers[0].sockets[0]
                if send_bytes is not None:  # what is accepted has it from here
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
                port = listener.getsockname()[1]
                crowd = server.config.http.crowd  # type: ignore[union-attr]
                yield NodesServer(core, engine, port, crowd, budget)
                await engine.close()
        finally:
            await supervisor.stop(5_000_000)
