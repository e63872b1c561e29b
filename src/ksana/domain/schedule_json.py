"""The `schedule` member as it is written in requests, answers and `jobs.json`, read into and made
from schedules.

    {"kind": "once",  "run_at": T}
    {"kind": "every", "every": D, "start_at": T, "end_at": T}
    {"kind": "cron",  "expr": "…", "timezone": "…", "start_at": T, "end_at": T}

T is RFC 3339, D a duration; `jitter` (D) and `max_runs` (a count, kept by the task) go with every
kind. An absent time may be null or "". An unknown member is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

from ksana.base.durations import format_duration, parse_duration
from ksana.base.errors import InvalidError
from ksana.base.instant import Instant, Micros, format_instant, parse_instant
from ksana.domain.schedule import Cron, Every, Once, Schedule, make_cron, make_every
from ksana.domain.timetable import DstGap, DstOverlap

_SHARED: Final = frozenset(("kind", "jitter", "max_runs"))
_MEMBERS: Final = {
    "once": _SHARED | {"run_at"},
    "every": _SHARED | {"every", "start_at", "end_at", "anchor_at"},
    "cron": _SHARED | {"expr", "timezone", "start_at", "end_at"},
}


def read_schedule(
    members: Mapping[str, Any],
    now: Instant,
    *,
    timezone: str = "UTC",
    dst_gap: DstGap | None = None,
    dst_overlap: DstOverlap | None = None,
    keep_anchor: bool = False,
) -> Schedule:
    """Read a schedule set now. `timezone` is used where a cron schedule names none. `keep_anchor`
    takes the anchor of an interval from the server's own member `anchor_at`, for stored documents;
    from callers that member is ignored. Raise InvalidError naming the member."""
    kind = members.get("kind")
    allowed = _MEMBERS.get(kind) if isinstance(kind, str) else None
    if allowed is None:
        raise InvalidError("schedule.kind must be once, every or cron", field="schedule.kind")
    for name in members:
        if name not in allowed:
            known = ", ".join(sorted(allowed - {"anchor_at"}))
            raise InvalidError(
                f"schedule.{name} is not known: a schedule of kind {kind} has {known}",
                field=f"schedule.{name}",
            )
    _check_max_runs(members.get("max_runs"))
    jitter_us = _read_duration(members, "jitter") or 0
    start_at, end_at = _read_instant(members, "start_at"), _read_instant(members, "end_at")
    if kind == "once":
        run_at = _read_instant(members, "run_at")
        if run_at is None:
            raise InvalidError(
                "schedule.run_at is needed: an RFC 3339 time", field="schedule.run_at"
            )
        return Once(run_at, jitter_us)
    if kind == "every":
        every_us = _read_duration(members, "every")
        if every_us is None:
            raise InvalidError(
                'schedule.every is needed: a duration such as "5m"', field="schedule.every"
            )
        set_at = (_read_instant(members, "anchor_at") if keep_anchor else None) or now
        return make_every(
            every_us, now=set_at, start_at=start_at, end_at=end_at, jitter_us=jitter_us
        )
    return _read_cron(members, timezone, dst_gap, dst_overlap, start_at, end_at, jitter_us)


def write_schedule(schedule: Schedule) -> dict[str, Any]:
    """Write a schedule with all its members; absent times are null."""
    members: dict[str, Any]
    if isinstance(schedule, Once):
        members = {"kind": "once", "run_at": format_instant(schedule.run_at)}
    elif isinstance(schedule, Every):
        members = {"kind": "every", "every": format_duration(schedule.every_us)}
        members |= {
            "start_at": _write_instant(schedule.start_at),
            "end_at": _write_instant(schedule.end_at),
        }
        if not schedule.anchor_given:
            members["anchor_at"] = format_instant(schedule.anchor_at)
    else:
        members = {"kind": "cron", "expr": schedule.expr, "timezone": schedule.timezone}
        members |= {
            "start_at": _write_instant(schedule.start_at),
            "end_at": _write_instant(schedule.end_at),
        }
    members["jitter"] = format_duration(schedule.jitter_us)
    return members


def _read_cron(
    members: Mapping[str, Any],
    timezone: str,
    dst_gap: DstGap | None,
    dst_overlap: DstOverlap | None,
    start_at: Instant | None,
    end_at: Instant | None,
    jitter_us: Micros,
) -> Cron:
    expr, zone = members.get("expr"), members.get("timezone") or timezone
    if not isinstance(expr, str):
        raise InvalidError(
            "schedule.expr is needed: a cron expression of 5 or 6 fields", field="schedule.expr"
        )
    if not isinstance(zone, str):
        raise InvalidError("schedule.timezone must be a text", field="schedule.timezone")
    try:
        return make_cron(
            expr,
            zone,
            dst_gap=dst_gap,
            dst_overlap=dst_overlap,
            start_at=start_at,
            end_at=end_at,
            jitter_us=jitter_us,
        )
    except InvalidError as error:
        here = {"cron_expr": "schedule.expr", "timezone": "schedule.timezone"}.get(
            error.field or ""
        )
        if here is None:
            raise
        raise InvalidError(error.message, field=here) from None


def _read_instant(members: Mapping[str, Any], name: str) -> Instant | None:
    value = members.get(name)
    if value is None or value == "":
        return None
    try:
        if not isinstance(value, str):
            raise ValueError("must be an RFC 3339 time such as 2026-02-21T00:00:00Z")
        return parse_instant(value)
    except ValueError as error:
        raise InvalidError(f"schedule.{name}: {error}", field=f"schedule.{name}") from None


def _read_duration(members: Mapping[str, Any], name: str) -> Micros | None:
    value = members.get(name)
    if value is None or value == "":
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidError(f"schedule.{name}: {error}", field=f"schedule.{name}") from None


def _check_max_runs(value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidError(
            "schedule.max_runs must be a whole number from 1", field="schedule.max_runs"
        )


def _write_instant(at: Instant | None) -> str | None:
    return None if at is None else format_instant(at)
