"""Schedules without a task: what one means in words, and when it would fire (B3)."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET
from msgspec import UnsetType as Unset

from ksana.api.core.routing import Call, Route
from ksana.api.tasks.members import TaskSurface, given, read_time, sent_members
from ksana.api.tasks.schedule_shapes import (
    SHORT_MEMBERS,
    Chosen,
    Expr,
    MaxRuns,
    ScheduleBody,
    Span,
    Time,
    ZoneName,
    read_chosen,
    show_schedule,
)
from ksana.base.instant import DAY, LATEST, Instant, format_instant
from ksana.domain.preview import preview
from ksana.domain.schedule import Every
from ksana.domain.schedule_words import describe

MAX_COUNT: Final = 100
_LAST: Final[Instant] = LATEST - 30 * DAY
"""Slots later than this cannot be shown as a local time everywhere."""


class PreviewBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule as a task has it, how many firings to show, and after which time."""

    schedule: ScheduleBody | Unset | None = UNSET
    cron_expr: Expr | Unset | None = UNSET
    timezone: ZoneName | Unset | None = UNSET
    start_at: Time | Unset | None = UNSET
    end_at: Time | Unset | None = UNSET
    max_runs: MaxRuns | Unset | None = UNSET
    jitter: Span | Unset | None = UNSET
    dst_gap: Literal["next", "skip", "shift"] | Unset | None = UNSET
    dst_overlap: Literal["first", "second", "both"] | Unset | None = UNSET
    name: Annotated[str, msgspec.Meta(max_length=128)] | Unset | None = UNSET
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)] | Unset | None = UNSET
    after: Time | Unset | None = UNSET


class FiringShown(msgspec.Struct, frozen=True):
    """One firing to come; `note` says where a jump of the clock shaped it."""

    at: str
    local: str
    offset: str
    note: str | None


class Previewed(msgspec.Struct, frozen=True):
    """The schedule in words and as it would be stored, and its next firings, fewer if it ends."""

    description: str
    schedule: dict[str, Any]
    next: list[FiringShown]


def routes(surface: TaskSurface) -> list[Route]:
    """The preview."""
    defaults, clock = surface.defaults, surface.clock

    async def preview_schedule(call: Call, body: PreviewBody) -> Previewed:
        now = clock.now()
        after = given(body.after, "")
        chosen = read_chosen(
            {} if body.schedule is None or body.schedule is UNSET else sent_members(body.schedule),
            {name: given(getattr(body, name), None) for name in SHORT_MEMBERS},
            now,
            dst_gap=given(body.dst_gap, None) or defaults.dst_gap,
            dst_overlap=given(body.dst_overlap, None) or defaults.dst_overlap,
            seed=given(body.name, ""),
        )
        return _preview(chosen, read_time(after, "after") if after else now, given(body.count, 10))

    return [
        Route(
            "POST",
            "/api/v1/schedules/preview",
            preview_schedule,
            scope="tasks:read",
            tags=("schedules",),
            summary="Put a schedule into words and list its next firings",
            body=PreviewBody,
            answers={200: Previewed},
        ),
    ]


def _preview(chosen: Chosen, after: Instant, count: int) -> Previewed:
    schedule = chosen.schedule
    if isinstance(schedule, Every):
        schedule = msgspec.structs.replace(schedule, end_at=min(schedule.end_at or _LAST, _LAST))
    if chosen.max_runs is not None:
        count = min(count, chosen.max_runs)
    firings = preview(schedule, after, count)
    shown = [
        FiringShown(format_instant(firing.at), firing.local, firing.offset, firing.note)
        for firing in firings
    ]
    return Previewed(
        describe(chosen.schedule), show_schedule(chosen.schedule, chosen.max_runs), shown
    )
