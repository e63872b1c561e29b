"""Which store a URL means, and how it is opened: the one place of the server that names a store's implementation."""

from random import Random
from typing import Final

import structlog

from ksana.base.clock import Clock
from ksana.base.errors import SetupError, StoreDownError
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.boot.late_store import LateStore
from ksana.boot.redaction import mask_url
from ksana.ports.store import Store
from ksana.store import sql
from ksana.store.sql.migrate import MigrationReport, list_migrations

_WAIT_LEAST: Final[Micros] = 200 * MILLISECOND
_WAIT_MOST: Final[Micros] = 5 * SECOND

_log = structlog.get_logger("ksana.boot")


async def open_store(url: str, clock: Clock, *, migrate: bool, serve: bool) -> Store:
    """Open the store of a URL. Raise SetupError if it can never work, StoreDownError if it may later."""
    try:
        return await sql.open_store(url, clock, migrate=migrate, serve=serve)
    except OSError as error:
        raise SetupError(f"The store {mask_url(url)} cannot be used: {error.strerror or error}.") from None


async def migrate_store(url: str, clock: Clock) -> MigrationReport:
    """Bring the schema up to date."""
    try:
        return await sql.migrate(url, clock)
    except OSError as error:
        raise SetupError(f"The store {mask_url(url)} cannot be used: {error.strerror or error}.") from None


async def check_store(url: str, clock: Clock) -> MigrationReport:
    """Tell the schema's version, changing nothing."""
    return await sql.check_schema(url, clock)


def schema_version() -> int:
    """The version of the schema that this program works on; an open store has no other."""
    return list_migrations()[-1].version


async def wait_for_store(late: LateStore, url: str, clock: Clock, random: Random, *, migrate: bool) -> Store:
    """Try until the store opens, with backoff; `late` tells the probes why it has not yet."""
    failures = 0
    while True:
        try:
            return await open_store(url, clock, migrate=migrate, serve=True)
        except StoreDownError as error:
            late.problem = error.message
            wait_us = int(min(_WAIT_LEAST << min(failures, 10), _WAIT_MOST) * (0.5 + random.random() / 2))
            failures += 1
            if failures == 1 or failures % 12 == 0:
                _log.warning("waiting for the store", err=error.message, tries=failures)
            await clock.sleep_until(clock.now() + wait_us)
