"""Endpoints of the queue's figures."""

from typing import Any

from ksana.api.core.routing import Call
from ksana.api.queue.reading import read_span
from ksana.api.queue.shapes import SeriesQuery
from ksana.api.queue.views import PointView
from ksana.base.durations import format_duration
from ksana.base.instant import format_minute
from ksana.service.queue.stats import QueueStats


class StatsEndpoints:
    """The handlers of the figures."""

    def __init__(self, stats: QueueStats) -> None:
        self._stats = stats

    async def snapshot(self, _: Call) -> Any:
        """The queue at this moment."""
        return await self._stats.snapshot()

    async def depth(self, _: Call) -> Any:
        """How many jobs wait and are held, by priority."""
        return {"priorities": await self._stats.depth()}

    async def series(self, call: Call) -> Any:
        """A figure over time."""
        query: SeriesQuery = call.query
        series = await self._stats.series(
            query.metric, read_span("bucket", query.bucket), read_span("range", query.range)
        )
        first_at, width = series.first_at, series.bucket_us
        points = [
            PointView(format_minute(first_at + n * width), _plain(value))
            for n, value in enumerate(series.values)
        ]
        return {
            "metric": series.metric,
            "bucket": format_duration(series.bucket_us),
            "points": points,
        }


def _plain(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value
