"""Runs over HTTP: read, list, cancel, run again (C5, C6)."""

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from ksana.api.core.errors import Error
from ksana.api.core.routing import MAX_ID, Answer, Call, Route, to_row_id
from ksana.api.tasks.members import TaskSurface, read_time, show_time
from ksana.api.tasks.secret_members import mask_headers
from ksana.base.errors import InvalidError
from ksana.base.ids import is_uid
from ksana.domain.handover import job_id_of
from ksana.domain.secrets import MASK
from ksana.domain.tasks.call_records import read_attempts, read_headers
from ksana.domain.tasks.records import QUEUE_PLACE, Run, Task, is_place, target_of
from ksana.ports.pages import Place, Total
from ksana.ports.tasks.runs import RunFilter
from ksana.service.tasks.callbacks import SHOWN_FINAL
from ksana.service.tasks.runs import RunRef

MAX_PAGE: Final = 10**9
Page = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=500)]
RunStatus = Literal[
    "SCHEDULED",
    "RUNNING",
    "SUCCESS",
    "FAILED",
    "TIMEOUT",
    "RETRYING",
    "CALLBACK_PENDING",
    "CALLBACK_SUCCESS",
    "FAILED_TIMEOUT",
    "CANCELED",
    "SKIPPED",
]
Time = Annotated[str, msgspec.Meta(max_length=64)]
TotalIs = Literal["exact", "at_least"]
_CURSOR: Final = re.compile(r"(?:(-?\d{1,18})_)?(\d{1,18})", re.ASCII)


class TaskRunsQuery(msgspec.Struct, frozen=True):
    """Filters by status and by the scheduled time, `from` included, `to` not."""

    status: RunStatus | None = None
    since: Time | None = msgspec.field(default=None, name="from")
    until: Time | None = msgspec.field(default=None, name="to")
    page: Page = 1
    page_size: PageSize = 20
    cursor: Annotated[str, msgspec.Meta(max_length=40)] | None = None


class RunsQuery(TaskRunsQuery, frozen=True):
    """The same over all tasks or one."""

    task_id: Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)] | None = None


class HandedTo(msgspec.Struct, frozen=True):
    """The job that the present, or the last, attempt was handed over to."""

    type: Literal["queue", "node"]
    job_id: str


class TimingShown(msgspec.Struct, frozen=True):
    """How long each phase of an attempt took."""

    dns_ms: float
    connect_ms: float
    tls_ms: float
    first_byte_ms: float
    total_ms: float


class AttemptShown(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a run, as it was recorded."""

    attempt: int
    started_at: str | None
    ended_at: str
    status: str
    response_code: int | None
    error: str | None
    instance: str | None
    timing: TimingShown | msgspec.UnsetType = msgspec.UNSET
    sends: int | msgspec.UnsetType = msgspec.UNSET


class RunShown(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is answered. Tokens and secrets read `***`."""

    id: int
    uid: str
    task_id: int
    task_name: str | None
    task_target: str | None
    job_id: str | None
    scheduled_time: str
    start_time: str | None
    end_time: str | None
    status: str
    final_status: str | None
    reason: str | None
    attempt: int
    trigger: str
    exec_type: str
    retry_of: int | None
    request_headers: dict[str, Any] | None
    request_body: str | None
    response_code: int | None
    response_body: str | None
    response_truncated: bool
    response_encoding: str | None
    error_message: str | None
    next_retry_time: str | None
    callback_token: str | None
    callback_deadline: str | None
    callback_data: Any
    trace_id: str
    handed_to: HandedTo | None
    attempts: list[AttemptShown]
    created_at: str
    updated_at: str


class CallbackShown(msgspec.Struct, frozen=True):
    """A callback that came for the run."""

    id: int
    received_at: str
    body: str
    status: str


class RunDetail(RunShown, frozen=True, kw_only=True):
    """One run, with its callbacks."""

    callbacks: list[CallbackShown]


class RunList(msgspec.Struct, frozen=True):
    """A page, newest first; with `from` or `to` over all tasks, the latest scheduled first. It has
    8 MiB at most, looks through a bounded number of runs, and may end early: go on with `cursor` =
    `next_cursor`, until that is null."""

    items: list[RunShown]
    total: int
    page: int
    page_size: int
    next_cursor: int | str | None = None
    total_is: TotalIs = "exact"


class RunCanceled(msgspec.Struct, frozen=True):
    """The run is cancelled."""

    run_id: int
    status: str


class RunAgain(msgspec.Struct, frozen=True):
    """The new run."""

    run_id: int
    uid: str


def routes(surface: TaskSurface) -> list[Route]:
    """Everything under `/api/v1/runs`, and a task's own runs."""
    runs = surface.runs

    async def list_runs(call: Call) -> RunList:
        query: RunsQuery = call.query
        return await _list(surface, query, query.task_id)

    async def list_task_runs(call: Call) -> RunList:
        return await _list(surface, call.query, call.params["id"])

    async def get_run(call: Call) -> RunDetail:
        view = await runs.get(call.params["id"])
        callbacks = [
            CallbackShown(id_, show_time(at) or "", body, status)
            for id_, at, body, status in view.callbacks
        ]
        return RunDetail(
            **msgspec.structs.asdict(show_run(view.run, view.task)), callbacks=callbacks
        )

    async def cancel_run(call: Call) -> RunCanceled:
        run = await runs.cancel(call.params["id"])
        return RunCanceled(run.id, run.status)

    async def retry_run(call: Call) -> Answer:
        started = await runs.retry(call.params["id"])
        return Answer(202, RunAgain(started.run_id, started.uid))

    def route(
        method: str, path: str, handler: Any, summary: str, *, id_is_task: bool = False, **more: Any
    ) -> Route:
        scope = "tasks:read" if method == "GET" else "tasks:write"
        converters = {} if id_is_task else {"id": to_run_ref}
        return Route(
            method,
            path,
            handler,
            scope=scope,
            summary=summary,
            tags=("runs",),
            converters=converters,
            **more,
        )

    return [
        route(
            "GET",
            "/api/v1/runs",
            list_runs,
            "List runs, newest first",
            query=RunsQuery,
            answers={200: RunList},
        ),
        route(
            "GET",
            "/api/v1/tasks/{id:int}/runs",
            list_task_runs,
            "List the runs of a task, newest first",
            id_is_task=True,
            query=TaskRunsQuery,
            answers={200: RunList},
        ),
        route(
            "GET",
            "/api/v1/runs/{id}",
            get_run,
            "Read a run by its id or uid",
            answers={200: RunDetail},
        ),
        route(
            "POST",
            "/api/v1/runs/{id}/cancel",
            cancel_run,
            "Cancel an unfinished run",
            answers={200: RunCanceled, 409: Error},
        ),
        route(
            "POST",
            "/api/v1/runs/{id}/retry",
            retry_run,
            "Run a finished run's task again, as a new run",
            answers={202: RunAgain, 409: Error},
        ),
    ]


def to_run_ref(text: str) -> RunRef:
    """Read a run's id or uid from a path."""
    lower = text.lower()
    if is_uid(lower):
        return lower
    try:
        return to_row_id(text)
    except ValueError:
        raise ValueError(
            f"{text[:64]!r} is not a run: give its id, a whole number from 1, "
            "or its uid of 32 hex digits"
        ) from None


def total_is(total: Total) -> TotalIs:
    """What the total of a list says."""
    return "exact" if total.is_exact else "at_least"


def show_run(run: Run, task: Task | None) -> RunShown:
    """Render a run."""
    headers = read_headers(run, None if task is None else task.job_id)
    if isinstance(headers, dict):
        headers = mask_headers(
            headers, () if task is None else task.definition.options.secret_headers
        )
    return RunShown(
        id=run.id,
        uid=run.uid,
        task_id=run.task_id,
        task_name=None if task is None else task.definition.name,
        task_target=None if task is None else target_of(task.definition),
        job_id=None if task is None else task.job_id,
        scheduled_time=show_time(run.scheduled_time) or "",
        start_time=show_time(run.start_time),
        end_time=show_time(run.end_time),
        status=run.status,
        final_status=SHOWN_FINAL.get(run.status),
        reason=run.reason,
        attempt=run.attempt,
        trigger=run.trigger,
        exec_type=run.exec_type,
        retry_of=run.retry_of,
        request_headers=headers,
        request_body=run.request_body,
        response_code=run.response_code,
        response_body=run.response_body,
        response_truncated=run.response_truncated,
        response_encoding=run.response_encoding,
        error_message=run.error_message,
        next_retry_time=show_time(run.next_retry_time),
        callback_token=None if run.callback_hash is None else MASK,
        callback_deadline=show_time(run.callback_deadline),
        callback_data=_read_json(run.callback_data, run.callback_data),
        trace_id=run.trace_id,
        handed_to=_handed_to(run),
        attempts=read_attempts(run.attempts),
        created_at=show_time(run.created_at) or "",
        updated_at=show_time(run.updated_at) or "",
    )


def _handed_to(run: Run) -> HandedTo | None:
    if not is_place(run.host) or run.start_time is None:
        return None
    kind: Literal["queue", "node"] = "queue" if run.host == QUEUE_PLACE else "node"
    return HandedTo(kind, job_id_of(run.uid, run.attempt))


def _read_cursor(text: str | None, *, is_by_time: bool) -> Place | None:
    """The place a cursor names: an id, or a scheduled time and an id."""
    if text is None:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None or (found[1] is not None) != is_by_time or int(found[2]) > MAX_ID:
        raise InvalidError(
            "'cursor' is not one of this list: send back a next_cursor as it came, with the same "
            "filters",
            field="cursor",
        )
    return (int(found[1]), int(found[2])) if found[1] is not None else (int(found[2]),)


def _show_cursor(place: Place | None) -> int | str | None:
    if place is None:
        return None
    return place[0] if len(place) == 1 else f"{place[0]}_{place[1]}"


async def _list(surface: TaskSurface, query: TaskRunsQuery, task_id: int | None) -> RunList:
    wanted = RunFilter(
        task_id=task_id,
        status=query.status,
        since=None if query.since is None else read_time(query.since, "from"),
        until=None if query.until is None else read_time(query.until, "to"),
    )
    page = await surface.runs.list_page(
        wanted,
        page=query.page,
        page_size=query.page_size,
        after=_read_cursor(query.cursor, is_by_time=wanted.is_by_time),
    )
    return RunList(
        [show_run(run, page.tasks.get(run.task_id)) for run in page.runs],
        page.total.count,
        query.page,
        query.page_size,
        _show_cursor(page.runs.next_place),
        total_is(page.total),
    )


def _read_json(text: str | None, default: Any) -> Any:
    """Stored JSON for an answer; what is not JSON after all is answered as the default."""
    if not text:
        return default
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return default
