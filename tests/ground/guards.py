"""The guards of all statements that change or remove rows, taken out one at a time.

    python -m tests.ground.guards                     all of them
    python -m tests.ground.guards queue core          of these packages
    python -m tests.ground.guards queue.finish_job       of one statement
    python -m tests.ground.guards --list              only name them

A guard is a condition of an UPDATE or DELETE beyond the row's key. For each, the tests that run its
statement run without it, on SQLite, until one fails (see `mutants`). What no test notices is
reported, and the exit status is 1.
"""

import argparse
import contextlib
import re
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from ksana.base.clock import SystemClock
from ksana.store.jsonfile import store as jsonfile_store
from ksana.store.sql.core import statements, store
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.migrate import list_migrations
from ksana.store.sql.core.packages import list_packages
from ksana.store.sql.core.sqlite_file import add_functions
from tests.ground import mutants

TESTS = (
    "tests/conformance/store",
    "tests/engine",
    "tests/api",
    "tests/properties/test_queue_model.py",
    "tests/properties/test_runs_model.py",
    "tests/store/test_governance_jsonfile.py",
    "tests/store/test_jsonfile.py",
    "tests/store/test_jsonfile_by_hand.py",
)
"""Tests that run statements; of them those that run the one in question are asked."""

_UNITS: Final = "units are set aside on a database server only: see store/test_queue_escrow.py"

EXPLAINED: dict[str, str] = {
    "queue.draw_allotment: era = :era": _UNITS,
    "queue.draw_allotment: units >= :units": _UNITS,
}
"""Guards that no test can notice on SQLite, each with its reason and the test that notices it
elsewhere."""

_CHANGE = re.compile(
    r"(UPDATE\s+(?P<updated>\w+)\s+SET\s+(?P<sets>.*?)|DELETE\s+FROM\s+(?P<deleted>\w+))"
    r"\s+WHERE\s+(?P<where>.*)",
    re.IGNORECASE | re.DOTALL,
)
_COLUMN = re.compile(r"^\(?\s*(?:\w+\.)?(\w+)")


class Change(NamedTuple):
    """An UPDATE or DELETE, taken apart."""

    name: str
    package: str
    table: str
    sets: str
    conditions: tuple[str, ...]
    text: str


class Guard(NamedTuple):
    """One condition that can be taken out."""

    change: Change
    condition: str

    def __str__(self) -> str:
        return f"{self.change.name}: {' '.join(self.condition.split())}"

    def take_out(self) -> str:
        """The statement without it."""
        bare = self.change.text.replace(self.condition, "1 = 1", 1)
        assert bare != self.change.text
        head, _, where = bare.partition("WHERE")
        assert "1 = 1" in where, f"{self}: the condition also stands elsewhere"
        return f"{head}WHERE{where}"


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Cut a text at a separator that stands in no brackets, CASE or BETWEEN."""
    parts, depth, start, is_between = [], 0, 0, False
    for found in re.finditer(
        rf"[()]|\bCASE\b|\bEND\b|\bBETWEEN\b|{separator}", text, re.IGNORECASE
    ):
        word = found[0].strip().upper()
        if word in ("(", "CASE"):
            depth += 1
        elif word in (")", "END"):
            depth -= 1
        elif word == "BETWEEN":
            is_between = True
        elif is_between:
            is_between = False
        elif not depth:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def list_changes() -> list[Change]:
    """Every UPDATE and DELETE with a WHERE, of all packages."""
    packages = {
        file.name.removesuffix(".sql"): folder.name
        for folder in list_packages()
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    }
    changes = []
    for name, text, _ in statements.read_statements():
        found = _CHANGE.match(text)
        if found is not None:
            where = found["where"].replace("{filters}", "").strip()
            changes.append(
                Change(
                    name=name,
                    package=packages[name.partition(".")[0]],
                    table=found["updated"] or found["deleted"],
                    sets=found["sets"] or "",
                    conditions=tuple(split_outside_brackets(where, r"\bAND\b")),
                    text=text,
                )
            )
    return changes


def list_guards() -> list[Guard]:
    """Every condition beyond a row's key. Of tables that SQLite does not have, none can be taken
    out here: those of `job_keys` are asked for by conformance/store/test_queue_guards.py."""
    keys = find_keys()
    return [
        Guard(change, condition)
        for change in list_changes()
        for condition in change.conditions
        if change.table in keys and _column_of(condition) not in keys[change.table]
    ]


def find_keys() -> dict[str, set[str]]:
    """The columns of each table's primary key, and of unique keys of one column."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        add_functions(connection, SystemClock())
        connection.execute(
            "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT, at INTEGER)"
        )
        for migration in list_migrations():
            connection.executescript(SqliteDialect.macros.render_schema(migration.text))
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {table: _key_columns(connection, table) for (table,) in tables.fetchall()}


def _key_columns(connection: sqlite3.Connection, table: str) -> set[str]:
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    keys = {column[1] for column in columns if column[5]}
    for index in connection.execute(f"PRAGMA index_list({table})").fetchall():
        parts = connection.execute(f"PRAGMA index_info({index[1]})").fetchall()
        if index[2] and len(parts) == 1:
            keys.add(parts[0][2])
    return keys


def _column_of(condition: str) -> str:
    found = _COLUMN.match(condition)
    return found[1] if found else ""


def apply(guard: Guard) -> None:
    """Have every statement loaded from now on lack the guard."""
    bare = guard.take_out()
    read_whole = statements.read_statements

    def read_without_guard() -> list[tuple[str, str, dict[str, str]]]:
        return [
            (name, bare if name == guard.change.name else text, filters)
            for name, text, filters in read_whole()
        ]

    statements.read_statements = read_without_guard


def watch(recorder: mutants.Recorder) -> None:
    """Have the recorder told of every statement that is run."""

    class Watched(dict[str, statements.Statement]):
        def __getitem__(self, name: str) -> statements.Statement:
            recorder.touch(name)
            return super().__getitem__(name)

    load_whole = statements.load_statements

    def load_watched(macros: statements.Macros) -> dict[str, statements.Statement]:
        return Watched(load_whole(macros))

    for module in (statements, store, jsonfile_store):
        module.load_statements = load_watched  # type: ignore[attr-defined]


def _chosen(wanted: list[str]) -> Iterator[Guard]:
    for guard in list_guards():
        names = (guard.change.package, guard.change.name)
        if not wanted or any(name in wanted for name in names):
            yield guard


def main() -> int:
    """Take out what was asked for; tell what nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.ground.guards")
    parser.add_argument("wanted", nargs="*", help="packages or statements; all if none is named")
    parser.add_argument("--list", action="store_true", help="only name the guards")
    options = parser.parse_args()
    guards = list(_chosen(options.wanted))
    if options.list:
        mutants.say("\n".join(map(str, guards)))
        return 0
    made = [
        mutants.Mutant(
            name=str(guard),
            text=guard.change.text,
            mark=guard.change.name,
            apply=partial(apply, guard),
        )
        for guard in guards
    ]
    return mutants.judge("guards", made, mutants.TestMap("guards", watch), TESTS, EXPLAINED)


if __name__ == "__main__":
    sys.exit(main())
