"""The nodes surface on each kind of fabric."""

from collections.abc import AsyncIterator

import pytest

from tests.ground.redis import Redis, RedisCluster
from tests.nodes.world import World


@pytest.fixture(params=["memory", "redis", "redis_cluster"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Instances that share an empty fabric; the test runs once per kind."""
    url: str | None = None
    if request.param != "memory":
        server: Redis | RedisCluster = request.getfixturevalue(request.param)
        url = server.url()
    world = World(url)
    yield world
    await world.close()
