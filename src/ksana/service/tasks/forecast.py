"""The forecast: firings to come, by span of time and by host, with how long runs took so far.

Tasks are read a page at a time on the readers of lists, so that others come in between. What was
worked out is kept for a while: a page of the console that everybody has open costs one count.
"""

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.domain.tasks import forecast
from ksana.domain.tasks.forecast import ArmedTask, Buckets, HostLoad, Load, Memo
from ksana.domain.tasks.spreading import SpreadCensus, Suggestion
from ksana.ports.store import Store
from ksana.ports.tasks.forecast import ForecastTx

PAGE: Final = 1_000
MAX_TASKS: Final = 200_000
"""Tasks that one forecast looks at, the first by id."""
SHOWN_HOSTS: Final = 50
RUNS_SAMPLED: Final = 20
KEPT_LEAST: Final[Micros] = 2 * SECOND
KEPT_MOST: Final[Micros] = 5 * MINUTE
KEPT_TIMES: Final = 100
"""A forecast is kept for so many times as long as counting took: counting takes at most one part in
a hundred of the time."""
MAX_KEPT: Final = 16


class HostForecast(msgspec.Struct, frozen=True):
    """One host; `mean_us` is how long runs there took lately, None if none is known."""

    host: str
    load: HostLoad
    mean_us: float | None


class ForecastFound(msgspec.Struct, frozen=True):
    """What is to come."""

    spans: Buckets
    load: Load
    hosts: list[HostForecast]
    """The busiest, the first first."""
    means: dict[int, float]
    """How long runs of the tasks took that fire most."""
    is_complete: bool


class ForecastService:
    """Answers what is to come."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._kept: OrderedDict[tuple[Buckets, str | None], tuple[Instant, ForecastFound]] = (
            OrderedDict()
        )
        self._spread: tuple[Instant, tuple[list[Suggestion], bool]] = (0, ([], True))

    async def look_ahead(self, spans: Buckets, host: str | None = None) -> ForecastFound:
        """Count the firings in spans of time, of one host or of all. One at a time: who waited may
        find that it was done for somebody else."""
        if (found := self._find_kept(spans, host)) is not None:
            return found
        async with self._turn:
            if (found := self._find_kept(spans, host)) is not None:
                return found
            began = self._clock.monotonic()
            found = await self._count(spans, host)
            took = self._clock.monotonic() - began
            kept = min(KEPT_MOST, max(KEPT_LEAST, took * KEPT_TIMES))
            self._kept[spans, host] = (self._clock.now() + kept, found)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return found

    async def suggest_spread(self) -> tuple[list[Suggestion], bool]:
        """Tasks that could fire beside others instead of with them, and whether all tasks were
        looked at. Kept for a while, as a forecast is."""
        async with self._turn:
            until, found = self._spread
            if until > self._clock.now():
                return found
            census, place, looked = SpreadCensus(), 0, 0
            began = self._clock.monotonic()
            last: int | None = 0
            while last is not None and looked < MAX_TASKS:
                tasks, last = await self._store.read_list(_list_armed, place)
                census.add(tasks)
                place, looked = last or place, looked + PAGE
            took = self._clock.monotonic() - began
            kept = min(KEPT_MOST, max(KEPT_LEAST, took * KEPT_TIMES))
            found = (census.suggest(), last is None)
            self._spread = (self._clock.now() + kept, found)
            return found

    def _find_kept(self, spans: Buckets, host: str | None) -> ForecastFound | None:
        until, found = self._kept.get((spans, host), (0, None))
        return found if until > self._clock.now() else None

    async def _count(self, spans: Buckets, host: str | None) -> ForecastFound:
        load = Load([0] * spans.number)
        memo: Memo = {}
        place: int | None = 0
        looked = 0
        while place is not None and looked < MAX_TASKS:
            more, place = await self._store.read_list(_count_page, spans, host, place, memo)
            load = forecast.join(load, more)
            looked += PAGE
        busiest = sorted(load.hosts.items(), key=lambda one: (-one[1].firings, one[0]))
        shown = busiest[:SHOWN_HOSTS]
        sampled = {heavy.task.id for _, there in shown for heavy in there.heaviest}
        sampled |= {heavy.task.id for heavy in load.heaviest}
        means = await self._store.read_list(_read_means, sorted(sampled))
        hosts = [HostForecast(name, there, _mean_at(there, means)) for name, there in shown]
        return ForecastFound(spans, load, hosts, means, place is None)


def _count_page(
    tx: ForecastTx, spans: Buckets, host: str | None, after: int, memo: Memo
) -> tuple[Load, int | None]:
    tasks, last = tx.armed_tasks.list_armed(after, PAGE)
    return forecast.add_up(tasks, spans, host, memo), last


def _list_armed(tx: ForecastTx, after: int) -> tuple[list[ArmedTask], int | None]:
    return tx.armed_tasks.list_armed(after, PAGE)


def _read_means(tx: ForecastTx, task_ids: list[int]) -> dict[int, float]:
    means: dict[int, float] = {}
    for task_id in task_ids:
        durations = tx.armed_tasks.list_durations(task_id, RUNS_SAMPLED)
        if durations:
            means[task_id] = sum(durations) / len(durations)
    return means


def _mean_at(there: HostLoad, means: dict[int, float]) -> float | None:
    """How long a firing at a host takes: of the tasks that fire most there, by how often."""
    known = [heavy for heavy in there.heaviest if heavy.task.id in means]
    firings = sum(heavy.firings for heavy in known)
    if not firings:
        return None
    return sum(means[heavy.task.id] * heavy.firings for heavy in known) / firings


def align(now: Instant, width: Micros) -> Instant:
    """The start of the span that an instant lies in."""
    return now - now % (width or SECOND)
