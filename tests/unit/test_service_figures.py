"""Figures and forecasts over tables in memory: which stretches are summed, what is kept and for how
long."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND
from ksana.domain.histogram import BUCKET_BITS, bucket_seconds, quantile
from ksana.domain.queue.admission import Capacity, Limits
from ksana.domain.schedule import make_cron, make_every
from ksana.domain.tasks.forecast import ArmedTask, Buckets
from ksana.service.queue import stats
from ksana.service.queue.stats import MAX_POINTS, METRICS, QueueStats, read_series, read_snapshot
from ksana.service.tasks import forecast as forecasts
from ksana.service.tasks import series as run_series
from ksana.service.tasks.forecast import KEPT_LEAST, MAX_KEPT, ForecastService, align
from ksana.service.tasks.series import RunSeriesService

NOW = 1_767_225_600 * SECOND + 7 * MINUTE + 5 * SECOND


class Series:
    """`tx.series` with what each metric counted at an instant."""

    def __init__(self, **counts: dict[int, int]) -> None:
        self.counts = {name.replace("__", "."): rows for name, rows in counts.items()}
        self.asked: list[Any] = []

    def sum_stretches(self, metric: str, since: int, until: int, width: int) -> dict[int, int]:
        self.asked.append((metric, since, until, width))
        found: dict[int, int] = {}
        for at, count in self.counts.get(metric, {}).items():
            if since <= at < until:
                start = since + (at - since) // width * width
                found[start] = found.get(start, 0) + count
        return found

    def sum_since(self, metric: str, since: int) -> int:
        self.asked.append((metric, since))
        return sum(count for at, count in self.counts.get(metric, {}).items() if at >= since)


def queue_tx(**counts: dict[int, int]) -> Any:
    capacity = Capacity(50, 20, 4, 6, "j", 0, NOW + 1)
    return SimpleNamespace(
        now=NOW,
        series=Series(**counts),
        capacity=SimpleNamespace(read=lambda total: capacity),
        gauges=SimpleNamespace(read=lambda: SimpleNamespace(queued=9, running=3)),
    )


@pytest.mark.spec("Q14")
def test_a_snapshot_shows_the_present_and_the_last_day() -> None:
    counts = {
        "queue__failed": {NOW - DAY: 1, NOW - DAY - 1: 100},
        "queue__expired": {NOW - 5: 2},
        "queue__timeout": {NOW - 5: 3},
    }
    found = read_snapshot(queue_tx(**counts), 50)
    assert found.capacity == {"total": 50, "used": 20, "reserved": 6}
    expected = {"queued": 9, "running": 3, "failed_last_24h": 1, "timeout_last_24h": 3}
    assert found.jobs == expected
    assert found.leases == {"active": 4, "expired_last_24h": 2}


@pytest.mark.spec("Q15")
@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("jobs_submitted", "queue__submitted"),
        ("jobs_done", "queue__done"),
        ("jobs_failed", "queue__failed"),
        ("jobs_timeout", "queue__timeout"),
    ],
)
def test_counts_are_summed_into_buckets_up_to_now(metric: str, name: str) -> None:
    last = NOW - NOW % (5 * MINUTE)
    tx = queue_tx(
        **{name: {last: 1, last - 1: 2, last - 10 * MINUTE: 4, last - 10 * MINUTE - 1: 8}}
    )
    found = read_series(tx, metric, 5 * MINUTE, 11 * MINUTE)
    assert (found.metric, found.bucket_us, found.first_at) == (
        metric,
        300 * SECOND,
        last - 600 * SECOND,
    )
    assert found.values == [4, 2, 1]
    assert tx.series.asked[0][1:] == (last - 600 * SECOND, last + 300 * SECOND, 300 * SECOND)


@pytest.mark.spec("Q15")
@pytest.mark.parametrize(
    ("metric", "name", "present"),
    [
        ("leases_active", "queue__leases", 4),
        ("capacity_used", "queue__units", 20),
        ("jobs_queued", "queue__queued", 9),
        ("jobs_running", "queue__running", 3),
    ],
)
def test_a_gauge_goes_back_from_its_present_value(metric: str, name: str, present: int) -> None:
    last = NOW - NOW % MINUTE
    tx = queue_tx(**{name: {last: 2, last - MINUTE: -1}})
    found = read_series(tx, metric, MINUTE, 3 * MINUTE)
    assert found.values == [present - 1, present - 2, present]


@pytest.mark.spec("Q15")
@pytest.mark.parametrize(
    ("metric", "name"), [("wait_seconds_p95", "queue__wait"), ("run_seconds_p95", "queue__run")]
)
def test_spans_are_answered_by_their_95th_percentile(metric: str, name: str) -> None:
    last = NOW - NOW % MINUTE
    packed = (99 << (10 * BUCKET_BITS)) + (1 << (20 * BUCKET_BITS))
    found = read_series(queue_tx(**{name: {last: packed}}), metric, MINUTE, 2 * MINUTE)
    assert found.values == [None, quantile(packed, 0.95)]
    assert bucket_seconds(9) < (found.values[1] or 0) < bucket_seconds(10)


class FakeStore:
    """The store port as far as the services use it."""

    def __init__(self, tx: Any) -> None:
        self.tx = tx
        self.calls = 0

    async def read(self, fn: Callable[..., Any], *args: Any) -> Any:
        self.calls += 1
        return fn(self.tx, *args)

    read_list = read


@pytest.mark.spec("Q15")
@pytest.mark.parametrize(
    ("metric", "bucket_us", "range_us", "field"),
    [
        ("colour", MINUTE, HOUR, "metric"),
        ("jobs_done", MINUTE - 1, HOUR, "bucket"),
        ("jobs_done", MINUTE + 1, HOUR, "bucket"),
        ("jobs_done", 0, HOUR, "bucket"),
        ("jobs_done", HOUR, HOUR - 1, "range"),
        ("jobs_done", MINUTE, MAX_POINTS * MINUTE + 1, "bucket"),
        ("jobs_done", MINUTE, MAX_POINTS * MINUTE, None),
        ("jobs_done", HOUR, HOUR, None),
    ],
)
async def test_a_series_is_bounded(
    metric: str, bucket_us: int, range_us: int, field: str | None
) -> None:
    service = QueueStats(FakeStore(queue_tx()), Limits())  # type: ignore[arg-type]
    if field is None:
        found = await service.series(metric, bucket_us, range_us)
        assert len(found.values) == -(-range_us // bucket_us)
        return
    with pytest.raises(InvalidError) as refused:
        await service.series(metric, bucket_us, range_us)
    assert refused.value.field == field


@pytest.mark.spec("Q14")
async def test_what_is_ready_is_counted_to_a_limit() -> None:
    tx = queue_tx()
    tx.job_order = SimpleNamespace(count_ready=lambda most: most + 1)
    service = QueueStats(FakeStore(tx), Limits())  # type: ignore[arg-type]
    assert await service.count_ready() == stats.COUNT_TO + 1
    assert (await service.snapshot()).capacity["used"] == 20
    assert len(METRICS) == 10


# Runs


@pytest.mark.spec("B2")
async def test_runs_are_counted_by_their_ends_in_spans_up_to_now() -> None:
    last = NOW - NOW % (5 * MINUTE)
    first = last - 10 * MINUTE
    rows = {
        "runs_success": [(first, 2, 3.0), (last, 1, 1.0)],
        "runs_callback_success": [(first + MINUTE, 2, 5.0)],
        "runs_failed": [(first, 1, 0.0)],
        "runs_timeout": [(first + 5 * MINUTE, 2, 0.0)],
        "runs_failed_timeout": [(last + MINUTE, 4, 0.0)],
        "runs_skipped": [(last, 5, 0.0)],
        "runs_canceled": [(first, 6, 0.0)],
        "misfires": [(first + 5 * MINUTE, 7, 0.0)],
    }
    asked: list[Any] = []

    def list_buckets(metric: str, label: str, since: int, until: int) -> list[Any]:
        asked.append((label, since, until))
        return rows[metric]

    tx = SimpleNamespace(now=NOW, rollups=SimpleNamespace(list_buckets=list_buckets))
    found = await RunSeriesService(FakeStore(tx)).read(5 * MINUTE, 3)  # type: ignore[arg-type]
    assert (found.since, found.width) == (first, 5 * MINUTE)
    assert found.succeeded == [4, 0, 1]
    assert found.mean_sec == [2.0, None, 1.0]
    assert found.failed == [1, 2, 4]
    assert found.skipped == [0, 0, 5]
    assert found.canceled == [6, 0, 0]
    assert found.misfired == [0, 7, 0]
    assert set(asked) == {("", first, last + 5 * MINUTE)}
    assert run_series.METRIC_OF["SUCCESS"] == "runs_success"


# Forecasts


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
    only = await service.look_ahead(SPANS, "a")
    assert [one.host for one in only.hosts] == ["a"]


@pytest.mark.spec("B8")
async def test_a_forecast_looks_at_so_many_tasks_and_says_when_there_are_more(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasts, "PAGE", 2)
    monkeypatch.setattr(forecasts, "MAX_TASKS", 4)
    monkeypatch.setattr(forecasts, "SHOWN_HOSTS", 3)
    service, _, _ = make_forecast(clock, *[armed(at, f"h{at}") for at in range(1, 7)])
    found = await service.look_ahead(SPANS)
    assert (found.is_complete, len(found.hosts)) == (False, 3)
    assert sorted(found.load.hosts) == ["h1", "h2", "h3", "h4"]
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
    first = await service.look_ahead(SPANS)
    await clock.advance(kept - 1)
    assert await service.look_ahead(SPANS) is first
    await clock.advance(1)
    assert await service.look_ahead(SPANS) is not first


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


def test_spans_begin_with_the_clock() -> None:
    assert align(NOW, MINUTE) == NOW - 5 * SECOND
    assert align(NOW + 5, 0) == NOW
