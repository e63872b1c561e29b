"""The JSON file as others leave it: edited, broken, served by another, or long without a server."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock, VirtualClock
from ksana.base.errors import SetupError, StoreDownError
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.schedule import Once
from ksana.engine.tasks.firing import fire_due
from ksana.engine.tasks.host_limits import SlotBudget
from ksana.store.jsonfile import JsonStore, open_store
from tests.conformance.store.checks import enter_key, key_names
from tests.store.jsonfile_ground import all_tasks, create, document, edit, jobs_of

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


@pytest.mark.spec("T19")
async def test_a_job_added_or_copied_by_hand_is_armed_under_a_number_of_its_own(
    opened: Open, path: Path
) -> None:
    await create(store := await opened())
    await store.close()
    added = {
        "http": {"url": "http://127.0.0.1/b"},
        "schedule": {"kind": "cron", "expr": "0 9 * * *"},
    }

    def add(whole: dict[str, Any]) -> None:
        whole["jobs"] += [added, {**whole["jobs"][0], "id": "copy"}]
        whole["note"] = ["kept", 1.50]

    edit(path, add)
    store = await opened()
    tasks = await store.read(all_tasks)
    assert [task.id for task in tasks] == [1, 2, 3]
    assert tasks[2].job_id == "copy" and all(task.fire_at for task in tasks)
    assert store.warnings == []
    assert document(path)["note"] == ["kept", 1.5]
    assert [job["task_id"] for job in jobs_of(path)] == [1, 2, 3]


@pytest.mark.spec("T19")
async def test_a_bad_job_is_kept_as_it_stands_not_armed_and_reported(
    opened: Open, path: Path
) -> None:
    await create(store := await opened())
    await store.close()
    bad = '{"id":"odd",   "task_id": 9, "schedule": {"kind": "sometimes"}, "http": {"url": "http://a.example/"}}'
    path.write_text(path.read_text().replace('"jobs": [', f'"jobs": [\n    {bad},\n    42,'))
    store = await opened()
    assert len(await store.read(all_tasks)) == 1
    assert [("'odd'" in line, "not armed" in line) for line in store.warnings] == [
        (True, True),
        (False, True),
    ]
    health = store.health()
    assert health.ok and "schedule.kind" in (health.reason or "")
    assert (await create(store)).id == 10, "the number of the bad one stays free for its repair"
    assert bad in path.read_text() and 42 in jobs_of(path)
    await store.close()
    assert len((await opened()).warnings) == 2


@pytest.mark.spec("T19")
async def test_a_second_job_of_the_same_id_or_name_is_not_armed(opened: Open, path: Path) -> None:
    store = await opened()
    await create(store, "C", name="one")
    await store.close()
    edit(path, lambda whole: whole["jobs"].append(whole["jobs"][0]))
    edit(path, lambda whole: whole["jobs"].append({**whole["jobs"][0], "id": "other"}))
    store = await opened()
    assert len(await store.read(all_tasks)) == 1
    assert len(store.warnings) == 2 and len(jobs_of(path)) == 3


@pytest.mark.spec("T19")
async def test_a_newer_version_stops_the_start_and_the_file_stays(opened: Open, path: Path) -> None:
    text = '{"version": 2, "jobs": []}'
    path.write_text(text)
    with pytest.raises(SetupError, match="version 2"):
        await opened()
    assert path.read_text() == text


@pytest.mark.fault("F27")
@pytest.mark.spec("T21")
@pytest.mark.parametrize(
    "torn",
    ["", '{"version": 1, "jobs": [', "hello", '{"name": "a package"}', '{"version":1,"jobs":{}}'],
)
async def test_an_unreadable_file_is_set_aside_and_the_start_is_empty_and_loud(
    opened: Open, path: Path, torn: str
) -> None:
    path.with_name("jobs.bad.json").write_text("an older one")
    path.write_text(torn)
    store = await opened()
    assert path.with_name("jobs.bad.1.json").read_text() == torn
    assert path.with_name("jobs.bad.json").read_text() == "an older one"
    assert jobs_of(path) == []
    health = store.health()
    assert health.ok and "jobs.bad.1.json" in (health.reason or "")
    await store.close()


@pytest.mark.spec("T21")
async def test_one_who_only_looks_leaves_an_unreadable_file_alone(opened: Open, path: Path) -> None:
    path.write_text("torn")
    with pytest.raises(SetupError, match="cannot be read"):
        await opened(serve=False)
    assert path.read_text() == "torn"


@pytest.mark.spec("X2")
async def test_one_server_per_file_and_readers_beside_it(opened: Open, path: Path) -> None:
    await create(await opened())
    with pytest.raises(SetupError, match="another ksana serve"):
        await opened()
    beside = await opened(serve=False)
    assert len(await beside.read(all_tasks)) == 1
    with pytest.raises(StoreDownError, match="through its API"):
        await create(beside)
    assert len(jobs_of(path)) == 1


async def test_without_a_server_the_command_line_may_write(opened: Open, path: Path) -> None:
    alone = await opened(serve=False)
    await alone.transact(enter_key, "mine")
    await alone.close()
    assert await (await opened()).read(key_names) == {"mine"}


def fire(tx: Any) -> Any:
    return fire_due(tx, "me", 100, SlotBudget({}, 10, 10))


@pytest.mark.spec("T6", "T7", "C10")
async def test_after_downtime_a_one_time_job_is_missed_and_an_interval_rolls_on_from_now(
    opened: Open, path: Path
) -> None:
    clock = VirtualClock()
    store = await opened(clock, inline=True)
    start = clock.now()
    await store.transact(lambda tx: tx.instances.register("a", "h", "1", 15 * SECOND, True))
    await create(store, clock=clock, schedule=Once(start + 30 * SECOND))
    await create(store, clock=clock)
    await create(store, "C", clock=clock, name="c", misfire_policy="FIRE_NOW")
    await store.close()
    clock.step(HOUR + MINUTE)
    store = await opened(clock, inline=True)
    instance = await store.transact(
        lambda tx: tx.instances.register("b", "h", "1", 15 * SECOND, True)
    )
    assert instance.outage_from == start
    fired = await store.transact(fire)
    once, every, made_up = await store.read(all_tasks)
    assert (once.last_status, once.next_slot_at) == ("missed", None)
    assert (every.next_slot_at, every.last_status) == (start + HOUR + 5 * MINUTE, "")
    assert [(held.task.id, held.scheduled_time) for held in fired.claimed] == [
        (made_up.id, start + HOUR)
    ]


@pytest.mark.fault("F06")
@pytest.mark.spec("C10")
async def test_after_a_kill_the_outage_begins_at_the_last_sign_of_life(
    opened: Open, path: Path
) -> None:
    store = await opened()
    await store.transact(lambda tx: tx.instances.register("a", "h", "1", 15 * SECOND, True))
    signed = Path(f"{path}.lock").stat().st_mtime_ns // 1000
    assert abs(SystemClock().now() - signed) < 2 * SECOND
    store._mirror._signs_life = False  # no last word: as a kill leaves it
    await store.close()
    store = await opened()
    instance = await store.transact(
        lambda tx: tx.instances.register("b", "h", "1", 15 * SECOND, True)
    )
    assert instance.outage_from == signed
