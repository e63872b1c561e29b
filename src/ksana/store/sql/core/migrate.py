"""Forward migrations: numbered files, each applied once, in order, recorded in `schema_migrations`.

A schema newer than this program is refused. SQLite and PostgreSQL apply a migration in one
transaction; MySQL commits each DDL statement by itself, so there a half-applied migration is taken
up where it stopped.
"""

import re
from collections.abc import Iterable
from importlib import resources
from typing import Any, Final

import msgspec

from ksana.base.errors import SetupError
from ksana.store.sql.core.dialects import Dialect, Trouble

_FILE = re.compile(r"(\d{4})_(\w+)\.sql\Z")
_LOCK_SECONDS: Final = 60
_MYSQL_EXISTS: Final = frozenset({1050, 1060, 1061})
"""Table, column or index exists already: what a half-applied migration left."""


_HISTORY: Final = (
    "CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER NOT NULL PRIMARY KEY, "
    "name VARCHAR(128) NOT NULL, applied_at BIGINT NOT NULL) {table_options}"
)


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema."""

    version: int
    name: str
    text: str


class MigrationReport(msgspec.Struct, frozen=True):
    """What a migration found and did."""

    found: int
    now: int
    applied: tuple[str, ...]


def list_migrations() -> list[Migration]:
    """All steps this program knows, in order."""
    found = []
    for file in resources.files("ksana.store.sql").joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def apply_migrations(dialect: Dialect, at: int, *, apply: bool = True) -> MigrationReport:
    """Bring the schema up to date, or with `apply` false only check it. Instances that start
    together take turns."""
    connection = dialect.connect(read_only=False)
    try:
        cursor = connection.cursor()
        _take_turn(dialect, cursor)
        try:
            return _apply(dialect, cursor, at, apply)
        finally:
            if dialect.name == "mysql":
                cursor.execute("SELECT RELEASE_LOCK('ksana_migrate')")
                cursor.fetchall()
    finally:
        connection.close()


def _take_turn(dialect: Dialect, cursor: Any) -> None:
    if dialect.name == "mysql":
        cursor.execute(f"SELECT GET_LOCK('ksana_migrate', {_LOCK_SECONDS})")
        if cursor.fetchone()[0] != 1:
            raise SetupError(
                "another instance has been migrating the schema for more than a minute"
            )
        return
    cursor.execute(dialect.begin_write)
    if dialect.name == "postgres":
        cursor.execute("SELECT pg_advisory_xact_lock(7166517366)")


def _apply(dialect: Dialect, cursor: Any, at: int, apply: bool) -> MigrationReport:
    known = list_migrations()
    if apply:
        cursor.execute(dialect.macros.render_schema(_HISTORY))
    found = _version(dialect, cursor)
    newest = known[-1].version
    if found > newest:
        raise SetupError(
            f"the store's schema is version {found}, newer than this program knows ({newest}): use a newer ksana"
        )
    pending = [migration for migration in known if migration.version > found]
    if pending and not apply:
        raise SetupError(
            f"the store's schema is version {found}, this program needs {newest}: run ksana migrate"
        )
    for migration in pending:
        for statement in _statements(dialect.macros.render_schema(migration.text)):
            _run(dialect, cursor, statement)
        cursor.execute(
            "INSERT INTO schema_migrations (version, name, applied_at) "
            f"VALUES ({migration.version}, '{migration.name}', {int(at)})"
        )
    if dialect.name != "mysql":
        cursor.execute("COMMIT")
    return MigrationReport(found, newest, tuple(f"{m.version:04d}_{m.name}" for m in pending))


def _version(dialect: Dialect, cursor: Any) -> int:
    try:
        cursor.execute("SELECT COALESCE(MAX(version), 0) FROM schema_migrations")
    except Exception as error:
        if dialect.judge(error) is not Trouble.OURS:
            raise
        return 0  # no such table: nothing was ever applied, and a mere check leaves it so
    return int(cursor.fetchone()[0])


def _run(dialect: Dialect, cursor: Any, statement: str) -> None:
    try:
        cursor.execute(statement)
    except Exception as error:
        if dialect.name == "mysql" and error.args and error.args[0] in _MYSQL_EXISTS:
            return
        raise


def _statements(text: str) -> Iterable[str]:
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in bare.split(";") if part.strip()]
