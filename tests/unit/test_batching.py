"""Single writes entered as one set: each gets its own answer, whatever becomes of the others."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, StoreDownError
from ksana.base.instant import SECOND
from ksana.service.core.batching import MAX_ITEMS, MAX_WEIGHT, Batcher
from tests.unit.batching_ground import Ledger, QuickStore, make


async def test_what_comes_in_the_same_moment_is_one_transaction_and_each_gets_its_own() -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(number) for number in range(5)]
    await store.run_next()
    assert await asyncio.gather(*answers) == [f"made {number}" for number in range(5)]
    assert ledger.sets == [[0, 1, 2, 3, 4]]
    assert ledger.told == [0, 1, 2, 3, 4]
    assert store.waiting.empty()


async def test_a_batch_takes_more_until_the_writer_takes_it_up_and_nothing_after() -> None:
    store, ledger, batcher = make()
    first = batcher.add(1)
    for _ in range(20):
        await asyncio.sleep(0)
    second = batcher.add(2)  # the writer has not begun
    await store.run_next()
    third = batcher.add(3)
    assert [await first, await second] == ["made 1", "made 2"]
    await store.run_next()
    assert await third == "made 3"
    assert ledger.sets == [[1, 2], [3]]


async def test_a_transaction_that_runs_again_enters_the_same_set() -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(1), batcher.add(2)]
    late: list[asyncio.Future[str]] = []
    enter = ledger.enter

    def enter_and_hear_more(tx: Any, items: Sequence[int]) -> list[str]:
        if 1 in items:
            late.append(batcher.add(10 + len(late)))
        return enter(tx, items)

    batcher.enter = enter_and_hear_more
    await store.run_next(times=2)
    assert await asyncio.gather(*answers) == ["made 1", "made 2"]
    assert ledger.sets == [[1, 2], [1, 2]]
    await store.run_next()
    assert await asyncio.gather(*late) == ["made 10", "made 11"]


async def test_one_that_fails_takes_nobody_with_it() -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(number) for number in (12, 13, 14)]
    await store.run_next()
    for _ in range(3):
        await store.run_next()
    done = await asyncio.gather(*answers, return_exceptions=True)
    assert [done[0], done[2]] == ["made 12", "made 14"]
    assert isinstance(done[1], ConflictError)
    assert ledger.told == [12, 14]


async def test_a_store_that_is_down_is_told_to_all_and_not_tried_again() -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(number) for number in range(3)]
    await store.run_next(error=StoreDownError("away"))
    done = await asyncio.gather(*answers, return_exceptions=True)
    assert all(isinstance(one, StoreDownError) for one in done)
    assert ledger.told == []
    assert store.waiting.empty()


async def test_a_caller_who_has_gone_does_not_keep_the_others_from_their_answers() -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(number) for number in range(3)]
    answers[1].cancel()
    await store.run_next()
    assert [await answers[0], await answers[2]] == ["made 0", "made 2"]
    assert ledger.told == [0, 1, 2], "what was entered stays entered"


async def test_so_many_batches_are_under_way_and_what_comes_meanwhile_is_the_next() -> None:
    store, ledger, batcher = make(at_once=1)
    first = batcher.add(0)
    for _ in range(20):
        await asyncio.sleep(0)
    fn, answer = await store.waiting.get()
    made = fn(None)  # begun, and its end not told yet
    later = []
    for number in range(1, 6):
        later.append(batcher.add(number))
        for _ in range(20):
            await asyncio.sleep(0)
    assert store.waiting.empty(), "one is under way"
    answer.set_result(made)
    await store.run_next()
    assert await asyncio.gather(first, *later) == [f"made {number}" for number in range(6)]
    assert ledger.sets == [[0], [1, 2, 3, 4, 5]]


async def test_a_turn_is_given_on_when_a_batch_fails() -> None:
    store, ledger, batcher = make(at_once=1)
    first = batcher.add(0)
    for _ in range(20):
        await asyncio.sleep(0)
    second = batcher.add(1)
    fn, answer = await store.waiting.get()
    fn(None)
    third = batcher.add(2)
    answer.set_exception(StoreDownError("away"))
    done = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(one, StoreDownError) for one in done)
    await store.run_next()
    assert await third == "made 2"
    assert ledger.sets == [[0, 1], [2]]


async def test_who_has_gone_before_a_batch_is_begun_is_left_out_where_that_is_asked_for() -> None:
    store, ledger, batcher = make(drops_gone=True)
    answers = [batcher.add(number) for number in range(3)]
    answers[1].cancel()
    await store.run_next(times=2)
    assert [await answers[0], await answers[2]] == ["made 0", "made 2"]
    assert ledger.sets == [[0, 2], [0, 2]]
    batcher.add(3).cancel()
    assert await store.run_next() == []
    assert ledger.told == [0, 2]


async def test_who_waits_for_a_turn_longer_than_it_may_is_answered_and_not_entered() -> None:
    clock = VirtualClock()
    store, ledger, batcher = make(at_once=1, clock=clock, late="too late")
    first = batcher.add(0, until=clock.now() + SECOND)
    fn, answer = await store.waiting.get()
    made = fn(None)
    patient = batcher.add(1)
    late = batcher.add(2, until=clock.now() + 5 * SECOND)
    later = batcher.add(3, until=clock.now() + 20 * SECOND)
    hurried = batcher.add(4, until=clock.now() + SECOND)
    await clock.advance(SECOND)
    assert await hurried == "too late"
    await clock.advance(10 * SECOND)
    assert await late == "too late"
    assert not first.done()  # it is under way: what it gets must reach it
    assert not patient.done() and not later.done()
    answer.set_result(made)
    await store.run_next(times=2)
    assert [await first, await patient, await later] == ["made 0", "made 1", "made 3"]
    assert ledger.sets == [[0], [1, 3], [1, 3]]
    assert ledger.told == [0, 1, 3]


async def test_a_turn_comes_to_a_batch_that_everybody_has_left() -> None:
    clock = VirtualClock()
    store, ledger, batcher = make(at_once=1, clock=clock, late="too late")
    first = batcher.add(0)
    fn, answer = await store.waiting.get()
    made = fn(None)
    gone = batcher.add(1, until=clock.now() + SECOND)
    await clock.advance(2 * SECOND)
    assert await gone == "too late"
    answer.set_result(made)
    assert await first == "made 0"
    assert await store.run_next() == []
    last = batcher.add(2)
    await store.run_next()
    assert await last == "made 2"
    assert ledger.sets == [[0], [2]]


async def test_a_batch_is_bounded_by_weight_and_one_that_is_too_heavy_goes_alone() -> None:
    store, ledger, batcher = make()
    weights = [MAX_WEIGHT // 2, MAX_WEIGHT // 2, 1, MAX_WEIGHT + 1]
    answers = [batcher.add(number, weight) for number, weight in enumerate(weights)]
    for _ in range(3):
        await store.run_next()
    await asyncio.gather(*answers)
    assert ledger.sets == [[0, 1], [2], [3]]


async def test_a_batch_is_bounded() -> None:
    store, ledger, batcher = make()
    answers = [batcher.add(100 + number) for number in range(MAX_ITEMS + 3)]
    await store.run_next()
    await store.run_next()
    await asyncio.gather(*answers)
    assert [len(one) for one in ledger.sets] == [MAX_ITEMS, 3]


async def test_a_batch_that_was_refused_before_it_began_takes_nothing_more() -> None:
    """As a store does that is closed, silent, or has too much to do: what came later would wait for
    an answer for ever."""
    refused: list[int] = []
    store, ledger, batcher = make(refused=refused.extend)
    first = batcher.add(1)
    _, answer = await asyncio.wait_for(store.waiting.get(), 5)
    answer.set_exception(StoreDownError("more than 10 functions wait for the store already"))
    with pytest.raises(StoreDownError):
        await first
    second = batcher.add(2)
    await store.run_next()
    assert await asyncio.wait_for(second, 5) == "made 2"
    assert (ledger.sets, refused) == ([[2]], [1])


async def test_of_a_batch_that_failed_only_those_at_fault_are_refused() -> None:
    refused: list[int] = []
    store, _, batcher = make(refused=refused.extend)
    futures = [batcher.add(number) for number in (12, 13)]
    for _ in range(3):
        await store.run_next()
    assert await futures[0] == "made 12"
    with pytest.raises(ConflictError):
        await futures[1]
    assert refused == [13]


@pytest.mark.parametrize("has_handed", [True, False, None])
async def test_who_was_handed_something_goes_on_before_the_caller(has_handed: bool | None) -> None:
    loop, order = asyncio.get_running_loop(), list[str]()
    handed: asyncio.Future[None] = loop.create_future()

    async def wait_in_two_turns() -> None:
        await asyncio.shield(handed)  # its wait ends in one turn, and it goes on in the next
        order.append("handed")

    def entered(*_: object) -> bool | None:
        if not handed.done():
            handed.set_result(None)
        return has_handed

    ledger = Ledger()
    batcher: Batcher[int, str] = Batcher(QuickStore(), ledger.enter, entered, at_once=1)  # type: ignore[arg-type]
    waiting = asyncio.create_task(wait_in_two_turns())
    await asyncio.sleep(0)
    own = batcher.add(1)
    own.add_done_callback(lambda _: order.append("own"))
    await asyncio.gather(own, waiting)
    await asyncio.sleep(0)
    assert order == (["handed", "own"] if has_handed else ["own", "handed"])
    # The turn was given back, once.
    assert [await batcher.add(2), await batcher.add(3)] == ["made 2", "made 3"]
    assert batcher._free == 1


async def test_callers_are_answered_although_nobody_could_be_told() -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def entered(*_: object) -> None:
        raise ValueError("deaf")

    ledger = Ledger()
    batcher: Batcher[int, str] = Batcher(QuickStore(), ledger.enter, entered, at_once=1)  # type: ignore[arg-type]
    assert [await batcher.add(1), await batcher.add(2)] == ["made 1", "made 2"]
    assert [str(one["exception"]) for one in failures] == ["deaf", "deaf"]
    assert all("could not be told" in one["message"] for one in failures)
    assert batcher._free == 1
