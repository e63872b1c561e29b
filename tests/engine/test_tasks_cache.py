"""Tasks in the cache of firing: a change made by anybody binds at once, and it is bounded."""

import msgspec
import pytest

from ksana.base.instant import SECOND
from ksana.domain.tasks.records import Task
from ksana.engine.tasks.task_cache import TaskCache
from ksana.service.tasks.definitions import TaskService
from tests.api.tasks_ground import SilentHints
from tests.engine.tasks_world import World, every, once, task_of


def urls(world: World) -> list[str]:
    return [sent.request.url for sent in world.caller.sent]


@pytest.mark.spec("X4")
@pytest.mark.parametrize("dialect", ["T", "C"])
async def test_a_change_made_elsewhere_binds_the_next_slot(world: World, dialect: str) -> None:
    task = await world.add(task_of(every(world, 10), url="http://old.test/"), dialect=dialect)
    await world.clock.advance(25 * SECOND)
    elsewhere = TaskService(
        world.store, world.clock, SilentHints(), SECOND
    )  # another instance: nobody tells us

    def move(old: Task, _: int) -> object:
        return msgspec.structs.replace(old.definition, target_url="http://new.test/")

    await elsewhere.change(task.id, move)  # type: ignore[arg-type]
    await world.clock.advance(10 * SECOND)
    await elsewhere.set_enabled(task.id, False)
    await world.clock.advance(30 * SECOND)
    await elsewhere.set_enabled(task.id, True)
    await world.clock.advance(10 * SECOND)
    await elsewhere.delete(task.id)
    await world.clock.advance(30 * SECOND)
    assert urls(world) == [
        "http://old.test/",
        "http://old.test/",
        "http://new.test/",
        "http://new.test/",
    ]


async def test_no_more_tasks_are_remembered_than_the_limit_and_all_of_them_fire(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.firing, "cache", TaskCache(most=3))
    at = world.clock.now() + 10 * SECOND
    for number in range(8):
        await world.add(
            task_of(once(at), name=f"t{number}", url=f"http://h{number}.test/"), dialect="T"
        )
    assert len(world.firing.cache) == 3
    await world.clock.advance(20 * SECOND)
    assert sorted(urls(world)) == [f"http://h{number}.test/" for number in range(8)]
    assert len(world.firing.cache) == 0, "what does not fire again is let go"


def _numbered(task: Task, task_id: int) -> Task:
    return msgspec.structs.replace(task, id=task_id)


async def test_of_tasks_that_come_round_and_are_more_than_fit_most_that_fit_are_found(
    world: World,
) -> None:
    made = await world.add(task_of(every(world, 10)), dialect="T")
    cache, tasks = TaskCache(most=1000), [_numbered(made, n) for n in range(1200)]
    found = 0
    for _ in range(10):
        found = 0
        for start in range(0, 1200, 100):
            due = tasks[start : start + 100]
            found += sum(cache.find(task.id, task.version) is not None for task in due)
            cache.add_fired(due)
        assert len(cache) == 1000
    assert found >= 900, "pushed out in turn, none of them would be found"


async def test_tasks_that_fire_take_the_place_of_those_that_do_not(world: World) -> None:
    made = await world.add(task_of(every(world, 10)), dialect="T")
    cache = TaskCache(most=100)
    cache.add([_numbered(made, n) for n in range(100)])
    firing = [_numbered(made, n) for n in range(100, 150)]
    for _ in range(80):
        cache.add_fired(firing)
    assert all(cache.find(task.id, task.version) for task in firing)


async def test_a_new_version_takes_the_place_of_the_old_one_though_the_cache_is_full(
    world: World,
) -> None:
    made = await world.add(task_of(every(world, 10)), dialect="T")
    cache = TaskCache(most=2)
    cache.add([_numbered(made, n) for n in range(2)])
    changed = msgspec.structs.replace(_numbered(made, 1), version=made.version + 1)
    cache.add_fired([changed])
    assert cache.find(1, changed.version) is changed
    assert cache.find(1, made.version) is None
    assert len(cache) == 2


async def test_tasks_with_long_texts_are_remembered_up_to_so_many_bytes(world: World) -> None:
    made = await world.add(task_of(every(world, 10)), dialect="T")
    names = {f"x-{'n' * 100}-{number}": "v" for number in range(60)}
    for members in ({"body": "字" * 4000}, {"headers": names}, {"description": "d" * 8000}):
        definition = msgspec.structs.replace(made.definition, **members)  # type: ignore[arg-type]
        large = msgspec.structs.replace(made, definition=definition)
        cache = TaskCache(most=1000, most_bytes=100_000)
        cache.add([_numbered(large, n) for n in range(500)])
        assert 5 <= len(cache) <= 13, members
        cache.add([_numbered(large, n) for n in range(490, 500)])
        changed = msgspec.structs.replace(made, id=499, version=made.version + 1)
        cache.add([changed, *[_numbered(made, n) for n in range(1000, 1020)]])
        assert len(cache) >= 20, "what went is not counted any more"


async def test_a_task_that_is_too_large_is_not_remembered(world: World) -> None:
    made = await world.add(task_of(every(world, 10)), dialect="T")
    for body, is_kept in (("x" * 13_000, True), ("字" * 13_000, False)):
        definition = msgspec.structs.replace(made.definition, body=body)
        cache = TaskCache()
        cache.add([msgspec.structs.replace(made, definition=definition)])
        assert len(cache) == is_kept
