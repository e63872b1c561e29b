"""How many calls a host may have, and how many runs are claimed for it ahead."""

import pytest

from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.engine.tasks.host_limits import (
    ALONE,
    SHARED,
    STALE,
    HostQueue,
    SlotBudget,
)
from tests.unit.task_ground import a_claimed_run

pytestmark = pytest.mark.spec("T14")

T = 10 * SECOND
WINDOW = 50 * MILLISECOND
LIMIT = 4


def queue_called(*calls: tuple[Micros, Micros], limit: int = LIMIT) -> HostQueue:
    """A host and its calls that ended: when each began, after T, and how long it lasted."""
    queue = HostQueue("h", limit)
    for began, lasted in calls:
        queue.began(T + began)
        queue.ended(T + began, T + began + lasted)
    return queue


def figures(queue: HostQueue) -> tuple[float, float]:
    return queue.rate, queue.capacity


# The budget of one firing pass


@pytest.mark.parametrize(
    ("hosts", "default", "total", "wanted", "taken"),
    [
        ({"a": 2}, 0, 9, "aaab", [True, True, False, False]),
        ({}, 1, 9, "aabb", [True, False, True, False]),
        ({"a": 3}, 3, 2, "abab", [True, True, False, False]),
        ({"a": 0}, 1, 9, "ab", [False, True]),
        ({"a": -1}, 1, 9, "ab", [False, True]),
        ({}, 1, 0, "a", [False]),
        ({}, 1, -1, "a", [False]),
    ],
)
def test_a_slot_is_taken_while_its_host_and_all_of_them_have_one(
    hosts: dict[str, int], default: int, total: int, wanted: str, taken: list[bool]
) -> None:
    budget = SlotBudget(hosts, default, total)
    assert [budget.take(host) for host in wanted] == taken


def test_the_first_calls_of_each_host_begin_soon() -> None:
    budget = SlotBudget({}, 9, 9, {"a": 2, "b": 0, "c": -1}, soon_default=1)
    assert all(budget.take(host) for host in "aaabcdd")
    assert budget.taken == [True, True, False, False, False, True, False]


def test_unless_said_otherwise_no_call_begins_soon() -> None:
    budget = SlotBudget({}, 9, 9)
    assert budget.take("a")
    assert (budget.taken, budget.lease) == ([False], 0)


def test_a_copy_is_used_up_for_itself() -> None:
    budget = SlotBudget({"a": 1}, 1, 3, {"a": 1}, 1, lease=7)
    budget.take("b")
    for _ in range(2):
        copy = budget.copy()
        assert [copy.take(host) for host in "aabc"] == [True, False, False, True]
        assert (copy.taken, copy.lease) == ([True, True], 7)
    assert budget.taken == [True]


# What a host can take


def test_of_a_host_never_called_a_fixed_number_is_claimed_ahead() -> None:
    queue = HostQueue("h", LIMIT)
    assert (queue.room(T, SHARED), queue.room(T, ALONE)) == (LIMIT + 1024, LIMIT + 4096)
    assert queue.soon(T) == LIMIT + 64
    assert queue.room(T + 3600 * SECOND, SHARED) == LIMIT + 1024, "nothing was learnt since"


def test_calls_in_flight_and_runs_that_wait_here_take_room() -> None:
    queue = HostQueue("h", LIMIT)
    queue.began(T)
    queue.began(T)
    queue.began(T)
    queue.ended(T, T + 1)
    queue.waiting.extend([a_claimed_run(), a_claimed_run(), a_claimed_run()])
    assert queue.in_flight == 2
    assert queue.room(T + 1, SHARED) == LIMIT - 2 + 1024 - 3
    assert queue.soon(T + 1) == LIMIT - 2 + 64, "of those that wait"


def test_what_a_host_can_take_is_known_when_its_first_window_is_over() -> None:
    queue = queue_called((0, 20 * MILLISECOND), (20 * MILLISECOND, 30 * MILLISECOND))
    ends = T + 20 * MILLISECOND + WINDOW
    assert queue.room(ends - 1, SHARED) == LIMIT + 1024
    assert queue.room(ends, SHARED) == LIMIT + 320, "160 a second, for two seconds"
    assert figures(queue) == (40.0, 160.0)


def test_what_is_newly_measured_counts_as_much_as_what_was_known() -> None:
    queue = queue_called(
        (0, 20 * MILLISECOND),
        (20 * MILLISECOND, 30 * MILLISECOND),
        (65 * MILLISECOND, 10 * MILLISECOND),
    )
    assert figures(queue) == (2 / 0.055, 160.0), "the first window was seen 5 ms late"
    queue.room(T + 125 * MILLISECOND, SHARED)
    assert figures(queue) == (0.5 * (2 / 0.055) + 0.5 * (1 / 0.05), 280.0)
    assert queue.room(T + 125 * MILLISECOND, SHARED) == LIMIT + 560


def test_a_host_that_answers_at_once_can_take_the_most_there_is() -> None:
    queue = queue_called((0, 0))
    assert queue.room(T + WINDOW, SHARED) == LIMIT + 4096
    assert queue.room(T + WINDOW, ALONE) == LIMIT + 16_384
    assert queue.capacity == LIMIT * 1e6, "a call lasts a microsecond at least"


@pytest.mark.parametrize(
    ("calls", "more"),
    [(1, LIMIT), (2, LIMIT), (3, 6), (10, 20)],
    ids=["as many again", "as many again at most", "the rate says more", "much more"],
)
def test_how_many_are_sent_soon_is_told_by_the_rate(calls: int, more: int) -> None:
    queue = queue_called(*[(0, MILLISECOND)] * calls)
    ends = T + MILLISECOND + WINDOW
    assert queue.soon(ends - 1) == LIMIT + 64
    assert queue.soon(ends) == LIMIT + more
    queue.began(ends)
    assert queue.soon(ends) == LIMIT - 1 + more


def test_one_that_waits_is_always_about_to_be_sent() -> None:
    queue = HostQueue("h", 1)
    for _ in range(100):
        queue.began(T)
    assert queue.soon(T) == 1


@pytest.mark.parametrize(
    ("late", "halvings"),
    [
        (0, 1),
        (WINDOW - 1, 1),
        (WINDOW, 2),
        (10 * WINDOW, 11),
        (19 * WINDOW, 20),
        (24 * WINDOW, 20),
    ],
)
def test_the_rate_halves_in_each_window_without_an_end_and_the_capacity_if_somebody_asked(
    late: Micros, halvings: int
) -> None:
    quiet, asked = [queue_called(*[(0, 2 * MILLISECOND)] * 10) for _ in range(2)]
    known = T + 2 * MILLISECOND + WINDOW
    for queue in (quiet, asked):
        queue.room(known, SHARED)
        assert figures(queue) == (200.0, 2000.0)
    asked.began(known)
    at = known + WINDOW + late
    assert quiet.room(at, ALONE) == LIMIT + 16_384
    assert figures(quiet) == (200 * 0.5**halvings, 2000.0)
    assert asked.soon(at) == LIMIT - 1 + max(LIMIT, int(20 * 0.5**halvings))
    assert figures(asked) == (200 * 0.5**halvings, 2000 * 0.5**halvings)


def test_a_host_that_does_not_answer_for_half_a_second_can_take_nothing() -> None:
    early, late, idle = HostQueue("e", LIMIT), HostQueue("l", LIMIT), HostQueue("i", LIMIT)
    for queue in (early, late):
        queue.room(T, SHARED)
        queue.began(T)
        queue.began(T + STALE - 1)
    assert early.room(T + STALE - 1, SHARED) == LIMIT - 2 + 1024
    assert late.room(T + STALE, SHARED) == LIMIT - 2
    one = HostQueue("o", LIMIT)
    one.room(T, SHARED)
    one.began(T)
    assert one.room(T + STALE, SHARED) == LIMIT - 1
    idle.room(T, SHARED)
    assert idle.room(T + STALE, SHARED) == LIMIT + 1024, "nobody asked it"


def test_a_silence_is_told_by_two_looks_at_a_host() -> None:
    queue = HostQueue("h", LIMIT)
    queue.began(T)
    assert queue.room(T + SECOND, SHARED) == LIMIT - 1 + 1024, "we may have been too busy to look"
    assert queue.room(T + SECOND + WINDOW, SHARED) == LIMIT - 1


def test_a_call_that_ends_with_its_window_counts_into_the_next() -> None:
    queue = queue_called((0, 20 * MILLISECOND), (60 * MILLISECOND, 10 * MILLISECOND))
    assert figures(queue) == (20.0, 200.0), "those of the first call alone"


@pytest.mark.parametrize(("lasted", "is_slow"), [(STALE - 1, False), (STALE, True)])
def test_a_host_is_slow_until_a_call_of_it_ends_sooner(lasted: Micros, is_slow: bool) -> None:
    queue = queue_called((0, lasted))
    assert queue.is_slow is is_slow
    assert queue.room(T + lasted, SHARED) == LIMIT + (0 if is_slow else 1024)
    queue.began(T + lasted)
    queue.ended(T + lasted, T + lasted + 1)
    assert not queue.is_slow


def test_a_host_is_prompt_by_its_last_call() -> None:
    queue = queue_called((0, STALE - 1))
    assert queue.is_prompt
    queue.began(T + SECOND)
    queue.ended(T + SECOND, T + SECOND + STALE)
    assert (queue.is_prompt, queue.is_slow) == (False, True)
    queue.is_prompt = True
    queue.mark_slow()
    assert (queue.is_prompt, queue.is_slow) == (False, True)
