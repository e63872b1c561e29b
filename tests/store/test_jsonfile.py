"""The JSON file store: what is in the file, what survives a restart, what people may do to the file
between two."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock, VirtualClock
from ksana.base.errors import SetupError, StoreDownError
from ksana.base.instant import format_instant
from ksana.domain.tasks.records import Options, QueueSpec
from ksana.service.tasks.definitions import NewTask
from ksana.store.jsonfile import JsonStore, json_path, open_store
from tests.conformance.store import checks
from tests.conformance.store.checks import enter_key, key_names
from tests.store.jsonfile_ground import all_tasks, create, document, edit, jobs_of
from tests.store.timers import task_service, timer

Open = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.json"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Open]:
    """Open the file as a server does; what a test leaves open is closed."""
    stores: list[JsonStore] = []

    async def open_it(clock: Any = None, **options: Any) -> JsonStore:
        store = await open_store(
            f"json:///{path}", clock or SystemClock(), **{"serve": True, **options}
        )
        stores.append(store)
        return store

    yield open_it
    for store in stores:
        await store.close()


@pytest.mark.spec("X2")
def test_three_slashes_are_relative_four_absolute_and_a_folder_gets_jobs_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert json_path("json:///data") == tmp_path / "data" / "jobs.json"
    assert json_path("json:///data/timers.json") == tmp_path / "data" / "timers.json"
    assert json_path("json:////var/lib/ksana") == Path("/var/lib/ksana/jobs.json")
    for bad in ("json://data", "json:///", "json:"):
        with pytest.raises(SetupError, match="names no file"):
            json_path(bad)


@pytest.mark.spec("T19")
async def test_the_file_has_the_shape_of_the_seed(opened: Open, path: Path) -> None:
    store = await opened()
    assert document(path)["jobs"] == []
    task = await create(store, body="a\nb", http_method="POST")
    assert list(document(path)) == ["version", "updated_at", "jobs"]
    assert document(path)["version"] == 1
    (job,) = jobs_of(path)
    assert (job["id"], job["task_id"], job["enabled"], job["type"]) == (
        task.job_id,
        1,
        True,
        "http",
    )
    assert job["http"] == {
        "method": "POST",
        "url": "http://127.0.0.1:9/ping",
        "headers": {},
        "body": "a\nb",
    }
    assert (job["schedule"]["kind"], job["schedule"]["every"], job["timeout"]) == (
        "every",
        "5m",
        "10s",
    )
    assert (job["max_retries"], job["retry_backoff"], job["next_run_at"]) == (
        3,
        "5s",
        format_instant(task.next_slot_at or 0),
    )
    assert (job["last_run_at"], job["last_status"], job["last_error"]) == ("", "", "")
    assert "task" not in job
    assert '\n      "name": "ping",\n' in path.read_text(), "indented, a member to a line"
    assert not list(path.parent.glob("*.tmp"))


@pytest.mark.spec("T19")
async def test_a_task_that_timers_cannot_express_carries_it_in_one_more_member(
    opened: Open, path: Path
) -> None:
    store = await opened()
    made = await create(
        store, "C", name="report", exec_type="ASYNC", tags=("nightly",), misfire_policy="FIRE_NOW"
    )
    assert jobs_of(path)[0]["task"] == {
        "dialect": "C",
        "exec_type": "ASYNC",
        "misfire_policy": "FIRE_NOW",
        "tags": ["nightly"],
    }
    await store.close()
    assert await (await opened()).read(all_tasks) == [made]


@pytest.mark.spec("T19", "B5")
async def test_a_task_that_makes_no_call_keeps_its_job_in_the_file(
    opened: Open, path: Path
) -> None:
    store = await opened()
    options = Options(type="queue", queue=QueueSpec("etl", "nightly", cost_units=3))
    made = await create(store, "C", name="n", target_url="", body='{"a":1}', options=options)
    [job] = jobs_of(path)
    assert (job["type"], job["http"]["url"], job["http"]["body"]) == ("queue", "", '{"a":1}')
    spec = {"addon_id": "etl", "job_type": "nightly", "cost_units": 3}
    assert job["task"]["options"] == {"queue": spec}
    await store.close()
    edit(path, lambda whole: whole["jobs"][0]["http"].update(body='{"a":2}'))
    [read] = await (await opened()).read(all_tasks)
    assert (read.definition.body, read.definition.options) == ('{"a":2}', made.definition.options)


@pytest.mark.spec("T20")
async def test_changes_pauses_and_deletions_are_in_the_file_when_they_are_answered(
    opened: Open, path: Path
) -> None:
    store = await opened()
    service = task_service(store, SystemClock())
    first, second = await create(store), await create(store)
    await service.set_enabled(first.job_id, False)
    assert (jobs_of(path)[0]["enabled"], jobs_of(path)[0]["last_status"]) == (False, "paused")
    await service.change(
        second.id, lambda old, now: msgspec.structs.replace(old.definition, name="renamed")
    )
    assert (jobs_of(path)[1]["name"], jobs_of(path)[1]["version"]) == ("renamed", 2)
    await service.delete(first.id)
    assert [job["id"] for job in jobs_of(path)] == [second.job_id]


@pytest.mark.spec("T20")
async def test_changes_that_wait_share_one_write(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened()
    writes: list[int] = []
    real = store._mirror._replace
    monkeypatch.setattr(
        store._mirror,
        "_replace",
        lambda pieces, more: (writes.append(len(pieces)), real(pieces, more)),
    )
    await asyncio.gather(*(create(store) for _ in range(100)))
    assert writes[-1] == 100
    assert len(writes) < 20


@pytest.mark.spec("T20")
async def test_what_a_firing_changed_is_in_the_file_within_a_second(
    opened: Open, path: Path
) -> None:
    store = await opened()
    task = await create(store)
    at = SystemClock().now()
    await store.transact(lambda tx: tx.tasks.note_last([(task.id, "failed", "HTTP 500")], at))
    assert jobs_of(path)[0]["last_status"] == "", "not on the way of the firing"
    async with asyncio.timeout(1):
        while jobs_of(path)[0]["last_status"] == "":
            await asyncio.sleep(0.01)
    job = jobs_of(path)[0]
    assert (job["last_status"], job["last_error"], job["last_run_at"]) == (
        "failed",
        "HTTP 500",
        format_instant(at),
    )
    assert jobs_of(path)[0]["version"] == 1


@pytest.mark.spec("X14")
async def test_an_orderly_end_flushes_what_was_not_written_yet(opened: Open, path: Path) -> None:
    store = await opened()
    task = await create(store)
    await store.transact(
        lambda tx: tx.tasks.note_last([(task.id, "success", "")], SystemClock().now())
    )
    await store.close()
    assert jobs_of(path)[0]["last_status"] == "success"


async def test_ids_versions_and_times_survive_a_restart_and_no_id_is_given_twice(
    opened: Open, path: Path
) -> None:
    store = await opened()
    first, _, third = [await create(store) for _ in range(3)]
    service = task_service(store, SystemClock())
    await service.delete(third.id)
    await service.set_enabled(first.id, False)
    before = await store.read(all_tasks)
    await store.close()
    store = await opened()
    assert await store.read(all_tasks) == before
    assert (await create(store)).id == 4
    assert "last_task_id" not in document(path)


@pytest.mark.spec("X19")
async def test_api_keys_survive_a_restart(opened: Open, path: Path) -> None:
    store = await opened()
    await store.transact(enter_key, "mine")
    assert document(path)["keys"][0]["name"] == "mine"
    await store.close()
    assert await (await opened()).read(key_names) == {"mine"}


@pytest.mark.spec("T22")
async def test_the_rest_lives_in_memory_and_the_store_says_so(opened: Open) -> None:
    store = await opened()
    await create(store)
    assert len(await store.read(lambda tx: tx.events.list_after(0, 10))) == 1
    assert "in memory" in store.notes[0]
    await store.close()
    store = await opened()
    assert await store.read(lambda tx: tx.events.latest_id()) == 0


async def test_the_basics_of_every_store_hold(opened: Open) -> None:
    store = await opened()
    await checks.check_failures_stay_with_their_function(store)
    await checks.check_guards_answer_whether_it_happened(store)


async def test_a_read_cannot_write_and_sees_what_was_answered(opened: Open) -> None:
    store = await opened()
    with pytest.raises(TypeError, match=r"store\.transact"):
        await store.read(enter_key, "x")
    for n in range(50):
        await store.transact(enter_key, str(n))
        assert str(n) in await store.read(key_names)


async def test_close_commits_what_waits_and_then_refuses(opened: Open, path: Path) -> None:
    store = await opened()
    service = task_service(store, SystemClock())
    waiting = [  # with ids of their own each is a transaction, handed to the store at once
        asyncio.ensure_future(
            service.create(NewTask("T", timer(SystemClock().now()), job_id=f"job-{number}"))
        )
        for number in range(10)
    ]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreDownError):
        await create(store)
    await closing
    made = await asyncio.gather(*waiting)
    assert {job["id"] for job in jobs_of(path)} == {task.job_id for task in made}


async def test_a_bug_in_one_function_loses_nothing(opened: Open, path: Path) -> None:
    store = await opened()
    task = await create(store)
    with pytest.raises(checks.BugError):
        await store.transact(checks.stumble_after_write, "x")
    assert await store.read(all_tasks) == [task]
    assert [job["id"] for job in jobs_of(path)] == [task.job_id]


async def test_a_store_without_threads_writes_the_same_file(opened: Open, path: Path) -> None:
    clock = VirtualClock()
    store = await opened(clock, inline=True)
    task = await create(store, clock=clock)
    assert jobs_of(path)[0]["id"] == task.job_id
    await store.transact(lambda tx: tx.tasks.note_last([(task.id, "success", "")], clock.now()))
    await store.close()
    assert jobs_of(path)[0]["last_status"] == "success"
