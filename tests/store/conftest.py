"""Network databases that a test may stop, kill and freeze."""

from collections.abc import Iterator

import pytest

from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres


@pytest.fixture(params=["mariadb", "postgres"])
def server_store(request: pytest.FixtureRequest) -> Iterator[tuple[str, MariaDB | Postgres]]:
    """A fresh store on a database server of the test's own to torment: (url, server)."""
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name), server
    server.heal()
    server.drop_database(name)
