"""Private database servers that lie on a disk: those of the tests may lie in memory, where a sync
costs nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.redis import Redis

from bench.ground import disk

POSTGRES = (
    *("-c", "shared_buffers=512MB"),
    *("-c", "max_wal_size=4GB"),
    *("-c", "checkpoint_timeout=15min"),
)
MARIADB = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=1G")
"""Room for what is measured: a small buffer or log makes every store wait, ours and the peers'."""


class DiskPostgres(Postgres):
    """PostgreSQL on the disk, every commit synced. Text is in the order of its bytes, the cheapest
    for everybody."""

    root = disk.PLACE
    order = ()


class DiskMariaDB(MariaDB):
    """MariaDB on the disk, every commit synced."""

    root = disk.PLACE


@contextmanager
def postgres() -> Iterator[DiskPostgres]:
    """A PostgreSQL with room, removed afterwards."""
    disk.refuse_memory()
    server = DiskPostgres(options=POSTGRES)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextmanager
def mariadb() -> Iterator[DiskMariaDB]:
    """A MariaDB with room, removed afterwards."""
    disk.refuse_memory()
    server = DiskMariaDB(options=MARIADB)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextmanager
def redis() -> Iterator[Redis]:
    """A Redis that keeps nothing."""
    server = Redis()
    try:
        server.start()
        yield server
    finally:
        server.close()
