"""The dispatcher alone: nothing is sent above the watermark, and how many runs may be claimed."""

import pytest

from ksana.base.clock import VirtualClock
from ksana.domain.tasks.records import NODE_PLACE, QUEUE_PLACE
from ksana.engine.tasks.dispatcher import Watermark
from ksana.engine.tasks.host_limits import HostQueue
from ksana.ports.store import Share
from tests.unit.delivery_ground import (
    a_claim,
)
from tests.unit.dispatcher_ground import Ground, run


@pytest.fixture
def ground(clock: VirtualClock) -> Ground:
    return Ground(clock)


# The watermark


def test_nothing_is_sent_that_the_watermark_on_disk_does_not_cover(ground: Ground) -> None:
    ground.take(run(1), run(2), watermark=0)
    assert (ground.sent(), ground.told) == ([], ["blocked"]), "told once"
    ground.dispatcher.move_watermark(0)
    assert ground.sent() == []
    ground.dispatcher.move_watermark(1)
    assert ground.sent() == [1]
    assert ground.told == ["blocked", "first call", "blocked"]
    ground.take(run(3), watermark=2)
    assert ground.sent() == [1, 2], "what was stored with the third covers the second"


def test_a_host_that_waits_for_the_watermark_holds_up_no_other(ground: Ground) -> None:
    ground.take(run(9), run(1, "b"), watermark=5)
    assert ground.sent() == [1]


def test_the_watermark_only_rises() -> None:
    watermark, queue = Watermark(), HostQueue("h", 1)
    watermark.blocked[queue] = None
    assert watermark.move(0) == []
    assert watermark.move(7) == [queue]
    watermark.blocked[queue] = None
    assert watermark.move(7) == watermark.move(3) == []
    assert (watermark.stored, list(watermark.blocked)) == (7, [queue])


def known_queue(*run_ids: int) -> HostQueue:
    """A host of which two runs are sent soon."""
    queue = HostQueue("h", 1)
    queue.is_known = True
    queue.waiting.extend(a_claim(run_id) for run_id in run_ids)
    return queue


def test_the_watermark_goes_as_far_as_what_is_sent_soon() -> None:
    watermark = Watermark()
    gone, long, short = known_queue(1), known_queue(9, 5, 11), known_queue(4)
    watermark.watch([gone, long, short, known_queue()])
    assert watermark.count_waiting() == 5
    gone.waiting.clear()
    assert watermark.find_next(0) == 9
    watermark.move(8)
    assert watermark.find_next(0) == 9
    watermark.move(9)
    assert watermark.find_next(0) == 0
    long.waiting.popleft()
    assert watermark.find_next(0) == 11
    assert watermark.count_waiting() == 3


def test_without_runs_the_watermark_has_nowhere_to_go() -> None:
    assert (Watermark().find_next(0), Watermark().count_waiting()) == (0, 0)


# How many may be claimed


def take_all(ground: Ground, *hosts: str) -> int:
    budget = ground.dispatcher.slot_budget()
    return sum(budget.take(host) for host in hosts)


@pytest.mark.parametrize(
    ("is_stopped", "is_held", "taken"),
    [(False, True, 1), (True, True, 0), (False, False, 0), (True, False, 0)],
)
def test_runs_are_claimed_while_the_lease_is_held_and_nobody_stopped(
    ground: Ground, is_stopped: bool, is_held: bool, taken: int
) -> None:
    ground.dispatcher.is_stopped, ground.lease.held = is_stopped, is_held
    assert take_all(ground, "new") == taken
    assert ground.dispatcher.is_lease_held is is_held


def test_a_budget_is_of_the_lease_it_was_made_under(ground: Ground) -> None:
    assert ground.dispatcher.slot_budget().lease == ground.dispatcher.lease_generation == 3


def test_no_run_that_a_job_does_is_claimed_for_a_call(ground: Ground) -> None:
    assert take_all(ground, QUEUE_PLACE, NODE_PLACE, "a") == 1


@pytest.mark.parametrize(
    ("sole", "of", "ahead"), [(True, 3, 4096), (False, 1, 4096), (False, 2, 1024)]
)
def test_more_is_claimed_ahead_where_no_other_could_take_it(
    ground: Ground, sole: bool, of: int, ahead: int
) -> None:
    ground.store.sole, ground.lease.share = sole, Share(0, of)
    assert take_all(ground, *["new"] * 5000) == 2 + ahead
    assert ground.dispatcher.room_at("a") == (2 + ahead, 2 + 64)


def test_what_is_claimed_in_all_grows_with_the_workers_and_counts_what_waits(
    clock: VirtualClock,
) -> None:
    ground = Ground(clock, workers=300)
    ground.take(run(1), run(2), watermark=0)
    assert take_all(ground, *(f"h{n}" for n in range(20_000))) == 300 * 64 - 2


def test_what_waits_and_flies_at_a_host_leaves_less_room(clock: VirtualClock) -> None:
    ground = Ground(clock, workers=3)
    ground.take(run(1), run(2), run(3))
    assert ground.sent() == [1, 2]
    budget = ground.dispatcher.slot_budget()
    assert sum(budget.take("a") for _ in range(5000)) == 4096 - 1
    assert sum(budget.taken) == 64 - 1, "these begin soon"
    assert ground.dispatcher.room_at("a") == (4096 - 1, 64 - 1)
    ground.take(run(4, "b"))
    assert ground.dispatcher.room_at("a") == (0, 0), "all workers are busy"
