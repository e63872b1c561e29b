"""What the tests of the engine share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from tests.engine.tasks_world import World, open_world


@pytest.fixture
async def world(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    """One instance that fires and delivers, on the virtual clock."""
    world = await open_world(tmp_path, clock)
    yield world
    await world.check_events()
    await world.die()
    await world.store.close()
