"""Timers over HTTP, dialect T: `/jobs` (T1-T4). The same records as tasks."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET

from ksana.api.core.errors import Error
from ksana.api.core.idempotency import answer_once, read_key
from ksana.api.core.routing import MAX_ID, Answer, Call, Content, Route
from ksana.api.tasks.members import TaskSurface, given, read_if_match, trace_of
from ksana.api.tasks.timer_shapes import (
    TimerBody,
    TimerView,
    WholeTimer,
    change_timer,
    read_timer,
    show_timer,
)
from ksana.base.errors import InvalidError
from ksana.base.ids import JOB_ID
from ksana.domain.tasks.records import Status, Task
from ksana.service.tasks.definitions import NewTask
from ksana.service.tasks.triggers import Started

PAGE: Final = 500
_SERVER_OWNED: Final = frozenset(
    {
        "task_id",
        "version",
        "created_at",
        "updated_at",
        "last_run_at",
        "next_run_at",
        "last_status",
        "last_error",
    }
)
_encode = msgspec.json.Encoder().encode


class TimerQuery(msgspec.Struct, frozen=True):
    """A page has `limit` timers at most, 500 unless told. With a header `X-Next-Cursor` there are
    more: send it back as `cursor`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = PAGE
    cursor: Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)] = 0


class RunStarted(msgspec.Struct, frozen=True):
    """The run's uid, and its integer id."""

    run_id: str
    id: int


class _TimerEdge:
    """The calls under `/jobs`, each one service call."""

    def __init__(self, surface: TaskSurface) -> None:
        self._surface = surface
        self._tasks = surface.tasks
        self._defaults = surface.defaults

    async def create_timer(self, call: Call, body: WholeTimer) -> Content:
        definition = read_timer(body, self._defaults, self._surface.clock.now())
        status: Status = "ENABLED" if given(body.enabled, True) else "DISABLED"
        new = NewTask("T", definition, status, _read_id(given(body.id, "")))
        return await answer_once(
            self._tasks.create(new, read_key(call, "jobs.create", body, _render)), _render, 201
        )

    async def list_timers(self, call: Call) -> Answer:
        query: TimerQuery = call.query
        page = await self._tasks.list_timers(query.cursor, query.limit)
        more = (
            ((b"x-next-cursor", str(page.next_place[0]).encode()),)
            if page.next_place is not None
            else ()
        )
        return Answer(200, [show_timer(task) for task in page], more)

    async def get_timer(self, call: Call) -> TimerView:
        return show_timer(await self._tasks.get(call.params["id"]))

    async def change_timer(self, call: Call, body: TimerBody) -> TimerView:
        status = None
        if body.enabled is not UNSET:
            status = "ENABLED" if given(body.enabled, True) else "DISABLED"
        task = await self._tasks.change(
            call.params["id"],
            lambda old, now: change_timer(body, self._defaults, now, old),
            version=read_if_match(call),
            status=status,
        )
        return show_timer(task)

    async def delete_timer(self, call: Call) -> Answer:
        await self._tasks.delete(call.params["id"])
        return Answer(204)

    async def run_timer_now(self, call: Call) -> Content:
        key = read_key(call, "jobs.run-now", None, _render_started)
        work = self._tasks.run_now(call.params["id"], trace_id=trace_of(call), idempotency=key)
        return await answer_once(work, _render_started, 202)

    async def pause_timer(self, call: Call) -> TimerView:
        return show_timer(await self._tasks.set_enabled(call.params["id"], False))

    async def resume_timer(self, call: Call) -> TimerView:
        return show_timer(await self._tasks.set_enabled(call.params["id"], True))


def routes(surface: TaskSurface) -> list[Route]:
    """Everything under `/jobs`."""
    edge = _TimerEdge(surface)

    def route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
        scope = "tasks:read" if method == "GET" else "tasks:write"
        return Route(
            method,
            path,
            handler,
            scope=scope,
            summary=summary,
            tags=("timers",),
            converters={"id": to_job_id},
            **more,
        )

    whole, conflict = {200: TimerView}, {409: Error}
    return [
        route(
            "POST",
            "/jobs",
            edge.create_timer,
            "Make a timer",
            body=WholeTimer,
            answers={201: TimerView},
            ignored_members=_SERVER_OWNED,
            is_fastpath=True,
            request_headers=("Idempotency-Key",),
            answer_headers=("Idempotency-Replayed",),
        ),
        route(
            "GET",
            "/jobs",
            edge.list_timers,
            "List timers, oldest first",
            query=TimerQuery,
            answers={200: list[TimerView]},
            answer_headers=("X-Next-Cursor",),
        ),
        route("GET", "/jobs/{id}", edge.get_timer, "Read a timer", answers=whole),
        route(
            "PATCH",
            "/jobs/{id}",
            edge.change_timer,
            "Change a timer by a JSON merge patch",
            body=TimerBody,
            answers=whole,
            ignored_members=_SERVER_OWNED | {"id"},
        ),
        route("DELETE", "/jobs/{id}", edge.delete_timer, "Delete a timer", answers={204: None}),
        route(
            "POST",
            "/jobs/{id}/run-now",
            edge.run_timer_now,
            "Run a timer at once, beside its schedule",
            answers={202: RunStarted, **conflict},
            request_headers=("Idempotency-Key",),
            answer_headers=("Idempotency-Replayed",),
        ),
        route(
            "POST",
            "/jobs/{id}/pause",
            edge.pause_timer,
            "Pause a timer",
            answers={**whole, **conflict},
        ),
        route(
            "POST",
            "/jobs/{id}/resume",
            edge.resume_timer,
            "Resume a timer from now on",
            answers={**whole, **conflict},
        ),
    ]


def to_job_id(text: str) -> str:
    """Read a timer's id from a path."""
    if JOB_ID.match(text):
        return text
    raise ValueError(f"{text[:64]!r} is not an id: it has 1 to 128 letters, digits or ._~-")


def _read_id(text: str) -> str | None:
    if not text:
        return None
    if not JOB_ID.match(text):
        raise InvalidError("id may have 1 to 128 letters, digits or ._~-", field="id")
    return text


def _render(task: Task) -> bytes:
    return _encode(show_timer(task))


def _render_started(started: Started) -> bytes:
    return _encode(RunStarted(started.uid, started.run_id))
