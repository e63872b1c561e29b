"""Secrets inside texts: what must not be shown is found by its value, in every spelling a peer may
give it, and replaced by `***`. Pure."""

import html
import json
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

    def are_in(self, data: bytes) -> bool:
        """Whether one of them stands in the data."""
        return any(value in data for value in self.values)


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


def spell(values: Iterable[str]) -> tuple[bytes, ...]:
    """All spellings of some values, longest first: as they are, inside JSON, a URL, or HTML."""
    found: set[str] = set()
    for value in values:
        if len(value) < LEAST:
            continue
        found.add(value)
        if not value.isalnum():
            found.update(_respell(value))
    encoded = (text.encode("utf-8", "surrogateescape") for text in found)
    return tuple(sorted(encoded, key=len, reverse=True))


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


def _half_at_end(data: bytes, value: bytes) -> int:
    """How many bytes of the value's beginning the data ends with."""
    for length in range(min(len(value) - 1, len(data)), LEAST - 1, -1):
        if data.endswith(value[:length]):
            return length
    return 0
