"""From a held run to the request that is sent: placeholders filled, headers complete, signed if the
task has a secret."""

import zlib
from functools import lru_cache
from sys import getsizeof
from typing import Any, Final

import msgspec

from ksana.base.instant import SECOND, Instant, format_instant
from ksana.base.short_cache import WeighedCache
from ksana.domain.secrets import MASK, Secrets, mask
from ksana.domain.tasks import template
from ksana.domain.tasks.call_records import name_call, write_headers
from ksana.domain.tasks.records import ClaimedRun, Definition, Options
from ksana.domain.tasks.secrets import HIDDEN_HEADERS, add_body, add_token, find_secrets
from ksana.domain.tasks.signing import sign
from ksana.ports.caller import Reply, Request

_BODILESS: Final = frozenset({"GET", "HEAD"})
_DEFAULT_CONNECT: Final = 5 * SECOND
_encode = msgspec.json.Encoder().encode
_JSON_TYPE: Final = "application/json"
_TEXT_TYPE: Final = "text/plain; charset=utf-8"
_JSON: Final = f'"Content-Type":"{_JSON_TYPE}"'
_TEXT: Final = f'"Content-Type":"{_TEXT_TYPE}"'
_show_slot = lru_cache(maxsize=1024)(format_instant)
"""Tasks that are due together have one slot."""


class Built(msgspec.Struct, frozen=True, gc=False):
    """A request and its headers as they are kept (`call_records`): secrets read `***`."""

    request: Request
    kept_headers: str


class _Plan(msgspec.Struct, frozen=True):
    """What is the same for every run with these headers."""

    shown: str
    """The task's own headers, masked, as the inside of a JSON object."""
    headers: tuple[tuple[str, str], ...]
    is_json: bool | None
    """By the Content-Type; None if there is none."""
    has_holes: bool
    secrets: Secrets | None
    """What the target must not give back; None if there is nothing."""


_PlanKey = tuple[tuple[tuple[str, str], ...], tuple[str, ...], str | None, bool]

_plans: Final[WeighedCache[_PlanKey, _Plan]] = WeighedCache(4096, 32 * 1024 * 1024)
"""By bytes as well: a secret of a few kilobytes has many spellings."""


def _plan_for(headers: dict[str, str], options: Options) -> _Plan:
    if not headers and not options.signing_secret and not options.secret_body:
        return _BARE
    key = (
        tuple(headers.items()),
        options.secret_headers,
        options.signing_secret,
        options.secret_body,
    )
    plan = _plans.find(key)
    if plan is None:
        plan = _make_plan(*key)
        _plans.add(key, plan, _weigh(plan))
    return plan


def _make_plan(
    headers: tuple[tuple[str, str], ...],
    secret: tuple[str, ...],
    signing_secret: str | None,
    is_body_secret: bool,
) -> _Plan:
    names = {name.lower(): value for name, value in headers}
    content_type = names.get("content-type")
    is_json = None if content_type is None else "json" in content_type.lower()
    return _Plan(
        _shown(headers, secret),
        headers,
        is_json,
        any(_is_hole(value) for _, value in headers),
        find_secrets(headers, secret, signing_secret, is_body_secret),
    )


_BARE: Final = _Plan("", (), None, has_holes=False, secrets=None)
"""For a task without headers and secrets."""


def _weigh(plan: _Plan) -> int:
    """About how many bytes a plan takes."""
    texts: list[str | bytes] = [plan.shown]
    for name, value in plan.headers:
        texts += (name, value)
    if plan.secrets is not None:
        texts += plan.secrets.names
        texts += plan.secrets.values
    return 1024 + sum(map(getsizeof, texts))


def _is_hole(text: str) -> bool:
    return "{{" in text or "<filled-by-service>" in text


def build_request(held: ClaimedRun, now: Instant, callback_base: str, version: str) -> Built:
    """Make the request of one attempt."""
    definition = held.task.definition
    options = definition.options
    body = held.override_body if held.override_body is not None else definition.body
    plan = _plan_for(definition.headers, options)
    secrets, is_json = plan.secrets, plan.is_json
    if is_json is None:
        is_json = not body or template.looks_like_json(body)
    has_holes = options.template and (
        plan.has_holes or _is_hole(definition.target_url) or (body is not None and _is_hole(body))
    )
    is_async, scheduled = held.exec_type == "ASYNC", _show_slot(held.scheduled_time)
    url, headers = definition.target_url, list(plan.headers)
    if has_holes or (is_async and body is None):
        values = values_of(held, now, scheduled, callback_base)
        if has_holes:
            url = template.fill_url(url, values)
            headers = [(name, template.fill_header(value, values)) for name, value in headers]
            body = None if body is None else template.fill_body(body, values, is_json=is_json)
        elif definition.http_method not in _BODILESS:
            body = _facts(held, values)
    if secrets is not None and (plan.has_holes or options.secret_body):
        secrets = _secrets_of_run(headers, body, options)
    data, before, after = body.encode() if body else None, "", ""
    if data is not None and plan.is_json is None:
        before = _JSON if is_json else _TEXT
        headers.append(("Content-Type", _JSON_TYPE if is_json else _TEXT_TYPE))
    headers += name_call(
        held.uid, held.task.job_id, scheduled, held.attempt, held.trace_id, version
    )
    if is_async and held.callback_token is not None:
        headers += (
            ("X-Callback-Url", f"{callback_base}/{held.callback_token}"),
            ("X-Callback-Token", held.callback_token),
        )
        after = ',"X-Callback-Url":"***","X-Callback-Token":"***"'
        secrets = add_token(secrets, held.callback_token)
    if options.signing_secret:
        headers += sign(options.signing_secret, held.uid, now, data or b"")
        after += (
            f',"webhook-id":"{held.uid}","webhook-timestamp":"{now // SECOND}"'
            ',"webhook-signature":"***"'
        )
    own = plan.shown
    if has_holes and plan.has_holes:
        own = _shown_filled(headers[: len(plan.headers)], secrets, options)
    if own:
        before = f"{own},{before}" if before else own
    request = _request_of(definition, url, tuple(headers), data, secrets)
    return Built(request, write_headers(version, held.attempt, before, after[1:]))


def _shown_filled(headers: list[tuple[str, str]], secrets: Secrets | None, options: Options) -> str:
    """A task's own headers as they were sent: what was filled in may be secret as well."""
    shown = _shown(tuple(headers), options.secret_headers)
    return shown if secrets is None else secrets.mask(shown)


def _secrets_of_run(
    headers: list[tuple[str, str]], body: str | None, options: Options
) -> Secrets | None:
    """The secrets as they are sent with this run: placeholders are filled."""
    secrets = find_secrets(
        headers, options.secret_headers, options.signing_secret, options.secret_body
    )
    if secrets is None or not secrets.is_body_secret or not body:
        return secrets
    return add_body(secrets, body)


def _request_of(
    definition: Definition,
    url: str,
    headers: tuple[tuple[str, str], ...],
    data: bytes | None,
    secrets: Secrets | None,
) -> Request:
    # In the order of the fields: there is one for every call.
    options, timeout_us = definition.options, definition.timeout_us
    if not url:
        raise ValueError(f"the task is of type {options.type} since this run was made")
    return Request(
        definition.http_method,
        url,
        headers,
        data,
        timeout_us,
        min(timeout_us, options.connect_timeout_us or _DEFAULT_CONNECT),
        options.follow_redirects,
        options.response_limit,
        options.delivery != "at_most_once",
        secrets,
    )


def _shown(headers: tuple[tuple[str, str], ...], secret: tuple[str, ...]) -> str:
    hidden = HIDDEN_HEADERS.union(name.lower() for name in secret)
    shown = {name: MASK if name.lower() in hidden else value for name, value in headers}
    return _encode(shown).decode()[1:-1]


def shown_body(request: Request) -> str | None:
    """The body as stored: secrets read `***`."""
    body, secrets = request.body, request.secrets
    if body is None:
        return None
    if secrets is not None:
        body = MASK.encode() if secrets.is_body_secret else mask(body, secrets.values)
    return body.decode("utf-8", "replace")


def shown_reply(reply: Reply, secrets: Secrets) -> Reply:
    """The reply as stored: what the target repeats of the secrets it was sent reads `***`."""
    body = mask(reply.body, secrets.values, is_cut=reply.truncated)
    if body[:2] in _PACKED and secrets.are_in(_unpack(body)):
        body = MASK.encode()
    error = None if reply.error is None else secrets.mask(reply.error)
    return msgspec.structs.replace(reply, body=body, error=error)


_PACKED: Final = frozenset({b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"})
"""How gzip and zlib begin. Nobody asked for it, but a target may pack what it repeats."""
_MOST_UNPACKED: Final = 1024 * 1024


def _unpack(body: bytes) -> bytes:
    """What is inside a packed body, up to so much; nothing if it is none."""
    try:
        return zlib.decompressobj(wbits=47).decompress(body, _MOST_UNPACKED)
    except zlib.error:
        return b""


def values_of(held: ClaimedRun, now: Instant, scheduled: str, callback_base: str) -> dict[str, str]:
    """What stands for each placeholder."""
    task = held.task
    token = held.callback_token or ""
    return {
        "run_id": held.uid if task.dialect == "T" else str(held.run_id),
        "run_uid": held.uid,
        "task_id": str(task.id),
        "job_id": task.job_id,
        "task_name": task.definition.name,
        "scheduled_at": scheduled,
        "triggered_at": format_instant(now),
        "attempt": str(held.attempt),
        "trace_id": held.trace_id,
        "callback_url": f"{callback_base}/{token}" if token else "",
        "callback_token": token,
    }


def _facts(held: ClaimedRun, values: dict[str, str]) -> str:
    facts: dict[str, Any] = dict(values)
    facts["task_id"], facts["attempt"] = held.task.id, held.attempt
    facts["run_id"] = held.uid if held.task.dialect == "T" else held.run_id
    return _encode(facts).decode()
