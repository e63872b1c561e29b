"""How secrets of tasks are stored, on every store; and what an upgrade makes of older rows."""

import hashlib
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import SECOND
from ksana.boot.sealing import AesBox, make_box
from ksana.domain.schedule import Cron
from ksana.domain.tasks.records import Definition, Options, Task
from ksana.engine.tasks.resealing import list_old_seals, reseal_tasks
from ksana.engine.tasks.task_secrets import TaskSecrets
from ksana.service.tasks.definitions import NewTask, TaskService
from ksana.store.sql import SqlStore, open_store
from ksana.store.sql.core import migrate
from tests.conformance.store.ground import Database
from tests.store.timers import NoHints

OLD, NEW = TaskSecrets(AesBox((b"o" * 32,))), TaskSecrets(AesBox((b"n" * 32, b"o" * 32)))
CLEAR = TaskSecrets(make_box(()))


def definition(name: str, **headers: str) -> Definition:
    return Definition(name, "", Cron("0 0 0 1 1 *"), target_url="http://h/", headers=headers)


def service(store: SqlStore, secrets: TaskSecrets) -> TaskService:
    return TaskService(store, SystemClock(), NoHints(), SECOND, secrets)


def seals_of(tx: Any) -> dict[str, int]:
    return {seal: tx.task_seals.count(seal) for seal in tx.task_seals.list_seals()}


@pytest.mark.spec("X16")
async def test_seals_are_listed_and_replaced_in_batches(store: SqlStore) -> None:
    for number in range(7):
        await service(store, OLD).create(
            NewTask("C", definition(f"o{number}", Authorization=f"secret {number}"))
        )
    clear = await service(store, CLEAR).create(NewTask("C", definition("c", Cookie="s=1")))
    await service(store, OLD).create(NewTask("C", definition("none", Accept="a/b")))
    await service(store, CLEAR).delete(clear.id)
    assert await store.read(seals_of) == {OLD.key_id: 7, "gone": 1}
    assert await store.read(list_old_seals, NEW) == [OLD.key_id]
    after = done = 0
    while True:
        found, count = await store.transact(reseal_tasks, OLD.key_id or "", NEW, after, 3)
        if not found:
            break
        after, done = found[-1], done + count
    assert done == 7
    assert await store.read(seals_of) == {NEW.key_id: 7, "gone": 1}
    task = await service(store, NEW).get(1)
    assert task.version == 1
    assert task.definition.headers["Authorization"].startswith(f"ksana1:{NEW.key_id}:")
    assert NEW.open(task.definition, task.job_id).headers == {"Authorization": "secret 0"}


async def test_a_task_that_was_changed_meanwhile_is_not_written_over(store: SqlStore) -> None:
    made = await service(store, OLD).create(NewTask("C", definition("t", Cookie="s=1")))

    def reseal_late(tx: Any, seen: Task) -> bool:
        return bool(tx.task_seals.reseal_if_version(seen, definition("t", Cookie="written over")))

    stale = msgspec.structs.replace(made, version=made.version + 1)
    assert await store.transact(reseal_late, stale) is False
    task = await service(store, OLD).get(made.id)
    assert OLD.open(task.definition, task.job_id).headers == {"Cookie": "s=1"}


@pytest.mark.spec("X16")
async def test_the_bodies_of_one_task_are_forgotten(store: SqlStore, database: Database) -> None:
    """Of its runs those that have one, and of no other task."""
    tasks = service(store, CLEAR)
    for name in ("deleted", "living"):
        task = await tasks.create(NewTask("C", definition(name)))
        for body in (None, "a", "b"):
            await tasks.run_now(task.id)
            if body:
                database.ask(
                    f"UPDATE task_runs SET override_body = '{body}' WHERE id = "
                    "(SELECT last.id FROM (SELECT MAX(id) AS id FROM task_runs) AS last)"
                )
    assert await store.transact(lambda tx: tx.task_seals.drop_override_bodies(1)) == 2
    rows = database.ask("SELECT task_id, override_body FROM task_runs ORDER BY id")
    assert [(row[0], row[1]) for row in rows] == [
        *[(1, None)] * 3,
        *[(2, None), (2, "a"), (2, "b")],
    ]


async def test_a_fact_about_the_store_is_decided_by_the_first(store: SqlStore) -> None:
    assert await store.transact(lambda tx: tx.facts.find_or_note("a", "first")) == "first"
    assert await store.transact(lambda tx: tx.facts.find_or_note("a", "second")) == "first"


async def test_of_a_fact_that_may_change_the_newest_holds(store: SqlStore) -> None:
    assert await store.read(lambda tx: tx.facts.find("edition")) is None
    for edition in ("2026a", "2026b"):
        await store.transact(lambda tx, edition=edition: tx.facts.note("edition", edition))
        assert await store.read(lambda tx: tx.facts.find("edition")) == edition


@pytest.mark.spec("X2", "C16")
async def test_an_upgrade_hashes_tokens_and_finds_older_secrets(
    store_url: str, database: Database
) -> None:
    store = await open_store(store_url, SystemClock())
    tasks = service(store, CLEAR)
    living = await tasks.create(NewTask("C", definition("living", Cookie="s=1")))
    signed = definition("signed")
    options = Options(signing_secret="QUFBQQ==")
    await tasks.create(NewTask("C", msgspec.structs.replace(signed, options=options)))
    plain = await tasks.create(NewTask("C", definition("plain", Accept="a/b")))
    runs = [(await tasks.trigger(plain.id, force_async=True)).run_id for _ in range(2)]
    await store.close()
    # As the version before left it: tokens as they are, a deleted task with its secrets.
    [step] = [one for one in migrate.list_migrations() if one.name == "secrets"]
    old, open_ = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    database.ask("DROP VIEW scheduler_events")  # a later one, which reads the next
    database.ask("DROP TABLE store_facts")
    index = "tasks_sealed_by ON tasks" if database.kind == "mysql" else "tasks_sealed_by"
    database.ask(f"DROP INDEX {index}")
    database.ask("ALTER TABLE tasks DROP COLUMN sealed_by")
    database.ask(f"UPDATE tasks SET deleted = 1 WHERE id = {living.id}")
    database.ask(
        f"UPDATE task_runs SET callback_token = '{old}', open_task = NULL WHERE id = {runs[0]}"
    )
    database.ask(f"UPDATE task_runs SET callback_token = '{open_}' WHERE id = {runs[1]}")
    database.ask(f"DELETE FROM schema_migrations WHERE version = {step.version}")
    store = await open_store(store_url, SystemClock())
    try:
        rows = database.ask("SELECT callback_token FROM task_runs ORDER BY id")
        assert [row[0].rstrip() for row in rows] == [
            hashlib.sha256(old.encode()).hexdigest(),
            open_,
        ]
        assert CLEAR.find_token("any", rows[1][0]) == open_
        assert await store.read(seals_of) == {"unknown": 3}
        await store.transact(reseal_tasks, "unknown", OLD, 0, 10)
        assert await store.read(seals_of) == {OLD.key_id: 1, "gone": 1}
    finally:
        await store.close()
