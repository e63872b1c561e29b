"""How runs ended over time, over HTTP: `/api/v1/runs/series`."""

from typing import Final, Literal

import msgspec

from ksana.api.core.routing import Call, Route
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Micros, format_instant
from ksana.service.tasks.series import RunSeriesService

_RANGES: Final[dict[str, tuple[Micros, Micros]]] = {
    "1h": (HOUR, MINUTE),
    "6h": (6 * HOUR, 5 * MINUTE),
    "24h": (DAY, 15 * MINUTE),
    "7d": (7 * DAY, 2 * HOUR),
}


class RunSeriesQuery(msgspec.Struct, frozen=True):
    """How far back."""

    range: Literal["1h", "6h", "24h", "7d"] = "24h"


class RunSeriesShown(msgspec.Struct, frozen=True):
    """How runs ended, in equal spans; the last one holds now."""

    since: str = msgspec.field(name="from")
    bucket_sec: int
    succeeded: list[int]
    failed: list[int]
    skipped: list[int]
    canceled: list[int]
    misfired: list[int]
    mean_sec: list[float | None]


def routes(series: RunSeriesService) -> list[Route]:
    """The series."""

    async def show_series(call: Call) -> RunSeriesShown:
        query: RunSeriesQuery = call.query
        whole, width = _RANGES[query.range]
        found = await series.read(width, whole // width)
        return RunSeriesShown(
            since=format_instant(found.since),
            bucket_sec=width // SECOND,
            succeeded=found.succeeded,
            failed=found.failed,
            skipped=found.skipped,
            canceled=found.canceled,
            misfired=found.misfired,
            mean_sec=found.mean_sec,
        )

    return [
        Route(
            "GET",
            "/api/v1/runs/series",
            show_series,
            scope="tasks:read",
            tags=("runs",),
            query=RunSeriesQuery,
            summary="Show how runs ended over time",
            answers={200: RunSeriesShown},
        ),
    ]
