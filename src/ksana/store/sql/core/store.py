"""Opening a store by its URL, and the store itself: a commit queue for writes, threads for reads, a
tally for health."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from ksana.base.clock import Clock
from ksana.base.errors import SetupError, StoreDownError
from ksana.base.instant import Instant, format_instant
from ksana.ports.store import CommitListener, StoreHealth
from ksana.store.sql.core import sqlite_file
from ksana.store.sql.core.checkpoints import Checkpointer
from ksana.store.sql.core.commit_queue import Writer
from ksana.store.sql.core.database_clock import DatabaseClock
from ksana.store.sql.core.dialects import Dialect, SqliteDialect, Trouble
from ksana.store.sql.core.dialects.sqlite import FilePlace
from ksana.store.sql.core.durability import list_weaknesses
from ksana.store.sql.core.migrate import MigrationReport, apply_migrations
from ksana.store.sql.core.packages import find_tables
from ksana.store.sql.core.pooling import refuse_pooler
from ksana.store.sql.core.statements import load_statements
from ksana.store.sql.core.tally import Tally, summary
from ksana.store.sql.core.threads import (
    Executor,
    InlineExecutor,
    Reader,
    ReaderThreads,
    WriteExecutor,
    WriterThreads,
)

T = TypeVar("T")

NETWORK_WRITERS = 4
READERS = 2
LIST_READERS = 2
"""Connections that only lists use: a slow one holds up no other read."""

LIST_SECONDS = 2.0
"""How long a list may wait, and how long each of its statements may take."""

OPEN_SECONDS = 30.0
"""How long opening waits for others who open the same store."""


class SqlStore:
    """A store on one SQL database. Made by `open_store`."""

    def __init__(self, opened: "Opened", clock: Clock, *, inline: bool) -> None:
        dialect = self.dialect = opened.dialect
        self.sole = not dialect.is_network
        self._url = opened.shown
        self._lock = opened.lock
        self.warnings = opened.warnings
        """Settings of the database server under which an acknowledged write may be lost, in
        sentences."""
        self.notes: list[str] = []
        """What holds for every store of this kind; the start says so."""
        self._tally = Tally()
        self._checkpointer: Checkpointer | None = None
        statements = load_statements(dialect.macros)
        if inline:
            reader = InlineExecutor(None, Reader(dialect, statements, clock, self._tally))
            writer = InlineExecutor(Writer(dialect, statements, clock, self._tally), None)
            self._work_by(writer, reader, reader)
            return
        count = NETWORK_WRITERS if dialect.is_network else 1
        after_commits: Callable[[], None] | None = None
        gate: threading.Lock | None = None
        check: Callable[[], None] | None = None
        if isinstance(dialect, SqliteDialect) and dialect.path != ":memory:":
            self._checkpointer = Checkpointer(dialect, self._tally)
            after_commits, gate = self._checkpointer.ask, self._checkpointer.gate
            check = FilePlace(dialect.path).check
        database_clock = DatabaseClock(dialect.clock_sql)
        writers = [
            Writer(
                dialect,
                statements,
                clock,
                self._tally,
                check=check,
                database_clock=database_clock,
            )
            for _ in range(count)
        ]
        self._work_by(
            WriterThreads(writers, "store-write", after_commits, gate),
            ReaderThreads(dialect, statements, clock, self._tally, READERS),
            ReaderThreads(
                dialect,
                statements,
                clock,
                self._tally,
                LIST_READERS,
                name="store-list",
                limit_sec=LIST_SECONDS,
            ),
        )

    def _work_by(self, writes: WriteExecutor, reads: Executor, lists: Executor) -> None:
        """Have them do the work. What a store offers is what they offer: a call passes nothing of
        the store's own on its way."""
        self._writes, self._reads, self._lists = writes, reads, lists
        self.transact, self.read, self.read_list = writes.start, reads.start, lists.start
        self.transact_for = writes.start_for

    @property
    def url(self) -> str:
        return self._url

    def health(self) -> StoreHealth:
        tally = self._tally
        reason = tally.broken_reason or tally.down_reason
        return StoreHealth(
            reason is None,
            reason,
            tally.commits,
            tally.transactions,
            tally.retries,
            tally.round_trips if self.dialect.is_network else 0,
        )

    def watch_commits(self, listener: CommitListener, event_types: frozenset[str]) -> None:
        self._tally.event_types = event_types
        self._tally.listener = listener

    async def close(self) -> None:
        # SQLite's log goes with the connection that is closed last, if that one is alone: two
        # readers that end together would each see the other and leave it. So the writer is last.
        self._writes.refuse()
        await self._lists.close()
        await self._reads.close()
        if self._checkpointer is not None:
            await asyncio.to_thread(self._checkpointer.close)
        await self._writes.close()
        if self._lock is not None:
            self._lock.drop()


class Opened(NamedTuple):
    """A store whose schema is known."""

    dialect: Dialect
    shown: str
    lock: sqlite_file.ServeLock | None
    report: MigrationReport
    warnings: list[str]


async def open_store(
    url: str,
    clock: Clock,
    *,
    migrate: bool = True,
    serve: bool = False,
    inline: bool = False,
    durability: Literal["warn", "strict"] = "warn",
) -> SqlStore:
    """Open the store a URL names, with its schema up to date. `serve` takes the one server's place
    on a SQLite file.

    Raises SetupError when it can never work (a foreign file, a newer schema, a bad URL; with
    `durability` strict also a database server that may lose acknowledged writes), StoreDownError
    when it may later.
    """

    def open_it() -> Opened:
        opened = _open(url, clock, apply=migrate, serve=serve, durability=durability)
        find_tables()  # imports every surface's: here, and not in the first transaction
        return opened

    opened = open_it() if inline else await asyncio.to_thread(open_it)
    return SqlStore(opened, clock, inline=inline)


async def migrate(url: str, clock: Clock) -> MigrationReport:
    """Bring a store's schema up to date; answer what was done."""
    return (await asyncio.to_thread(partial(_open, url, clock, apply=True, serve=False))).report


async def check_schema(url: str, clock: Clock) -> MigrationReport:
    """Answer the schema's version, changing nothing; a schema that needs a migration raises
    SetupError."""
    return (await asyncio.to_thread(partial(_open, url, clock, apply=False, serve=False))).report


def _open(url: str, clock: Clock, *, apply: bool, serve: bool, durability: str = "warn") -> Opened:
    dialect, shown = choose_dialect(url, clock)
    lock: sqlite_file.ServeLock | None = None
    try:
        if isinstance(dialect, SqliteDialect):
            if serve and dialect.path != ":memory:":
                lock = sqlite_file.ServeLock(dialect.path)
                lock.take()
            _patiently(dialect, partial(sqlite_file.prepare, dialect.path, clock, make=apply))
        refuse_pooler(dialect, shown)
        report = _patiently(dialect, partial(apply_migrations, dialect, clock.now(), apply=apply))
        if lock is not None:
            lock.leave(_describe_opening(dialect, clock.now()))
        warnings = list_weaknesses(dialect)
        if warnings and durability == "strict":
            raise SetupError(
                f"the store {shown} may lose acknowledged writes: {'; '.join(warnings)}"
            )
    except Exception as error:
        if lock is not None:
            lock.drop()
        if isinstance(error, SetupError):
            raise
        refusal = dialect.find_refusal(error)
        if refusal is not None:
            raise SetupError(f"the store {shown} cannot be used: {refusal}") from error
        trouble = dialect.classify(error)
        if trouble is Trouble.DAMAGED:
            raise SetupError(
                f"the store {shown} is damaged: {summary(error)}. The file was left as it is; "
                "restore a backup."
            ) from error
        if trouble is Trouble.OURS:
            raise SetupError(f"the store {shown} cannot be used: {error}") from error
        raise StoreDownError(f"the store {shown} is away: {summary(error)}") from error
    return Opened(dialect, shown, lock, report, warnings)


def _describe_opening(dialect: Dialect, now: Instant) -> str:
    """What the lock file says of a store that is served, should its database vanish."""
    words = f"opened {format_instant(now)}"
    with contextlib.closing(dialect.connect(read_only=True)) as connection:
        try:
            row = connection.execute("SELECT COALESCE(MAX(id), 0) FROM event_packs").fetchone()
        except Exception:  # a damaged page is told by whoever needs it
            return words
    return f"{words}, with {row[0]} rows of events"


def _patiently(dialect: Dialect, step: Callable[[], T]) -> T:
    """Take a step of opening again while another process is at the same one: SQLite does not always
    wait by itself."""
    give_up_at = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return step()
        except Exception as error:
            if dialect.classify(error) is not Trouble.RETRY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


def choose_dialect(url: str, clock: Clock) -> tuple[Dialect, str]:
    """Pick the dialect for a URL; answer it and the URL with its secret masked (the full path for
    SQLite)."""
    scheme = url.split(":", 1)[0].split("+")[0]
    if scheme == "sqlite":
        path = sqlite_path(url)
        return SqliteDialect(path, clock), f"sqlite:///{path}"
    if scheme in ("mysql", "mariadb"):
        from ksana.store.sql.core.dialects.mysql import MysqlDialect

        return MysqlDialect(url), _masked(url)
    if scheme in ("postgresql", "postgres"):
        from ksana.store.sql.core.dialects.postgres import PostgresDialect

        return PostgresDialect(url), _masked(url)
    raise SetupError(
        f"no store is called {scheme!r}: use sqlite:///…, mysql://…, postgresql://… or json:///…"
    )


def sqlite_path(url: str) -> str:
    """The full path that a SQLite URL names: three slashes are relative, four absolute."""
    rest = url.split("://", 1)[1] if "://" in url else ""
    if not rest.startswith("/") or len(rest) < 2:
        raise SetupError(
            f"{url!r} names no file: write sqlite:///data/ksana.db (relative) or "
            "sqlite:////var/lib/ksana.db"
        )
    path = rest[1:].split("?", 1)[0]
    return path if path == ":memory:" else os.path.abspath(path)


def _masked(url: str) -> str:
    """Where the database is, without the login and the parameters: either may hold a password. The
    last @ ends the login, also where a password was not percent-encoded."""
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    place = place.partition("?")[0].partition("#")[0]
    return f"{scheme}://{'***@' if login else ''}{place}"
