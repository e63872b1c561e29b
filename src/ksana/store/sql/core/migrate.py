"""Forward migrations: numbered files, each applied once, in order, recorded in `schema_migrations`.

A file is never edited once it was released: a store that has applied it would not get the change.
Each is recorded with a checksum, and a store that has applied another version of one is refused, as
is a schema newer than this program. SQLite and PostgreSQL apply a migration in one transaction;
MySQL commits each DDL statement by itself, so there a half-applied migration is taken up where it
stopped.
"""

import hashlib
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any, Final

import msgspec

from ksana.base.errors import SetupError
from ksana.store.sql.core.dialects import Dialect, Trouble

_TAKES_AWAY = re.compile(r"\b(RENAME|DROP)\b")
_FILE = re.compile(r"(\d{4})_(\w+)\.sql\Z")
_LOCK_SECONDS: Final = 60
_MYSQL_EXISTS: Final = frozenset({1050, 1060, 1061})
"""Table, column or index exists already: what a half-applied migration left."""
_MYSQL_GONE: Final = frozenset({1054, 1091, 1146, 1176, 1347, 3821, 3940})
"""What is to be renamed or dropped is not there: it was already, or never was on this server; or a
view has the name of the table that was renamed."""


_HISTORY: Final = (
    "CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER NOT NULL PRIMARY KEY, "
    "name VARCHAR(128) NOT NULL, applied_at BIGINT NOT NULL) {table_options}"
)


_CHECKSUMS_SINCE: Final = 6
"""The migration that adds the column for checksums."""


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema."""

    version: int
    name: str
    text: str

    @property
    def full_name(self) -> str:
        """As the file is called."""
        return f"{self.version:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        """Of its statements; comments and line breaks do not count."""
        statements = (" ".join(statement.split()) for statement in _statements(self.text))
        return hashlib.sha256(";".join(statements).encode()).hexdigest()


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
    applied = _list_applied(dialect, cursor)
    found, newest = max(applied, default=0), known[-1].version
    if found > newest:
        raise SetupError(
            f"the store's schema is version {found}, newer than this program knows ({newest}): "
            "use a newer ksana"
        )
    if found >= _CHECKSUMS_SINCE:
        _check_sums(cursor, known)
    pending = [migration for migration in known if migration.version not in applied]
    if not found and not apply:
        raise SetupError("the database is there, but holds no Ksana store yet: run ksana migrate")
    if pending and not apply:
        raise SetupError(
            f"the store's schema is version {found}, this program needs {newest}: run ksana migrate"
        )
    for migration in pending:
        _apply_one(dialect, cursor, migration, found, at)
    for migration in pending:  # the first ones are older than the column
        cursor.execute(
            f"UPDATE schema_migrations SET checksum = '{migration.checksum}' "
            f"WHERE version = {migration.version}"
        )
    if dialect.name != "mysql":
        cursor.execute("COMMIT")
    return MigrationReport(found, newest, tuple(one.full_name for one in pending))


def _apply_one(dialect: Dialect, cursor: Any, migration: Migration, found: int, at: int) -> None:
    try:
        for statement in _statements(dialect.macros.render_schema(migration.text)):
            _run(dialect, cursor, statement)
    except Exception as error:
        if dialect.classify(error) is not Trouble.OURS:
            raise
        raise SetupError(
            f"migration {migration.full_name} failed on a store of version {found} "
            f"({' '.join(str(error).split())[:200]}): its tables are not those of a released "
            "ksana. Restore a backup, or begin with an empty store"
        ) from error
    cursor.execute(
        "INSERT INTO schema_migrations (version, name, applied_at) "
        f"VALUES ({migration.version}, '{migration.name}', {int(at)})"
    )


def _list_applied(dialect: Dialect, cursor: Any) -> set[int]:
    try:
        cursor.execute("SELECT version FROM schema_migrations")
    except Exception as error:
        if dialect.classify(error) is not Trouble.OURS:
            raise
        return set()  # no such table: nothing was ever applied, and a mere check leaves it so
    return {int(row[0]) for row in cursor.fetchall()}


def _check_sums(cursor: Any, known: Iterable[Migration]) -> None:
    """Refuse a store that has applied another version of a migration."""
    cursor.execute("SELECT version, checksum FROM schema_migrations WHERE checksum IS NOT NULL")
    recorded = {int(row[0]): row[1] for row in cursor.fetchall()}
    for migration in known:
        if recorded.get(migration.version, migration.checksum) != migration.checksum:
            raise SetupError(
                f"the store has applied another version of migration {migration.full_name} than "
                "this program has: it was made by a ksana that was never released. Use that one, "
                "or begin with an empty store"
            )


def _run(dialect: Dialect, cursor: Any, statement: str) -> None:
    try:
        cursor.execute(statement)
    except Exception as error:
        code = error.args[0] if error.args else None
        if dialect.name == "mysql" and (
            code in _MYSQL_EXISTS
            or (code in _MYSQL_GONE and _TAKES_AWAY.search(statement) is not None)
        ):
            return
        raise


def _statements(text: str) -> Iterable[str]:
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in bare.split(";") if part.strip()]
