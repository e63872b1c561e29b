"""Forecasts over tables in memory: what is counted, what is kept and for how long."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.schedule import make_cron, make_every
from ksana.domain.tasks.forecast import ArmedTask, Buckets
from ksana.service.tasks import forecast as forecasts
from ksana.service.tasks.forecast import KEPT_LEAST, MAX_KEPT, ForecastService, align
from tests.unit.test_service_figures import NOW, FakeStore


class Armed:
    """`tx.armed_tasks`: tasks in pages, and how long their runs took."""

    def __init__(self, *tasks: ArmedTask) -> None:
        self.tasks = list(tasks)
        self.durations: dict[int, list[int]] = {}
        self.asked: list[Any] = []

    def list_armed(self, after: int, limit: int) -> tuple[list[ArmedTask], int | None]:
        self.asked.append((after, limit))
        page = [task for task in self.tasks if task.id > after][:limit]
        return page, page[-1].id if len(page) == limit else None

    def list_durations(self, task_id: int, limit: int) -> list[int]:
        self.asked.append((task_id, limit, "durations"))
        return self.durations.get(task_id, [])


def armed(task_id: int, host: str, every: int = MINUTE) -> ArmedTask:
    chosen = make_every(every, now=NOW)
    return ArmedTask(task_id, f"j{task_id}", f"t{task_id}", chosen, host, NOW + every, None)


SPANS = Buckets(NOW, 10 * MINUTE, 6)


def make_forecast(
    clock: VirtualClock, *tasks: ArmedTask
) -> tuple[ForecastService, Armed, FakeStore]:
    there = Armed(*tasks)
    store = FakeStore(SimpleNamespace(armed_tasks=there))
    return ForecastService(store, clock), there, store  # type: ignore[arg-type]


@pytest.mark.spec("B8")
async def test_a_forecast_shows_hosts_by_their_firings_and_means_by_weight(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "PAGE", 2)
    tasks = [armed(1, "b"), armed(2, "a"), armed(3, "b", 10 * MINUTE), armed(4, "c", 20 * MINUTE)]
    service, there, _ = make_forecast(clock, *tasks)
    there.durations = {1: [10, 30], 3: [130], 4: []}
    found = await service.look_ahead(SPANS)
    assert [one.host for one in found.hosts] == ["b", "a", "c"]
    assert found.is_complete
    assert found.means == {1: 20.0, 3: 130.0}
    busiest, unknown, _ = found.hosts
    times = {one.task.id: one.firings for one in busiest.load.heaviest}
    assert busiest.mean_us == (20 * times[1] + 130 * times[3]) / (times[1] + times[3])
    assert unknown.mean_us is None
    assert [one for one in there.asked if len(one) == 2] == [(0, 2), (2, 2), (4, 2)]
    assert (1, forecasts.RUNS_SAMPLED, "durations") in there.asked
    assert sum(found.load.counts) == found.load.firings == 59 + 59 + 5 + 2
    only = await service.look_ahead(SPANS, "a")
    assert [one.host for one in only.hosts] == ["a"]


@pytest.mark.spec("B8")
async def test_a_forecast_looks_at_so_many_tasks_and_says_when_there_are_more(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "PAGE", 2)
    monkeypatch.setattr(forecasts, "MAX_TASKS", 4)
    monkeypatch.setattr(forecasts, "SHOWN_HOSTS", 3)
    service, _, _ = make_forecast(clock, *[armed(at, f"h{at}") for at in range(1, 8)])
    found = await service.look_ahead(SPANS)
    assert (found.is_complete, len(found.hosts)) == (False, 3)
    assert sorted(found.load.hosts) == ["h1", "h2", "h3", "h4"]
    monkeypatch.setattr(forecasts, "MAX_TASKS", 5)  # a page is looked at as a whole
    service, _, _ = make_forecast(clock, *[armed(at, f"h{at}") for at in range(1, 8)])
    assert len((await service.look_ahead(SPANS)).load.hosts) == 6
    service, _, _ = make_forecast(clock, *[armed(at, f"h{at}") for at in range(1, 4)])
    assert (await service.look_ahead(SPANS)).is_complete


@pytest.mark.spec("B8")
async def test_a_forecast_is_kept_for_a_while(clock: VirtualClock) -> None:
    service, _, store = make_forecast(clock, armed(1, "a"))
    first = await service.look_ahead(SPANS)
    calls = store.calls
    await clock.advance(KEPT_LEAST - 1)
    assert await service.look_ahead(SPANS) is first
    assert store.calls == calls
    await clock.advance(1)
    assert await service.look_ahead(SPANS) is not first


@pytest.mark.spec("B8")
@pytest.mark.parametrize(
    ("took", "kept"), [(SECOND, 100 * SECOND), (HOUR, 5 * MINUTE), (1, 2 * SECOND)]
)
async def test_what_took_long_is_kept_longer(clock: VirtualClock, took: int, kept: int) -> None:
    service, there, _ = make_forecast(clock)
    list_armed = there.list_armed

    def slowly(after: int, limit: int) -> Any:
        clock._move_to(clock.monotonic() + took)
        return list_armed(after, limit)

    there.list_armed = slowly  # type: ignore[method-assign]
    await clock.advance(7 * SECOND)
    first = await service.look_ahead(SPANS)
    await clock.advance(kept - 1)
    assert await service.look_ahead(SPANS) is first
    await clock.advance(1)
    assert await service.look_ahead(SPANS) is not first


@pytest.mark.spec("B8")
async def test_those_who_ask_together_get_one_forecast(clock: VirtualClock) -> None:
    service, _, store = make_forecast(clock, armed(1, "a"))
    read = store.read_list

    async def read_slowly(fn: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return await read(fn, *args)

    store.read_list = read_slowly  # type: ignore[method-assign]
    first, second = await asyncio.gather(service.look_ahead(SPANS), service.look_ahead(SPANS))
    assert first is second
    assert store.calls == 2


@pytest.mark.spec("B8")
async def test_a_small_host_beside_a_big_one_is_sampled_too(clock: VirtualClock) -> None:
    small = armed(100, "small", 10 * MINUTE)
    service, there, _ = make_forecast(clock, *[armed(at, "big") for at in range(1, 70)], small)
    there.durations = {100: [7]}
    found = await service.look_ahead(SPANS)
    assert [(one.host, one.mean_us) for one in found.hosts] == [("big", None), ("small", 7.0)]


@pytest.mark.spec("B8")
async def test_only_so_many_forecasts_are_kept_the_oldest_goes(clock: VirtualClock) -> None:
    service, _, store = make_forecast(clock)
    for at in range(MAX_KEPT):
        await service.look_ahead(Buckets(NOW + at, MINUTE, 2))
    calls = store.calls
    await service.look_ahead(Buckets(NOW, MINUTE, 2))
    assert store.calls == calls
    await service.look_ahead(Buckets(NOW + MAX_KEPT, MINUTE, 2))
    calls = store.calls
    await service.look_ahead(Buckets(NOW + 1, MINUTE, 2))
    assert store.calls == calls
    await service.look_ahead(Buckets(NOW, MINUTE, 2))
    assert store.calls > calls


def cron_task(task_id: int) -> ArmedTask:
    """A task that fires at noon, as the others do."""
    noon = make_cron("0 0 12 * * *", "UTC")
    return ArmedTask(task_id, f"j{task_id}", f"t{task_id}", noon, "a", NOW + HOUR, None)


@pytest.mark.spec("B8")
@pytest.mark.parametrize(
    ("number", "suggested", "is_complete"),
    [(3, [2, 3], True), (4, [2, 3, 4], False), (2, [], True)],
)
async def test_tasks_that_fire_together_are_told_to_spread(
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    suggested: list[int],
    is_complete: bool,
) -> None:
    monkeypatch.setattr(forecasts, "PAGE", 2)
    monkeypatch.setattr(forecasts, "MAX_TASKS", 4)
    service, there, _ = make_forecast(clock, *[cron_task(at + 1) for at in range(number)])
    found, is_all = await service.suggest_spread()
    assert ([one.task.id for one in found], is_all) == (suggested, is_complete)
    assert [one.together for one in found] == [number] * len(suggested)
    pages = [(0, 2), (2, 2)]
    assert there.asked == pages


@pytest.mark.spec("B8")
@pytest.mark.parametrize(
    ("took", "kept"), [(SECOND, 100 * SECOND), (HOUR, 5 * MINUTE), (1, 2 * SECOND)]
)
async def test_what_to_spread_is_kept_as_a_forecast_is(
    clock: VirtualClock, took: int, kept: int
) -> None:
    service, there, store = make_forecast(clock, *[cron_task(at) for at in (1, 2, 3)])
    list_armed = there.list_armed

    def slowly(after: int, limit: int) -> Any:
        clock._move_to(clock.monotonic() + took)
        return list_armed(after, limit)

    there.list_armed = slowly  # type: ignore[method-assign]
    await clock.advance(7 * SECOND)
    first = await service.suggest_spread()
    await clock.advance(kept - 1)
    assert await service.suggest_spread() is first
    assert store.calls == 1
    await clock.advance(1)
    assert await service.suggest_spread() == first
    assert store.calls == 2


@pytest.mark.spec("B8")
async def test_a_page_of_tasks_is_looked_at_as_a_whole(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "PAGE", 2)
    monkeypatch.setattr(forecasts, "MAX_TASKS", 5)
    service, there, _ = make_forecast(clock, *[cron_task(at) for at in range(1, 8)])
    assert [one.task.id for one in (await service.suggest_spread())[0]] == [2, 3, 4, 5, 6]
    assert len(there.asked) == 3


def test_spans_begin_with_the_clock() -> None:
    assert align(NOW, MINUTE) == NOW - 5 * SECOND
    assert align(NOW + 5, 0) == NOW
