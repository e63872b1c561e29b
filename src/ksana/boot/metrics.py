"""Metrics: our own registry, families whose labels are capped, and what describes the whole process.

Hot paths hold bound children (`family.child("SUCCESS")`) and pay one increment. What can be read on demand is read when
/metrics is asked for, and costs nothing between.
"""

import platform
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Micros
from ksana.ports.store import StoreHealth

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST
LABEL_CAP: Final = 200
OTHER: Final = "other"
_LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

Family = TypeVar("Family", Counter, Gauge, Histogram)


class Capped(Generic[Family]):
    """A family with labels of which only the first `cap` combinations are kept apart; later ones are folded together."""

    def __init__(self, family: Family, labels: int, cap: int) -> None:
        self._family: Family = family
        self._cap = cap
        self._children: dict[tuple[str, ...], Family] = {}
        self._other = (OTHER,) * labels

    def child(self, *labels: str | int) -> Family:
        """The series of these labels, or `other` once there are too many."""
        key = tuple(map(str, labels))
        child = self._children.get(key)
        if child is None:
            if len(self._children) >= self._cap:
                key = self._other
                child = self._children.get(key)
            if child is None:
                child = self._children[key] = self._family.labels(*key)
        return child


class Metrics:
    """The registry of one process."""

    def __init__(self, clock: Clock, version: str) -> None:
        self.registry = CollectorRegistry()
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        ProcessCollector(registry=self.registry)
        started_mono = clock.monotonic()
        build = self.gauge("ksana_build_info", "What runs.", ("version", "python"))
        build.child(version, platform.python_version()).set(1)
        self.on_scrape(
            lambda: [_gauge("ksana_uptime_seconds", "Time since the start.", (clock.monotonic() - started_mono) / SECOND)]
        )
        lag = Histogram(
            "ksana_event_loop_lag_seconds", "How late the event loop wakes.", buckets=_LAG_BUCKETS, registry=self.registry
        )
        steps = self.counter("ksana_clock_steps_total", "Steps of the wall clock.", ("direction",))
        self._step_children = (steps.child("back"), steps.child("forward"))
        self._skew = Gauge("ksana_clock_skew_seconds", "The store's clock minus ours.", registry=self.registry)
        self._restarts = self.counter("ksana_loop_restarts_total", "Restarts of a loop.", ("loop",))
        self._observe_lag = lag.observe

    def counter(self, name: str, text: str, labels: tuple[str, ...], cap: int = LABEL_CAP) -> Capped[Counter]:
        """Make a counter with labels."""
        return Capped(Counter(name, text, labels, registry=self.registry), len(labels), cap)

    def gauge(self, name: str, text: str, labels: tuple[str, ...], cap: int = LABEL_CAP) -> Capped[Gauge]:
        """Make a gauge with labels."""
        return Capped(Gauge(name, text, labels, registry=self.registry), len(labels), cap)

    def histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...], cap: int = LABEL_CAP
    ) -> Capped[Histogram]:
        """Make a histogram with labels."""
        return Capped(Histogram(name, text, labels, buckets=buckets, registry=self.registry), len(labels), cap)

    def plain_counter(self, name: str, text: str) -> Counter:
        """Make a counter without labels."""
        return Counter(name, text, registry=self.registry)

    def plain_gauge(self, name: str, text: str) -> Gauge:
        """Make a gauge without labels."""
        return Gauge(name, text, registry=self.registry)

    def on_scrape(self, collect: Callable[[], Iterable[Any]]) -> None:
        """Add families that are computed when asked for."""
        self.registry.register(_OnScrape(collect))

    def watch_store(self, health: Callable[[], StoreHealth]) -> None:
        """Show how the store fares."""
        self.on_scrape(lambda: _store_families(health()))

    def render(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self.registry)

    def loop_lag(self, lag_us: Micros) -> None:
        """Note how late the event loop woke."""
        self._observe_lag(lag_us / SECOND)

    def clock_stepped(self, step_us: Micros) -> None:
        """Note a step of the wall clock."""
        self._step_children[step_us > 0].inc()

    def clock_skewed(self, skew_us: Micros) -> None:
        """Note how far the store's clock is ahead of ours."""
        self._skew.set(skew_us / SECOND)

    def loop_restarted(self, name: str) -> None:
        """Note the restart of a loop."""
        self._restarts.child(name).inc()


class _OnScrape(Collector):
    def __init__(self, collect: Callable[[], Iterable[Any]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Any]:
        return self._collect()


def _store_families(health: StoreHealth) -> list[Any]:
    return [
        _gauge("ksana_store_up", "Whether the store answers.", float(health.ok)),
        _counter("ksana_store_commits", "Commits made.", health.commits),
        _counter("ksana_store_transactions", "Transaction functions committed.", health.transactions),
        _counter("ksana_store_retries", "Transactions run again after a deadlock or a lost connection.", health.retries),
    ]


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
