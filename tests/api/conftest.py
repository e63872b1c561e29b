"""An app and a client for the tests of the API floor."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.api.ground import CoreServices, client_of, open_house


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[CoreServices]:
    async with open_house(tmp_path) as core:
        yield core


@pytest.fixture
async def client(core: CoreServices) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(core.app()) as client:
        yield client
