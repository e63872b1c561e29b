"""Tasks over HTTP, dialect C: `/api/v1/tasks` (C1-C4)."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UnsetType as Unset

from ksana.api.core.errors import Error
from ksana.api.core.idempotency import answer_once, read_key
from ksana.api.core.routing import MAX_ID, Answer, Call, Content, Headers, Route
from ksana.api.tasks.backfill import Backfilled, EnableBody, read_caps, show_filled
from ksana.api.tasks.job_shapes import check_payload
from ksana.api.tasks.members import TaskSurface, given, read_if_match, trace_of
from ksana.api.tasks.runs import Page, PageSize, RunShown, TotalIs, show_run, total_is
from ksana.api.tasks.secret_members import refuse_sealed
from ksana.api.tasks.task_bodies import SERVER_OWNED, TaskBody, WholeTask
from ksana.api.tasks.task_shapes import change_task, read_task
from ksana.api.tasks.task_views import TaskView, show_task
from ksana.base.errors import InvalidError, NotFoundError
from ksana.domain.tasks.records import Definition, Task
from ksana.domain.tasks.template import check_template
from ksana.ports.tasks.tables import TaskFilter
from ksana.service.tasks.definitions import NewTask
from ksana.service.tasks.triggers import Started

_encode = msgspec.json.Encoder().encode


LastStatus = Literal["success", "failed", "timeout", "skipped", "paused", "missed", "never"]


class TaskQuery(msgspec.Struct, frozen=True):
    """Filters: `name` matches a part, `tag` a whole tag, `last_status` what happened last."""

    status: Literal["ENABLED", "DISABLED"] | None = None
    name: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    tag: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    last_status: LastStatus | None = None
    page: Page = 1
    page_size: PageSize = 20
    cursor: Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)] | None = None


class TaskList(msgspec.Struct, frozen=True):
    """A page, oldest first. It has 8 MiB at most, looks through a bounded number of tasks, and may
    end early: go on with `cursor` = `next_cursor`, until that is null."""

    items: list[TaskView]
    total: int
    total_is: TotalIs
    page: int
    page_size: int
    next_cursor: int | None


class TaskDetail(TaskView, frozen=True, kw_only=True):
    """One task, with its newest run."""

    last_run: RunShown | None


class TaskChanged(TaskView, frozen=True, kw_only=True):
    """The task after a merge."""

    updated: bool


class TaskSwitched(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the task now; and what is made up, if that was asked for."""

    status: Literal["ENABLED", "DISABLED"]
    catch_up: Backfilled | None = None


class TaskDeleted(msgspec.Struct, frozen=True):
    """The task is deleted; its history stays."""

    deleted: bool


class TriggerBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body for this run alone, and whether it waits for a callback whatever the task says."""

    override_body: str | Unset | None = msgspec.UNSET
    force_async: bool | Unset | None = msgspec.UNSET


class RunTriggered(msgspec.Struct, frozen=True):
    """The run that was made."""

    run_id: int
    uid: str


class _TaskEdge:
    """The calls under `/api/v1/tasks`, each one service call."""

    def __init__(self, surface: TaskSurface) -> None:
        self._surface = surface
        self._tasks = surface.tasks
        self._defaults = surface.defaults

    async def create_task(self, call: Call, body: WholeTask) -> Content:
        definition = read_task(body, self._defaults, self._surface.clock.now())
        new = NewTask("C", self._checked(definition), given(body.status, "ENABLED"))
        return await answer_once(
            self._tasks.create(new, read_key(call, "tasks.create", body, _render)), _render, 201
        )

    async def list_tasks(self, call: Call) -> dict[str, Any]:
        query: TaskQuery = call.query
        found, total = await self._tasks.list_page(
            TaskFilter(
                status=query.status,
                name=query.name,
                tag=query.tag,
                last_status="" if query.last_status == "never" else query.last_status,
            ),
            page=query.page,
            page_size=query.page_size,
            after=query.cursor,
        )
        return {
            "items": [show_task(task) for task in found],
            "total": total.count,
            "total_is": total_is(total),
            "page": query.page,
            "page_size": query.page_size,
            "next_cursor": found.next_place[0] if found.next_place else None,
        }

    async def get_task(self, call: Call) -> Answer:
        task, run = await self._tasks.get_with_last_run(call.params["id"])
        return Answer(
            200,
            {**show_task(task), "last_run": None if run is None else show_run(run, task)},
            _etag(task),
        )

    async def replace_task(self, call: Call, body: WholeTask) -> Answer:
        task = await self._tasks.change(
            call.params["id"],
            lambda old, now: self._checked(
                read_task(body, self._defaults, now, dialect=old.dialect, old=old)
            ),
            version=_read_version(call, body),
            status=given(body.status, "ENABLED"),
        )
        return Answer(200, show_task(task), _etag(task))

    async def merge_task(self, call: Call, body: TaskBody) -> Answer:
        status = None if body.status is msgspec.UNSET else given(body.status, "ENABLED")

        def make(old: Task, now: int) -> Definition:
            return self._checked(change_task(body, self._defaults, now, old))

        task = await self._tasks.change(
            call.params["id"], make, version=_read_version(call, body), status=status
        )
        return Answer(200, {**show_task(task), "updated": True}, _etag(task))

    async def enable_task(self, call: Call, body: EnableBody) -> TaskSwitched:
        wanted = body.catch_up
        if wanted is not None:
            caps = read_caps(wanted.count, wanted.max_age, wanted.per_minute)
            filled = await self._surface.backfills.resume(call.params["id"], caps)
            if filled is not None:
                return TaskSwitched(filled.task.status, show_filled(filled, is_dry=False))
        return TaskSwitched((await self._tasks.set_enabled(call.params["id"], True)).status)

    async def disable_task(self, call: Call) -> TaskSwitched:
        return TaskSwitched((await self._tasks.set_enabled(call.params["id"], False)).status)

    async def delete_task(self, call: Call) -> TaskDeleted:
        await self._tasks.delete(call.params["id"])
        return TaskDeleted(True)

    async def trigger_task(self, call: Call, body: TriggerBody) -> Content:
        task_id, override_body = call.params["id"], given(body.override_body, None)
        if override_body is not None:
            refuse_sealed(override_body, "override_body")
            await self._check_override(task_id, override_body)
        work = self._tasks.trigger(
            task_id,
            override_body=override_body,
            force_async=given(body.force_async, False),
            trace_id=trace_of(call),
            idempotency=read_key(call, "tasks.trigger", body, _render_started),
        )
        return await answer_once(work, _render_started, 202)

    async def _check_override(self, task_id: int, body: str) -> None:
        try:
            task = await self._tasks.get(task_id)
        except NotFoundError:
            return  # the trigger says so, unless it is a repeat from before
        options = task.definition.options
        if options.type != "http":
            check_payload(body, "override_body")
        if task.dialect == "C" and options.template:
            check_template(body, "override_body")

    def _checked(self, definition: Definition) -> Definition:
        """Raise InvalidError for a queue job that could never run."""
        spec = definition.options.queue
        if spec is not None:
            fault = self._surface.queue_jobs.find_fault(spec.addon_id, spec.cost_units)
            if fault is not None:
                raise InvalidError(f"queue.cost_units: {fault}", field="queue.cost_units")
        return definition


def routes(surface: TaskSurface) -> list[Route]:
    """Everything under `/api/v1/tasks` but the runs."""
    edge = _TaskEdge(surface)

    def route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
        scope = "tasks:read" if method == "GET" else "tasks:write"
        return Route(
            method,
            f"/api/v1/tasks{path}",
            handler,
            scope=scope,
            summary=summary,
            tags=("tasks",),
            **more,
        )

    owned = SERVER_OWNED
    return [
        route(
            "POST",
            "",
            edge.create_task,
            "Make a task",
            body=WholeTask,
            answers={201: TaskView},
            ignored_members=owned,
            request_headers=("Idempotency-Key",),
            answer_headers=("Idempotency-Replayed",),
        ),
        route(
            "GET",
            "",
            edge.list_tasks,
            "List tasks, oldest first",
            query=TaskQuery,
            answers={200: TaskList},
        ),
        route(
            "GET",
            "/{id:int}",
            edge.get_task,
            "Read a task and its newest run",
            answers={200: TaskDetail},
            answer_headers=("ETag",),
        ),
        route(
            "PUT",
            "/{id:int}",
            edge.replace_task,
            "Replace a task",
            body=WholeTask,
            answers={200: TaskView},
            ignored_members=owned,
            request_headers=("If-Match",),
            answer_headers=("ETag",),
        ),
        route(
            "PATCH",
            "/{id:int}",
            edge.merge_task,
            "Change a task by a JSON merge patch",
            body=TaskBody,
            answers={200: TaskChanged},
            ignored_members=owned,
            request_headers=("If-Match",),
            answer_headers=("ETag",),
        ),
        route(
            "PATCH",
            "/{id:int}/enable",
            edge.enable_task,
            "Enable a task from now on",
            body=EnableBody,
            empty_body_ok=True,
            answers={200: TaskSwitched, 409: Error},
        ),
        route(
            "PATCH",
            "/{id:int}/disable",
            edge.disable_task,
            "Disable a task",
            answers={200: TaskSwitched, 409: Error},
        ),
        route(
            "DELETE",
            "/{id:int}",
            edge.delete_task,
            "Delete a task; its history stays",
            answers={200: TaskDeleted},
        ),
        route(
            "POST",
            "/{id:int}/trigger",
            edge.trigger_task,
            "Run a task now, within its concurrency limit",
            body=TriggerBody,
            empty_body_ok=True,
            answers={202: RunTriggered},
            request_headers=("Idempotency-Key",),
            answer_headers=("Idempotency-Replayed",),
        ),
    ]


def _read_version(call: Call, body: TaskBody) -> int | None:
    """The version a change was made from: by the body, by If-Match, or not said."""
    sent, matched = given(body.version, None), read_if_match(call)
    if sent is not None and matched is not None and sent != matched:
        raise InvalidError(
            f"version is {sent} and If-Match says {matched}: give one of them", field="version"
        )
    return matched if sent is None else sent


def _etag(task: Task) -> Headers:
    return ((b"etag", b'"%d"' % task.version),)


def _render(task: Task) -> bytes:
    return _encode(show_task(task))


def _render_started(started: Started) -> bytes:
    return _encode(RunTriggered(started.run_id, started.uid))
