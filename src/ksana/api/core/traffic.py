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
        self._answers: dict[tuple[str, str, int], list[int]] = {}
        """By method, route and status: how many, and the microseconds spent on them."""

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
        answers = self._answers.get((method, path, status))
        if answers is None:
            answers = self._answers[method, path, status] = [0, 0]
        answers[0] += 1
        answers[1] += spent_us
        if self._spans is not None:
            self._spans.served(method, path, status, spent_us, request_id, find_trace(headers))

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "ksana_http_requests", "Requests answered.", labels=("method", "route", "status")
        )
        totals: dict[tuple[str, str], list[int]] = {}
        for (method, path, status), (count, spent_us) in self._answers.items():
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
