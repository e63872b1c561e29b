"""Counts of requests by route and status for /metrics. Plain dicts on the hot path; shaped only
when scraped.

And what a tracer is given of each request.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from ksana.api.core.trace import Trace, find_trace
from ksana.base.instant import SECOND, Micros


class RequestSpans(Protocol):
    """Takes note of each answered request as a span."""

    def served(
        self,
        method: str,
        route: str,
        status: int,
        spent_us: Micros,
        request_id: str,
        trace: Trace | None,
    ) -> None:
        """One request just answered. `route` is the declared template, or `unknown`. Must not wait
        and not raise."""
        ...


class Traffic(Collector):
    """Counts of answers. Routes are the declared templates, so labels are few."""

    def __init__(self, spans: RequestSpans | None = None) -> None:
        self._spans = spans
        self._counts: dict[tuple[str, str, int], int] = {}
        self._spent: dict[tuple[str, str], Micros] = {}

    def record(
        self,
        method: str,
        path: str,
        status: int,
        spent_us: Micros,
        request_id: str,
        headers: Mapping[bytes, bytes],
    ) -> None:
        """Count one answer."""
        counted = (method, path, status)
        self._counts[counted] = self._counts.get(counted, 0) + 1
        route = (method, path)
        self._spent[route] = self._spent.get(route, 0) + spent_us
        if self._spans is not None:
            self._spans.served(method, path, status, spent_us, request_id, find_trace(headers))

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "ksana_http_requests", "Requests answered.", labels=("method", "route", "status")
        )
        totals: dict[tuple[str, str], int] = {}
        for (method, path, status), count in self._counts.items():
            requests.add_metric((method, path, str(status)), count)
            totals[method, path] = totals.get((method, path), 0) + count
        yield requests
        durations = SummaryMetricFamily(
            "ksana_http_request_seconds",
            "Time from the request's head to its answer.",
            labels=("method", "route"),
        )
        for (method, path), spent_us in self._spent.items():
            durations.add_metric((method, path), totals[method, path], spent_us / SECOND)
        yield durations
