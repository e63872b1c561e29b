"""An open store of each kind."""

from collections.abc import AsyncIterator

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[SqlStore]:
    """A fresh store, migrated and open."""
    store = await open_store(store_url, SystemClock())
    yield store
    await store.close()


@pytest.fixture
def database(store_url: str) -> Database:
    """The database behind the store."""
    return Database(store_url)
