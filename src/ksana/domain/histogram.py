"""A histogram of spans in fixed buckets, two per doubling from a millisecond up, so that counts from anywhere can be added."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from ksana.base.instant import SECOND, Instant

BUCKETS: Final = 56
"""The last one begins at a good two days."""

_PER_DOUBLING: Final = 2
_LEAST_SECONDS: Final = 0.001


def bucket_of(seconds: float) -> int:
    """The bucket of a span."""
    if seconds <= _LEAST_SECONDS:
        return 0
    return min(BUCKETS - 1, 1 + int(math.log2(seconds / _LEAST_SECONDS) * _PER_DOUBLING))


def bucket_counts(now: Instant, since: Mapping[Instant, int]) -> Counter[int]:
    """Counts by bucket of the spans from these instants till now; those of one batch mostly began together."""
    spans: Counter[int] = Counter()
    for at, count in since.items():
        spans[bucket_of((now - at) / SECOND)] += count
    return spans


@lru_cache(maxsize=BUCKETS + 1)
def bucket_seconds(bucket: int) -> float:
    """The upper end of a bucket."""
    return float(_LEAST_SECONDS * 2 ** (bucket / _PER_DOUBLING))


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The span below which this share of the counted ones lies, interpolated inside its bucket; None of nothing."""
    total = sum(counts.values())
    if not total:
        return None
    rest = share * total
    for bucket in sorted(counts):
        if rest <= counts[bucket]:
            low = bucket_seconds(bucket - 1) if bucket else 0.0
            return round(low + (bucket_seconds(bucket) - low) * rest / counts[bucket], 6)
        rest -= counts[bucket]
    return round(bucket_seconds(max(counts)), 6)
