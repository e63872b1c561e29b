"""Reading the bytes of a body, and what is refused of them with a 4xx. Whatever is sent, nothing
here ends in a 5xx.

`pipeline` decodes. Checked before: size, media type, UTF-8, nesting. Checked besides the types: NUL
characters, which no store keeps the same way.
"""

import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import msgspec

from ksana.api.core.errors import from_validation
from ksana.api.core.exchange import Receive
from ksana.api.core.routing import Route
from ksana.base.errors import InvalidError, KsanaError, MediaTypeError, TooLargeError

MAX_DEPTH: Final = 64

# The string pattern takes an unterminated string to the end of the text: without that a body of
# escaped quotes would be scanned once per quote.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NOT_BRACKETS_OR_QUOTES: Final = bytes(set(_NOT_BRACKETS) - set(b'"'))
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_STEP: Final = tuple(1 if byte == ord("[") else -1 for byte in range(256))
_PEELED: Final = 3
_SCANNED: Final = 4096
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_decode_any = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


async def read_body(receive: Receive, max_body: int) -> bytes:
    """Collect the body. Raise TooLargeError as soon as it passes the limit, and INVALID_JSON if the
    caller stops before it is complete."""
    message = await receive()
    if message["type"] != "http.request":
        raise cut_off()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > max_body:
            raise too_large(max_body)
        return body
    parts = bytearray(body)
    while True:
        if len(parts) > max_body:
            raise too_large(max_body)
        message = await receive()
        if message["type"] != "http.request":
            raise cut_off()
        parts += message.get("body", b"")
        if not message.get("more_body", False):
            if len(parts) > max_body:
                raise too_large(max_body)
            return bytes(parts)


def cut_off() -> InvalidError:
    """Make the 400 of a body that ended too early."""
    return InvalidError("the body ended before it was complete", code="INVALID_JSON")


def check_length(headers: Mapping[bytes, bytes], max_body: int) -> None:
    """Refuse by Content-Length, before a byte of the body is read."""
    length = headers.get(b"content-length")
    if length is not None and (len(length) > 18 or (length.isdigit() and int(length) > max_body)):
        raise too_large(max_body)


def too_large(max_body: int) -> TooLargeError:
    """Make the 413."""
    return TooLargeError(f"the body is larger than {max_body} bytes", limit=max_body)


def no_body() -> InvalidError:
    """Make the 400 of a body that is missing."""
    return InvalidError("a JSON body is needed", code="INVALID_JSON")


def find_refusal(
    error: Exception, route: Route, body: bytes, headers: Mapping[bytes, bytes]
) -> KsanaError:
    """Say why a body that is not the route's type is none."""
    if isinstance(error, msgspec.ValidationError):
        sent = check_json(body)  # a wrong member is noticed before the text proves to be cut off
        return from_validation(error, route.body, sent)
    if isinstance(error, msgspec.DecodeError):
        return _not_json(error)
    if isinstance(error, UnicodeDecodeError):
        check_encoding(headers.get(b"content-encoding", b""))
        return InvalidError(f"the body is not UTF-8: byte {error.start}", code="INVALID_JSON")
    return _too_deep()


def check_json(body: bytes) -> Any:
    """Refuse what is not one whole JSON text, whatever its members are; read it."""
    try:
        return _decode_any(body)
    except msgspec.DecodeError as error:
        raise _not_json(error) from None


def _not_json(error: msgspec.DecodeError) -> InvalidError:
    return InvalidError(f"the body is not JSON: {error}", code="INVALID_JSON")


def check_media_type(content_type: bytes) -> None:
    """Accept JSON and its relatives; an empty header counts as absent."""
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type and media_type != b"application/json" and not media_type.endswith(b"+json"):
        shown = media_type[:64].decode("latin-1")
        raise MediaTypeError(f"{shown} is not understood here: send application/json")


def check_encoding(encoding: bytes) -> None:
    """Refuse a body that was packed: one that is small on its way may be huge."""
    word = encoding.strip().lower()
    if word not in (b"", b"identity"):
        shown = word[:64].decode("latin-1")
        raise MediaTypeError(f"{shown} is not unpacked here: send the body without it")


def check_depth(body: bytes) -> None:
    """Refuse nesting beyond the limit, without recursion and in linear time."""
    brackets = _find_brackets(body)
    allowed = MAX_DEPTH
    for _ in range(_PEELED):
        # Innermost pairs go at the speed of C, one level each time: long flat lists are over here.
        brackets = brackets.replace(b"[]", b"")
        allowed -= 1
    depth = 0
    for start in range(0, len(brackets), _SCANNED):
        depths = list(
            accumulate(map(_STEP.__getitem__, brackets[start : start + _SCANNED]), initial=depth)
        )
        if max(depths) > allowed:
            raise _too_deep()
        depth = depths[-1]


def _find_brackets(body: bytes) -> bytes:
    """The brackets outside of strings, all of them square."""
    if b"\\" in body:
        return _STRING.sub(b"", body).translate(_SQUARE, _NOT_BRACKETS)
    # With no backslash anywhere every quote begins or ends a string. The quotes of one without
    # brackets in it are neighbours now; if some are left there was one with brackets.
    brackets = body.translate(_SQUARE, _NOT_BRACKETS_OR_QUOTES).replace(b'""', b"")
    if b'"' not in brackets:
        return brackets
    return b"".join(body.split(b'"')[::2]).translate(_SQUARE, _NOT_BRACKETS)


def check_no_nul(body: bytes) -> None:
    """Refuse the NUL character, naming the member that holds it."""
    if _NUL.search(body) is None:
        return
    field = _find_nul(_decode_any(body), "")
    raise InvalidError("text may not hold the NUL character", field=field or None)


def _find_nul(value: Any, path: str) -> str:
    if isinstance(value, str):
        return path if "\0" in value else ""
    if isinstance(value, dict):
        for name, member in value.items():
            inner = f"{path}.{name}".lstrip(".")
            found = inner if "\0" in name else _find_nul(member, inner)
            if found:
                return found.replace("\0", "\\u0000")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            found = _find_nul(item, f"{path}[{at}]")
            if found:
                return found
    return ""


def drop_members(body: bytes, ignored: frozenset[str]) -> bytes:
    """The body without these members."""
    members = _decode_members(body)
    if ignored.isdisjoint(members):
        return body
    return _encode({name: value for name, value in members.items() if name not in ignored})


def _too_deep() -> InvalidError:
    return InvalidError(f"the body is nested deeper than {MAX_DEPTH}", code="INVALID_JSON")
