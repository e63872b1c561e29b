"""Nodes for tests: against the real server, quick to connect again, run beside the test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ksana.client import CallBackoff, Node, NodeSession
from tests.api.nodes_ground import NodesServer

QUICK = CallBackoff(first_sec=0.02, most_sec=0.1)
GOING_DOWN = 1001


async def until(is_so: Callable[[], object], within_sec: float = 15) -> None:
    """Wait for a fact."""
    async with asyncio.timeout(within_sec):
        while not is_so():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def at_work(node: Node) -> AsyncIterator[Node]:
    """Run the node once it is registered; at the end stop it, and let its errors through."""
    running = asyncio.create_task(node.run())
    try:
        await until(lambda: node.is_connected or running.done())
        if running.done():
            await running
        yield node
        node.stop()
        await asyncio.wait_for(running, 20)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def make_node(server: NodesServer, **options: Any) -> Node:
    plain = {"base_url": server.base, "node_id": "n", "slots": 4, "backoff": QUICK}
    return Node(**{**plain, **options})


def make_session(server: NodesServer, **options: Any) -> NodeSession:
    return NodeSession(**{"base_url": server.base, "backoff": QUICK, **options})


def close_node(server: NodesServer, node_id: str = "n") -> None:
    """The server closes the socket of a node."""
    server.engine.hosting.nodes[node_id].peer.close(GOING_DOWN, "TEST")


def close_sessions(server: NodesServer) -> None:
    """The server closes the sockets of all sessions."""
    for peer in list(server.engine.sessions.local.values()):
        peer.close(GOING_DOWN, "TEST")
