"""The JSON file store: the SQL store on a database in memory, with `jobs.json` as its durable
mirror.

Definitions and API keys are in the file; runs, callbacks, events, queue, governance and nodes live
in memory and end with the process. One server per file, by the same lock as a SQLite file has.
"""

import asyncio
import errno
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ksana.base.clock import Clock
from ksana.base.errors import SetupError, StoreDownError
from ksana.base.ids import new_uid
from ksana.base.instant import Instant
from ksana.domain.tasks.timer_document import DEFAULTS, TimerDefaults
from ksana.ports.store import Instance, StoreHealth
from ksana.store.jsonfile.atomic import list_set_aside, set_aside
from ksana.store.jsonfile.document import EMPTY, Document, UnreadableError, parse_document
from ksana.store.jsonfile.memory import MemoryDialect, MemoryThread
from ksana.store.jsonfile.mirror import Flusher, Mirror, sign_life
from ksana.store.sql import SqlStore
from ksana.store.sql.core import private_files
from ksana.store.sql.core.commit_queue import Writer
from ksana.store.sql.core.migrate import apply_migrations
from ksana.store.sql.core.session import Session
from ksana.store.sql.core.sqlite_file import ServeLock
from ksana.store.sql.core.statements import Statement, load_statements
from ksana.store.sql.core.tally import Tally
from ksana.store.sql.core.threads import InlineExecutor, Reader
from ksana.store.sql.core.tx import SqlTx

RATED_FOR = 10_000
IN_MEMORY = (
    "runs, callbacks, events, queue, governance and nodes live in memory on this store and end "
    "with the process"
)


class JsonStore(SqlStore):
    """A store on one JSON file. Made by `open_store`."""

    def __init__(self, opened: "OpenedDocument", clock: Clock, *, inline: bool) -> None:
        dialect = self.dialect = opened.dialect
        self.sole = True
        self._memory = dialect
        self._url = f"json:///{opened.mirror.path}"
        self._lock = opened.lock
        self.warnings = opened.warnings
        """What an operator should know: the file that was unreadable, the jobs that are not armed.
        """
        self.notes = [IN_MEMORY]
        self._tally = Tally()
        self._mirror = opened.mirror
        self._flusher: Flusher | None = None
        self._is_closed = False
        statements = opened.statements
        writer = Writer(dialect, statements, clock, self._tally, opened.mirror.seal)
        reader = Reader(dialect, statements, clock, self._tally)
        if inline:
            reads = InlineExecutor(None, reader)
            self._work_by(InlineExecutor(writer, None), reads, reads)
            return
        thread = MemoryThread(writer, reader)
        self._work_by(thread, thread.reads, thread.reads)
        if opened.lock is not None:
            self._flusher = Flusher(opened.mirror, partial(thread.run_errand, opened.mirror.copy))

    def health(self) -> StoreHealth:
        health = super().health()
        problem = self._mirror.problem
        if problem is not None:
            return StoreHealth(False, problem, health.commits, health.transactions, health.retries)
        if health.reason is None and self.warnings:  # well, but the operator should look
            return StoreHealth(
                True, "; ".join(self.warnings), health.commits, health.transactions, health.retries
            )
        return health

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if isinstance(self._writes, MemoryThread):
            self._writes.refuse()
        if self._flusher is not None:
            await asyncio.to_thread(self._flusher.end)
            self._flusher = None
        await self._writes.close()
        await self._reads.close()
        if self._lock is not None:
            try:
                await asyncio.to_thread(self._mirror.write_if_marked)
            finally:
                self._lock.drop()
        self._memory.end()


class OpenedDocument(NamedTuple):
    """A file that was read, and the database made of it."""

    dialect: MemoryDialect
    mirror: Mirror
    lock: ServeLock | None
    warnings: list[str]
    statements: Mapping[str, Statement]


async def open_store(
    url: str,
    clock: Clock,
    *,
    serve: bool = False,
    inline: bool = False,
    defaults: TimerDefaults = DEFAULTS,
) -> JsonStore:
    """Open the file a URL names. `serve` takes the one server's place on it; without it, and while
    a server is on the file, the store can only be read. `defaults` fill what jobs written by hand
    leave out.

    Raises SetupError when it can never work: a newer version, a second server, a folder that cannot
    be written.
    """
    open_it = partial(_open, json_path(url), clock, serve=serve, defaults=defaults)
    opened = open_it() if inline else await asyncio.to_thread(open_it)
    return JsonStore(opened, clock, inline=inline)


def json_path(url: str) -> Path:
    """The file a URL names: three slashes relative, four absolute. A folder gets `jobs.json`."""
    rest = url.split("://", 1)[1] if "://" in url else ""
    if not rest.startswith("/") or len(rest) < 2:
        raise SetupError(
            f"{url!r} names no file: write json:///data/jobs.json (relative) or json:////var/lib/jobs.json"
        )
    path = rest[1:].split("?", 1)[0]
    named = Path(path) if path.endswith(".json") else Path(path, "jobs.json")
    # The file behind a link is the one to replace, not the link.
    return Path(os.path.realpath(named))


async def check_file(url: str, clock: Clock, defaults: TimerDefaults = DEFAULTS) -> Document:
    """Read the file and change nothing. Raise SetupError if a server could not work with it as it
    is."""
    path = json_path(url)
    try:
        return (await asyncio.to_thread(_read, path, clock.now(), defaults, may_repair=False))[0]
    except OSError as error:
        raise SetupError(f"cannot use {path} as the store: {error.strerror or error}") from None


def _open(path: Path, clock: Clock, *, serve: bool, defaults: TimerDefaults) -> OpenedDocument:
    now = clock.now()
    signed_at = _signed_at(path)
    lock, refusal = _take_lock(path, serve=serve, signed_at=signed_at)
    try:
        document, warnings = _read(path, now, defaults, may_repair=serve)
        alive_at = signed_at if signed_at is not None else document.updated_at
        dialect = MemoryDialect(clock)
        apply_migrations(dialect, now)
        statements = load_statements(dialect.macros)
        mirror = Mirror(path, dialect, clock, document, refusal=refusal, signs_life=serve)
        if alive_at is not None:
            alive_at = min(alive_at, now)
        _restore(dialect, statements, mirror, document, alive_at, now)
        warnings += [
            f"{path}: the job {bad.label} is not armed: {bad.reason}" for bad in document.bad
        ]
        if len(document.timers) > RATED_FOR:
            warnings.append(
                f"{path} holds {len(document.timers)} jobs; a JSON file is rated for {RATED_FOR}: "
                "use SQLite"
            )
        if serve:
            for aside in list_set_aside(path):
                private_files.restrict_file(aside)
            mirror.write()
    except OSError as error:
        _drop(lock)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreDownError(f"the disk of {path} is full", retry_after_sec=5) from None
        raise SetupError(f"cannot use {path} as the store: {error.strerror or error}") from None
    except BaseException:
        _drop(lock)
        raise
    return OpenedDocument(dialect, mirror, lock, warnings, statements)


def _read(
    path: Path, now: Instant, defaults: TimerDefaults, *, may_repair: bool
) -> tuple[Document, list[str]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return EMPTY, []
    try:
        return parse_document(content, now, defaults), []
    except UnreadableError as error:
        if not may_repair:
            raise SetupError(f"{path} cannot be read: {error}. It was left as it is.") from None
        aside = set_aside(path)
        return EMPTY, [
            f"{path} could not be read ({error}): it is now {aside.name}, and this start began "
            "with no jobs"
        ]


def _restore(
    dialect: MemoryDialect,
    statements: Mapping[str, Statement],
    mirror: Mirror,
    document: Document,
    alive_at: Instant | None,
    now: Instant,
) -> None:
    connection = dialect.connection
    session = Session(dialect, connection, statements)
    tx = SqlTx(session, now)
    session.raw("BEGIN")
    tasks = document.list_tasks(now if alive_at is None else alive_at, now)
    for task in tasks:
        tx.tasks.restore(task)
    for key in document.keys:
        connection.execute(
            "INSERT INTO api_keys "
            "(id, name, secret_hash, scopes, created_at, revoked_at, last_used_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                key.id,
                key.name,
                key.secret_hash,
                " ".join(key.scopes),
                key.created_at,
                key.revoked_at,
                key.last_used_at,
            ),
        )
    if alive_at is not None:
        # The life before this one: from its end on nobody was there, and firing counts missed slots
        # by that (C10).
        tx.instances.remember(
            Instance(new_uid(), "", "", alive_at, alive_at, alive_at, alive_at, None)
        )
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'tasks'")
    connection.execute(
        "INSERT INTO sqlite_sequence (name, seq) VALUES ('tasks', ?)", (document.last_task_id,)
    )
    mirror.load(tasks)
    session.raw("COMMIT")


def _signed_at(path: Path) -> Instant | None:
    """When a server on this file last gave a sign of life."""
    try:
        return os.stat(f"{path}.lock").st_mtime_ns // 1000
    except OSError:
        return None


def _take_lock(
    path: Path, *, serve: bool, signed_at: Instant | None
) -> tuple[ServeLock | None, str | None]:
    """The lock, or for one who only looks the reason why it cannot be had."""
    lock = ServeLock(str(path))
    try:
        lock.take()
    except SetupError as error:
        if serve:
            raise
        return None, str(error)
    if not serve and signed_at is not None:
        sign_life(path, signed_at)  # taking the lock for a moment is no sign of a server's life
    return lock, None


def _drop(lock: ServeLock | None) -> None:
    if lock is not None:
        lock.drop()
