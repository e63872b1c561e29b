"""A node on a loop whose time jumps, its server, and handlers that wait for a gate."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ksana.client import Node, NodeJobContext
from ksana.client.errors import TransportError
from ksana.client.stats import NodeStats
from tests.client.fake_socket import EvenBackoff, FakeAddress, FakeConnection, node_ack

NOT_REACHED = TransportError("not reached", is_outcome_unknown=False)


class NodeHouse:
    """A node, its server, and handlers that wait for the gate."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        given = {"node_id": "n", "slots": 4, "backoff": EvenBackoff(), **options}
        self.node = Node("http://h", **given)
        self.server = FakeAddress(self.node, *answers)
        self.server.hello = [node_ack(heartbeat_sec=15.0)]
        self.gate = asyncio.Event()
        self.seen: list[NodeJobContext] = []
        self.node.add_model("m", self.wait_at_gate)
        self.running: asyncio.Task[NodeStats] | None = None

    async def wait_at_gate(self, ctx: NodeJobContext) -> object:
        self.seen.append(ctx)
        await self.gate.wait()
        return ctx.payload

    @property
    def wire(self) -> FakeConnection:
        return self.server.opened[-1]

    def start(self) -> None:
        self.running = asyncio.create_task(self.node.run())

    async def end(self) -> NodeStats:
        assert self.running is not None
        return await self.running


@contextlib.asynccontextmanager
async def at_work(*answers: Any, **options: Any) -> AsyncIterator[NodeHouse]:
    """A node that is registered; in the end it is stopped."""
    house = NodeHouse(*answers, **options)
    house.start()
    await house.node.wait_connected()
    yield house
    house.node.stop()
    await house.end()
