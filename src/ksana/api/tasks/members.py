"""What the edges of timers and tasks share: the services they stand on, what absent members become,
and the reading and showing of single members. Knows no route and no dialect's shape."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from ksana.api.core.routing import Call
from ksana.base.clock import Clock
from ksana.base.durations import format_duration, parse_duration
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, MINUTE, SECOND, Instant, Micros, format_instant, parse_instant
from ksana.domain.tasks.records import Definition, Delivery, OnOrphan
from ksana.domain.tasks.template import check_template
from ksana.domain.timetable import DstGap, DstOverlap
from ksana.ports.handover import NO_QUEUE, QueueJobs
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.callbacks import CallbackService
from ksana.service.tasks.definitions import TaskService
from ksana.service.tasks.runs import RunService

T = TypeVar("T")

LONGEST_TIMEOUT: Final[Micros] = DAY
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VERSION = re.compile(r'(?:W/)?"?(\d{1,9})"?\Z', re.ASCII)
_LOST_PLUS = re.compile(r" (?=\d\d:?\d\d\Z)")


class Defaults(msgspec.Struct, frozen=True):
    """Values of members that a body leaves out; boot fills them from settings of the same names."""

    timer_timeout_us: Micros = 10 * SECOND
    timer_max_retries: int = 3
    timer_retry_backoff_us: Micros = 5 * SECOND
    request_timeout_us: Micros = 10 * SECOND
    max_retries: int = 0
    misfire_grace_us: Micros = MINUTE
    max_queued: int = 100
    history_limit: int = 1000
    response_limit: int | None = 65_536
    """Bytes of an answer that are kept; None keeps it whole."""
    follow_redirects: int = 0
    on_orphan: OnOrphan = "retry"
    delivery: Delivery = "at_least_once"
    dst_gap: DstGap | None = None
    """None is the rule of Debian's cron, which differs for fixed times and for steps."""
    dst_overlap: DstOverlap | None = None
    retry_on_callback_failure: bool = False


class TaskSurface(msgspec.Struct, frozen=True):
    """The services under `/jobs` and `/api/v1/{tasks,runs,callbacks,schedules}`."""

    tasks: TaskService
    runs: RunService
    callbacks: CallbackService
    defaults: Defaults
    clock: Clock
    backfills: BackfillService
    queue_jobs: QueueJobs = NO_QUEUE


def given(value: T | msgspec.UnsetType | None, default: T) -> T:
    """The member as sent, or its default where it is absent or null."""
    return default if value is None or value is msgspec.UNSET else value


def sent_members(body: msgspec.Struct) -> dict[str, Any]:
    """What a body really holds, nulls included."""
    members: dict[str, Any] = msgspec.to_builtins(body)
    return members


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Merge as RFC 7396 says: null removes, objects merge, everything else replaces."""
    merged = dict(base)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            held = merged.get(name)
            merged[name] = merge(held if isinstance(held, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def read_span(
    value: float | str, field: str, *, least: Micros = 0, most: Micros = LONGEST_TIMEOUT
) -> Micros:
    """Read a duration within bounds. Raise InvalidError naming the member."""
    try:
        span = parse_duration(value)
    except ValueError as error:
        raise InvalidError(f"{field}: {error}", field=field) from None
    if not least <= span <= most:
        raise InvalidError(
            f"{field} must lie between {format_duration(least)} and {format_duration(most)}, "
            f"not {format_duration(span)}",
            field=field,
        )
    return span


def read_time(text: str, field: str) -> Instant:
    """Read an RFC 3339 time. In a query an unescaped + arrives as a space, so that is taken for
    what it was."""
    try:
        return parse_instant(_LOST_PLUS.sub("+", text))
    except ValueError as error:
        raise InvalidError(f"{field}: {error}", field=field) from None


def show_time(at: Instant | None) -> str | None:
    """An instant for an answer; an absent one is null."""
    return None if at is None else format_instant(at)


def show_seconds(span_us: Micros) -> int | float:
    """A duration as a number of seconds, whole where it is."""
    whole, rest = divmod(span_us, SECOND)
    return span_us / SECOND if rest else whole


def check_name(name: str, *, may_be_empty: bool) -> None:
    """Raise InvalidError for a name that people could not see."""
    if _CONTROL.search(name):
        raise InvalidError("name may not hold control characters", field="name")
    if not may_be_empty and not name.strip():
        raise InvalidError("name is needed: 1 to 128 characters", field="name")


def check_timer_type(kind: str) -> None:
    """Raise InvalidError for a type that dialect T cannot express."""
    if kind != "http":
        raise InvalidError(
            f"a timer is of type http; tasks of type {kind} are made and changed at /api/v1/tasks",
            field="type",
        )


def align_names(patch: dict[str, Any], stored: Mapping[str, str]) -> dict[str, Any]:
    """Headers of a patch under the spelling that is stored, so that a merge replaces them whatever
    their case."""
    spelling = {name.lower(): name for name in stored}
    return {spelling.get(name.lower(), name): value for name, value in patch.items()}


def check_placeholders(
    definition: Definition, url_field: str, headers_field: str, body_field: str
) -> None:
    """Raise InvalidError for a placeholder nobody knows."""
    check_template(definition.target_url, url_field)
    for value in definition.headers.values():
        check_template(value, headers_field)
    if definition.body is not None:
        check_template(definition.body, body_field)


def read_if_match(call: Call) -> int | None:
    """The version a change was made from, by the If-Match header; `*` is any."""
    text = call.header("if-match")
    if text is None or text.strip() == "*":
        return None
    match = _VERSION.match(text.strip())
    if match is None:
        raise InvalidError('If-Match is the version of the task, such as "3"', field="If-Match")
    return int(match[1])


def trace_of(call: Call) -> str | None:
    """The caller's trace id, which becomes the run's."""
    trace = call.trace
    return None if trace is None else trace.trace_id
