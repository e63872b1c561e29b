"""What the tests of the engine share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from tests.engine.nodes_desk import Desk, open_desk
from tests.engine.nodes_world import Instance, NodesWorld
from tests.engine.queue_world import QueueWorld, open_queue_world
from tests.engine.tasks_world import World, open_world


@pytest.fixture
async def world(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    """One instance that fires and delivers, on the virtual clock."""
    world = await open_world(tmp_path, clock)
    yield world
    await world.check_events()
    await world.die()
    await world.store.close()


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[NodesWorld]:
    """Instances of the nodes surface, none yet, on the virtual clock and one fabric in memory."""
    world = NodesWorld(clock)
    yield world
    await world.close()


@pytest.fixture
async def one(cluster: NodesWorld) -> Instance:
    """The instance that a test is about."""
    return await cluster.start("one")


@pytest.fixture
async def two(cluster: NodesWorld) -> Instance:
    """Another one."""
    return await cluster.start("two")


@pytest.fixture
async def desk(one: Instance, two: Instance) -> Desk:
    """Jobs in the charge of `one`, whose node is connected to `two`."""
    return await open_desk(one, two)


@pytest.fixture
async def queue(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[QueueWorld]:
    """One instance of the queue with 100 units, on the virtual clock."""
    async with open_queue_world(tmp_path, clock) as queue:
        yield queue
