"""Counts of requests by route and status, as /metrics shows them. They are plain numbers, which
`pipeline` adds to; shaped only when scraped.

And what a tracer is given of each request.
"""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from ksana.api.core.trace import Trace
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

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str, int], list[int]] = {}
        """By method, route and status: how many, and the microseconds spent on them."""

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "ksana_http_requests", "Requests answered.", labels=("method", "route", "status")
        )
        totals: dict[tuple[str, str], list[int]] = {}
        for (method, path, status), (count, spent_us) in self.answers.items():
            requests.add_metric((method, path, str(status)), count)
            total = totals.setdefault((method, path), [0, 0])
            total[0] += count
            total[1] += spent_us
        yield requests
        durations = SummaryMetricFamily(
            "ksana_http_request_seconds",
            "Time from the request's head to its answer.",
            labels=("method", "route"),
        )
        for (method, path), (count, spent_us) in totals.items():
            durations.add_metric((method, path), count, spent_us / SECOND)
        yield durations
