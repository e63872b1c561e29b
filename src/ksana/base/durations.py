"""Durations as people write them: Go style (`1h30m`, `500ms`, also `2d`), plain seconds, or ISO
8601 (`P7D`).

Read into whole microseconds, printed in the shortest Go form.
"""

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

from ksana.base.instant import DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, Micros

MAX_DURATION: Final[Micros] = 36_525 * DAY
"""A hundred years: longer is a mistake, and sums of such durations still fit 64 bits."""

_UNITS: Final = {
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "μs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
    "d": DAY,
}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(us|µs|μs|ms|s|m|h|d)", re.ASCII)
_ISO = re.compile(
    r"P(?!\Z)(?:(\d+(?:\.\d+)?)W)?(?:(\d+(?:\.\d+)?)D)?"
    r"(?:T(?!\Z)(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?\Z",
    re.ASCII,
)
_ISO_UNITS: Final = (7 * DAY, DAY, HOUR, MINUTE, SECOND)
_NUMBER = re.compile(r"\d{1,16}(?:\.\d{1,16})?\Z", re.ASCII)
_ALLOWED = 'write it like "1h30m", "500ms", "2d", a number of seconds, or ISO 8601 such as "PT5M"'


def parse_duration(value: str | int | float) -> Micros:
    """Read a duration of zero or more. Raise ValueError saying what is allowed."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration: {_ALLOWED}")
    if not isinstance(value, str):
        return _from_decimal(str(value), SECOND, value)
    text = value.strip()
    if len(text) > 64 or not text:
        raise ValueError(f"{text[:64]!r} is not a duration: {_ALLOWED}")
    return _parse_text(text)


@lru_cache(maxsize=1024)
def _parse_text(text: str) -> Micros:
    """Read a short text. Few are written, and each of them often."""
    if _NUMBER.match(text):
        return _from_decimal(text, SECOND, text)
    if text[0] == "P":
        return _parse_iso(text)
    return _parse_go(text)


@lru_cache(maxsize=1024)
def format_duration(span: Micros) -> str:
    """Print a duration in the shortest Go form: `5m`, `1h30m`, `1.5s`, `250ms`, `0s`."""
    if span == 0:
        return "0s"
    if span < 0:
        return "-" + format_duration(-span)
    if span < SECOND:
        unit, name = (MILLISECOND, "ms") if span >= MILLISECOND else (MICROSECOND, "us")
        return _trim(span, unit) + name
    hours, rest = divmod(span, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    return (
        (f"{hours}h" if hours else "")
        + (f"{minutes}m" if minutes else "")
        + (_trim(rest, SECOND) + "s" if rest else "")
    )


def _parse_go(text: str) -> Micros:
    total, at = Decimal(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(f"{text!r} is not a duration: {_ALLOWED}")
        total += Decimal(part[1]) * _UNITS[part[2]]
        at = part.end()
    return _bounded(total, text)


def _parse_iso(text: str) -> Micros:
    match = _ISO.match(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration (years and months have no fixed length): {_ALLOWED}"
        )
    total = sum(
        (Decimal(n) * unit for n, unit in zip(match.groups(), _ISO_UNITS, strict=True) if n),
        Decimal(0),
    )
    return _bounded(total, text)


def _from_decimal(text: str, unit: Micros, original: object) -> Micros:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or number < 0:
        raise ValueError(f"{original!r} is not a duration: {_ALLOWED}")
    return _bounded(number * unit, original)


def _bounded(total: Decimal, original: object) -> Micros:
    if total > MAX_DURATION:
        raise ValueError(f"{original!r} is longer than a hundred years")
    return int(total)


def _trim(span: Micros, unit: Micros) -> str:
    whole, rest = divmod(span, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")
