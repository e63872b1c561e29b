"""How many calls a host may have, how many runs are claimed for it ahead, and who sends next when
call slots are short."""

from typing import NamedTuple

import pytest

from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.engine.tasks.host_limits import (
    ALONE,
    MAX_NAMELESS,
    NAMELESS,
    SHARED,
    STALE,
    CallSlots,
    HostQueue,
    SlotBudget,
)
from tests.unit.task_ground import a_claimed_run

pytestmark = pytest.mark.spec("T14")

T = 10 * SECOND
WINDOW = 50 * MILLISECOND
LIMIT = 4


class Flying(NamedTuple):
    """A call in flight, which is a call itself."""

    queue: HostQueue
    since_mono: Micros
    is_resolving: bool = False

    @property
    def call(self) -> "Flying":
        return self

    def abort(self) -> None: ...


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


# Who sends when slots are short


def slots_with(
    *ages: Micros, workers: int = 3, names: int = 0
) -> tuple[CallSlots, dict[int, Flying]]:
    """Slots whose calls have these ages at T, the oldest first; `names` more wait for names."""
    calls = [Flying(HostQueue("n", LIMIT), T - NAMELESS, is_resolving=True)] * names
    calls += [Flying(HostQueue("h", LIMIT), T - age) for age in ages]
    flying = dict(enumerate(sorted(calls, key=lambda one: one.since_mono)))
    return CallSlots(flying, workers), flying


@pytest.mark.parametrize(
    ("why", "fresh", "stale", "names", "has_slot"),
    [
        ("a worker is free", 2, 0, 0, True),
        ("all are busy", 3, 0, 0, False),
        ("a stale one does not count", 2, 1, 0, True),
        ("but only one is", 3, 1, 0, False),
        ("up to twice the workers", 0, 5, 0, True),
        ("and not beyond", 0, 6, 0, False),
        ("who waits for a name has no slot", 2, 0, 1, True),
        ("nor have two", 1, 0, 2, True),
        ("the others have", 3, 0, 5, False),
        ("names add nothing to the bound", 0, 6, 1, False),
        ("so many names are let be", 2, 0, MAX_NAMELESS, True),
        ("more of them take slots", 2, 0, MAX_NAMELESS + 1, False),
    ],
)
def test_a_host_that_answers_finds_a_slot(
    why: str, fresh: int, stale: int, names: int, has_slot: bool
) -> None:
    slots, _ = slots_with(*[STALE] * stale, *[0] * fresh, names=names)
    assert slots.has_slot(HostQueue("new", LIMIT), T) is has_slot, why


def test_a_slow_host_has_a_share_of_the_workers_alone() -> None:
    slow = HostQueue("slow", LIMIT)
    slow.is_slow = True
    assert slots_with(STALE, STALE)[0].has_slot(slow, T) is True
    assert slots_with(STALE, STALE, STALE)[0].has_slot(slow, T) is False


@pytest.mark.parametrize(
    ("age", "is_resolving", "is_slow"),
    [
        (NAMELESS - 1, True, False),
        (NAMELESS, True, True),
        (NAMELESS, False, False),
        (STALE - 1, False, False),
        (STALE, False, True),
    ],
)
def test_a_call_makes_its_host_slow_by_its_age(
    age: Micros, is_resolving: bool, is_slow: bool
) -> None:
    flying = Flying(HostQueue("h", LIMIT), T - age, is_resolving)
    slots = CallSlots({1: flying}, workers=1)
    assert slots.has_slot(HostQueue("new", LIMIT), T) is is_slow
    assert flying.queue.is_slow is is_slow


def test_calls_are_looked_at_twenty_times_a_second_at_most() -> None:
    hangs, lags = HostQueue("hangs", LIMIT), HostQueue("lags", LIMIT)
    calls = {1: Flying(hangs, -SECOND), 2: Flying(lags, WINDOW + 1 - STALE)}
    slots, new = CallSlots(calls, workers=2), HostQueue("new", LIMIT)
    assert slots.has_slot(new, WINDOW - 1) is False
    assert slots.has_slot(new, WINDOW) is True, "one of two is stale"
    calls[3] = Flying(new, WINDOW)
    assert slots.has_slot(new, 2 * WINDOW - 1) is False
    assert slots.has_slot(new, 2 * WINDOW) is True, "two of three are"


def queue_named(name: str, *, is_slow: bool = False) -> HostQueue:
    queue = HostQueue(name, LIMIT)
    queue.is_slow = is_slow
    return queue


def turns_of(slots: CallSlots) -> list[str]:
    """Whose turn it is, until it is nobody's."""
    found = []
    while (queue := slots.next_queue(T)) is not None:
        assert not queue.is_in_turn
        found.append(queue.host)
    return found


def test_hosts_wait_in_the_order_they_came_each_once() -> None:
    slots, _ = slots_with()
    queues = [queue_named(name) for name in "abc"]
    for queue in (*queues, queues[0], queues[2]):
        slots.wait_for_turn(queue)
        assert queue.is_in_turn
    assert slots.waiting == 3
    assert turns_of(slots) == ["a", "b", "c"]
    assert slots.waiting == 0


def test_slow_hosts_and_others_take_turns() -> None:
    slots, _ = slots_with()
    for name in "abc":
        slots.wait_for_turn(queue_named(name))
    for name in "xy":
        slots.wait_for_turn(queue_named(name, is_slow=True))
    assert turns_of(slots) == ["x", "a", "y", "b", "c"]


def test_slow_hosts_wait_while_others_go_where_only_stale_calls_make_way() -> None:
    slots, _ = slots_with(STALE, 0, 0)
    for name, is_slow in (("x", True), ("a", False), ("b", False)):
        slots.wait_for_turn(queue_named(name, is_slow=is_slow))
    assert turns_of(slots) == ["a", "b"]
    assert slots.waiting == 1


def test_a_host_that_became_slow_while_it_waited_holds_up_those_behind_it() -> None:
    slots, _ = slots_with(STALE, 0, 0)
    first, last = queue_named("first"), queue_named("last")
    slots.wait_for_turn(first)
    slots.wait_for_turn(last)
    last.is_slow = True
    assert turns_of(slots) == ["first"]
    assert slots.waiting == 1
