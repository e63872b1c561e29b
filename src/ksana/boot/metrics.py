"""Metrics: our own registry, families whose labels are capped, and what describes the whole
process.

Hot paths pay one addition: the library's own counters take a lock and several microseconds, so ours
are plain numbers that become the library's families when /metrics is asked for. What can be read on
demand is read then too.
"""

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Final, Generic, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Micros
from ksana.ports.store import StoreHealth

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST
LABEL_CAP: Final = 200
OTHER: Final = "other"
_LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

Child = TypeVar("Child")


class Count:
    """A series that only grows. Counted on the event loop alone, so it needs no lock."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add to it."""
        self.value += amount


class Spread:
    """How values fall into buckets. On the event loop alone, like Count."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """The counts at or below each bound, as /metrics shows them."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Capped(Generic[Child]):
    """Series by label of which only the first `cap` combinations are kept apart; later ones are
    folded together."""

    def __init__(self, make: Callable[[tuple[str, ...]], Child], labels: int, cap: int) -> None:
        self._make = make
        self._cap = cap
        self._known: dict[tuple[str | int, ...], Child] = {}
        self._other = (OTHER,) * labels
        self._folded: Child | None = None
        self.children: dict[tuple[str, ...], Child] = {}

    def child(self, *labels: str | int) -> Child:
        """The series of these labels, or `other` once there are too many."""
        # Once it is full, who is not known yet never will be.
        return self._known.get(labels) or self._folded or self._look_up(labels)

    def begin(self, *labels: str | int) -> None:
        """Show the series of these labels at 0, so that its first step is one to whoever computes
        increases. Not for one that would be folded together with others."""
        if len(self.children) < self._cap:
            self.child(*labels)

    def _look_up(self, labels: tuple[str | int, ...]) -> Child:
        key = tuple(map(str, labels))
        child = self.children.get(key)
        if child is None:
            if len(self.children) >= self._cap:
                self._folded = self.children[self._other] = self._make(self._other)
                return self._folded
            child = self.children[key] = self._make(key)
        self._known[labels] = child
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
            lambda: [
                _gauge(
                    "ksana_uptime_seconds",
                    "Time since the start.",
                    (clock.monotonic() - started_mono) / SECOND,
                )
            ]
        )
        lag = Histogram(
            "ksana_event_loop_lag_seconds",
            "How late the event loop wakes.",
            buckets=_LAG_BUCKETS,
            registry=self.registry,
        )
        steps = self.counter("ksana_clock_steps_total", "Steps of the wall clock.", ("direction",))
        self._step_children = (steps.child("back"), steps.child("forward"))
        self._skew = Gauge(
            "ksana_clock_skew_seconds", "The store's clock minus ours.", registry=self.registry
        )
        self._restarts = self.counter("ksana_loop_restarts_total", "Restarts of a loop.", ("loop",))
        self._observe_lag = lag.observe

    def counter(
        self, name: str, text: str, labels: tuple[str, ...], cap: int = LABEL_CAP
    ) -> Capped[Count]:
        """Make a counter with labels."""
        series = Capped(lambda _: Count(), len(labels), cap)

        def collect() -> Iterable[CounterMetricFamily]:
            family = CounterMetricFamily(name, text, labels=labels)
            for key, count in series.children.items():
                family.add_metric(key, count.value)
            yield family

        self.on_scrape(collect)
        return series

    def gauge(
        self, name: str, text: str, labels: tuple[str, ...], cap: int = LABEL_CAP
    ) -> Capped[Gauge]:
        """Make a gauge with labels."""
        family = Gauge(name, text, labels, registry=self.registry)
        return Capped(lambda key: family.labels(*key), len(labels), cap)

    def histogram(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        buckets: tuple[float, ...],
        cap: int = LABEL_CAP,
    ) -> Capped[Spread]:
        """Make a histogram with labels."""
        series = Capped(lambda _: Spread(buckets), len(labels), cap)

        def collect() -> Iterable[HistogramMetricFamily]:
            family = HistogramMetricFamily(name, text, labels=labels)
            for key, spread in series.children.items():
                family.add_metric(key, spread.buckets(), spread.total)
            yield family

        self.on_scrape(collect)
        return series

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

    def loop_started(self, name: str) -> None:
        """Begin to count the restarts of a loop."""
        self._restarts.begin(name)

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
        _counter(
            "ksana_store_transactions", "Transaction functions committed.", health.transactions
        ),
        _counter(
            "ksana_store_retries",
            "Transactions run again after a deadlock or a lost connection.",
            health.retries,
        ),
        _counter(
            "ksana_store_round_trips",
            "Round trips of the writers to a database server; 0 on an embedded store.",
            health.round_trips,
        ),
    ]


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
