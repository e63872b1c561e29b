"""How many jobs a worker takes ahead, by how fast it begins them."""

import pytest

from ksana.base.instant import MILLISECOND, SECOND
from ksana.client.pace import MOST, Pace

pytestmark = pytest.mark.spec("Q16")


@pytest.mark.parametrize(("begun", "ahead"), [(0, 0), (19, 0), (20, 1), (39, 1), (40, 2)])
def test_as_many_are_taken_ahead_as_are_begun_in_a_tenth_of_a_second(
    begun: int, ahead: int
) -> None:
    """A rate that is new counts by half."""
    pace = Pace(7 * SECOND, MOST)
    assert pace.count_ahead(begun, 8 * SECOND) == ahead


def test_a_rate_is_measured_over_twenty_milliseconds_at_least() -> None:
    pace = Pace(SECOND, MOST)
    assert pace.count_ahead(100, SECOND + 20 * MILLISECOND - 1) == 0
    assert pace.count_ahead(100, SECOND + 20 * MILLISECOND) == 250


def test_no_more_are_taken_ahead_than_the_worker_allows() -> None:
    pace = Pace(SECOND, 3)
    assert pace.count_ahead(1_000, 2 * SECOND) == 3


def test_a_server_without_jobs_to_take_ahead_is_not_asked_for_a_second() -> None:
    pace = Pace(SECOND, MOST)
    assert pace.count_ahead(1_000, 2 * SECOND) == 50
    pace.rest(2 * SECOND)
    assert pace.count_ahead(2_000, 3 * SECOND - 1) == 0
    assert pace.count_ahead(2_000, 3 * SECOND) == 75


def test_a_server_that_does_not_know_of_it_is_never_asked_again() -> None:
    pace = Pace(SECOND, MOST)
    pace.stop()
    pace.rest(2 * SECOND)
    assert pace.count_ahead(1_000, 1_000 * SECOND) == 0
