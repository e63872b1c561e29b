"""PostgreSQL behind a pooler: one that keeps a connection for each caller will do, one that hands
connections on from transaction to transaction is refused before anything is written."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError
from ksana.store.sql import open_store
from ksana.store.sql.core.pooling import refuse_pooler
from tests.conformance.store.checks import enter_key, key_names
from tests.ground.child import free_port, wait_for
from tests.ground.postgres import Postgres
from tests.ground.server import MissingServerError, find_program

PROCESSES = (100, 101, 102)


class Pooler:
    """Who serves which connection: for good (`session`), or whoever was free last for each
    transaction."""

    name = "postgres"

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.free = list(PROCESSES)
        self.opened = 0

    def connect(self, read_only: bool) -> "Caller":
        self.opened += 1
        return Caller(self)


class Caller:
    """One connection through it."""

    def __init__(self, pooler: Pooler) -> None:
        self._pooler = pooler
        self._process: int | None = None
        self._is_in_block = False
        is_direct = pooler.mode == "direct"
        self.info = SimpleNamespace(backend_pid=self._take() if is_direct else 7)

    def _take(self) -> int:
        if self._process is None:
            self._process = self._pooler.free.pop()
        return self._process

    def execute(self, sql: str, prepare: bool | None = None) -> Any:
        process = -1 if self._pooler.mode == "unnumbered" else self._take()
        self._is_in_block = sql == "BEGIN" or (self._is_in_block and sql != "ROLLBACK")
        if self._pooler.mode == "transaction" and not self._is_in_block:
            self._pooler.free.append(process)
            self._process = None
        return SimpleNamespace(fetchone=lambda: (process,))

    def close(self) -> None:
        """Nothing is left of it."""


@pytest.mark.parametrize(("mode", "opened"), [("direct", 1), ("session", 2), ("unnumbered", 2)])
def test_connections_that_are_kept_for_a_caller_will_do(mode: str, opened: int) -> None:
    pooler = Pooler(mode)
    refuse_pooler(pooler, "postgresql://…")  # type: ignore[arg-type]
    assert pooler.opened == opened


def test_connections_that_are_handed_on_are_refused() -> None:
    with pytest.raises(SetupError, match=r"postgresql://… is reached through a pooler .* session"):
        refuse_pooler(Pooler("transaction"), "postgresql://…")  # type: ignore[arg-type]


@contextmanager
def pgbouncer(postgres: Postgres, mode: str) -> Iterator[int]:
    """PgBouncer before a server; its port. Its files lie in the server's folder: both run as the
    same user."""
    try:
        program = find_program("pgbouncer", beside=("/usr/sbin",))
    except MissingServerError:
        pytest.skip("PgBouncer is not installed: the tests above stand for it")
    port, role = free_port(), urlsplit(postgres.url("postgres")).username
    users, settings = (postgres.folder / f"pgbouncer-{port}.{kind}" for kind in ("txt", "ini"))
    users.write_text(f'"{role}" ""\n')
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={postgres.port}\n[pgbouncer]\n"
        f"listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\n"
        f"auth_type=trust\nauth_file={users}\npool_mode={mode}\n"
    )
    for path in (users, settings):
        path.chmod(0o644)
    running = subprocess.Popen(
        [program, "-q", str(settings)],
        user=postgres.run_as(),
        cwd=postgres.folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: is_open(port), "PgBouncer listens")
        yield port
    finally:
        running.terminate()
        running.wait(10)


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.spec("X2")
@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
async def test_a_store_behind_pgbouncer(postgres: Postgres, mode: str) -> None:
    database = postgres.create_database()
    with pgbouncer(postgres, mode) as port:
        url = postgres.url(database).replace(f":{postgres.port}/", f":{port}/")
        if mode == "session":
            store = await open_store(url, SystemClock())
            await store.transact(enter_key, "k")
            assert await store.read(key_names) == {"k"}
            await store.close()
        else:
            with pytest.raises(SetupError, match="pool_mode = session"):
                await open_store(url, SystemClock())
    with postgres.connect(database) as connection:
        made = connection.execute("SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'")
        assert bool(made.fetchone()[0]) is (mode == "session")  # type: ignore[index]
    postgres.drop_database(database)
