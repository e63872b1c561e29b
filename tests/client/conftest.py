"""A fake server and a client of it, for each test."""

from collections.abc import AsyncIterator

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.client import CallBackoff, QueueClient
from tests.client.fake_queue import FakeQueue
from tests.client.runner_house import House

QUICK = CallBackoff(first_sec=0.01, most_sec=0.05, tries=4)


@pytest.fixture
async def server() -> AsyncIterator[FakeQueue]:
    async with FakeQueue() as server:
        yield server


@pytest.fixture
async def client(server: FakeQueue) -> AsyncIterator[QueueClient]:
    async with QueueClient(server.url, "key-1", deadline_sec=5.0, backoff=QUICK) as client:
        yield client


@pytest.fixture
async def house(clock: VirtualClock) -> House:
    """The jobs of a worker with two slots."""
    await clock.advance(50 * SECOND)
    return House(clock)
