"""A normalised dump of a store's schema, one text per kind of database, so that a change of schema
shows in review.

`python -m tests.store.schema_dump` writes `tests/store/schema/*.txt` anew.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from ksana.base.clock import SystemClock
from ksana.store.sql import migrate
from tests.conformance.store.ground import Database

FOLDER = Path(__file__).with_name("schema")

_COLUMNS = {
    "mysql": "SELECT table_name, column_name, column_type, is_nullable, COALESCE(column_default, ''), extra, "
    "COALESCE(collation_name, '') FROM information_schema.columns WHERE table_schema = DATABASE() "
    "ORDER BY table_name, ordinal_position",
    "postgresql": "SELECT table_name, column_name, data_type || COALESCE('(' || character_maximum_length || ')', ''), "
    "is_nullable, COALESCE(column_default, ''), CASE is_identity WHEN 'YES' THEN 'identity' ELSE '' END, '' "
    "FROM information_schema.columns WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position",
}
_INDEXES = {
    "mysql": "SELECT table_name, CONCAT(index_name, ' (', GROUP_CONCAT(column_name ORDER BY seq_in_index SEPARATOR ', '), ')', "
    "IF(MAX(non_unique) = 0, ' unique', '')) FROM information_schema.statistics WHERE table_schema = DATABASE() "
    "GROUP BY table_name, index_name ORDER BY 1, 2",
    "postgresql": "SELECT tablename, replace(indexdef, current_schema() || '.', '') FROM pg_indexes "
    "WHERE schemaname = current_schema() ORDER BY 1, 2",
}
_CHECKS = {
    "mysql": "SELECT table_name, CONCAT('check ', check_clause) FROM information_schema.check_constraints "
    "WHERE constraint_schema = DATABASE() ORDER BY 1, 2",
    "postgresql": "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE contype IN ('c', 'f') AND connamespace = current_schema()::regnamespace ORDER BY 1, 2",
}


def dump(database: Database) -> str:
    """The schema as text, in a fixed order and without what differs from one server to the next."""
    if database.kind == "sqlite":
        rows = database.ask(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY tbl_name, name"
        )
        return "\n\n".join(_tidy(row[0]) for row in rows) + "\n"
    tables: dict[str, list[str]] = {}
    for table, *column in database.ask(_COLUMNS[database.kind]):
        tables.setdefault(table, []).append(_column(column))
    for questions in (_INDEXES, _CHECKS):
        for table, text in database.ask(questions[database.kind]):
            tables[table].append(f"  {text}")
    return (
        "\n\n".join(f"{table}\n" + "\n".join(lines) for table, lines in sorted(tables.items()))
        + "\n"
    )


def _column(column: list[Any]) -> str:
    name, kind, nullable, default, extra, collation = column
    words = [
        name,
        kind,
        "" if nullable == "YES" else "not null",
        f"default {default}" if default else "",
        extra,
        collation,
    ]
    return "  " + " ".join(word for word in words if word)


def _tidy(sql: str) -> str:
    return "\n".join(line.rstrip() for line in sql.strip().splitlines())


def main() -> None:
    """Write all dumps anew."""
    from tests.ground.mariadb import MariaDB
    from tests.ground.postgres import Postgres

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _write(f"sqlite:///{folder}/ksana.db")
    for make in (MariaDB, Postgres):
        server = make()
        try:
            server.start()
            _write(server.url(server.create_database()))
        finally:
            server.close()


def _write(url: str) -> None:
    asyncio.run(migrate(url, SystemClock()))
    database = Database(url)
    (FOLDER / f"{database.kind}.txt").write_text(dump(database), encoding="utf-8")


if __name__ == "__main__":
    main()
