"""A cron expression laid over the clock of a zone: local times become instants, and the DST rules
live here.

The expression names local times; the zone's clock shows most of them once, skips some (a gap) and
shows some twice (an overlap). What happens then:

    dst_gap      next   all times inside one gap together fire once, at the instant the gap ends
                 skip   they do not fire
                 shift  each fires later by the length of the gap: 02:30 at 03:30
    dst_overlap  first  a time that comes twice fires the first time
                 second it fires the second time
                 both   it fires both times

By default, as Debian cron does: an expression whose minute and hour fields both do not begin with
`*` names fixed times and gets `next` and `first`; any other follows real time, that is `skip` and
`both`. A chosen value binds both sorts. Two local times that end up at one instant are one slot. A
jump of any size counts (Apia skipped a whole day in 2011).

The zone's time is cut into pieces of constant offset. Each piece knows the window of local times it
serves under the chosen rules, so every question is a few bit operations in one piece, and a loop
over pieces only where years pass.
"""

from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ksana.domain.cron import LONG_AGO, NEVER, CronExpr, LocalSecond, parse_cron
from ksana.domain.zones import (
    FIRST_SECOND,
    LAST_SECOND,
    MARGIN,
    STRETCH_BITS,
    Second,
    Transition,
    Zone,
    get_zone,
)

DstGap = Literal["next", "skip", "shift"]
DstOverlap = Literal["first", "second", "both"]

HORIZON_SECONDS: Final = 51 * 366 * 86_400
"""How far a slot is looked for: a little more than the 50 years the contract names."""

_MAX_STRETCHES = 128
_ENDLESS = 1 << 50


class Gap(NamedTuple):
    """Local times [low, high) the clock skipped when this piece began."""

    low: LocalSecond
    high: LocalSecond
    offset: int | None
    """None: any match fires once, at the piece's start. Else each match fires at its time read with
    this offset."""


Piece = tuple[Second, Second, int, LocalSecond, LocalSecond, Gap | None]
"""(start, end, offset, low, high, gap): local times [low, high) fire at local - offset, plus what
the gap adds."""


class ZoneClock:
    """A zone under one choice of DST rules, cut into pieces on demand."""

    __slots__ = ("_always", "_gap", "_overlap", "_stretches", "zone")

    def __init__(self, zone: Zone, gap: DstGap, overlap: DstOverlap) -> None:
        self.zone = zone
        self._gap = gap
        self._overlap = overlap
        self._stretches: dict[int, list[Piece]] = {}
        self._always: Piece | None = None
        if zone.fixed_offset is not None:
            offset = zone.fixed_offset
            self._always = (-_ENDLESS, _ENDLESS, offset, offset - _ENDLESS, offset + _ENDLESS, None)

    def piece_at(self, at: Second) -> Piece:
        """Find the piece that holds the instant."""
        if self._always is not None:
            return self._always
        pieces = self._stretches.get(at >> STRETCH_BITS)
        if pieces is None:
            pieces = self._cut(at >> STRETCH_BITS)
        for piece in pieces:
            if at < piece[1]:
                return piece
        raise AssertionError("the pieces of a stretch cover it")

    def _cut(self, stretch: int) -> list[Piece]:
        """Cut a stretch at its transitions. Those in the margin around it are seen too: what they
        skip or repeat may reach into the stretch."""
        start, end = stretch << STRETCH_BITS, (stretch + 1) << STRETCH_BITS
        jumps = self.zone.transitions_near(stretch)
        pieces: list[Piece] = []
        shown = LONG_AGO  # how far the wall clock has been
        for index in range(len(jumps) + 1):
            begun = jumps[index - 1] if index else None
            ending = jumps[index] if index < len(jumps) else None
            begin = begun.at if begun else LONG_AGO
            until = ending.at if ending else NEVER
            if begun:
                shown = max(shown, begun.at + begun.before)
            if until <= start or begin >= end:
                continue
            offset = (
                begun.after if begun else ending.before if ending else self.zone.offset_at(start)
            )
            piece_start, piece_end = max(begin, start), min(until, end)
            low, high = piece_start + offset, piece_end + offset
            if self._overlap == "first":
                low = max(low, shown)
            elif self._overlap == "second" and ending is not None:
                high = min(high, ending.at + ending.after)
            gap = self._gap_of(begun, shown, piece_start, piece_end) if begun else None
            if gap is not None and piece_end - piece_start > MARGIN:
                # What a gap adds falls into the first days; the long rest stays plain and fast.
                cut = piece_start + MARGIN
                pieces.append((piece_start, cut, offset, low, min(high, cut + offset), gap))
                piece_start, low, gap = cut, cut + offset, None
            pieces.append((piece_start, piece_end, offset, low, high, gap))
        if len(self._stretches) >= _MAX_STRETCHES:
            self._stretches.clear()
        self._stretches[stretch] = pieces
        return pieces

    def _gap_of(
        self, jump: Transition, shown: LocalSecond, start: Second, end: Second
    ) -> Gap | None:
        low, high = shown, jump.at + jump.after
        if low >= high or self._gap == "skip":
            return None
        if self._gap == "next":
            return Gap(low, high, None) if start == jump.at else None
        low, high = max(low, start + jump.before), min(high, end + jump.before)
        return Gap(low, high, jump.before) if low < high else None


class Timetable:
    """The slots of one expression in one zone, in whole seconds. Outside the years 1 to 9999 there
    are none."""

    __slots__ = (
        "_clock",
        "_day",
        "_lone_second",
        "_piece_at",
        "_second_steps",
        "_steps",
        "expr",
        "gap",
        "overlap",
        "zone",
    )

    def __init__(
        self, expr: CronExpr, zone: Zone, gap: DstGap | None, overlap: DstOverlap | None
    ) -> None:
        self.expr = expr
        self.zone = zone
        self.gap: DstGap = gap or ("next" if expr.fixed else "skip")
        self.overlap: DstOverlap = overlap or ("first" if expr.fixed else "both")
        self._clock = _clock_of(zone.name, self.gap, self.overlap)
        self._piece_at = self._clock.piece_at
        self._steps = expr.minute_steps()
        self._second_steps = expr.second_steps()
        self._lone_second = self._second_steps[0] if expr.seconds.bit_count() == 1 else None
        self._day: tuple[Second, Second] = (0, 0)
        """The matching day seen last, from midnight to midnight, if the clock does not jump in it.
        One tuple, so that threads see both ends or neither."""

    def next_after(self, after: Second) -> Second | None:
        """Find the earliest slot later than `after`, within HORIZON_SECONDS."""
        at = after + 1
        midnight, end = self._day
        if midnight <= at < end:
            steps = self._steps
            if steps is not None:
                lone_second = self._lone_second
                if lone_second is not None:
                    midnight += lone_second
                    found = midnight + steps[(at - midnight + 59) // 60]
                else:
                    minute, second = divmod(at - midnight, 60)
                    found = at + self._second_steps[second]
                    if found >= end or steps[minute] != minute * 60:
                        found = midnight + steps[minute + (found >= end)] + self._second_steps[0]
                if found < end:
                    return found
        return self._search_from(at)

    def _search_from(self, at: Second) -> Second | None:
        """Find the earliest slot at or after `at`, piece by piece, and remember its day if that is
        a plain one."""
        next_local = self.expr.next_local
        horizon = 0
        while True:
            start, end, offset, low, high, gap = self._piece_at(at)
            if gap is not None:
                found = self._next_around_gap(start, offset, low, high, gap, at)
                if found is not None:
                    return found
            else:
                local = at + offset
                local = next_local(local if local > low else low)
                if local < high:
                    if self._steps is not None:
                        midnight = local - local % 86_400
                        if low <= midnight and midnight + 86_400 <= high:
                            self._day = (midnight - offset, midnight - offset + 86_400)
                    return local - offset
            horizon = horizon or min(at + HORIZON_SECONDS, LAST_SECOND)
            at = end
            if at >= horizon:
                return None

    def latest_at_or_before(self, at: Second) -> Second | None:
        """Find the latest slot not later than `at`, within HORIZON_SECONDS."""
        horizon = max(at - HORIZON_SECONDS, FIRST_SECOND)
        while at >= horizon:
            start, _, offset, low, high, gap = self._piece_at(at)
            local = min(at + offset, high - 1)
            local = self.expr.previous_local(local) if local >= low else LONG_AGO
            found = local - offset if local >= low else None
            if gap is not None:
                found = self._latest_around_gap(start, gap, at, found)
            if found is not None:
                return found
            at = start - 1
        return None

    def count_between(self, after: Second, until: Second) -> int:
        """Count the slots later than `after` and not later than `until`, a few bit counts per
        piece."""
        at, last = max(after + 1, FIRST_SECOND), min(until, LAST_SECOND)
        count = 0
        while at <= last:
            start, end, offset, low, high, gap = self._piece_at(at)
            stop = min(last + 1, end)
            count += self.expr.count_local(max(at + offset, low), min(stop + offset, high))
            if gap is not None:
                count += self._count_gap_only(start, offset, low, high, gap, at, stop)
            at = end
        return count

    def skips_at(self, jump: Transition) -> LocalSecond | None:
        """The first local time of the expression that the clock skips at this jump, if there is
        one."""
        local = self.expr.next_local(jump.at + jump.before)
        return local if local < jump.at + jump.after else None

    def _next_around_gap(
        self, start: Second, offset: int, low: LocalSecond, high: LocalSecond, gap: Gap, at: Second
    ) -> Second | None:
        if gap.offset is None and at <= start and self.expr.next_local(gap.low) < gap.high:
            return start
        local = self.expr.next_local(max(at + offset, low))
        found = local - offset if local < high else None
        if gap.offset is not None:
            local = self.expr.next_local(max(at + gap.offset, gap.low))
            if local < gap.high and (found is None or local - gap.offset < found):
                return local - gap.offset
        return found

    def _latest_around_gap(
        self, start: Second, gap: Gap, at: Second, found: Second | None
    ) -> Second | None:
        if gap.offset is None:
            if found is None and self.expr.next_local(gap.low) < gap.high:
                return start
            return found
        local = self.expr.previous_local(min(at + gap.offset, gap.high - 1))
        if local < gap.low or (found is not None and local - gap.offset <= found):
            return found
        return local - gap.offset

    def _count_gap_only(
        self,
        start: Second,
        offset: int,
        low: LocalSecond,
        high: LocalSecond,
        gap: Gap,
        at: Second,
        stop: Second,
    ) -> int:
        """Count what the gap adds in [at, stop) that the piece itself does not fire at the same
        instant."""
        next_local = self.expr.next_local
        if gap.offset is None:
            is_plain_slot = (
                low <= start + offset < high and next_local(start + offset) == start + offset
            )
            return int(at == start and not is_plain_slot and next_local(gap.low) < gap.high)
        count, local, until = 0, max(at + gap.offset, gap.low), min(stop + gap.offset, gap.high)
        while (local := next_local(local)) < until:
            twin = local - gap.offset + offset
            count += not (low <= twin < high and next_local(twin) == twin)
            local += 1
        return count


@lru_cache(maxsize=8192)
def get_timetable(
    expr: str, timezone: str, gap: DstGap | None, overlap: DstOverlap | None
) -> Timetable:
    """Parse, look up and lay out, once. Raise InvalidError for a bad expression or zone."""
    return Timetable(parse_cron(expr), get_zone(timezone), gap, overlap)


@lru_cache(maxsize=4096)
def _clock_of(zone_name: str, gap: DstGap, overlap: DstOverlap) -> ZoneClock:
    return ZoneClock(get_zone(zone_name), gap, overlap)
