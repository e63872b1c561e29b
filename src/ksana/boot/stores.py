"""Which store a URL means, and how it is opened: the one place of the server that names a store's
implementation. That of the JSON file is loaded where there is one."""

from pathlib import Path
from random import Random
from typing import Final, Literal

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import SetupError, StoreDownError
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.boot.redaction import mask_url
from ksana.boot.unopened_store import UnopenedStore
from ksana.domain.tasks.timer_document import DEFAULTS, TimerDefaults
from ksana.ports.store import Store
from ksana.store import sql
from ksana.store.sql.core import private_files
from ksana.store.sql.core.migrate import MigrationReport, list_migrations
from ksana.store.sql.core.store import sqlite_path

Durability = Literal["warn", "strict"]

_WAIT_LEAST: Final[Micros] = 200 * MILLISECOND
_WAIT_MOST: Final[Micros] = 5 * SECOND


class Jobs(msgspec.Struct, frozen=True):
    """What the stores must know about `jobs.json`: what its jobs may leave out, and which one a new
    SQLite store takes over."""

    defaults: TimerDefaults = DEFAULTS
    import_from: Path | None = None


NO_IMPORT: Final = Jobs()


async def open_store(
    url: str,
    clock: Clock,
    *,
    migrate: bool,
    serve: bool,
    jobs: Jobs = NO_IMPORT,
    durability: Durability = "warn",
) -> Store:
    """Open the store of a URL. With neither `migrate` nor `serve` it must be there: nothing is
    made. Raise SetupError if it can never work, StoreDownError if it may later."""
    place = find_file(url) if is_json(url) else None
    if place is not None and not serve and not place.exists():
        raise SetupError(f"there is no store at {place} yet: a start of the server makes it")
    try:
        if is_json(url):
            from ksana.store import jsonfile

            opened: sql.SqlStore = await jsonfile.open_store(
                url, clock, serve=serve, defaults=jobs.defaults
            )
        else:
            opened = await sql.open_store(
                url, clock, migrate=migrate, serve=serve, durability=durability
            )
            if serve and opened.sole and jobs.import_from is not None:
                opened.warnings += await _import_jobs(
                    opened, clock, jobs.import_from, jobs.defaults
                )
    except OSError as error:
        raise SetupError(
            f"The store {mask_url(url)} cannot be used: {error.strerror or error}."
        ) from None
    if serve:
        restrict_data_folder(url, jobs)
        for warning in opened.warnings:
            log.warning("the store needs a look", err=warning)
    return opened


def list_notes(store: Store) -> list[str]:
    """What the start should tell about an open store, in sentences: what it is not, what it found,
    what it left."""
    return [*store.notes, *store.warnings] if isinstance(store, sql.SqlStore) else []


def is_json(url: str) -> bool:
    """Whether the URL names a JSON file."""
    return url.split(":", 1)[0] == "json"


def find_file(url: str) -> Path | None:
    """The file that the store is, if it is one."""
    if is_json(url):
        from ksana.store.jsonfile import json_path

        return json_path(url)
    if not url.startswith("sqlite:"):
        return None
    path = sqlite_path(url)
    return None if path == ":memory:" else Path(path)


def restrict_data_folder(url: str, jobs: Jobs) -> None:
    """Keep others out of the data folder, if the store lies in it. A folder that only the store's
    URL names may hold other things, and is left as it is; the files in it are private all the
    same."""
    file = find_file(url)
    if file is not None and jobs.import_from is not None:
        folder = jobs.import_from.parent
        if folder.is_dir() and folder.resolve() == file.parent.resolve():
            private_files.restrict_folder(folder)


async def _import_jobs(
    store: sql.SqlStore, clock: Clock, path: Path, defaults: TimerDefaults
) -> list[str]:
    """Let a store nobody has served yet take over the jobs of a JSON file (T23); answer what to
    tell."""
    if _is_absent(path):
        return []
    from ksana.store import jsonfile

    document, warnings = jsonfile.find_import(path, clock.now(), defaults)
    if document is None:
        return warnings if await store.read(jsonfile.is_unused) else []
    count = await store.transact(jsonfile.import_document, document, str(path))
    if not count:
        return [] if count is None else warnings
    return [
        f"{count} jobs were taken over from {path}, once; the file is not read again",
        *warnings,
    ]


def _is_absent(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # it may be there: reading it will tell
        return False
    return False


async def migrate_store(url: str, clock: Clock) -> MigrationReport:
    """Bring the schema up to date. A JSON file has none; it is only read."""
    try:
        if is_json(url):
            return await check_store(url, clock)
        return await sql.migrate(url, clock)
    except OSError as error:
        raise SetupError(
            f"The store {mask_url(url)} cannot be used: {error.strerror or error}."
        ) from None


async def check_store(url: str, clock: Clock) -> MigrationReport:
    """Tell the schema's version, changing nothing."""
    if is_json(url):
        from ksana.store.jsonfile import check_file

        await check_file(url, clock)
        return MigrationReport(schema_version(), schema_version(), ())
    return await sql.check_schema(url, clock)


def schema_version() -> int:
    """The version of the schema that this program works on; an open store has no other."""
    return list_migrations()[-1].version


async def wait_for_store(
    late: UnopenedStore,
    url: str,
    clock: Clock,
    random: Random,
    *,
    migrate: bool,
    jobs: Jobs = NO_IMPORT,
    durability: Durability = "warn",
) -> Store:
    """Try until the store opens, with backoff; `late` tells the probes why it has not yet."""
    failures = 0
    while True:
        try:
            return await open_store(
                url, clock, migrate=migrate, serve=True, jobs=jobs, durability=durability
            )
        except StoreDownError as error:
            late.problem = error.message
            wait_us = int(
                min(_WAIT_LEAST << min(failures, 10), _WAIT_MOST) * (0.5 + random.random() / 2)
            )
            failures += 1
            if failures == 1 or failures % 12 == 0:
                log.warning("waiting for the store", err=error.message, tries=failures)
            await clock.sleep_until(clock.now() + wait_us)
