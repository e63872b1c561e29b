"""Past slots fired on purpose, over HTTP: `/api/v1/tasks/{id}/backfill` and enabling a task with a
catch-up (B7)."""

from typing import Annotated, Final

import msgspec

from ksana.api.core.errors import Error
from ksana.api.core.reading import read_span
from ksana.api.core.routing import Answer, Call, Route
from ksana.api.tasks.members import read_time, show_time
from ksana.base.clock import Clock
from ksana.base.errors import InvalidError
from ksana.base.instant import MINUTE
from ksana.domain.tasks.backfill import MOST, Caps, Span
from ksana.service.tasks.backfill import BackfillService, Filled

_SHOWN: Final = 20
"""Slots that an answer lists."""

When = Annotated[str, msgspec.Meta(max_length=64)]
Duration = str | int | float
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
PerMinute = Annotated[int, msgspec.Meta(ge=1, le=6_000)]


class BackfillBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which past slots to fire. Slots that have a run are left alone; so asked for again it fires
    what is left."""

    since: When = msgspec.field(name="from")
    until: When | None = msgspec.field(default=None, name="to")
    limit: Count = 100
    max_age: Duration | None = None
    per_minute: PerMinute = 60
    dry_run: bool = False


class CatchUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many of the slots that passed while the task was disabled are made up: the newest
    `count`, none older than `max_age`, `per_minute` at most."""

    count: Count
    max_age: Duration | None = None
    per_minute: PerMinute = 60


class EnableBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is made up; nothing if it is absent."""

    catch_up: CatchUp | None = None


class CatchUpQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same as caps of a preview."""

    count: Count | None = None
    max_age: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    per_minute: PerMinute = 60


class FilledSlot(msgspec.Struct, frozen=True):
    """A slot and when it starts at the earliest."""

    slot: str
    starts_at: str


class Backfilled(msgspec.Struct, frozen=True):
    """What is fired, or would be. `slots` has the first twenty. Where `next_from` is not null there
    may be more: send it as `from`."""

    task_id: int
    dry_run: bool
    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    in_range: int
    recorded: int
    fires: int
    first: str | None
    last: str | None
    slots: list[FilledSlot]
    ends_at: str | None
    next_from: str | None


class BackfillStopped(msgspec.Struct, frozen=True):
    """How many runs were cancelled."""

    canceled: int


def read_caps(count: int, max_age: Duration | None, per_minute: int) -> Caps:
    """What bounds a backfill."""
    age_us = None if max_age is None else read_span("max_age", max_age)
    return Caps(count=count, max_age_us=age_us, interval_us=MINUTE // per_minute)


def show_filled(filled: Filled, *, is_dry: bool) -> Backfilled:
    """A backfill as it is answered."""
    plan, starts = filled.plan, filled.starts
    pairs = list(zip(plan.slots, starts, strict=True))[:_SHOWN]
    return Backfilled(
        task_id=filled.task.id,
        dry_run=is_dry,
        since=show_time(plan.span.since) or "",
        until=show_time(plan.span.until) or "",
        in_range=plan.in_span,
        recorded=plan.recorded,
        fires=len(plan.slots),
        first=show_time(plan.slots[0]) if plan.slots else None,
        last=show_time(plan.slots[-1]) if plan.slots else None,
        slots=[FilledSlot(show_time(slot) or "", show_time(at) or "") for slot, at in pairs],
        ends_at=show_time(starts[-1]) if starts else None,
        next_from=show_time(plan.next_from),
    )


def routes(service: BackfillService, clock: Clock) -> list[Route]:
    """The calls."""

    async def backfill(call: Call, body: BackfillBody) -> Answer:
        since = read_time(body.since, "from")
        until = clock.now() if body.until is None else read_time(body.until, "to")
        if until <= since:
            raise InvalidError("'to' must be later than 'from'", field="to")
        caps = read_caps(body.limit, body.max_age, body.per_minute)
        task_id, asked = call.params["id"], Span(since, until)
        is_dry = body.dry_run
        work = service.preview if is_dry else service.backfill
        filled = await work(task_id, asked, caps)
        return Answer(200 if is_dry else 202, show_filled(filled, is_dry=is_dry))

    async def stop(call: Call) -> BackfillStopped:
        return BackfillStopped(await service.cancel(call.params["id"]))

    path = "/api/v1/tasks/{id:int}/backfill"
    return [
        Route(
            "POST",
            path,
            backfill,
            scope="tasks:write",
            tags=("tasks",),
            summary="Fire past slots that have no run",
            body=BackfillBody,
            answers={202: Backfilled, 200: Backfilled, 409: Error},
        ),
        Route(
            "DELETE",
            path,
            stop,
            scope="tasks:write",
            tags=("tasks",),
            summary="Cancel the runs of backfills that wait",
            answers={200: BackfillStopped},
        ),
    ]
