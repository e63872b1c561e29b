"""The dispatcher alone: what is sent, what waits for a slot, and how the end of a call is told."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.engine.tasks import dispatcher as module
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.host_limits import STALE
from ksana.ports.caller import NOT_OURS, Reply, Timing
from tests.unit.delivery_ground import (
    a_called_task,
    answered,
)
from tests.unit.dispatcher_ground import Ground, run


@pytest.fixture
def ground(clock: VirtualClock) -> Ground:
    return Ground(clock)


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
        over.kept_headers,
        answered(201),
        began_at,
        began_at + 3 * SECOND,
    )
    assert over.kept_headers == '["ksana/9",1,{"X-Run":"1"}]'


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
