"""Several instances on one fabric of each kind."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ksana.base.clock import SystemClock
from ksana.base.instant import SECOND, Micros
from ksana.domain.nodes.moves import MoveName, NodeJobChange
from ksana.domain.nodes.records import InstanceInfo, JobRequest, NodeRecord
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.fabric.memory.hub import MemoryHub
from ksana.fabric.redis.fabric import RedisFabric
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import InboxSettings
from tests.ground.redis import Redis, RedisCluster

LONG: Micros = 60 * SECOND
SHORT: Micros = 60_000
"""Long enough for a step on a busy machine, short enough to wait for."""

PATIENCE_S = 20.0
_ids = itertools.count(1)


class World:
    """One backend; `join` gives an instance on it."""

    def __init__(self, server: Redis | RedisCluster | None) -> None:
        self.server = server
        self._hub = MemoryHub(SystemClock())
        self._joined: list[Fabric] = []

    @property
    def is_shared(self) -> bool:
        """Whether there is a server behind it that can fail."""
        return self.server is not None

    def join(self, instance_id: str | None = None, settings: InboxSettings | None = None) -> Fabric:
        name = instance_id or f"i{next(_ids)}"
        fabric: Fabric
        if self.server is None:
            fabric = MemoryFabric(name, SystemClock(), settings, self._hub)
        else:
            fabric = RedisFabric(self.server.url(), name, SystemClock(), "test", settings)
        self._joined.append(fabric)
        return fabric

    def wipe(self) -> None:
        if self.server is None:
            self._hub.wipe()
        else:
            self.server.wipe()

    async def close(self) -> None:
        for fabric in self._joined:
            await fabric.close()


async def eventually(
    ask: Callable[[], Awaitable[Any]], is_so: Callable[[Any], bool] = bool, what: str = "the fact"
) -> Any:
    """Ask until the answer is right."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        answer = await ask()
        if is_so(answer):
            return answer
        assert time.monotonic() < give_up_at, f"waited in vain for {what}; last: {answer!r}"
        await asyncio.sleep(0.01)


def a_job(job_id: str | None = None, **members: Any) -> JobRequest:
    return JobRequest(job_id=job_id or f"j{next(_ids)}", model="echo", **members)


def a_node(node_id: str, instance_id: str = "i", **members: Any) -> NodeRecord:
    return NodeRecord(
        node_id=node_id, instance_id=instance_id, slots=members.pop("slots", 1), **members
    )


def an_instance(fabric: Fabric) -> InstanceInfo:
    return InstanceInfo(instance_id=fabric.instance_id, host="h")


def change(name: MoveName, attempt: int = 1, node_id: str = "", **members: Any) -> NodeJobChange:
    return NodeJobChange(
        name=name,
        attempt=attempt,
        node_id=node_id,
        keep_us=members.pop("keep_us", LONG),
        **members,
    )
