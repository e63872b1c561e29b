"""Caches that one caller cannot fill: bounded by bytes as well as by entries."""

from ksana.base.short_cache import WeighedCache
from ksana.domain.queue import classes
from ksana.domain.queue.classes import class_of
from ksana.domain.tasks.records import Options
from ksana.engine.tasks import requests


def test_the_oldest_go_when_there_are_too_many_or_too_heavy() -> None:
    cache: WeighedCache[int, str] = WeighedCache(3, 1000)
    for number in range(5):
        cache.add(number, f"v{number}", 10)
    assert [cache.find(number) for number in range(5)] == [None, None, "v2", "v3", "v4"]
    assert (len(cache), cache.weight) == (3, 30)
    heavy: WeighedCache[int, str] = WeighedCache(1000, 100)
    for number in range(150):
        heavy.add(number, "", 1)
    assert (len(heavy), heavy.weight) == (100, 100)


def test_what_is_too_heavy_by_itself_is_not_kept() -> None:
    cache: WeighedCache[str, int] = WeighedCache(10, 1000)
    cache.add("a", 1, 10)
    cache.add("b", 2, 11)
    assert (cache.find("a"), cache.find("b")) == (1, None)


def test_requests_of_tasks_with_long_secrets_take_bounded_memory() -> None:
    for number in range(600):
        secret = (f'{number:04} "+/é<&>' * 400)[:3000]
        requests._plan_for({"Authorization": secret}, Options())
    assert requests._plans.weight <= 32 * 1024 * 1024
    headers = {"X-Plain": "a"}
    assert requests._plan_for(headers, Options()) is requests._plan_for(headers, Options())


def test_classes_of_jobs_with_long_constraints_are_not_remembered() -> None:
    before = classes._find_class.cache_info().currsize
    many = tuple(f"need{number:02}" for number in range(17))
    for needs in (many, ("x" * 129,), ("short", "x" * 129)):
        assert class_of("cached?", "t", 1, needs) == class_of("cached?", "t", 1, needs)
    assert classes._find_class.cache_info().currsize == before
    assert class_of("cached?", "t", 1, many[:16]) is class_of("cached?", "t", 1, many[:16])
    assert class_of("cached?", "t", 1, ("x" * 128,)) is class_of("cached?", "t", 1, ("x" * 128,))
