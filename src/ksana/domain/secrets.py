"""Secrets inside texts: what must not be shown is found by its value, in every spelling a peer may
give it, and replaced by `***`. And what is stored of a token. Pure."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, quote_plus

import msgspec

MASK: Final = "***"
_MASK: Final = MASK.encode()

SEALED: Final = "ksana1:"
"""What every sealed text begins with. Callers may not send a text that does."""

LEAST: Final = 4
"""Shorter values are not looked for: they would be found everywhere."""

_LEAST_PACKED: Final = 8
"""The same inside base64, of which a few characters at each end depend on what stands beside."""
_LONGEST_RESPELLED: Final = 4096
"""Longer values are looked for in the plainer spellings alone."""

_ESCAPED: Final = re.compile(r"%[0-9A-F]{2}|\\u[0-9a-f]{4}")
_FOR_SCRIPTS: Final = re.compile("[<>&]")
_FOR_DOTNET: Final = re.compile("[<>&'\"+`]")


def key_id_of(sealed: str) -> str:
    """The key that sealed a text."""
    return sealed.removeprefix(SEALED).partition(":")[0][:16]


class Secrets(msgspec.Struct, frozen=True, gc=False):
    """What a request carries that is for its target alone."""

    names: frozenset[str]
    """Headers that hold a secret, in lower case."""
    values: tuple[bytes, ...]
    """The secrets in all their spellings, longest first."""
    is_body_secret: bool = False

    def mask(self, text: str) -> str:
        """The text with every secret in it masked."""
        data = text.encode("utf-8", "surrogateescape")
        return mask(data, self.values).decode("utf-8", "surrogateescape")

    def mask_cut(self, text: str, length: int) -> str:
        """The first characters of the masked text: what is masked first cannot be cut in half."""
        return self.mask(text)[:length]

    def with_token(self, token: str) -> "Secrets":
        """The same with a token of hex digits, in either case."""
        data = token.encode()
        values = (*self.values, data, data.upper(), *pack(data))
        return Secrets(self.names, values, self.is_body_secret)

    def are_in(self, data: bytes) -> bool:
        """Whether one of them stands in the data."""
        return any(value in data for value in self.values)


def hash_token(token: str) -> str:
    """What is stored of a token. It has 128 random bits, so a fast hash will do."""
    return hashlib.sha256(token.encode()).hexdigest()


def mask(data: bytes, values: Iterable[bytes], *, is_cut: bool = False) -> bytes:
    """Mask every value in the data. With `is_cut` the data is the beginning of something longer,
    and a value may have been cut in half at its end."""
    for value in values:
        if value in data:
            data = data.replace(value, _MASK)
    if is_cut:
        half = max((_half_at_end(data, value) for value in values), default=0)
        if half:
            data = data[:-half] + _MASK
    return data


def spell(values: Iterable[str], *, plainly: bool = False) -> tuple[bytes, ...]:
    """All spellings of some values, longest first: as they are, inside JSON, a URL, or HTML; if not
    `plainly` also as the libraries of other languages write these, as base64, and as UTF-16."""
    found: set[bytes] = set()
    for value in values:
        if len(value) < LEAST:
            continue
        found.add(value.encode("utf-8", "surrogateescape"))
        is_plain = plainly or len(value) > _LONGEST_RESPELLED
        if not value.isalnum():
            texts = _respell(value) if is_plain else _respell_widely(value)
            found.update(text.encode("utf-8", "surrogateescape") for text in texts)
        if not is_plain:
            found |= pack(value.encode("utf-8", "surrogateescape"))
            if value.isascii():  # without the last zero it is found in either order of bytes
                found.add(value.encode("utf-16-le")[:-1])
    return tuple(sorted(found, key=len, reverse=True))


def pack(data: bytes) -> set[bytes]:
    """What of some data stands inside a base64 text, wherever in the packed text it begins."""
    if len(data) < _LEAST_PACKED:
        return set()
    found: set[bytes] = set()
    for before in range(3):
        packed = base64.b64encode(bytes(before) + data)
        whole = packed[-(-before * 4 // 3) : (before + len(data)) * 4 // 3]
        found |= {whole, whole.translate(_URL_SAFE)}
    return found


_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def _respell(value: str) -> set[str]:
    plain = json.dumps(value, ensure_ascii=False)[1:-1]
    clean = value.encode("utf-8", "replace").decode()
    return {
        plain,
        plain.replace("/", "\\/"),
        json.dumps(value)[1:-1],
        quote(clean, safe=""),
        quote(clean),
        quote_plus(clean),
        html.escape(value),
    }


def _respell_widely(value: str) -> set[str]:
    plain, bare = json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]
    marked = html.escape(value, quote=False).replace("'", "&#39;")
    found = _respell(value) | {
        _FOR_SCRIPTS.sub(_as_unicode, plain),
        _FOR_SCRIPTS.sub(_as_unicode, bare),
        _FOR_DOTNET.sub(_as_unicode, bare.replace('\\"', '"')),
        json.dumps(plain, ensure_ascii=False)[1:-1],
        json.dumps(bare)[1:-1],
        marked.replace('"', "&quot;"),
        marked.replace('"', "&#34;"),
        marked.replace('"', "&#34;").replace("+", "&#43;"),
        marked.replace('"', "&quot;").replace("&#39;", "&#039;"),
    }
    return found | {_ESCAPED.sub(_other_case, text) for text in found}


def _as_unicode(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _other_case(found: re.Match[str]) -> str:
    """An escape with its digits in the other case."""
    text = found[0]
    return text.lower() if text[0] == "%" else text[:2] + text[2:].upper()


def _half_at_end(data: bytes, value: bytes) -> int:
    """How many bytes of the value's beginning the data ends with."""
    for length in range(min(len(value) - 1, len(data)), LEAST - 1, -1):
        if data.endswith(value[:length]):
            return length
    return 0
