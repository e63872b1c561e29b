"""The fabric of each kind."""

from collections.abc import AsyncIterator

import pytest

from ksana.ports.fabric import Fabric
from tests.conformance.fabric.world import World
from tests.ground.redis import Redis, RedisCluster


@pytest.fixture(params=["memory", "redis", "redis_cluster"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """An empty backend; the test runs once per kind."""
    server: Redis | RedisCluster | None = None
    if request.param != "memory":
        server = request.getfixturevalue(request.param)
    world = World(server)
    yield world
    await world.close()


@pytest.fixture
def fabric(world: World) -> Fabric:
    """One instance on it."""
    return world.join("one")


@pytest.fixture
def other(world: World) -> Fabric:
    """A second one."""
    return world.join("two")
