"""Delivery as one thing: its parts tell each other what they must know, and it stops in order. Then
the claimer and the watch for cancels, each pass by pass."""

import asyncio

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND
from ksana.domain.handover import HandedEnd
from ksana.domain.tasks.records import QUEUE_PLACE
from ksana.engine.core.pump import AGAIN
from ksana.engine.tasks.cancel_watch import LOOK_EVERY
from ksana.engine.tasks.claimed_run import claimed_run_of, reply_of, waiting_run_of
from ksana.engine.tasks.claimer import MAX_CLAIM
from ksana.engine.tasks.host_limits import STALE, STALE_LOOK
from ksana.engine.tasks.recorder import Recorded
from ksana.ports.caller import Reply, Timing
from tests.ground.task_rows import a_finish
from tests.unit.delivery_ground import Parts, a_claim, answered, is_signalled, step
from tests.unit.task_ground import NOW, a_claimed_run, a_run, a_task

NOTHING = Recorded(set(), False, [], 0)


@pytest.fixture
def parts(clock: VirtualClock) -> Parts:
    return Parts(clock)


def test_it_has_four_loops(parts: Parts) -> None:
    delivery = parts.delivery
    turns = delivery.dispatcher.turns
    loops = delivery.recorder.pump, delivery.claimer.pump, delivery.cancel_watch.pump, turns
    assert delivery.pumps == loops
    assert [pump.name for pump in loops] == ["outcomes", "claims", "cancels", "turns"]
    polls = [pump._poll_us // MILLISECOND for pump in loops]
    assert polls == [30_000, 5_000, 30_000, 30_000], "as the internals' page says"
    delays = [(pump.min_interval_us, pump._delay_us) for pump in loops]
    assert delays == [(4 * MILLISECOND, 0), (0, 0), (0, LOOK_EVERY), (0, STALE_LOOK)]


# What is told to whom


def test_what_is_claimed_is_sent(parts: Parts) -> None:
    parts.take(a_claim(1))
    assert (len(parts.caller.calls), is_signalled(parts.claimer.pump)) == (1, False)
    assert parts.delivery.in_flight == 1


def test_a_run_that_is_ready_is_claimed(parts: Parts) -> None:
    parts.delivery.ready("b")
    assert is_signalled(parts.claimer.pump)


@pytest.mark.parametrize(
    ("hosts", "wakes"), [(set(), False), ({"a"}, False), (set(), True), ({"a"}, True)]
)
def test_runs_that_were_moved_are_told_to_those_who_come_back_to_them(
    parts: Parts, hosts: set[str], wakes: bool
) -> None:
    woken: list[bool] = []
    parts.delivery.on_wakes = lambda: woken.append(True)
    parts.delivery.on_handled(hosts, wakes)
    assert (is_signalled(parts.claimer.pump), woken) == (bool(hosts), [True] * wakes)


@pytest.mark.parametrize(
    ("hosts", "wakes"), [(set(), False), ({"b"}, False), (set(), True), ({"b"}, True)]
)
async def test_what_a_commit_of_outcomes_came_to_is_passed_on(
    parts: Parts, hosts: set[str], wakes: bool
) -> None:
    woken: list[bool] = []
    parts.delivery.on_wakes = lambda: woken.append(True)
    parts.take(a_claim(7), watermark=0)
    parts.store.answer("record_outcomes", Recorded(hosts, wakes, [], 0, watermark=7))
    await step(parts.delivery.recorder.pump)
    assert len(parts.caller.calls) == 1, "the watermark is on disk"
    assert (is_signalled(parts.claimer.pump), woken) == (bool(hosts), [True] * wakes)


def test_a_run_that_is_blocked_has_the_watermark_written(parts: Parts) -> None:
    parts.take(a_claim(7), watermark=0)
    assert is_signalled(parts.delivery.recorder.pump)
    assert not is_signalled(parts.delivery.cancel_watch.pump)


def test_the_first_call_is_watched_for_cancels(parts: Parts) -> None:
    parts.take(a_claim(7))
    assert is_signalled(parts.delivery.cancel_watch.pump)


def test_an_abort_ends_a_call_and_is_told_to_those_who_wait_for_jobs(parts: Parts) -> None:
    told: list[int] = []
    parts.delivery.on_abort = told.append
    parts.take(a_claim(1))
    parts.delivery.abort(1)
    assert (parts.caller.calls[0].is_aborted, told) == (True, [1])


def test_the_runs_it_knows_are_those_in_flight_and_those_not_written_yet(parts: Parts) -> None:
    parts.take(a_claim(1), a_claim(2))
    parts.caller.calls[0].end(answered())
    assert parts.delivery.known_runs() == {1, 2}
    assert (parts.called_runs, parts.delivery.in_flight) == ([1], 1)


def test_runs_that_no_host_is_called_for_are_told_to_those_who_start_them(parts: Parts) -> None:
    started: list[str] = []
    parts.delivery.on_places[QUEUE_PLACE] = lambda: started.append(QUEUE_PLACE)
    parts.delivery.ready("place:nobody")
    parts.delivery.ready(QUEUE_PLACE)
    assert started == [QUEUE_PLACE]


# Stopping


async def test_a_drain_waits_until_what_was_claimed_is_sent_and_recorded(parts: Parts) -> None:
    parts.take(a_claim(1), a_claim(2), a_claim(3))
    draining = asyncio.ensure_future(parts.delivery.drain())
    for call in range(3):
        await parts.clock.settle()
        assert not draining.done()
        parts.caller.calls[call].end(answered())
    await parts.clock.settle()
    assert not draining.done(), "not written yet"
    parts.store.answer("record_outcomes", NOTHING)
    await step(parts.delivery.recorder.pump)
    await parts.clock.settle()
    assert draining.done()


async def test_a_drain_goes_on_waiting_when_one_of_several_is_recorded(parts: Parts) -> None:
    parts.take(a_claim(1), a_claim(2))
    draining = asyncio.ensure_future(parts.delivery.drain())
    await parts.clock.settle()
    parts.caller.calls[0].end(answered())
    parts.store.answer("record_outcomes", NOTHING)
    await step(parts.delivery.recorder.pump)
    await parts.clock.settle()
    assert not draining.done()
    assert parts.clock.next_deadline() == 50 * MILLISECOND, "it sleeps meanwhile"
    draining.cancel()


async def test_a_drain_claims_nothing_more(parts: Parts) -> None:
    parts.take(a_claim(1))
    assert parts.dispatcher.slot_budget().take("b")
    draining = asyncio.ensure_future(parts.delivery.drain())
    await parts.clock.settle()
    parts.claimer.add(["b"])
    assert await step(parts.claimer.pump) is None
    assert parts.store.asked == []
    assert not parts.dispatcher.slot_budget().take("b")
    draining.cancel()


async def test_a_drain_looks_again_without_being_told(parts: Parts) -> None:
    parts.take(a_claim(1))
    draining = asyncio.ensure_future(parts.delivery.drain())
    await parts.clock.settle()
    parts.dispatcher.in_flight.clear()
    await parts.clock.advance(50 * MILLISECOND - 1)
    assert not draining.done()
    await parts.clock.advance(1)
    assert draining.done()


async def test_calls_that_are_aborted_at_the_end_are_left_to_the_rescue_of_orphans(
    parts: Parts,
) -> None:
    parts.take(a_claim(1), a_claim(2))
    draining = asyncio.ensure_future(parts.delivery.drain())
    await parts.clock.settle()
    parts.delivery.close()
    assert parts.caller.is_closed
    for call in parts.caller.calls:
        call.end(Reply("aborted", Timing()))
    await parts.clock.settle()
    assert draining.done()
    assert (parts.delivery.known_runs(), parts.called_runs) == (set(), [1, 2])


async def test_once_closed_nothing_is_claimed_and_answers_that_came_are_recorded(
    parts: Parts,
) -> None:
    parts.take(a_claim(1))
    parts.delivery.close()
    parts.claimer.add(["b"])
    assert await step(parts.claimer.pump) is None
    assert parts.store.asked == []
    assert not parts.dispatcher.slot_budget().take("b")
    parts.caller.calls[0].end(answered())
    assert parts.delivery.known_runs() == {1}


def test_a_call_that_is_aborted_while_it_goes_on_is_recorded(parts: Parts) -> None:
    parts.take(a_claim(1))
    parts.caller.calls[0].end(Reply("aborted", Timing()))
    assert parts.delivery.known_runs() == {1}


# The claimer


async def test_the_poll_reads_which_hosts_have_ready_runs(parts: Parts) -> None:
    parts.store.answer("_list_ready_hosts", ["b"])
    parts.store.answer("claim_ready", ([], 0))
    assert await step(parts.claimer.pump) is None
    assert parts.store.names() == ["_list_ready_hosts", "claim_ready"]
    parts.store.answer("_list_ready_hosts", [])
    assert await step(parts.claimer.pump) is None
    assert parts.store.names() == ["_list_ready_hosts"], "it was taken from the list"


async def test_what_is_claimed_is_sent_under_the_lease_it_was_claimed_under(parts: Parts) -> None:
    parts.claimer.add(["a"])
    parts.store.answer("claim_ready", ([a_claim(5)], 5))
    assert await step(parts.claimer.pump) is None
    [(name, (host, instance_id, tokens, soon, lease))] = parts.store.asked
    assert (name, host, instance_id, soon, lease) == ("claim_ready", "a", "me", 2 + 64, 3)
    assert len(set(tokens)) == MAX_CLAIM, "so many at once"
    assert len(parts.caller.calls) == 1, "the watermark came with it"


async def test_a_host_of_which_all_that_fits_was_claimed_is_asked_for_again(parts: Parts) -> None:
    queue = parts.dispatcher.queue_of("a")
    queue.is_slow = True  # nothing is claimed ahead: two slots
    parts.claimer.add(["a"])
    parts.store.answer("claim_ready", ([a_claim(5), a_claim(6)], 0), ([], 0))
    assert await step(parts.claimer.pump) == AGAIN
    assert len(parts.store.asked[0][1][2]) == 2
    assert parts.dispatcher.on_free is not None, "a slot that comes free is waited for"
    assert await step(parts.claimer.pump) is None
    assert len(parts.store.asked) == 1, "no room, nothing asked"
    queue.waiting.pop()
    assert await step(parts.claimer.pump) is None
    assert len(parts.store.asked[1][1][2]) == 1
    assert parts.dispatcher.on_free is None, "all were claimed"


async def test_a_host_without_a_slot_waits_and_holds_up_no_other(parts: Parts) -> None:
    full = parts.dispatcher.queue_of("full")
    full.is_slow = True
    full.waiting.extend([a_claim(1, "full"), a_claim(2, "full")])
    parts.claimer.add(["full", "b"])
    parts.store.answer("claim_ready", ([], 0))
    assert await step(parts.claimer.pump) is None
    assert [args[0] for _, args in parts.store.asked] == ["b"]
    assert not is_signalled(parts.claimer.pump)
    parts.claimer.look_again()
    assert is_signalled(parts.claimer.pump), "the full one still waits"


async def test_without_hosts_that_wait_a_free_slot_is_no_news(parts: Parts) -> None:
    parts.claimer.look_again()
    assert not is_signalled(parts.claimer.pump)
    assert parts.dispatcher.on_free is None
    parts.claimer.add(["a"])
    assert parts.dispatcher.on_free is not None


@pytest.mark.parametrize(
    ("is_stopped", "is_held", "asked"),
    [(False, True, 1), (True, True, 0), (False, False, 0), (True, False, 0)],
)
async def test_nothing_is_claimed_once_it_stopped_or_while_the_lease_is_lost(
    parts: Parts, is_stopped: bool, is_held: bool, asked: int
) -> None:
    parts.claimer.add(["a"])
    parts.lease.held = is_held
    if is_stopped:
        parts.claimer.stop()
    parts.store.answer("claim_ready", ([], 0))
    assert await step(parts.claimer.pump) is None
    assert len(parts.store.asked) == asked


# Cancels made elsewhere


async def test_calls_whose_run_was_taken_away_are_aborted(parts: Parts) -> None:
    watch = parts.delivery.cancel_watch
    assert await step(watch.pump) is None
    assert parts.store.asked == [], "no calls, nothing to ask"
    parts.take(a_claim(1, token=11))
    await parts.clock.advance(1)
    parts.take(a_claim(2, token=12))
    await parts.clock.advance(LOOK_EVERY // 2)
    assert parts.store.asked == []
    parts.store.answer("_list_void", [1])
    assert await step(watch.pump) == parts.clock.now() + LOOK_EVERY
    assert parts.store.asked == [("_list_void", ([(1, 11)],))], "the second just began"
    assert [call.is_aborted for call in parts.caller.calls] == [True, False]
    for call in parts.caller.calls:
        call.end(answered())
    assert await step(watch.pump) is None


async def test_the_slots_of_stale_calls_are_given_to_others_in_time(parts: Parts) -> None:
    turns = parts.delivery.dispatcher.turns
    parts.take(a_claim(1), a_claim(2))
    assert not is_signalled(turns), "there was a slot for each"
    parts.take(a_claim(3, "b"))
    assert is_signalled(turns)
    assert len(parts.caller.calls) == 2
    assert await step(turns) == parts.clock.now() + STALE_LOOK, "none is stale: look again"
    await parts.clock.advance(STALE)
    assert await step(turns) is None, "nobody waits"
    assert len(parts.caller.calls) == 3


async def test_a_look_at_calls_asks_for_those_that_wait_in_the_store(parts: Parts) -> None:
    parts.take(a_claim(1))
    parts.claimer.add(["c"])
    await parts.clock.advance(STALE)
    parts.store.answer("_list_void", [])
    parts.claimer.pump._wake.clear()
    await step(parts.delivery.cancel_watch.pump)
    assert is_signalled(parts.claimer.pump)


# Runs on their way


def test_a_run_that_was_taken_has_what_delivery_needs() -> None:
    task, run = a_task(), a_run(attempts="[]", callback_hash="h", override_body="own")
    change = a_finish(60, 5, 7, new_token=9, attempt=1)
    due = claimed_run_of(run, task, change, "me", 3)
    assert due == a_claimed_run(
        task,
        token=9,
        attempt=1,
        held_by="me",
        callback_hash="h",
        override_body="own",
        lease=3,
        due_at=NOW,
        attempts="[]",
    )
    again = claimed_run_of(run, task, a_finish(60, 5, 7, attempt=2), "me", 3)
    assert (again.attempt, again.due_at) == (2, None), "a retry is not late"


def test_a_run_that_waits_for_its_job_is_as_it_stands() -> None:
    task = a_task()
    assert waiting_run_of(a_run(override_body="own"), task, "me") == a_claimed_run(
        task, held_by="me", override_body="own", attempts='[{"attempt":1}]'
    )


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("done", "answered"),
        ("canceled", "answered"),
        ("failed", "refused"),
        ("timeout", "refused"),
        ("lost", "refused"),
        ("gave_up", "refused"),
    ],
)
@pytest.mark.parametrize(("lasted", "total_ms"), [(2500, 2.5), (1, 0.001), (0, 0.0), (-5, 0.0)])
def test_the_end_of_a_job_is_told_as_a_reply(
    kind: str, shown: str, lasted: int, total_ms: float
) -> None:
    end = HandedEnd(kind, "why")  # type: ignore[arg-type]
    assert reply_of(end, NOW, NOW + lasted) == Reply(
        shown,  # type: ignore[arg-type]
        Timing(total_ms=total_ms),
        error="why",
        sends=0,
    )
