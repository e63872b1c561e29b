"""Callbacks over HTTP (C16): a target reports by token, or by task and run, how an asynchronous run
ended.

Written by machines, so tolerant: members we do not know are kept with the callback and never
refused.
"""

from typing import Annotated, Any, Final

import msgspec

from ksana.api.core.errors import Error, from_validation
from ksana.api.core.routing import MAX_ID, Call, Route
from ksana.api.tasks.members import TaskSurface, show_time
from ksana.base.errors import InvalidError
from ksana.domain.secrets import MASK
from ksana.domain.tasks.secrets import HIDDEN_HEADERS
from ksana.service.tasks.callbacks import CallbackAnswer, CallbackBody, Received

METHODS: Final = ("POST", "PUT", "PATCH", "GET")
"""What a task may choose as its callback_method."""
MAX_HEADERS_TEXT: Final = 16 * 1024
_encode = msgspec.json.Encoder().encode
_as_raw: Final = msgspec.json.Decoder(msgspec.Raw)

RowId = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]


class IdentityBody(msgspec.Struct, frozen=True):
    """A callback that names its run instead of a token. Ids may come as digits in a text: templates
    write them so."""

    task_id: RowId | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,16}$")]
    run_id: RowId | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,16}$")]
    status: str
    data: Any = None
    error_message: str | None = None
    progress: float | None = None
    extend_sec: float | None = None


class CallbackQuery(msgspec.Struct, frozen=True):
    """What a callback by GET says in its query string."""

    status: str | None = None
    error_message: str | None = None
    data: str | None = None
    progress: float | None = None
    extend_sec: float | None = None


class CallbackTaken(msgspec.Struct, frozen=True):
    """The run and how it ended; null while it goes on, with the time by which it must."""

    run_id: int
    final_status: str | None
    callback_deadline: str | msgspec.UnsetType | None = msgspec.UNSET


def routes(surface: TaskSurface) -> list[Route]:
    """Both forms. The token is the key of the first; the second needs one once keys exist."""
    callbacks = surface.callbacks

    async def take_by_token(call: Call, raw: msgspec.Raw) -> CallbackTaken:
        received = _receive(call, _decode(raw, CallbackBody), bytes(raw))
        return _show(await callbacks.take_by_token(call.params["token"], received))

    async def take_by_query(call: Call) -> CallbackTaken:
        query: CallbackQuery = call.query
        if query.status is None:
            raise InvalidError("status must be SUCCESS, FAILED or RUNNING", field="status")
        body = CallbackBody(
            query.status, query.data, query.error_message, query.progress, query.extend_sec
        )
        return _show(
            await callbacks.take_by_token(
                call.params["token"], _receive(call, body, _encode(query))
            )
        )

    async def take_by_identity(call: Call, raw: msgspec.Raw) -> CallbackTaken:
        body = _decode(raw, IdentityBody)
        known = CallbackBody(
            body.status, body.data, body.error_message, body.progress, body.extend_sec
        )
        received = _receive(call, known, bytes(raw))
        return _show(
            await callbacks.take_by_identity(int(body.task_id), int(body.run_id), received)
        )

    def by_token(method: str, handler: Any, **more: Any) -> Route:
        return Route(
            method,
            "/api/v1/callbacks/{token}",
            handler,
            scope=None,
            tags=("callbacks",),
            summary="Report how an asynchronous run ended, or that it goes on",
            converters={"token": to_token},
            answers={200: CallbackTaken, 409: Error},
            any_query=True,
            is_fastpath=method != "GET",
            **more,
        )

    identity = Route(
        "POST",
        "/api/v1/callbacks",
        take_by_identity,
        scope="tasks:write",
        tags=("callbacks",),
        summary="The same by task and run instead of a token",
        body=IdentityBody,
        answers={200: CallbackTaken},
        any_query=True,
        is_fastpath=True,
    )
    return [
        *(
            _kept_raw(by_token(method, take_by_token, body=CallbackBody))
            for method in METHODS
            if method != "GET"
        ),
        by_token("GET", take_by_query, query=CallbackQuery),
        _kept_raw(identity),
    ]


def to_token(text: str) -> str:
    """Take any token of a possible length: whether it is one, only the store can tell."""
    if 1 <= len(text) <= 128 and text.isascii() and text.isprintable():
        return text
    raise ValueError("a callback token has 32 hex digits")


def _kept_raw(route: Route) -> Route:
    """Declare the type for the description, hand the handler the bytes: a callback is kept as it
    came."""
    route.decoder = _as_raw
    return route


def _decode(raw: msgspec.Raw, declared: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=declared)
    except msgspec.ValidationError as error:
        raise from_validation(error, declared) from None


def _receive(call: Call, body: CallbackBody, raw: bytes) -> Received:
    shown: dict[str, str] = {}
    room = MAX_HEADERS_TEXT
    for name, value in call.headers.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        key = name.decode("latin-1")
        shown[key] = MASK if key in HIDDEN_HEADERS else value.decode("latin-1")
    return Received(body, raw.decode("utf-8"), _encode(shown).decode(), call.method)


def _show(answer: CallbackAnswer) -> CallbackTaken:
    if answer.final_status is not None:
        return CallbackTaken(answer.run_id, answer.final_status)
    return CallbackTaken(answer.run_id, None, show_time(answer.callback_deadline))
