"""What `ksana doctor` looks at: each check answers one line, good or bad, and none changes
anything."""

import asyncio
import contextlib
import os
import platform
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ksana.base.clock import Clock, SystemClock
from ksana.base.errors import SetupError, UnavailableError
from ksana.base.instant import SECOND
from ksana.boot import doctor_files
from ksana.boot.doctor_server import OwnServer, find_own_server
from ksana.boot.listening import is_loopback, listen
from ksana.boot.redaction import mask_url, redact_text
from ksana.boot.settings.table import Settings
from ksana.boot.stores import check_store, open_store
from ksana.boot.surfaces import find_doctor_checks
from ksana.domain.zones import rules_version
from ksana.engine.core.clock_watch import SKEW_TOLERANCE
from ksana.store.sql.core import sqlite_file, sqlite_place
from ksana.store.sql.core.sqlite_check import find_damage
from ksana.store.sql.core.store import sqlite_path

_LEAST_SQLITE: Final = (3, 35, 0)
"""The first with RETURNING."""

_ANSWER_WITHIN_SEC: Final = 5.0
_READ_THROUGH_SEC: Final = 60.0
_RESTORE: Final = f"Stop the server and restore a backup ({sqlite_place.WAY_BACK})"


class Finding(msgspec.Struct, frozen=True):
    """One line of the doctor's report."""

    name: str
    ok: bool
    text: str


async def examine(settings: Settings, clock: Clock | None = None) -> list[Finding]:
    """Run every check, in the order in which a start would meet the troubles."""
    at = clock or SystemClock()
    own = await find_own_server(settings, at)
    checks: tuple[tuple[str, Callable[[], Awaitable[str]]], ...] = (
        ("python", _look_at_python),
        ("time zones", _look_at_zones),
        ("address", lambda: _look_at_address(settings, own)),
        ("disk", lambda: doctor_files.look_at_disk(settings)),
        ("files", lambda: doctor_files.look_at_files(settings)),
        ("server", lambda: doctor_files.look_at_holder(settings, own)),
        ("sqlite", lambda: _look_at_sqlite(settings)),
        ("store", lambda: _look_at_store(settings, at)),
        ("contents", lambda: _look_at_contents(settings)),
        ("jobs.json", lambda: doctor_files.look_at_jobs(settings, at)),
        ("clocks", lambda: _look_at_clocks(settings, at)),
        ("coordination", lambda: _look_at_coordination(settings)),
        *((name, partial(check, settings)) for name, check in find_doctor_checks().items()),
    )
    return [await _find(name, check) for name, check in checks]


async def _find(name: str, check: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(name, True, await check())
    except (SetupError, UnavailableError) as error:
        return Finding(name, False, redact_text(str(error) or type(error).__name__))
    except Exception as error:  # whatever it is: a doctor that falls ill helps nobody
        return Finding(name, False, redact_text(f"{type(error).__name__}: {error}"))


async def _look_at_python() -> str:
    return f"Python {platform.python_version()} on {platform.system()}"


async def _look_at_zones() -> str:
    try:
        return f"edition {rules_version()}"
    except ImportError:
        raise SetupError("there is no time zone database: install the tzdata package") from None


async def _look_at_address(settings: Settings, own: OwnServer | None) -> str:
    host, port = settings.server.host, settings.server.port
    if own is not None:
        if own.problems:
            raise SetupError(f"our own server (pid {own.pid}) is not ready: {own.problems}")
        return f"our own server (pid {own.pid}) answers at {host}:{port}, and is ready"
    listen(host, port).close()
    reach = "this machine only" if is_loopback(host) else "open to others: an API key is needed"
    return f"{host}:{port} is free ({reach})"


async def _look_at_sqlite(settings: Settings) -> str:
    if sqlite3.sqlite_version_info < _LEAST_SQLITE:
        raise SetupError(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed")
    words = f"SQLite {sqlite3.sqlite_version}"
    path = _find_database(settings.store.url)
    if path is None or sqlite_file.is_foreign(path):
        return words
    try:
        # Read-only: the last one to close a database moves its log into it.
        with contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as connection:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise SetupError(f"{path} cannot be read: {error}") from None
    if mode != "wal":
        raise SetupError(f"{path} would lose acknowledged writes: journal_mode={mode}")
    return f"{words}, {path.name} in WAL mode with synchronous=FULL"


async def _look_at_store(settings: Settings, clock: Clock) -> str:
    url = settings.store.url
    if url.startswith("sqlite:") and _find_database(url) is None:
        return f"{sqlite_path(url)} does not exist yet; the first start makes it"
    report = await check_store(url, clock)
    return f"{mask_url(url)} answers, schema {report.now}"


async def _look_at_contents(settings: Settings) -> str:
    file = _find_database(settings.store.url)
    if file is None or sqlite_file.is_foreign(file):
        return "there is no database file of ours to read through"
    try:
        found = await asyncio.to_thread(find_damage, file, _READ_THROUGH_SEC)
    except sqlite3.Error as error:
        raise SetupError(f"{file} is damaged: {error}. {_RESTORE}") from None
    if found.damages:
        tables = "; ".join(f"table {one.table}: {one.words}" for one in found.damages[:8])
        raise SetupError(f"{file} is damaged. {tables}. {_RESTORE}")
    if found.seen < found.tables:
        return (
            f"no damage in {found.seen} of {found.tables} tables; "
            f"the rest was not read within {_READ_THROUGH_SEC:g} s"
        )
    return f"{found.tables} tables are whole"


async def _look_at_clocks(settings: Settings, clock: Clock) -> str:
    if settings.store.url.startswith(("sqlite:", "json:")):
        return "the store uses our own clock"
    store = await open_store(settings.store.url, clock, migrate=False, serve=False)
    try:
        asked_at = clock.now()
        store_at: int = await store.read(lambda tx: int(tx.now))
        skew_us = store_at - (asked_at + clock.now()) // 2
    finally:
        await store.close()
    if abs(skew_us) > SKEW_TOLERANCE:
        raise SetupError(
            f"the store's clock is {skew_us / SECOND:+.3f} s from ours: set both by NTP"
        )
    return f"the store's clock is {skew_us / SECOND:+.3f} s from ours"


async def _look_at_coordination(settings: Settings) -> str:
    url = settings.coordination.url
    if url == "memory":
        return "memory: one instance only for nodes"
    answers = []
    for place in urlsplit(url).netloc.rpartition("@")[2].split(","):
        host, _, port = (
            place.rpartition(":") if place.rpartition(":")[2].isdigit() else (place, "", "6379")
        )
        async with asyncio.timeout(_ANSWER_WITHIN_SEC):
            _, writer = await asyncio.open_connection(
                host.strip("[]"), int(port), family=socket.AF_UNSPEC
            )
        writer.close()
        answers.append(f"{host}:{port}")
    return f"{', '.join(answers)} can be reached"


def _find_database(url: str) -> Path | None:
    """The SQLite file, if there is one with something in it. Raise SetupError if there was one."""
    path = sqlite_path(url) if url.startswith("sqlite:") else ":memory:"
    if path == ":memory:":
        return None
    if not os.path.exists(path) or (os.path.isfile(path) and os.path.getsize(path) == 0):
        sqlite_place.check_vanished(path)
        return None
    return Path(path)
