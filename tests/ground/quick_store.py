"""Stores that open quickly, for processes that open thousands of them: an empty SQLite file gets
its tables as a copy of a file that was migrated once, and the statements are read once."""

import contextlib
import functools
import sqlite3
from pathlib import Path

from ksana.base.clock import SystemClock
from ksana.base.instant import Instant
from ksana.store.jsonfile import store as jsonfile_store
from ksana.store.sql.core import sqlite_file, statements, store
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.dialects.base import Dialect
from ksana.store.sql.core.migrate import MigrationReport, apply_migrations, list_migrations


def make_quick(folder: Path) -> None:
    """Have every store that this process and its forks open from now on open quickly. The migrated
    file is left in the folder."""
    template = _make_template(folder)
    migrate = functools.partial(
        _migrate, template, tuple(one.full_name for one in list_migrations())
    )
    load = functools.cache(statements.load_statements)
    for module in (store, jsonfile_store):
        module.apply_migrations = migrate  # type: ignore[attr-defined]
        module.load_statements = load  # type: ignore[attr-defined]


def _make_template(folder: Path) -> str:
    path, clock = str(folder / "template.db"), SystemClock()
    sqlite_file.prepare(path, clock, make=True)
    apply_migrations(SqliteDialect(path, clock), clock.now())
    return path


def _migrate(
    template: str, names: tuple[str, ...], dialect: Dialect, at: Instant, *, apply: bool = True
) -> MigrationReport:
    if not apply or not isinstance(dialect, SqliteDialect):
        return apply_migrations(dialect, at, apply=apply)
    with contextlib.closing(dialect.connect(read_only=False)) as connection:
        [count] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if count:
            return apply_migrations(dialect, at)
        with contextlib.closing(sqlite3.connect(f"file:{template}?mode=ro", uri=True)) as source:
            source.backup(connection)
        connection.execute("UPDATE schema_migrations SET applied_at = ?", (int(at),))
        connection.commit()
    return MigrationReport(0, len(names), names)
