"""An app and a client for the tests of the API floor."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.api.ground import House, client_of, open_house


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as house:
        yield house


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(house.app()) as client:
        yield client
