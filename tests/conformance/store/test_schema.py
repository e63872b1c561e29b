"""Migrations: once, in turns, forward only; and the schema as it was reviewed."""

import asyncio
import sys
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError
from ksana.store.sql import check_schema, migrate, open_store
from ksana.store.sql.core import migrate as migrations
from ksana.store.sql.core.migrate import list_migrations
from tests.conformance.store.checks import enter_key, key_names
from tests.conformance.store.ground import Database
from tests.store import schema_dump

MIGRATE = """
import asyncio, sys
from ksana.base.clock import SystemClock
from ksana.store.sql import migrate
report = asyncio.run(migrate(sys.argv[1], SystemClock()))
print(len(report.applied), report.now)
"""


async def test_a_fresh_store_gets_every_migration_once(store_url: str) -> None:
    known = list_migrations()
    first = await migrate(store_url, SystemClock())
    assert (first.found, first.now) == (0, known[-1].version)
    assert first.applied == tuple(f"{m.version:04d}_{m.name}" for m in known)
    second = await migrate(store_url, SystemClock())
    assert (second.found, second.applied) == (known[-1].version, ())
    assert await check_schema(store_url, SystemClock()) == second


async def test_processes_that_migrate_at_once_take_turns(store_url: str) -> None:
    async def run() -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MIGRATE,
            store_url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode().strip(), err.decode()

    answers = await asyncio.gather(*(run() for _ in range(6)))
    assert [code for code, _, _ in answers] == [0] * 6, answers
    known = list_migrations()
    assert sorted(text for _, text, _ in answers) == sorted(
        [f"{len(known)} {known[-1].version}", *[f"0 {known[-1].version}"] * 5]
    )


async def test_a_newer_schema_is_refused_and_left_alone(store_url: str, database: Database) -> None:
    await migrate(store_url, SystemClock())
    database.ask(
        "INSERT INTO schema_migrations (version, name, applied_at)"
        " VALUES (9999, 'from_the_future', 0)"
    )
    before = schema_dump.dump(database)
    for attempt in (migrate, check_schema, open_store):
        with pytest.raises(SetupError, match="version 9999, newer than this program"):
            await attempt(store_url, SystemClock())
    assert schema_dump.dump(database) == before


async def test_a_check_changes_nothing(store_url: str, database: Database) -> None:
    with pytest.raises(SetupError, match="run ksana migrate"):
        await check_schema(store_url, SystemClock())
    with pytest.raises(SetupError, match="run ksana migrate"):
        await open_store(store_url, SystemClock(), migrate=False)
    assert schema_dump.dump(database).strip() == ""


class StoppedError(BaseException):
    """The migration was killed here."""


@pytest.mark.fault("F40")
async def test_a_migration_that_stopped_after_any_statement_is_taken_up(
    store_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.ddl_is_transactional:
        pytest.skip("here a migration cannot stop halfway")
    run_whole, left = migrations._run, 0

    def run_so_many(dialect: Any, cursor: Any, statement: str) -> None:
        nonlocal left
        run_whole(dialect, cursor, statement)
        left -= 1
        if not left:
            raise StoppedError

    monkeypatch.setattr(migrations, "_run", run_so_many)
    known, stops, further = 0, 0, 1
    while True:
        left = further
        try:
            report = await migrate(store_url, SystemClock())
            break
        except StoppedError:
            stops += 1
        [(found,)] = database.ask("SELECT COUNT(*) FROM schema_migrations")
        # Two statements further each time, in each migration from its beginning.
        known, further = found, 1 if found > known else further + 2
    assert report.now == len(list_migrations())
    assert stops > 40
    dumped = schema_dump.dump(database).strip()
    assert dumped == (schema_dump.FOLDER / "mysql.txt").read_text("utf-8").strip()


async def test_a_store_with_another_version_of_a_migration_is_refused(
    store_url: str, database: Database
) -> None:
    await migrate(store_url, SystemClock())
    database.ask(f"UPDATE schema_migrations SET checksum = '{'0' * 64}' WHERE version = 3")
    for attempt in (migrate, check_schema, open_store):
        with pytest.raises(SetupError, match="another version of migration 0003_queue"):
            await attempt(store_url, SystemClock())


async def test_a_store_from_before_checksums_is_taken_as_it_is(
    store_url: str, database: Database
) -> None:
    await migrate(store_url, SystemClock())
    database.ask("UPDATE schema_migrations SET checksum = NULL WHERE version < 6")
    assert (await migrate(store_url, SystemClock())).applied == ()


async def test_a_migration_that_does_not_fit_names_itself(
    store_url: str, database: Database
) -> None:
    """Such as a store has whose tables were made by a migration that was edited later."""
    await migrate(store_url, SystemClock())
    database.ask("DELETE FROM schema_migrations WHERE version >= 5")
    if database.kind == "mysql":  # there what exists already is passed over
        database.ask("DROP TABLE idempotency_keys")
    with pytest.raises(SetupError, match=r"migration 000[56]_\w+ failed on a store of version 4"):
        await open_store(store_url, SystemClock())
    rows = database.ask("SELECT version FROM schema_migrations ORDER BY version")
    assert rows[-1][0] in (4, 5)


async def test_a_migration_added_later_with_a_lower_number_is_applied(
    store_url: str, database: Database
) -> None:
    await migrate(store_url, SystemClock())
    database.ask("DELETE FROM schema_migrations WHERE version = 4")
    database.ask("DROP TABLE queue_hours")
    assert (await migrate(store_url, SystemClock())).applied == ("0004_queue_hours",)


async def test_the_schema_is_the_reviewed_one(store_url: str, database: Database) -> None:
    await migrate(store_url, SystemClock())
    reviewed = (schema_dump.FOLDER / f"{database.kind}.txt").read_text("utf-8")
    assert schema_dump.dump(database) == reviewed, (
        "run python -m tests.store.schema_dump and review the difference"
    )


async def test_a_store_is_the_same_after_it_was_closed(store_url: str) -> None:
    store = await open_store(store_url, SystemClock())
    await store.transact(enter_key, "kept")
    await store.close()
    store = await open_store(store_url, SystemClock(), migrate=False)
    assert await store.read(key_names) == {"kept"}
    await store.close()
