"""Instants: whole microseconds since the Unix epoch, UTC, as plain integers.

One type from the API's edge down to every store and Redis: the same order and arithmetic
everywhere, no time zones, no rounding. RFC 3339 text exists at the edge only and is made and read
here.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

Instant = int
"""Microseconds since 1970-01-01T00:00:00Z."""

Micros = int
"""A duration in microseconds."""

MICROSECOND: Final = 1
MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

# Years 1..9999 is what datetime can hold; instants outside cannot be shown, so they are refused at
# the edge.
EARLIEST: Final[Instant] = -62_135_596_800 * SECOND
LATEST: Final[Instant] = 253_402_300_799 * SECOND + 999_999

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_TEXTS: Final = tuple(f"T{minute // 60:02d}:{minute % 60:02d}:00Z" for minute in range(1440))
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?(Z|z|[+-]\d\d:?\d\d)?\Z",
    re.ASCII,
)


def format_instant(at: Instant) -> str:
    """Write an instant as RFC 3339 in UTC, with a fraction only when it is not zero."""
    seconds, micros = divmod(at, SECOND)
    if micros:
        return f"{_second_text(seconds)}.{micros:06d}".rstrip("0") + "Z"
    return _second_text(seconds) + "Z"


def format_minute(at: Instant) -> str:
    """The same for an instant that is a whole minute, as those of a series are."""
    days, minute = divmod(at // MINUTE, 1440)
    return _day_text(days) + _MINUTE_TEXTS[minute]


@lru_cache(maxsize=4096)
def _second_text(seconds: int) -> str:
    """A second without its fraction. Most instants written are of the present second."""
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


@lru_cache(maxsize=512)
def _day_text(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).date().isoformat()


def parse_instant(text: str) -> Instant:
    """Read RFC 3339 with any offset. Raise ValueError for a naive or impossible time."""
    match = _RFC3339.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-02-21T00:00:00Z")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if zone is None:
        raise ValueError(f"{text!r} has no offset: end it with Z or +hh:mm")
    if second != "60" and zone == "Z":  # as most are written
        try:
            return to_instant(datetime.fromisoformat(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is not a possible time: {error}") from None
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    leap = second == "60"
    try:
        moment = datetime(
            int(year),
            int(month),
            int(day),
            int(hour),
            int(minute),
            59 if leap else int(second),
            tzinfo=_offset(zone),
        )
        at = to_instant(moment) + micros + (SECOND if leap else 0)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a possible time: {error}") from None
    if not EARLIEST <= at <= LATEST:
        raise ValueError(f"{text!r} lies outside the years 1 to 9999")
    return at


def to_instant(moment: datetime) -> Instant:
    """Turn an aware datetime into an instant, exactly."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def to_datetime(at: Instant) -> datetime:
    """Turn an instant into an aware UTC datetime."""
    return _EPOCH + timedelta(microseconds=at)


def _offset(zone: str) -> timezone:
    if zone in "Zz":
        return UTC
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise ValueError("the offset must lie between -23:59 and +23:59")
    span = timedelta(hours=hours, minutes=minutes)
    return timezone(-span if zone[0] == "-" else span)
