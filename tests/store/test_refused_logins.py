"""A role, a database or a password that does not exist is said at once and clearly; a server that
is away is waited for."""

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError, StoreDownError
from ksana.store.sql import open_store
from tests.ground.child import free_port
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres

pytestmark = pytest.mark.spec("X2")


async def refusal_of(url: str) -> str:
    with pytest.raises(SetupError) as caught:
        await open_store(url, SystemClock())
    return str(caught.value)


async def test_postgres_says_what_does_not_exist(postgres: Postgres) -> None:
    place = f"{postgres.host}:{postgres.port}"
    database = postgres.create_database()
    text = await refusal_of(postgres.url("nowhere"))
    assert 'database "nowhere" does not exist: make it (CREATE DATABASE)' in text
    text = await refusal_of(f"postgresql://nobody_here@{place}/{database}")
    assert 'role "nobody_here" does not exist: make it (CREATE ROLE' in text
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE sleeper NOLOGIN")
    text = await refusal_of(f"postgresql://sleeper@{place}/{database}")
    assert 'role "sleeper" is not permitted to log in' in text


async def test_mariadb_says_what_does_not_exist(mariadb: MariaDB) -> None:
    place = f"{mariadb.host}:{mariadb.port}"
    database = mariadb.create_database()
    text = await refusal_of(mariadb.url("nowhere"))
    assert "there is no database 'nowhere': make it (CREATE DATABASE)" in text
    text = await refusal_of(f"mysql://nobody_here:hush@{place}/{database}")
    assert "does not let the user 'nobody_here' in" in text and "hush" not in text
    mariadb.run("CREATE OR REPLACE USER narrow@'%' IDENTIFIED BY 'word'")
    text = await refusal_of(f"mysql://narrow:word@{place}/{database}")
    assert f"the user 'narrow' has no right to the database '{database}'" in text


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
async def test_a_server_that_is_away_may_come(scheme: str) -> None:
    with pytest.raises(StoreDownError, match="is away"):
        await open_store(f"{scheme}://ksana@127.0.0.1:{free_port()}/ksana", SystemClock())
