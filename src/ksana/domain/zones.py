"""Time zones as plain numbers: IANA names and fixed offsets, and the instants at which their clocks
jump.

Rules come from the pinned `tzdata` package, not from the machine, so that every instance agrees and
`/version` can name them. Transitions are found by probing zoneinfo and kept per stretch of about a
year; nothing here knows about cron.
"""

import difflib
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module, resources
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from ksana.base.errors import InvalidError

Second = int
"""Seconds since the epoch, UTC."""

STRETCH_BITS: Final = 25
"""Transitions are kept per 2^25 seconds (388 days): the stretch of an instant is one shift away."""

MARGIN: Final = 3 * 86_400
"""Longer than any jump a clock ever made (Apia and Kwajalein skipped a day)."""

FIRST_SECOND: Final[Second] = -62_135_596_800 + 2 * MARGIN
LAST_SECOND: Final[Second] = 253_402_300_799 - 2 * MARGIN
"""The instants a zone is asked about, a few days inside what datetime can hold."""

_PROBE_STEP = 4 * 86_400
"""Shorter than the shortest time two transitions ever lay apart (6 days 23 hours), checked over all
of tzdata."""

_MAX_STRETCHES = 512
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?([0-5]\d))?\Z", re.ASCII)


class Transition(NamedTuple):
    """The clock jumps at `at` from one offset to another, in seconds east of UTC."""

    at: Second
    before: int
    after: int


class Zone:
    """A time zone. `name` is canonical: an IANA name or `+hh:mm`."""

    __slots__ = ("_info", "_stretches", "fixed_offset", "name")

    def __init__(self, name: str, info: ZoneInfo | None, fixed_offset: int | None) -> None:
        self.name = name
        self.fixed_offset = fixed_offset
        """Seconds east of UTC for a zone that never changes by definition, else None."""
        self._info = info
        self._stretches: dict[int, list[Transition]] = {}

    def offset_at(self, at: Second) -> int:
        """Seconds east of UTC in force at that instant."""
        if self._info is None:
            return self.fixed_offset or 0
        moment = _EPOCH + timedelta(
            seconds=min(max(at, FIRST_SECOND - MARGIN), LAST_SECOND + MARGIN)
        )
        offset = moment.astimezone(self._info).utcoffset()
        return 0 if offset is None else offset.days * 86_400 + offset.seconds

    def transitions_near(self, stretch: int) -> list[Transition]:
        """The jumps in the stretch and in MARGIN around it, in order."""
        found = self._stretches.get(stretch)
        if found is None:
            start = stretch << STRETCH_BITS
            found = self._find_transitions(start - MARGIN, start + (1 << STRETCH_BITS) + MARGIN)
            if len(self._stretches) >= _MAX_STRETCHES:
                self._stretches.clear()
            self._stretches[stretch] = found
        return found

    def transitions_between(self, after: Second, until: Second) -> list[Transition]:
        """The jumps in (after, until], in order."""
        found: list[Transition] = []
        for stretch in (
            range((after + 1) >> STRETCH_BITS, (until >> STRETCH_BITS) + 1) if self._info else ()
        ):
            start, end = stretch << STRETCH_BITS, (stretch + 1) << STRETCH_BITS
            for jump in self.transitions_near(stretch):
                if start <= jump.at < end and after < jump.at <= until:
                    found.append(jump)
        return found

    def _find_transitions(self, start: Second, until: Second) -> list[Transition]:
        if self._info is None:
            return []
        found: list[Transition] = []
        at, offset = start, self.offset_at(start)
        while at < until:
            probe = min(at + _PROBE_STEP, until)
            ahead = self.offset_at(probe)
            if ahead == offset:
                at = probe
                continue
            low, high = at, probe
            while high - low > 1:
                middle = (low + high) // 2
                if self.offset_at(middle) == offset:
                    low = middle
                else:
                    high = middle
            at, ahead = high, self.offset_at(high)
            if at < until:
                found.append(Transition(at, offset, ahead))
            offset = ahead
        return found


@lru_cache(maxsize=1024)
def get_zone(name: str) -> Zone:
    """Find a zone by IANA name or fixed offset (`+08:00`, `-0330`, `UTC+8`). Raise
    InvalidError(field="timezone")."""
    if name in zone_names():
        if name in _ALWAYS_UTC:
            return Zone(name, None, 0)
        return Zone(name, _load(name), None)
    if name == "Z":
        return Zone("UTC", None, 0)
    match = _OFFSET.match(name) if len(name) <= 16 else None
    if match is not None and int(match[2]) <= 23:
        seconds = int(match[2]) * 3600 + int(match[3] or 0) * 60
        return Zone(
            format_offset(-seconds if match[1] == "-" else seconds),
            None,
            -seconds if match[1] == "-" else seconds,
        )
    raise InvalidError(
        f"{name[:64]!r} is no time zone: allowed are IANA names such as Europe/Berlin "
        "and offsets such as +08:00" + _hint(name),
        field="timezone",
    )


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Every IANA name of the pinned rules."""
    return frozenset(
        resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    )


def rules_version() -> str:
    """The version of the zone rules in use, for `/version`. After a start with another one slots to
    come are worked out anew (`engine.tasks.zone_rules`)."""
    return str(import_module("tzdata").IANA_VERSION)


def format_offset(seconds: int) -> str:
    """Write an offset as `+hh:mm`, with seconds only where history had them."""
    sign, seconds = ("-", -seconds) if seconds < 0 else ("+", seconds)
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    return f"{text}:{seconds % 60:02d}" if seconds % 60 else text


_ALWAYS_UTC = frozenset(
    ("UTC", "Etc/UTC", "Etc/GMT", "GMT", "Zulu", "Etc/Zulu", "Universal", "UCT")
)


def _load(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def _hint(name: str) -> str:
    by_lower = {known.lower(): known for known in zone_names()}
    cities = [known for known in zone_names() if known.lower().endswith(f"/{name[:64].lower()}")]
    if cities:
        return f"; did you mean {min(cities, key=len)}?"
    close = difflib.get_close_matches(name[:64].lower(), by_lower, n=1, cutoff=0.8)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
