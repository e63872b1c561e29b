"""The schedule as callers write it: the `schedule` member, and the short members `cron_expr`,
`timezone`, `start_at`, `end_at`, `jitter`, `max_runs` that may stand beside it. From there to a
checked schedule, and back."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET
from msgspec import UnsetType as Unset

from ksana.base.errors import InvalidError
from ksana.base.instant import Instant
from ksana.domain.cron import parse_cron
from ksana.domain.cron_spread import resolve_spread
from ksana.domain.schedule import Every, Schedule
from ksana.domain.schedule_json import read_schedule, write_schedule
from ksana.domain.timetable import DstGap, DstOverlap
from ksana.domain.zones import get_zone

Span = float | Annotated[str, msgspec.Meta(max_length=64)]
"""A number of seconds, or a text such as `1h30m`, `500ms`, `P7D`."""
Time = Annotated[str, msgspec.Meta(max_length=64)]
Expr = Annotated[str, msgspec.Meta(max_length=255)]
ZoneName = Annotated[str, msgspec.Meta(max_length=64)]
MaxRuns = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]

SHORT_MEMBERS: Final = {
    "cron_expr": "expr",
    "timezone": "timezone",
    "start_at": "start_at",
    "end_at": "end_at",
    "jitter": "jitter",
    "max_runs": "max_runs",
}
_OF_KIND: Final = {
    "once": frozenset({"run_at", "jitter", "max_runs"}),
    "every": frozenset({"every", "start_at", "end_at", "jitter", "max_runs"}),
    "cron": frozenset({"expr", "timezone", "start_at", "end_at", "jitter", "max_runs"}),
}


class ScheduleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a task is due. Which members go with which kind is checked besides; `anchor_at` is ours
    and ignored."""

    SERVER_OWNED: ClassVar[tuple[str, ...]] = ("anchor_at",)
    ALSO_CALLED: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("cron", "cron_expr", "expression"), "expr"),
        **dict.fromkeys(("interval", "period", "seconds", "minutes", "hours"), "every"),
        **dict.fromkeys(("at", "date", "time", "when"), "run_at"),
        "type": "kind",
        "tz": "timezone",
        "zone": "timezone",
        "until": "end_at",
    }

    kind: Literal["once", "every", "cron"] | Unset | None = UNSET
    run_at: Time | Unset | None = UNSET
    every: Span | Unset | None = UNSET
    expr: Expr | Unset | None = UNSET
    timezone: ZoneName | Unset | None = UNSET
    start_at: Time | Unset | None = UNSET
    end_at: Time | Unset | None = UNSET
    jitter: Span | Unset | None = UNSET
    max_runs: MaxRuns | Unset | None = UNSET
    anchor_at: Time | Unset | None = UNSET


class Chosen(msgspec.Struct, frozen=True):
    """A schedule as read, with the count that is kept beside it."""

    schedule: Schedule
    max_runs: int | None


def merge_schedule(base: Mapping[str, Any], patch: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge a change into a schedule; a changed kind drops the members of the other kind. A null
    stays, so that reading knows it was sent."""
    if patch is None:
        return {}
    kind = patch.get("kind") or base.get("kind")
    kept = (
        dict(base)
        if kind == base.get("kind")
        else {k: v for k, v in base.items() if k in _OF_KIND[str(kind)]}
    )
    return {**kept, **patch}


def base_of(schedule: Schedule, max_runs: int | None) -> dict[str, Any]:
    """A stored schedule as a caller would write it, without what is absent or ours."""
    members = {
        name: value
        for name, value in write_schedule(schedule).items()
        if value is not None and name != "anchor_at"
    }
    return members if max_runs is None else {**members, "max_runs": max_runs}


def read_chosen(
    members: Mapping[str, Any],
    short: Mapping[str, Any],
    now: Instant,
    *,
    dst_gap: DstGap | None,
    dst_overlap: DstOverlap | None,
    old: Chosen | None = None,
    seed: str = "",
) -> Chosen:
    """Read a schedule set now from the `schedule` member and the short ones. `seed` chooses the
    places that `H` in a cron expression stands for.

    Where both say something different, the one that differs from what is stored is meant; else it
    is a 400. A null or an empty text stands for the default, so it too may be the one that differs.
    An interval whose length and start are unchanged keeps its anchor.
    """
    base = None if old is None else base_of(old.schedule, old.max_runs)
    wanted = {name: value for name, value in members.items() if name != "anchor_at"}
    wanted, origin = _fold(*_drop_defaults(wanted, dict(short), base), base)
    try:
        if isinstance(expr := wanted.get("expr"), str):
            wanted["expr"] = _resolve(expr, seed)
        schedule = read_schedule(wanted, now, dst_gap=dst_gap, dst_overlap=dst_overlap)
    except InvalidError as error:
        raise _renamed(error, origin) from None
    if old is not None:
        schedule = _keep_anchor(old.schedule, schedule)
    return Chosen(schedule, wanted.get("max_runs"))


def _resolve(expr: str, seed: str) -> str:
    try:
        return resolve_spread(expr, seed)
    except InvalidError as error:
        raise InvalidError(error.message, field="schedule.expr") from None


def show_schedule(schedule: Schedule, max_runs: int | None) -> dict[str, Any]:
    """A schedule with all its members; absent ones are null."""
    return {**write_schedule(schedule), "max_runs": max_runs}


def _drop_defaults(
    wanted: dict[str, Any], short: dict[str, Any], base: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Leave out the members that were set back to their defaults, also where the same member, said
    in the other place, is only what is stored."""
    for top, inner in SHORT_MEMBERS.items():
        if base is None or top == "cron_expr":  # nothing is stored, or it has no default
            continue
        stored = base.get(inner)
        if _is_default(short.get(top, stored)) and wanted.get(inner) == stored:
            wanted.pop(inner, None)
        elif _is_default(wanted.get(inner, stored)) and short.get(top) == stored:
            short.pop(top, None)
    return (
        {name: value for name, value in wanted.items() if value is not None},
        {name: value for name, value in short.items() if value is not None},
    )


def _is_default(value: Any) -> bool:
    return value is None or value == ""


def _fold(
    wanted: dict[str, Any], short: dict[str, Any], base: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Put the short members into the schedule; answer which came from where."""
    cron_expr = short.get("cron_expr")
    if cron_expr is not None and wanted.get("kind", "cron") != "cron":
        if wanted != base:
            raise InvalidError("give cron_expr or schedule, not both", field="cron_expr")
        wanted = {name: value for name, value in wanted.items() if name in _OF_KIND["cron"]}
    if cron_expr is not None:
        wanted["kind"] = "cron"
    if not wanted:
        raise InvalidError("cron_expr or schedule is needed", field="cron_expr")
    kind = wanted.get("kind")
    origin: dict[str, str] = {}
    for top, inner in SHORT_MEMBERS.items():
        value = short.get(top)
        if value is None or (value == "" and top != "cron_expr"):
            continue
        if kind in _OF_KIND and inner not in _OF_KIND[kind]:
            if top != "timezone":
                raise InvalidError(f"{top} does not go with a schedule of kind {kind}", field=top)
            get_zone(value)  # the seed gives every task a zone; only cron uses it
            continue
        if _prefers_schedule(inner, wanted.get(inner), value, base, top):
            continue
        wanted[inner] = value
        origin[inner] = top
    return wanted, origin


def _prefers_schedule(
    inner: str, held: Any, value: Any, base: dict[str, Any] | None, top: str
) -> bool:
    """Of two values for one member choose the one that is a change."""
    if held is None or _is_same(inner, held, value):
        return False
    if base is not None and _is_same(inner, base.get(inner), value):
        return True
    if base is not None and _is_same(inner, base.get(inner), held):
        return False
    raise InvalidError(
        f"{top} and schedule.{inner} say different things: give one of them", field=top
    )


def _is_same(inner: str, left: Any, right: Any) -> bool:
    if inner != "expr" or left == right:
        return bool(left == right)
    try:
        return parse_cron(left).normalized == parse_cron(right).normalized
    except (InvalidError, TypeError, AttributeError):
        return False


def _renamed(error: InvalidError, origin: dict[str, str]) -> InvalidError:
    """Name the member as the caller wrote it."""
    inner = (error.field or "").removeprefix("schedule.")
    top = origin.get(inner)
    if top is None:
        return error
    return InvalidError(error.message.replace(f"schedule.{inner}", top), field=top)


def _keep_anchor(old: Schedule, new: Schedule) -> Schedule:
    if not isinstance(old, Every) or not isinstance(new, Every):
        return new
    if new.every_us != old.every_us or new.start_at != old.start_at:
        return new
    return msgspec.structs.replace(new, anchor_at=old.anchor_at, anchor_given=old.anchor_given)
