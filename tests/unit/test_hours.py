"""An hour of counts in one value, against the counts themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain import histogram
from ksana.store.sql.core import hours

HOUR_AT = 491_000 * HOUR
SPAN = (
    histogram.pack({3: 1, 17: 2}),
    histogram.pack({55: 2**40}),
    histogram.pack({0: 7, 1: 200}),
    histogram.pack({2: 1}),
)
COUNTS = st.one_of(
    st.lists(counts, min_size=hours.MINUTES, max_size=hours.MINUTES)
    for counts in (st.integers(-3, 3), st.integers(-(2**50), 2**50), st.sampled_from((0, *SPAN)))
)


@pytest.mark.spec("Q15")
@given(COUNTS)
def test_counts_come_back_as_they_were_packed(counts: list[int]) -> None:
    assert hours.unpack(hours.pack(counts)) == counts
    assert hours.unpack(None) == [0] * hours.MINUTES


@pytest.mark.spec("Q15")
@given(COUNTS, st.integers(-70, 70), st.integers(0, 140), st.integers(0, 59), st.integers(1, 3000))
def test_stretches_have_the_sums_of_the_minutes_that_begin_in_them(
    counts: list[int], first: int, length: int, seconds: int, width: int
) -> None:
    since = HOUR_AT + first * MINUTE + seconds * SECOND
    until, width_us = since + length * MINUTE, width * MINUTE
    wanted: dict[int, int] = {7: 7}
    for minute, count in enumerate(counts):
        at = HOUR_AT + minute * MINUTE
        if since <= at < until:
            wanted[at - at % width_us] = wanted.get(at - at % width_us, 0) + count
    found = {7: 7}
    hours.add_stretches(found, HOUR_AT, hours.pack(counts), since, until, width_us)
    assert {at: count for at, count in found.items() if count} == {
        at: count for at, count in wanted.items() if count
    }


def test_an_hour_takes_the_room_of_the_buckets_it_has() -> None:
    assert len(hours.pack([0] * hours.MINUTES)) < 100
    assert len(hours.pack([1] * hours.MINUTES)) < 100
    assert len(hours.pack([histogram.pack({20: 5, 21: 9})] * hours.MINUTES)) < 250
