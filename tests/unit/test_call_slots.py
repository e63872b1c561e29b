"""Who sends next when call slots are short."""

from typing import NamedTuple

import pytest

from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.engine.tasks.host_limits import (
    KEPT_FOR,
    MAX_NAMELESS,
    NAMELESS,
    STALE,
    TRIED_FOR,
    CallSlots,
    HostQueue,
)

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


def prompt_queue() -> HostQueue:
    queue = HostQueue("prompt", LIMIT)
    queue.is_prompt = True
    return queue


@pytest.mark.parametrize(
    ("why", "fresh", "stale", "is_prompt", "has_slot"),
    [
        ("others leave an eighth", 13, 0, False, True),
        ("and take no more", 14, 0, False, False),
        ("which is for those that answer", 14, 0, True, True),
        ("up to the workers", 15, 0, True, True),
        ("and not beyond", 16, 0, True, False),
        ("a stale one counts for neither", 13, 1, False, True),
        ("but there an eighth is left, too", 14, 1, False, False),
        ("for these", 15, 1, True, True),
        ("twice the workers is the most", 0, 31, True, True),
        ("for everybody", 0, 32, True, False),
        ("with the eighth left", 0, 29, False, True),
        ("at that bound, too", 0, 30, False, False),
    ],
)
def test_an_eighth_of_the_slots_is_kept_for_hosts_that_answer_soon(
    why: str, fresh: int, stale: int, is_prompt: bool, has_slot: bool
) -> None:
    slots, _ = slots_with(*[STALE] * stale, *[0] * fresh, workers=16)
    assert slots.for_all == 14
    slots.prompt_mono = T
    queue = prompt_queue() if is_prompt else HostQueue("new", LIMIT)
    assert slots.has_slot(queue, T) is has_slot, why


def test_slow_hosts_leave_the_eighth_too() -> None:
    slots, _ = slots_with(*[0] * 14, workers=16)
    slow = queue_named("slow", is_slow=True)
    assert slots.has_slot(slow, T) is True, "no host answers soon: nothing is kept"
    slots.prompt_mono = T
    assert slots.has_slot(slow, T) is False


def test_slots_are_kept_while_calls_to_such_hosts_are_made() -> None:
    slots, _ = slots_with(*[0] * 14, workers=16)
    slots.prompt_mono = T - KEPT_FOR + 1
    assert slots.has_slot(HostQueue("new", LIMIT), T) is False
    slots.prompt_mono = T - KEPT_FOR
    assert slots.has_slot(HostQueue("new", LIMIT), T) is True
    first = CallSlots({1: Flying(HostQueue("h", LIMIT), 0)}, workers=8)
    assert first.has_slot(HostQueue("new", LIMIT), 0) is True, "nor before the first"


def test_hosts_that_answer_do_not_wait_behind_others() -> None:
    slots, _ = slots_with(*[0] * 16, workers=16)
    for queue in (queue_named("a"), queue_named("b"), queue_named("s", is_slow=True)):
        slots.wait_for_turn(queue, T)
    slots.wait_for_turn(prompt_queue(), T)
    slots._calls.pop(0)  # type: ignore[attr-defined]
    slots.prompt_mono = T
    found = slots.next_queue(T)
    assert found is not None
    assert found.host == "prompt"
    assert slots.next_queue(T) is None


def test_a_host_that_was_prompt_is_tried_before_it_waits_with_the_slow() -> None:
    queue = HostQueue("lagged", LIMIT)
    queue.began(0)
    queue.ended(0, 1)
    queue.mark_slow()
    slots, _ = slots_with(STALE, STALE, STALE)
    assert slots.has_slot(queue, T) is True
    slots.wait_for_turn(queue, T)
    slots.wait_for_turn(queue_named("slow", is_slow=True), T)
    assert list(slots._turn) == [queue]
    assert slots.next_queue(T) is queue
    queue.began(T)
    assert slots.has_slot(queue, T) is False, "one call at a time"
    queue.in_flight = 0
    assert queue.is_held_back(TRIED_FOR) is False
    assert queue.is_held_back(1 + TRIED_FOR) is True, "and for a minute"
    queue.is_slow = False
    assert queue.is_held_back(1 + TRIED_FOR) is False


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
        slots.wait_for_turn(queue, T)
        assert queue.is_in_turn
    assert slots.waiting == 3
    assert turns_of(slots) == ["a", "b", "c"]
    assert slots.waiting == 0


def test_slow_hosts_and_others_take_turns() -> None:
    slots, _ = slots_with()
    for name in "abc":
        slots.wait_for_turn(queue_named(name), T)
    for name in "xy":
        slots.wait_for_turn(queue_named(name, is_slow=True), T)
    assert turns_of(slots) == ["x", "a", "y", "b", "c"]


@pytest.mark.parametrize("looks", [1, 2])
def test_a_look_in_vain_takes_nobodys_turn(looks: int) -> None:
    slots, calls = slots_with(0, 0, 0)
    for name in "ab":
        slots.wait_for_turn(queue_named(name), T)
    for name in "xy":
        slots.wait_for_turn(queue_named(name, is_slow=True), T)
    found = []
    for _ in range(4):
        for _ in range(looks):
            assert slots.next_queue(T) is None
        call = calls.pop(0)
        found.append(slots.next_queue(T))
        calls[0] = call
    assert [queue.host for queue in found if queue] == ["x", "a", "y", "b"]


def test_slow_hosts_wait_while_others_go_where_only_stale_calls_make_way() -> None:
    slots, _ = slots_with(STALE, 0, 0)
    for name, is_slow in (("x", True), ("a", False), ("b", False)):
        slots.wait_for_turn(queue_named(name, is_slow=is_slow), T)
    assert turns_of(slots) == ["a", "b"]
    assert slots.waiting == 1


def test_a_host_that_became_slow_while_it_waited_lets_those_behind_it_go() -> None:
    slots, _ = slots_with(STALE, 0, 0)
    hosts = [queue_named(name) for name in ("first", "second", "last")]
    for host in hosts:
        slots.wait_for_turn(host, T)
    hosts[0].is_slow = hosts[2].is_slow = True
    assert turns_of(slots) == ["second"]
    assert slots.waiting == 2


def test_a_prompt_host_that_became_slow_takes_none_of_the_slots_kept_for_prompt_ones() -> None:
    slots, _ = slots_with(*[0] * 7, workers=8)
    slots.prompt_mono = T
    hosts = [queue_named(name) for name in ("late", "prompt")]
    for host in hosts:
        host.is_prompt = True
        slots.wait_for_turn(host, T)
    hosts[0].mark_slow()
    hosts[0]._prompt_until = T + SECOND  # its first late answer is forgiven: it is not held back
    assert turns_of(slots) == ["prompt"]
    assert slots.waiting == 1


def test_what_became_slow_goes_again_when_there_is_a_slot_for_all() -> None:
    slots, calls = slots_with(STALE, 0, 0)
    slots.wait_for_turn(host := queue_named("first"), T)
    host.is_slow = True
    assert slots.next_queue(T) is None
    calls.pop(0)
    assert slots.next_queue(T) is host
    assert slots.waiting == 0
