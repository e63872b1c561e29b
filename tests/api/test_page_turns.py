"""Turns at reading pages: a few at once, callers in rotation, none held up for ever."""

import asyncio

import pytest

from ksana.api.core.page_turns import LARGE, PageTurns
from ksana.base.errors import RateLimitedError
from tests.ground.pages import list_routes

pytestmark = pytest.mark.spec("X13")

A, B = ("192.0.2.1", 1), ("192.0.2.2", 1)


async def test_callers_take_turns_whoever_asks_more() -> None:
    turns, order = PageTurns(1), []

    async def read(name: str, peer: tuple[str, int]) -> None:
        await turns.take(None, peer)
        order.append(name)
        turns.give_back()

    await turns.take(None, A)
    asked = [asyncio.ensure_future(read(f"a{n}", A)) for n in range(5)]
    await asyncio.sleep(0)
    asked.append(asyncio.ensure_future(read("b", B)))
    await asyncio.sleep(0)
    turns.give_back()
    await asyncio.gather(*asked)
    assert order == ["a0", "b", "a1", "a2", "a3", "a4"]


async def test_one_that_waited_long_is_told_to_come_back_and_takes_no_turn() -> None:
    turns = PageTurns(1, wait_sec=0.01)
    await turns.take(None, A)
    with pytest.raises(RateLimitedError) as refused:
        await turns.take(None, A)
    assert refused.value.retry_after_sec >= 1
    turns.give_back()
    await turns.take(None, B)


async def test_one_that_is_cancelled_in_line_or_with_its_turn_leaves_it_to_the_next() -> None:
    turns = PageTurns(1)
    await turns.take(None, A)
    gone = asyncio.ensure_future(turns.take(None, A))
    chosen = asyncio.ensure_future(turns.take(None, A))
    last = asyncio.ensure_future(turns.take(None, A))
    await asyncio.sleep(0)
    gone.cancel()
    turns.give_back()
    chosen.cancel()  # it has its turn, and has not run since
    async with asyncio.timeout(5):
        await last
    turns.give_back()
    await turns.take(None, A)


async def test_a_pause_follows_a_large_page_while_others_wait() -> None:
    turns, loop = PageTurns(1), asyncio.get_running_loop()
    await turns.take(None, A)
    following = asyncio.ensure_future(turns.take(None, B))
    await asyncio.sleep(0)
    began = loop.time()
    turns.give_back(8 * LARGE, began - 0.01)
    async with asyncio.timeout(5):
        await following
    assert loop.time() - began >= 0.03


def test_every_list_of_rows_takes_turns() -> None:
    pages = {route.path for route in list_routes() if route.is_page}
    assert pages >= {
        "/jobs",
        "/api/v1/tasks",
        "/api/v1/runs",
        "/api/v1/events",
        "/api/v1/dead-letters",
        "/api/scheduler/jobs",
        "/scheduler/jobs",
        "/scheduler/audit",
    }
