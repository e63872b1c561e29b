"""From a query string to the route's query struct, or to a 400 that names the parameter."""

import types
import typing
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from ksana.api.core.errors import from_validation
from ksana.base.errors import InvalidError

MAX_PARAMETERS = 100


def decode_query(declared: type[msgspec.Struct], query_string: bytes) -> Any:
    """Read the parameters. An empty value counts as absent; a repeated one fills a list, else the
    last wins."""
    values: dict[str, Any] = {}
    if query_string:
        lists = _list_names(declared)
        for name, value in _pairs(query_string):
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
        raise from_validation(error, declared) from None


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query_string.decode("ascii"), errors="strict", max_num_fields=MAX_PARAMETERS
        )
    except UnicodeDecodeError:
        raise InvalidError("the query string is not UTF-8 in % escapes") from None
    except ValueError:
        raise InvalidError(f"the query string has more than {MAX_PARAMETERS} parameters") from None


@cache
def _list_names(declared: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(f.encode_name for f in msgspec.structs.fields(declared) if _is_list(f.type))


def _is_list(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated or origin is typing.Union or isinstance(kind, types.UnionType):
        return any(_is_list(part) for part in typing.get_args(kind))
    return kind is list or kind is tuple or origin is list or origin is tuple
