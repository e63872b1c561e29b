"""From a query string to the route's query struct, or to a 400 that names the parameter: one that
is not known here too."""

import types
import typing
from collections.abc import Iterable
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from ksana.api.core.advice import refuse_name
from ksana.api.core.errors import from_validation
from ksana.base.errors import InvalidError

MAX_PARAMETERS = 100


def decode_query(
    declared: type[msgspec.Struct], query_string: bytes, *, allows_unknown: bool = False
) -> Any:
    """Read the parameters. An empty value counts as absent; a repeated one fills a list, else the
    last wins."""
    values: dict[str, Any] = {}
    if query_string:
        known, lists = _names(declared), _list_names(declared)
        for name, value in _pairs(query_string):
            if name not in known:
                if allows_unknown:
                    continue
                raise _unknown(name, known)
            if not value:
                continue
            if "\0" in value or "\0" in name:
                raise InvalidError(
                    "text may not hold the NUL character", field=name.replace("\0", "\\u0000")
                )
            if name in lists:
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
    try:
        return msgspec.convert(values, declared, strict=False)
    except msgspec.ValidationError as error:
        raise from_validation(error, declared, values) from None


def refuse_query(query_string: bytes) -> None:
    """Refuse any parameter where a route takes none."""
    for name, _ in _pairs(query_string):
        raise _unknown(name, ())


def _unknown(name: str, known: Iterable[str]) -> InvalidError:
    shown = name[:64].replace("\0", "\\u0000")
    return InvalidError(
        refuse_name(repr(shown), name, known, "a query parameter"),
        field=shown,
    )


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except UnicodeDecodeError:
        raise InvalidError("the query string is not UTF-8 in % escapes") from None
    except ValueError:
        raise InvalidError(f"the query string has more than {MAX_PARAMETERS} parameters") from None


@cache
def _names(declared: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(declared))


@cache
def _list_names(declared: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(f.encode_name for f in msgspec.structs.fields(declared) if _is_list(f.type))


def _is_list(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated or origin is typing.Union or isinstance(kind, types.UnionType):
        return any(_is_list(part) for part in typing.get_args(kind))
    return kind is list or kind is tuple or origin is list or origin is tuple
