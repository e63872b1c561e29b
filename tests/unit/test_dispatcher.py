"""The dispatcher alone: what is sent, what waits and for what, and how the end of a call is
told."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.domain.tasks.records import NODE_PLACE, QUEUE_PLACE, ClaimedRun
from ksana.engine.tasks import dispatcher as module
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.dispatcher import Dispatcher, Watermark
from ksana.engine.tasks.host_limits import STALE, HostQueue
from ksana.ports.caller import NOT_OURS, Reply, Timing
from ksana.ports.store import Share
from tests.unit.delivery_ground import (
    HeldLease,
    ManualCall,
    ManualCaller,
    ScriptedStore,
    a_called_task,
    a_claim,
    answered,
)

ALL = 1_000_000
"""A watermark above every run."""


class Ground:
    """A dispatcher and all it is told."""

    def __init__(self, clock: VirtualClock, workers: int = 2, per_host: int = 2) -> None:
        self.clock = clock
        self.store = ScriptedStore()
        self.lease = HeldLease()
        self.caller = ManualCaller()
        self.overs: list[AttemptOver] = []
        self.told: list[str] = []
        self.dispatcher = Dispatcher(
            self.store,  # type: ignore[arg-type]
            clock,
            lambda: self.caller,
            self.lease,
            self.overs.append,
            workers=workers,
            per_host=per_host,
            callback_base="http://ksana",
            agent="ksana/9",
        )
        self.dispatcher.on_blocked = lambda: self.told.append("blocked")
        self.dispatcher.on_first_call = lambda: self.told.append("first call")

    def take(self, *runs: ClaimedRun, watermark: int = ALL) -> None:
        self.dispatcher.take(list(runs), watermark)

    def sent(self) -> list[int]:
        """The runs that were sent, in order."""
        return [int(dict(call.request.headers)["X-Run"]) for call in self.caller.calls]

    def call_of(self, run_id: int) -> ManualCall:
        return self.caller.calls[self.sent().index(run_id)]

    def end(self, run_id: int, reply: Reply | None = None) -> None:
        self.call_of(run_id).end(reply or answered())

    async def pass_time(self, us: int) -> None:
        await self.clock.advance(us)


TASKS = {host: a_called_task(host, headers={"X-Run": "{{run_id}}"}) for host in "abcd"}


def run(run_id: int, host: str = "a", **members: Any) -> ClaimedRun:
    return a_claim(run_id, host, task=members.pop("task", TASKS[host]), **members)


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


# Slots


def test_a_host_has_so_many_calls_at_once_and_the_next_goes_when_one_ends(
    clock: VirtualClock,
) -> None:
    ground = Ground(clock, workers=9)
    ground.take(run(1), run(2), run(3), run(4))
    assert ground.sent() == [1, 2]
    ground.end(2)
    assert ground.sent() == [1, 2, 3]
    assert ground.dispatcher.known_runs() == {1, 3, 4}


def test_workers_are_shared_by_turns_one_call_each(ground: Ground) -> None:
    ground.take(run(1), run(2), run(3), run(4), run(5, "b"), run(6, "b"), run(7, "c"))
    assert ground.sent() == [1, 2]
    for ended, next_one in [(1, 5), (2, 7), (5, 3), (7, 6), (3, 4)]:
        ground.end(ended)
        assert ground.sent()[-1] == next_one, f"after {ended}"
    ground.end(6)
    ground.end(4)
    assert ground.dispatcher.is_idle


def test_a_turn_gives_no_host_more_calls_than_it_may_have(clock: VirtualClock) -> None:
    ground = Ground(clock, workers=2, per_host=1)
    ground.take(run(1), run(2), run(3), run(4, "b"), run(5, "c"))
    assert ground.sent() == [1, 4]
    ground.end(1)
    ground.end(4)
    assert ground.sent() == [1, 4, 5, 2]
    ground.end(5)
    assert ground.sent() == [1, 4, 5, 2], "a has its one call; the third run waits for its end"
    ground.end(2)
    assert ground.sent() == [1, 4, 5, 2, 3]


async def test_stale_calls_make_way_for_hosts_that_answer(ground: Ground) -> None:
    ground.take(run(1, "b"), run(2, "b"), run(3))
    assert ground.sent() == [1, 2]
    await ground.pass_time(STALE)
    ground.take(run(4))
    assert ground.sent() == [1, 2, 3, 4], "two of two calls hang"
    ground.dispatcher.give_turns()
    assert ground.sent() == [1, 2, 3, 4], "the turn of a comes, and nothing of it waits"


async def test_turns_are_given_as_calls_become_stale(ground: Ground) -> None:
    ground.take(run(1, "b"), run(2, "b"), run(3), run(4))
    ground.dispatcher.give_turns()
    assert ground.sent() == [1, 2]
    await ground.pass_time(STALE)
    ground.dispatcher.give_turns()
    assert ground.sent() == [1, 2, 3, 4]


def test_a_turn_waits_for_the_watermark_too_and_lets_others_pass(ground: Ground) -> None:
    ground.take(run(1, "d"), run(2, "d"), watermark=2)
    ground.take(run(9), run(3, "b"), run(99, "b"), watermark=3)
    ground.told.clear()
    ground.end(1)
    assert (ground.sent(), ground.told) == ([1, 2, 3], ["blocked"])
    ground.end(3)
    assert ground.sent() == [1, 2, 3]
    ground.dispatcher.move_watermark(9)
    assert ground.sent() == [1, 2, 3, 9], "exactly so far is far enough"


def test_a_host_is_filled_when_nobody_waits_for_a_turn(ground: Ground) -> None:
    ground.take(run(1), run(2), run(5), run(99), watermark=5)
    ground.end(1)
    assert ground.sent() == [1, 2, 5]


def test_a_free_slot_is_told_when_nothing_more_waits_for_its_host(ground: Ground) -> None:
    freed: list[int] = []
    ground.take(run(1), run(2), run(3))
    ground.end(1)
    ground.dispatcher.on_free = lambda: freed.append(len(ground.dispatcher.in_flight))
    ground.take(run(4))
    ground.end(2)
    assert freed == [2], "the fourth went at once and nothing is left"
    ground.take(run(5))
    ground.take(run(6), watermark=0)
    ground.end(3)
    assert freed == [2], "the sixth still waits here"


def test_the_first_call_is_told_and_no_other_while_it_flies(ground: Ground) -> None:
    ground.take(run(1), run(2))
    assert ground.told == ["first call"]
    ground.end(1)
    ground.end(2)
    ground.take(run(3))
    assert ground.told == ["first call", "first call"]


# Who is known


def test_an_abort_ends_the_call_of_its_run_alone(ground: Ground) -> None:
    ground.take(run(1), run(2))
    ground.dispatcher.abort(2)
    ground.dispatcher.abort(77)
    assert [call.is_aborted for call in ground.caller.calls] == [False, True]


def test_it_is_idle_when_nothing_flies_and_nothing_waits(ground: Ground) -> None:
    assert ground.dispatcher.is_idle is True
    ground.dispatcher.queue_of("b")
    ground.take(run(1), watermark=0)
    assert (ground.dispatcher.is_idle, ground.dispatcher.known_runs()) == (False, {1})
    ground.dispatcher.move_watermark(1)
    assert (ground.dispatcher.is_idle, ground.dispatcher.known_runs()) == (False, {1})
    flying = ground.dispatcher.in_flight[1]
    assert (flying.token, flying.started_at) == (5, ground.clock.now())
    ground.end(1)
    assert (ground.dispatcher.is_idle, ground.dispatcher.known_runs()) == (True, set())


def test_closing_ends_what_the_caller_has_if_there_was_a_call(ground: Ground) -> None:
    ground.dispatcher.close()
    assert not ground.caller.is_closed
    ground.take(run(1))
    ground.dispatcher.close()
    assert ground.caller.is_closed


def test_hosts_with_nothing_to_do_are_forgotten_when_there_are_many(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_IDLE_HOSTS", 5)
    ground.take(run(1), run(2, "b"), run(3, "c"))
    ground.take(run(999_999_999, "d"), watermark=0)
    busy = {host: ground.dispatcher.queue_of(host) for host in "abcd"}
    in_turn = busy["c"]
    in_turn.waiting.clear()
    assert in_turn.is_in_turn
    idle = ground.dispatcher.queue_of("idle")
    assert ground.dispatcher.queue_of("idle") is idle
    ground.dispatcher.queue_of("one more")
    assert ground.dispatcher.queue_of("idle") is not idle
    assert {host: ground.dispatcher.queue_of(host) for host in "abcd"} == busy


# How an attempt ended


def test_an_attempt_is_told_with_its_request_and_its_times(ground: Ground) -> None:
    claimed = run(1)
    ground.take(claimed)
    began_at = ground.clock.now()
    ground.clock.step(3 * SECOND)
    ground.end(1, answered(201))
    [over] = ground.overs
    assert over == AttemptOver(
        claimed,
        ground.call_of(1).request,
        over.shown_headers,
        answered(201),
        began_at,
        began_at + 3 * SECOND,
    )
    assert msgspec.json.decode(over.shown_headers or "")["X-Run"] == "1"


def test_no_attempt_ends_before_it_began(ground: Ground) -> None:
    ground.take(run(1))
    began_at = ground.clock.now()
    ground.clock.step(-3 * SECOND)
    ground.end(1)
    assert (ground.overs[0].started_at, ground.overs[0].ended_at) == (began_at, began_at)


def test_a_run_of_an_older_lease_is_given_back_unsent(ground: Ground) -> None:
    ground.take(run(1, lease=2), run(2))
    assert ground.sent() == [2]
    now = ground.clock.now()
    reply = Reply("aborted", Timing(), error=NOT_OURS, sends=0)
    assert ground.overs == [AttemptOver(run(1, lease=2), None, None, reply, now, now)]


def test_a_request_that_cannot_be_made_fails_its_own_run(ground: Ground) -> None:
    bad = run(1, task=a_called_task("a", target_url=""))
    ground.take(bad, run(2))
    assert ground.sent() == [2]
    now = ground.clock.now()
    why = "the request cannot be made: the task is of type http since this run was made"
    reply = Reply("refused", Timing(), error=why, sends=0)
    assert ground.overs == [AttemptOver(bad, None, None, reply, now, now)]


@pytest.mark.parametrize(
    ("kind", "sends", "is_held", "is_attempt"),
    [
        ("aborted", 0, False, False),
        ("aborted", 0, True, True),
        ("aborted", 1, False, True),
        ("timeout", 0, False, True),
        ("answered", 1, True, True),
    ],
)
def test_what_was_held_back_because_the_lease_was_lost_was_no_attempt(
    ground: Ground, kind: Any, sends: int, is_held: bool, is_attempt: bool
) -> None:
    ground.take(run(1))
    ground.lease.held = is_held
    assert ground.call_of(1).may_send() is is_held
    ground.end(1, Reply(kind, Timing(), sends=sends))
    assert (ground.overs[0].request is not None) is is_attempt


def test_what_a_target_repeats_of_its_secrets_is_masked_before_anybody_sees_it(
    ground: Ground,
) -> None:
    headers = {"X-Run": "1", "X-Api-Key": "key-of-mine"}
    ground.take(run(1, task=a_called_task("a", headers=headers)))
    ground.end(1, answered(body=b"you sent key-of-mine"))
    assert ground.overs[0].reply.body == b"you sent ***"
