"""A histogram of spans in fixed buckets, two per doubling from a millisecond up, so that counts
from anywhere can be added.

Packed, a histogram is one number with 64 bits for each bucket, the first lowest: adding histograms
is adding numbers.
"""

import math
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Final

from ksana.base.instant import SECOND, Instant

BUCKETS: Final = 56
"""The last one begins at a good two days."""

BUCKET_BITS: Final = 64
"""Of one bucket in a packed histogram: no count ever runs over into the next."""

_PLACES: Final = tuple(struct.Struct(f"<{count}Q") for count in range(BUCKETS + 1))
_PER_DOUBLING: Final = 2
_LEAST_SECONDS: Final = 0.001


def bucket_of(seconds: float) -> int:
    """The bucket of a span."""
    if seconds <= _LEAST_SECONDS:
        return 0
    return min(BUCKETS - 1, 1 + int(math.log2(seconds / _LEAST_SECONDS) * _PER_DOUBLING))


def bucket_counts(now: Instant, since: Mapping[Instant, int]) -> Counter[int]:
    """Counts by bucket of the spans from these instants till now; those of one batch mostly began
    together."""
    spans: Counter[int] = Counter()
    for at, count in since.items():
        spans[bucket_of((now - at) / SECOND)] += count
    return spans


def sum_seconds(now: Instant, since: Mapping[Instant, int]) -> float:
    """The sum of the spans from these instants till now; none of them counts less than nothing."""
    return sum([max(0, now - at) * count for at, count in since.items()]) / SECOND


def bucket_seconds(bucket: int) -> float:
    """The upper end of a bucket."""
    return float(_LEAST_SECONDS * 2 ** (bucket / _PER_DOUBLING))


_ENDS: Final = tuple(bucket_seconds(bucket) for bucket in range(BUCKETS))


def pack(counts: Mapping[int, int]) -> int:
    """Counts by bucket as one number."""
    return sum(count << BUCKET_BITS * bucket for bucket, count in counts.items())


def quantile(packed: int, share: float) -> float | None:
    """The span below which this share of the counted ones lies, interpolated inside its bucket;
    None of nothing."""
    if not packed:
        return None
    places = _PLACES[-(-packed.bit_length() // BUCKET_BITS)]
    counts = places.unpack(packed.to_bytes(places.size, "little"))
    total = sum(counts)
    above = total - share * total
    bucket = len(counts) - 1  # from the top, where the shares lie that anybody asks for
    while above >= counts[bucket]:
        above -= counts[bucket]
        bucket -= 1
    low = _ENDS[bucket - 1] if bucket else 0.0
    within: float = 1 - above / counts[bucket]
    return round(low + (_ENDS[bucket] - low) * within, 6)
