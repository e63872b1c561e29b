"""The one error body (X8), and how msgspec's complaints become a `field` and a message that says
what is allowed."""

import enum
import re
from typing import Any

import msgspec
from msgspec import inspect

from ksana.api.core import advice
from ksana.base.errors import (
    InvalidError,
    KsanaError,
    MethodError,
    RateLimitedError,
    UnauthenticatedError,
    UnavailableError,
)

MAX_MESSAGE = 1024
"""Characters of a message in an answer (X13)."""

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder(enc_hook=str).encode
_PATH = re.compile(r" - at `(?:(key)` in `)?\$([^`]*)`\Z", re.DOTALL)
_NAMED = re.compile(r"Object (contains unknown|missing required) field `(.*)`\Z", re.DOTALL)
_TOKEN = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every refusal. `detail` repeats `message`."""

    code: str
    message: str
    detail: str
    request_id: str
    field: str | msgspec.UnsetType = msgspec.UNSET
    """The member at fault (400)."""
    current: Any | msgspec.UnsetType = msgspec.UNSET
    """The present state (409)."""


def error_body(
    code: str, message: str, request_id: str, extra: dict[str, Any] | None = None
) -> bytes:
    """Write the body that every refusal has, over HTTP and over sockets."""
    message = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
    body: dict[str, Any] = {
        "code": code,
        "message": message,
        "detail": message,
        "request_id": request_id,
    }
    for name, value in (extra or {}).items():
        body.setdefault(name, value)
    return _encode(body)


def refusal(error: KsanaError, request_id: str) -> tuple[int, bytes, Headers]:
    """Render an error of ours: status, body, and the headers that belong to it."""
    headers: Headers = []
    extra = error.extra
    if isinstance(error, UnavailableError | RateLimitedError):
        headers.append((b"retry-after", b"%d" % max(1, error.retry_after_sec)))
    elif isinstance(error, MethodError) and "allow" in extra:
        headers.append((b"allow", ", ".join(extra["allow"]).encode()))
        extra = {name: value for name, value in extra.items() if name != "allow"}
    elif isinstance(error, UnauthenticatedError):
        headers.append((b"www-authenticate", b'Bearer realm="ksana"'))
    return error.status, error_body(error.code, error.message, request_id, extra), headers


def from_validation(
    error: msgspec.ValidationError, declared: Any, sent: Any = None
) -> InvalidError:
    """Translate `Expected … - at `$.schedule.every`` into an InvalidError with field and advice.
    `sent` is what was sent, as plain values."""
    text = str(error)
    at = _PATH.search(text)
    path = at[2] if at else ""
    message = text[: at.start()] if at else text
    named = _NAMED.match(message)
    if named is not None:
        field = f"{path}.{named[2]}".lstrip(".")
        if named[1] == "missing required":
            return InvalidError(f"{field!r} is needed", field=field)
        kinds = _at_path(declared, path)
        told = advice.refuse_name(
            repr(field), named[2], _member_names(kinds), also_called=_also_called(kinds)
        )
        return InvalidError(told, field=field)
    return _from_value(message, declared, path, sent, is_key=bool(at and at[1]))


def _from_value(message: str, declared: Any, path: str, sent: Any, *, is_key: bool) -> InvalidError:
    """Tell of a member whose name is known and whose value is wrong."""
    kinds = _at_path(declared, path)
    allowed = _allowed_values(kinds, declared, path)
    tokens = [token[1] or token[2] for token in _TOKEN.finditer(path)]
    value, named = advice.find_sent(sent, tokens)
    field = path.lstrip(".")
    if named != tokens and field.endswith("[...]"):
        field = f"{field[:-5]}.{named[-1]}"
    if is_key:
        message = f"a member's name is wrong: {message}"
    if message.startswith("Invalid ") and allowed:
        message += advice.choose_value(value, allowed)
    members = _member_names(kinds)
    told = advice.explain_kind(message, tokens[-1] if tokens else "", value, members, allowed)
    if told is not None:
        return InvalidError(
            f"{field!r} {told}" if field else f"the body {told}", field=field or None
        )
    message = message.replace("`", "")
    if not field:
        return InvalidError(message)
    return InvalidError(f"{field!r}: {message[0].lower()}{message[1:]}", field=field)


def _at_path(declared: Any, path: str) -> list[inspect.Type]:
    """Follow a path through the declared type; unions make several candidates."""
    found = _alternatives(inspect.type_info(declared))
    for token in _TOKEN.finditer(path):
        following: list[inspect.Type] = []
        for kind in found:
            if token[1] is not None and isinstance(kind, inspect.StructType):
                following += [f.type for f in kind.fields if f.encode_name == token[1]]
            elif isinstance(kind, inspect.DictType):
                following.append(kind.value_type)
            elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
                following.append(kind.item_type)
        found = [one for kind in following for one in _alternatives(kind)]
    return found


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [one for member in kind.types for one in _alternatives(member)]
    return [kind]


def _member_names(kinds: list[inspect.Type]) -> list[str]:
    """The members that callers may send, as they are declared."""
    names: dict[str, None] = {}
    for kind in kinds:
        if isinstance(kind, inspect.StructType):
            ours = getattr(kind.cls, "SERVER_OWNED", ())
            if kind.tag_field:
                names[kind.tag_field] = None
            names |= {f.encode_name: None for f in kind.fields if f.encode_name not in ours}
    return list(names)


def _also_called(kinds: list[inspect.Type]) -> dict[str, str]:
    names: dict[str, str] = {}
    for kind in kinds:
        if isinstance(kind, inspect.StructType):
            names |= getattr(kind.cls, "ALSO_CALLED", {})
    return names


def _allowed_values(kinds: list[inspect.Type], declared: Any, path: str) -> list[str]:
    values: list[Any] = []
    for kind in kinds:
        if isinstance(kind, inspect.LiteralType):
            values += kind.values
        elif isinstance(kind, inspect.EnumType):
            values += [member.value for member in kind.cls if isinstance(member, enum.Enum)]
    if not values:  # the tag of a union: it is no field, its struct's parents have it
        parent, _, last = path.rpartition(".")
        values = [
            kind.tag
            for kind in _at_path(declared, parent)
            if isinstance(kind, inspect.StructType) and kind.tag_field == last
        ]
    return sorted(str(value) for value in values if value is not None)
