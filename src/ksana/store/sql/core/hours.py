"""An hour of a metric in one value: sixty numbers, the sum from the start of the hour to the end of
each minute.

A stretch of any number of minutes is then one difference in each hour it touches, however many
minutes it has. A number may be a histogram, packed as `domain.histogram` does: a count for each
bucket. Here counts are only as wide as the largest of the hour needs, from the first bucket that
has any to the last: most hours take a few hundred bytes, and a month few pages.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Final

from ksana.base.instant import HOUR, MINUTE, Instant, Micros
from ksana.domain.histogram import BUCKET_BITS, BUCKETS

MINUTES: Final = HOUR // MINUTE

_HEAD: Final = struct.Struct("<BBB")
"""The first bucket, how many there are, and the bytes of one count."""

_CODES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_ROWS: Final = {
    (count, size): struct.Struct(f"<{count}{code}")
    for count in range(1, BUCKETS + 1)
    for size, code in _CODES.items()
}
"""The counts of one number. With a sign, for a gauge goes down too."""

_from_bytes = int.from_bytes


def pack(minutes: Sequence[int]) -> bytes:
    """An hour of counts, one for each minute."""
    sums = list(accumulate(minutes))
    bits = max(number.bit_length() for number in sums)
    count, first = 1, 0
    rows: list[tuple[int, ...]] = [(number,) for number in sums]
    if bits >= BUCKET_BITS:
        wide = _ROWS[-(-bits // BUCKET_BITS), 8]
        rows = [wide.unpack(number.to_bytes(wide.size, "little")) for number in sums]
        first = next(bucket for bucket, counts in enumerate(zip(*rows, strict=True)) if any(counts))
        rows = [row[first:] for row in rows]
        count = len(rows[0])
    largest = max(abs(number) for number in chain.from_iterable(rows))
    size = next(size for size in _CODES if largest < 1 << 8 * size - 1)
    row_of = _ROWS[count, size]
    return _HEAD.pack(first, count, size) + b"".join(row_of.pack(*row) for row in rows)


def unpack(packed: bytes | None) -> list[int]:
    """The counts again; of nothing yet, zeros."""
    if packed is None:
        return [0] * MINUTES
    first, count, size = _HEAD.unpack_from(packed)
    rows = _ROWS[count, size].iter_unpack(packed[_HEAD.size :])
    sums = [
        sum(number << BUCKET_BITS * place for place, number in enumerate(row, first))
        for row in rows
    ]
    return [after - before for before, after in pairwise((0, *sums))]


def sum_between(hour_at: Instant, packed: bytes, since: Instant, until: Instant) -> int:
    """The minutes of one hour that begin in [since, until), summed. Of a whole hour of plain counts
    it is the last of its numbers."""
    first, count, size = packed[0], packed[1], packed[2]
    if count == 1 and since <= hour_at and hour_at + HOUR <= until:
        return _from_bytes(packed[-size:], "little", signed=True) << first * BUCKET_BITS
    sums: dict[Instant, int] = {}
    add_stretches(sums, hour_at, packed, since, until, MINUTE * MINUTES)
    return sum(sums.values())


def add_stretches(
    into: dict[Instant, int],
    hour_at: Instant,
    packed: bytes,
    since: Instant,
    until: Instant,
    width_us: Micros,
) -> None:
    """Add the minutes of one hour that begin in [since, until) to the stretches of whole minutes
    they lie in."""
    first, count, size = _HEAD.unpack_from(packed)
    narrow, wide, shift = _ROWS[count, size], _ROWS[count, 8], first * BUCKET_BITS
    width, offset = count * size, _HEAD.size - count * size
    minute = max(0, -((hour_at - since) // MINUTE))
    last = min(MINUTES, -((hour_at - until) // MINUTE))
    place = offset + minute * width
    before = _from_bytes(packed[place : place + width], "little", signed=True) if minute else 0
    start = hour_at + minute * MINUTE
    start -= start % width_us
    while minute < last:
        end = start + width_us
        minute = (end - hour_at) // MINUTE
        if minute > last:
            minute = last
        place = offset + minute * width
        after = _from_bytes(packed[place : place + width], "little", signed=True)
        if after != before:
            # All counts of a histogram are subtracted at once: none of them ever went down, so none
            # borrows from the next.
            change = after - before
            if count > 1:
                change = _from_bytes(
                    wide.pack(*narrow.unpack(change.to_bytes(width, "little"))), "little"
                )
            into[start] = into.get(start, 0) + (change << shift)
            before = after
        start = end
