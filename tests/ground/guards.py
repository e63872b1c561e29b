"""The guards of all statements that change or remove rows, taken out one at a time.

    python -m tests.ground.guards                     all of them
    python -m tests.ground.guards queue core          of these packages
    python -m tests.ground.guards queue.end_job       of one statement
    python -m tests.ground.guards --list              only name them

A guard is a condition of an UPDATE or DELETE beyond the row's key. For each, the tests of its
package run without it, on SQLite, until one fails. What no test notices is reported, and the exit
status is 1. Every run is a fork of one process that has imported the tests, so a guard takes
seconds.
"""

import argparse
import contextlib
import os
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ksana.store.sql.core import statements
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.migrate import list_migrations
from ksana.store.sql.core.packages import list_packages

ROOT = Path(__file__).parents[2]

SELECTIONS = {
    "core": (
        "tests/conformance/store/test_core_guards.py",
        "tests/conformance/store/test_core_tables.py",
        "tests/conformance/store/test_idempotency.py",
        "tests/conformance/store/test_transact.py",
        "tests/engine/test_membership.py",
        "tests/engine/test_retention.py",
    ),
    "tasks": (
        "tests/conformance/store/test_batches.py",
        "tests/conformance/store/test_history.py",
        "tests/conformance/store/test_runs.py",
        "tests/conformance/store/test_tasks.py",
        "tests/engine",
        "tests/api/test_runs.py",
        "tests/api/test_callbacks.py",
        "tests/api/test_tasks.py",
        "tests/api/test_timers.py",
    ),
    "queue": (
        "tests/conformance/store",
        "tests/engine/test_queue_chores.py",
        "tests/api/test_queue_jobs.py",
        "tests/api/test_queue_leases.py",
        "tests/properties/test_queue_model.py",
    ),
}
"""Tests that should notice, by package; what does not exist is passed over."""

ANYWHERE = ("tests/conformance/store", "tests/engine", "tests/api")
"""For a package without an entry."""

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
    """Every condition beyond a row's key."""
    keys = find_keys()
    return [
        Guard(change, condition)
        for change in list_changes()
        for condition in change.conditions
        if _column_of(condition) not in keys[change.table]
    ]


def find_keys() -> dict[str, set[str]]:
    """The columns of each table's primary key, and of unique keys of one column."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
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


def run_tests(package: str, guard: Guard | None) -> int:
    """Run a package's tests in a fork, without the guard; the exit status of pytest."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 99
    try:
        if guard is not None:
            _patch(guard)
        with open(os.devnull, "w") as nowhere:  # the report is ours to write
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        status = int(pytest.main(_arguments(package)))
    finally:
        os._exit(status)


def _patch(guard: Guard) -> None:
    bare = guard.take_out()

    read_whole = statements.read_statements

    def read_without_guard() -> list[tuple[str, str, dict[str, str]]]:
        return [
            (name, bare if name == guard.change.name else text, filters)
            for name, text, filters in read_whole()
        ]

    statements.read_statements = read_without_guard


def _arguments(package: str) -> list[str]:
    paths = [path for path in SELECTIONS.get(package, ANYWHERE) if (ROOT / path).exists()]
    only_here = "not mariadb and not postgres and not redis"
    quick = ["-x", "-q", "--timeout", "60", "-p", "no:cacheprovider", "-p", "no:xdist"]
    folder = tempfile.mkdtemp(prefix="guards-")
    return [*paths, "-k", only_here, *quick, "--basetemp", f"{folder}/tests", "--no-header"]


def _chosen(wanted: list[str]) -> Iterator[Guard]:
    for guard in list_guards():
        names = (guard.change.package, guard.change.name)
        if not wanted or any(name in wanted for name in names):
            yield guard


def say(line: str) -> None:
    """Report at once: whoever waits sees how far it is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Take out what was asked for; tell what nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.ground.guards")
    parser.add_argument("wanted", nargs="*", help="packages or statements; all if none is named")
    parser.add_argument("--list", action="store_true", help="only name the guards")
    options = parser.parse_args()
    guards = list(_chosen(options.wanted))
    if options.list:
        say("\n".join(map(str, guards)))
        return 0
    os.chdir(ROOT)
    for package in sorted({guard.change.package for guard in guards}):
        begun = time.monotonic()
        if status := run_tests(package, None):
            say(f"the tests of {package} fail as they are (status {status}): nothing is proven")
            return 2
        say(f"{package}: the tests pass, in {time.monotonic() - begun:.0f} s")
    unnoticed = []
    for guard in guards:
        begun = time.monotonic()
        is_noticed = run_tests(guard.change.package, guard) == pytest.ExitCode.TESTS_FAILED
        if not is_noticed:
            unnoticed.append(guard)
        word = "noticed" if is_noticed else "UNNOTICED"
        say(f"{word:10}{time.monotonic() - begun:5.0f} s  {guard}")
    say(f"{len(guards)} guards, {len(unnoticed)} unnoticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
