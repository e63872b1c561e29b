"""Sets of single writes: how long one is filled, how many are under way, who gives up, and what one
may weigh."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, StoreDownError
from ksana.base.instant import SECOND
from ksana.service.core.batching import MAX_WEIGHT, TURNS
from tests.unit.batching_ground import begin, make, make_quick


@pytest.mark.parametrize("turns", [1, 2, TURNS])
async def test_a_batch_is_filled_while_each_turn_of_the_loop_brings_more(turns: int) -> None:
    ledger, batcher = make_quick()
    answers = []
    for turn in range(turns):
        answers += [batcher.add(100 + turn), batcher.add(200 + turn)]
        await asyncio.sleep(0)
    await asyncio.gather(*answers)
    assert [len(one) for one in ledger.sets] == [2 * turns]


async def test_a_batch_is_not_filled_for_ever() -> None:
    ledger, batcher = make_quick()
    answers = []
    for turn in range(3 * TURNS):
        answers.append(batcher.add(100 + turn))
        await asyncio.sleep(0)
    await asyncio.gather(*answers)
    assert len(ledger.sets[0]) == TURNS + 1


async def test_a_lone_item_waits_for_a_turn_and_no_longer() -> None:
    ledger, batcher = make_quick()
    lone = batcher.add(1)
    await asyncio.sleep(0)
    assert ledger.sets == []
    await asyncio.sleep(0)
    assert ledger.sets == [[1]]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    late = batcher.add(2)
    assert [await lone, await late] == ["made 1", "made 2"]
    assert ledger.sets == [[1], [2]]
    await asyncio.sleep(0)
    assert not batcher._under_way


async def test_who_follows_a_lone_item_does_not_wait_until_there_are_several_again() -> None:
    ledger, batcher = make_quick()
    await batcher.add(1)
    second = batcher.add(2)
    await asyncio.sleep(0)
    assert ledger.sets == [[1], [2]], "nobody came with the first"
    answers = [second, batcher.add(3), batcher.add(4)]
    await asyncio.gather(*answers)
    assert ledger.sets == [[1], [2], [3, 4]]
    answers = [batcher.add(5)]
    await asyncio.sleep(0)
    assert len(ledger.sets) == 3, "there may be more of them"
    answers.append(batcher.add(6))
    await asyncio.gather(*answers)
    assert ledger.sets == [[1], [2], [3, 4], [5, 6]]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_after_some_have_ended_still_only_so_many_are_under_way(at_once: int) -> None:
    store, ledger, batcher = make(at_once=at_once)
    for round_ in range(3):
        under_way = []
        answers = []
        for nth in range(at_once):
            answers.append(batcher.add(100 * round_ + 20 + nth))
            under_way.append(await begin(store))
        answers.append(batcher.add(100 * round_ + 50))
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.waiting.empty()
        for made, answer in under_way:
            answer.set_result(made)
        await store.run_next()
        await asyncio.gather(*answers)
    assert len(ledger.sets) == 3 * (at_once + 1)


async def test_who_comes_later_and_waits_less_is_answered_in_its_time() -> None:
    clock = VirtualClock()
    store, _, batcher = make(at_once=1, clock=clock, late="too late")
    first = batcher.add(0)
    made, answer = await begin(store)
    patient = batcher.add(1, until=clock.now() + 20 * SECOND)
    await clock.advance(SECOND)
    hurried = batcher.add(2, until=clock.now() + SECOND)
    await clock.advance(SECOND - 1)
    assert not hurried.done()
    await clock.advance(1)
    assert hurried.done() and not patient.done()
    await clock.advance(18 * SECOND)
    assert [await hurried, await patient] == ["too late", "too late"]
    answer.set_result(made)
    assert await first == "made 0"


@pytest.mark.parametrize("how", [{"clock": VirtualClock()}, {"late": "too late"}])
async def test_without_a_clock_or_an_answer_for_who_is_late_nobody_gives_up(
    how: dict[str, Any],
) -> None:
    clock = how.get("clock") or VirtualClock()
    store, _, batcher = make(at_once=1, **how)
    first = batcher.add(0)
    made, answer = await begin(store)
    second = batcher.add(1, until=clock.now() + SECOND)
    await clock.advance(5 * SECOND)
    assert not second.done()
    answer.set_result(made)
    await store.run_next()
    assert [await first, await second] == ["made 0", "made 1"]


async def test_a_caller_who_has_gone_meanwhile_is_not_answered_that_it_is_late() -> None:
    clock = VirtualClock()
    store, ledger, batcher = make(at_once=1, clock=clock, late="too late")
    first = batcher.add(0)
    made, answer = await begin(store)
    gone = batcher.add(1, until=clock.now() + SECOND)
    stays = batcher.add(2, until=clock.now() + 9 * SECOND)
    gone.cancel()
    await clock.advance(2 * SECOND)
    answer.set_result(made)
    await store.run_next()
    assert [await first, await stays] == ["made 0", "made 2"]
    assert ledger.sets == [[0], [2]]


def test_a_batcher_that_outlives_its_event_loop_begins_anew() -> None:
    store, ledger, batcher = make(at_once=1)

    async def leave_some_behind() -> None:
        batcher.add(1)
        await begin(store)
        for number in (2, 5):  # each a set of its own, in line behind the first
            batcher.add(number, MAX_WEIGHT)
        for _ in range(20):
            await asyncio.sleep(0)

    async def go_on() -> list[str]:
        store.waiting = asyncio.Queue()
        done = []
        for number in (3, 4):
            answer = batcher.add(number)
            await store.run_next()
            done.append(await asyncio.wait_for(answer, 5))
        return done

    asyncio.run(leave_some_behind())
    assert asyncio.run(go_on()) == ["made 3", "made 4"]
    assert ledger.sets == [[1], [3], [4]]


async def test_a_store_that_is_down_is_told_to_who_is_still_there() -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(1), batcher.add(2)]
    answers[0].cancel()
    error = StoreDownError("away")
    await store.run_next(error=error)
    done = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert done[1] is error
    assert ledger.told == []


@pytest.mark.parametrize("drops_gone", [False, True])
async def test_who_has_gone_when_a_batch_has_failed_is_left_out_where_that_is_asked_for(
    drops_gone: bool,
) -> None:
    store, ledger, batcher = make(drops_gone=drops_gone)
    answers = [batcher.add(number) for number in (12, 13, 14, 15)]
    await store.run_next()
    answers[0].cancel()
    apart = [[13], [14], [15]] if drops_gone else [[12], [13], [14], [15]]
    for _ in apart:
        await store.run_next()
    done = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 5)
    assert isinstance(done[1], ConflictError)
    assert done[2:] == ["made 14", "made 15"]
    assert ledger.sets == [[12, 13, 14, 15], *apart]
    assert ledger.told == ([14, 15] if drops_gone else [12, 14, 15])


async def test_one_alone_that_fails_is_not_tried_again() -> None:
    store, ledger, batcher = make()
    answer = batcher.add(13)
    await store.run_next()
    [error] = await asyncio.gather(answer, return_exceptions=True)
    assert isinstance(error, ConflictError)
    for _ in range(20):
        await asyncio.sleep(0)
    assert store.waiting.empty()
    assert (ledger.sets, ledger.told) == ([[13]], [])


@pytest.mark.parametrize(
    ("weights", "sets"),
    [
        ([MAX_WEIGHT, 0], [[0, 1]]),
        ([MAX_WEIGHT, 1], [[0], [1]]),
        ([MAX_WEIGHT - 1, 1, 1], [[0, 1], [2]]),
        ([MAX_WEIGHT + 1], [[0]]),
        ([0, MAX_WEIGHT + 1], [[0], [1]]),
    ],
)
async def test_a_batch_weighs_a_thousand_at_most(weights: list[int], sets: list[list[int]]) -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(number, weight) for number, weight in enumerate(weights)]
    for _ in sets:
        await store.run_next()
    await asyncio.gather(*answers)
    assert ledger.sets == sets
