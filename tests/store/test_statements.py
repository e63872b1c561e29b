"""Rules for the text of statements that no database tells us about."""

import re
from pathlib import Path

import pytest

import ksana.store.sql
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.dialects.mysql import MysqlDialect
from ksana.store.sql.core.dialects.postgres import PostgresDialect
from ksana.store.sql.core.statements import Statement, load_statements

_UPDATE = re.compile(
    r"(?:UPDATE\s.*?\sSET|INSERT\s.*\sON DUPLICATE KEY UPDATE)\s+(.*?)(?:\sWHERE\s.*)?\Z",
    re.IGNORECASE | re.DOTALL,
)


def assignments(sql: str) -> list[tuple[str, str]]:
    """(column, expression) of each assignment, in order."""
    found = _UPDATE.match(sql.strip())
    if found is None:
        return []
    parts, depth, start, text = [], 0, 0, found[1]
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    pairs = (part.partition("=") for part in parts)
    return [(name.strip().rpartition(".")[2], expression) for name, _, expression in pairs]


def named(sql: str) -> set[str]:
    return set(re.findall(r"[a-z_]+", re.sub(r"'[^']*'|%\(\w+\)s|[a-z]+\.", "", sql)))


@pytest.mark.spec("X2")
@pytest.mark.parametrize(
    "statement", load_statements(MysqlDialect.macros).values(), ids=lambda statement: statement.name
)
def test_no_assignment_reads_what_an_earlier_one_wrote(statement: Statement) -> None:
    """MySQL assigns from left to right and reads the new values; the others read the old ones."""
    written: set[str] = set()
    for column, expression in assignments(statement.sql):
        stale = named(expression) & written
        assert not stale, f"{statement.name} sets {column} from {stale}, which it has set before"
        written.add(column)


def test_the_rule_finds_what_it_looks_for() -> None:
    pairs = assignments(
        "UPDATE t SET a = :x, b = b + CASE WHEN a = 'y' THEN 1 ELSE 0 END WHERE a = :z"
    )
    assert [column for column, _ in pairs] == ["a", "b"]
    assert "a" in named(pairs[1][1]) and "x" not in named(pairs[0][1].replace(":x", "%(x)s"))


@pytest.mark.parametrize("dialect", [SqliteDialect, MysqlDialect, PostgresDialect])
def test_every_dialect_has_every_statement(dialect: type) -> None:
    assert load_statements(dialect.macros).keys() == load_statements(SqliteDialect.macros).keys()  # type: ignore[attr-defined]


_SQL = Path(ksana.store.sql.__file__).parent
_NATIVE_TIME = re.compile(r"\b(?:DATETIME|TIMESTAMP|TIMESTAMPTZ|DATE|TIME)\b")
_SESSION_LOCK = re.compile(r"GET_LOCK|pg_(?:try_)?advisory", re.IGNORECASE)


@pytest.mark.fault("F38")
@pytest.mark.spec("X5")
@pytest.mark.parametrize("file", sorted(_SQL.rglob("*.sql")), ids=lambda file: file.name)
def test_no_column_has_a_time_type_of_the_database(file: Path) -> None:
    code = re.sub(r"--[^\n]*", "", file.read_text())
    assert not _NATIVE_TIME.findall(code), "instants are whole microseconds: one database rounds"


@pytest.mark.fault("F41")
def test_locks_of_a_session_guard_migrations_and_nothing_else() -> None:
    """A pool or a failover may drop such a lock unseen; a migration holds it for one connection."""
    files = [*_SQL.rglob("*.py"), *_SQL.rglob("*.sql")]
    users = {file.name for file in files if _SESSION_LOCK.search(file.read_text())}
    assert users == {"migrate.py"}
