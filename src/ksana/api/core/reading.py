"""How endpoints of every surface read instants and durations of bodies and queries: a value that
cannot be read is a 400 that names its member."""

from ksana.base.durations import parse_duration
from ksana.base.errors import InvalidError
from ksana.base.instant import Instant, Micros, parse_instant


def read_instant(field: str, text: str) -> Instant:
    """An instant."""
    try:
        return parse_instant(text)
    except ValueError as error:
        raise InvalidError(f"{field!r}: {error}", field=field) from None


def find_instant(field: str, text: str | None) -> Instant | None:
    """An instant, where it may be absent."""
    return None if text is None else read_instant(field, text)


def read_span(field: str, value: str | int | float) -> Micros:
    """A duration."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidError(f"{field!r}: {error}", field=field) from None
