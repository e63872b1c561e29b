"""What would happen, over HTTP: `/api/v1/simulate` (B3)."""

import asyncio
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET
from msgspec import UnsetType as Unset

from ksana.api.core.routing import Call, Route
from ksana.api.tasks.members import Defaults, TaskSurface, given, read_span, read_time, show_time
from ksana.api.tasks.schedule_shapes import Span, Time
from ksana.api.tasks.task_bodies import TaskBody
from ksana.api.tasks.task_shapes import read_task
from ksana.base.errors import InvalidError, RateLimitedError
from ksana.base.instant import DAY, LATEST, MILLISECOND, SECOND, Instant, format_instant
from ksana.domain.tasks.firing import Outage
from ksana.domain.tasks.simulation import (
    Scenario,
    SimulatedRun,
    SimulatedTask,
    Simulation,
    TaskTally,
    merge_spans,
    simulate,
)

MAX_TASKS: Final = 50
MAX_SPANS: Final = 50
LONGEST: Final = 31 * DAY
MAX_BODY: Final = 256 * 1024
AT_ONCE: Final = 2
"""Simulations under way. Each takes up to half a second of the processor."""
MAX_WAITING: Final = 16
_LASTS: Span = "24h"
_TAKES: Span = "1s"
_URL: Final = "http://target.invalid/"


class SpanBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A span of time, its end not included."""

    since: Time = msgspec.field(name="from")
    until: Time = msgspec.field(name="to")


class TriedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task as one is made, how long a call of it takes, and when its target fails. A name and a
    target are not needed."""

    task: TaskBody
    takes: Span | Unset | None = UNSET
    fails: Annotated[list[SpanBody], msgspec.Meta(max_length=MAX_SPANS)] | Unset | None = UNSET


class SimulateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to try: tasks, outages, and how many calls may be under way."""

    tasks: Annotated[list[TriedTask], msgspec.Meta(min_length=1, max_length=MAX_TASKS)]
    since: Time | Unset | None = msgspec.field(default=UNSET, name="from")
    lasts: Span | Unset | None = UNSET
    outages: Annotated[list[SpanBody], msgspec.Meta(max_length=MAX_SPANS)] | Unset | None = UNSET
    capacity: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | Unset | None = UNSET


class TriedAttempt(msgspec.Struct, frozen=True):
    """One call. `end` is null while it is under way; LOST is one that an outage cut off."""

    started_at: str
    ended_at: str | None
    end: Literal["SUCCESS", "FAILED", "TIMEOUT", "LOST"] | None


class TriedRun(msgspec.Struct, frozen=True):
    """A slot that was decided, and what came of it by the end."""

    task: int
    slot: str
    decided_at: str
    trigger: str
    reason: str
    status: str
    attempts: list[TriedAttempt]
    ended_at: str | None


class TriedSums(msgspec.Struct, frozen=True):
    """What became of the slots of one task."""

    name: str
    fired: int
    skipped: dict[str, int]
    by_status: dict[str, int]
    attempts: int
    most_active: int
    most_waiting: int
    longest_wait_sec: float


class Simulated(msgspec.Struct, frozen=True):
    """The timeline. `cut`: it had made as many steps as it may, and ended at `to`."""

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    cut: bool
    most_calls: int
    most_ready: int
    tasks: list[TriedSums]
    runs: list[TriedRun]
    runs_left_out: int


class Turns:
    """A few simulations at a time, on threads of their own: the event loop goes on beside them."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def run(self, scenario: Scenario) -> Simulation:
        """Simulate when there is room. Raise RateLimitedError if too many wait already."""
        if self._waiting >= MAX_WAITING:
            raise RateLimitedError("too many simulations are under way: try again in a second")
        self._waiting += 1
        try:
            async with self._free:
                return await asyncio.to_thread(simulate, scenario)
        finally:
            self._waiting -= 1


def routes(surface: TaskSurface) -> list[Route]:
    """The simulation."""
    turns = Turns()

    async def run_simulation(call: Call, body: SimulateBody) -> Simulated:
        scenario = _read_scenario(body, surface.defaults, surface.clock.now())
        return _show(scenario, await turns.run(scenario))

    return [
        Route(
            "POST",
            "/api/v1/simulate",
            run_simulation,
            scope="tasks:read",
            tags=("schedules",),
            summary="Try out tasks, outages and capacity: what would run when",
            body=SimulateBody,
            answers={200: Simulated},
            max_body=MAX_BODY,
        ),
    ]


def _read_scenario(body: SimulateBody, defaults: Defaults, now: Instant) -> Scenario:
    since = given(body.since, "")
    began = read_time(since, "from") if since else now
    lasts = read_span(given(body.lasts, _LASTS), "lasts", least=SECOND, most=LONGEST)
    if began > LATEST - 40 * DAY:
        raise InvalidError("from lies too far ahead", field="from")
    return Scenario(
        began,
        began + lasts,
        tuple(_read_tried(one, at, defaults, began) for at, one in enumerate(body.tasks)),
        merge_spans(_read_spans(given(body.outages, []), "outages")),
        given(body.capacity, 0) or None,
    )


def _read_tried(one: TriedTask, at: int, defaults: Defaults, now: Instant) -> SimulatedTask:
    body = one.task
    is_called = given(body.type, "http") == "http"
    body = msgspec.structs.replace(
        body,
        name=given(body.name, "") or f"task {at + 1}",
        target_url=given(body.target_url, _URL) or _URL if is_called else body.target_url,
    )
    try:
        definition = read_task(body, defaults, now)
    except InvalidError as error:
        raise InvalidError(
            f"task {at + 1}: {error}", field=f"tasks.{at}.task.{error.field or ''}".rstrip(".")
        ) from None
    takes = read_span(given(one.takes, _TAKES), f"tasks.{at}.takes", least=MILLISECOND, most=DAY)
    fails = merge_spans(_read_spans(given(one.fails, []), f"tasks.{at}.fails"))
    return SimulatedTask(definition, takes, fails)


def _read_spans(spans: list[SpanBody], field: str) -> list[Outage]:
    found = []
    for at, span in enumerate(spans):
        began = read_time(span.since, f"{field}.{at}.from")
        ended = read_time(span.until, f"{field}.{at}.to")
        if ended <= began:
            raise InvalidError("to must lie after from", field=f"{field}.{at}.to")
        found.append((began, ended))
    return found


def _show(scenario: Scenario, found: Simulation) -> Simulated:
    sums = [
        _show_sums(one.definition.name, tally)
        for one, tally in zip(scenario.tasks, found.tallies, strict=True)
    ]
    return Simulated(
        since=format_instant(scenario.since),
        until=format_instant(found.until),
        cut=found.is_cut,
        most_calls=found.most_calls,
        most_ready=found.most_ready,
        tasks=sums,
        runs=[_show_run(run) for run in found.runs],
        runs_left_out=found.runs_left_out,
    )


def _show_sums(name: str, tally: TaskTally) -> TriedSums:
    return TriedSums(
        name,
        tally.fired,
        dict(tally.skipped),
        dict(tally.by_status),
        tally.attempts,
        tally.most_active,
        tally.most_waiting,
        tally.longest_wait_us / SECOND,
    )


def _show_run(run: SimulatedRun) -> TriedRun:
    return TriedRun(
        run.task,
        format_instant(run.slot_at),
        format_instant(run.decided_at),
        run.trigger,
        run.reason,
        run.status,
        [
            TriedAttempt(format_instant(one.started_at), show_time(one.ended_at), one.end)
            for one in run.attempts
        ],
        show_time(run.ended_at),
    )
