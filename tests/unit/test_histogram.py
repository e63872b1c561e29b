"""Spans in buckets, and what is read back out of them."""

import pytest

from ksana.base.instant import SECOND
from ksana.domain.histogram import (
    BUCKET_BITS,
    BUCKETS,
    bucket_counts,
    bucket_of,
    bucket_seconds,
    pack,
    quantile,
    sum_seconds,
)


def test_buckets_begin_at_a_millisecond_and_two_make_a_doubling() -> None:
    assert [bucket_of(ms / 1000) for ms in (0, 0.5, 1, 1.01, 1.4, 1.5, 1.99)] == [
        *[0, 0, 0],
        *[1, 1, 2, 2],
    ]
    assert [bucket_of(0.001 * 2**power) for power in (1, 2, 3)] == [3, 5, 7]
    assert [bucket_seconds(bucket) for bucket in (0, 2, 4)] == [0.001, 0.002, 0.004]


def test_the_last_bucket_holds_everything_longer() -> None:
    assert bucket_of(bucket_seconds(BUCKETS - 2) * 1.1) == BUCKETS - 1
    assert bucket_of(10**9) == BUCKETS - 1


def test_every_span_lies_below_its_buckets_end_and_above_the_one_before() -> None:
    for tenths in range(11, 4000, 7):
        seconds = tenths / 10_000
        bucket = bucket_of(seconds)
        assert bucket_seconds(bucket - 1) <= seconds * 1.0001
        assert seconds <= bucket_seconds(bucket) * 1.0001


def test_spans_are_counted_from_their_beginnings_till_now() -> None:
    now = 100 * SECOND
    since = {now - 2000: 3, now - 1500: 2, now + 5: 1}
    assert bucket_counts(now, since) == {bucket_of(0.002): 3, bucket_of(0.0015): 2, 0: 1}
    assert sum_seconds(now, since) == pytest.approx((3 * 2000 + 2 * 1500) / SECOND)


def test_packed_counts_are_added_as_numbers() -> None:
    packed = pack({0: 1, 2: 5}) + pack({2: 7})
    assert packed == 1 + (12 << 2 * BUCKET_BITS)


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [
        ({}, 0.5, None),
        # Of one bucket the share is the place inside it; the first begins at nothing.
        ({0: 4}, 0.5, 0.0005),
        ({0: 4}, 1.0, 0.001),
        ({2: 10}, 0.5, round((bucket_seconds(1) + 0.002) / 2, 6)),
        ({2: 10}, 1.0, 0.002),
        # Half lie below the upper bucket: its lower end is the end of the lower one.
        ({2: 2, 8: 2}, 0.5, 0.002),
        ({2: 2, 8: 2}, 0.25, round((bucket_seconds(1) + 0.002) / 2, 6)),
        ({2: 2, 8: 2}, 0.75, round((bucket_seconds(7) + 0.016) / 2, 6)),
        ({1: 3, 2: 3, 8: 3}, 0.01, round(0.001 + (bucket_seconds(1) - 0.001) * 0.03, 6)),
    ],
)
def test_a_share_is_found_inside_its_bucket(
    counts: dict[int, int], share: float, wanted: float | None
) -> None:
    assert quantile(pack(counts), share) == (None if wanted is None else pytest.approx(wanted))
