"""Figures over tables in memory: which stretches are summed, and how they are bounded."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND
from ksana.domain.histogram import BUCKET_BITS, bucket_seconds, quantile
from ksana.domain.queue.admission import Capacity, Limits
from ksana.service.queue import stats
from ksana.service.queue.stats import MAX_POINTS, METRICS, QueueStats, read_series, read_snapshot
from ksana.service.tasks import series as run_series
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

    def sum_since(self, metrics: Sequence[str], since: int) -> dict[str, int]:
        return {
            metric: sum(count for at, count in self.counts.get(metric, {}).items() if at >= since)
            for metric in metrics
        }


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
def test_a_bucket_in_which_nothing_happened_counts_nothing_and_changes_nothing() -> None:
    last = NOW - NOW % MINUTE
    tx = queue_tx(queue__done={last: 2}, queue__queued={last: 2})
    assert read_series(tx, "jobs_done", MINUTE, 3 * MINUTE).values == [0, 0, 2]
    assert read_series(tx, "jobs_queued", MINUTE, 3 * MINUTE).values == [7, 7, 9]
    assert read_series(tx, "jobs_queued", MINUTE, MINUTE).values == [9]


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
