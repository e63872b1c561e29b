"""What is to come, over HTTP: `/api/v1/forecast` (B8)."""

from typing import Annotated, Final, Literal

import msgspec

from ksana.api.core.routing import Call, Route
from ksana.api.tasks.members import read_time
from ksana.base.clock import Clock
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Micros, format_instant
from ksana.domain.schedule import Cron
from ksana.domain.tasks.forecast import Buckets, HeavyTask
from ksana.domain.tasks.spreading import Suggestion
from ksana.service.tasks.forecast import ForecastFound, ForecastService, HostForecast, align

MAX_SPANS: Final = 1_440
MAX_AHEAD: Final = 366 * DAY
_WIDTHS: Final[dict[str, Micros]] = {"1m": MINUTE, "15m": 15 * MINUTE, "1h": HOUR}


class ForecastQuery(msgspec.Struct, frozen=True):
    """The window: how many hours, in spans of which width, and from when."""

    hours: Annotated[int, msgspec.Meta(ge=1, le=168)] = 24
    bucket: Literal["1m", "15m", "1h"] = "1h"
    since: Annotated[str, msgspec.Meta(max_length=64)] | None = msgspec.field(
        default=None, name="from"
    )
    host: Annotated[str, msgspec.Meta(max_length=255)] | None = None


class HostShown(msgspec.Struct, frozen=True):
    """The firings at one host, and how much of them runs at once: `busy_sec` is the sum of their
    lengths, as runs took lately."""

    host: str
    firings: int
    counts: list[int]
    mean_sec: float | None
    busy_sec: float | None


class TaskAhead(msgspec.Struct, frozen=True):
    """A task that fires much."""

    task_id: int
    job_id: str
    name: str
    host: str
    firings: int
    mean_sec: float | None


class ForecastShown(msgspec.Struct, frozen=True):
    """Firings to come. The busiest hosts are told one by one; `elsewhere` are those at others."""

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    bucket_sec: int
    firings: int
    counts: list[int]
    hosts: list[HostShown]
    elsewhere: int
    busiest: list[TaskAhead]
    tasks_counted: int
    complete: bool


class SpreadShown(msgspec.Struct, frozen=True):
    """A task that fires together with others. `cron_expr` has `H` for its minute: sent in a PATCH
    of the task it becomes `becomes`."""

    task_id: int
    job_id: str
    name: str
    host: str
    together: int
    now: str
    cron_expr: str
    becomes: str


class SpreadList(msgspec.Struct, frozen=True):
    """Up to a hundred tasks to spread, those that fall together most first."""

    suggestions: list[SpreadShown]
    complete: bool


def routes(forecasts: ForecastService, clock: Clock) -> list[Route]:
    """The forecast."""

    async def show_forecast(call: Call) -> ForecastShown:
        query: ForecastQuery = call.query
        width = _WIDTHS[query.bucket]
        count = query.hours * HOUR // width
        if count > MAX_SPANS:
            raise InvalidError(
                f"{query.hours} hours are {count} spans of {query.bucket}; {MAX_SPANS} are allowed",
                field="bucket",
            )
        now = clock.now()
        since = now if query.since is None else read_time(query.since, "from")
        if not now - DAY <= since <= now + MAX_AHEAD:
            raise InvalidError("from must lie within a year from now", field="from")
        return _show(
            await forecasts.look_ahead(Buckets(align(since, width), width, count), query.host)
        )

    async def suggest_spread(call: Call) -> SpreadList:
        found, is_complete = await forecasts.suggest_spread()
        return SpreadList([_show_suggestion(one) for one in found], is_complete)

    return [
        Route(
            "GET",
            "/api/v1/forecast/spread",
            suggest_spread,
            scope="tasks:read",
            tags=("tasks",),
            summary="Name tasks that fire together and could be spread",
            answers={200: SpreadList},
        ),
        Route(
            "GET",
            "/api/v1/forecast",
            show_forecast,
            scope="tasks:read",
            tags=("tasks",),
            query=ForecastQuery,
            summary="Count the firings to come, by time and by target host",
            answers={200: ForecastShown},
        ),
    ]


def _show(found: ForecastFound) -> ForecastShown:
    spans, load = found.spans, found.load
    named = sum(one.load.firings for one in found.hosts)
    return ForecastShown(
        since=format_instant(spans.since),
        until=format_instant(spans.until),
        bucket_sec=spans.width // SECOND,
        firings=load.firings,
        counts=load.counts,
        hosts=[_show_host(one) for one in found.hosts],
        elsewhere=load.firings - named,
        busiest=[_show_task(heavy, found.means) for heavy in load.heaviest],
        tasks_counted=load.tasks,
        complete=found.is_complete,
    )


def _show_suggestion(one: Suggestion) -> SpreadShown:
    task = one.task
    assert isinstance(task.schedule, Cron)
    return SpreadShown(
        task_id=task.id,
        job_id=task.job_id,
        name=task.name,
        host=task.host,
        together=one.together,
        now=task.schedule.expr,
        cron_expr=one.expr,
        becomes=one.becomes,
    )


def _show_host(one: HostForecast) -> HostShown:
    mean = None if one.mean_us is None else one.mean_us / SECOND
    busy = None if mean is None else mean * one.load.firings
    return HostShown(one.host, one.load.firings, one.load.counts, mean, busy)


def _show_task(heavy: HeavyTask, means: dict[int, float]) -> TaskAhead:
    task = heavy.task
    mean = means.get(task.id)
    return TaskAhead(
        task.id,
        task.job_id,
        task.name,
        task.host,
        heavy.firings,
        None if mean is None else mean / SECOND,
    )
