"""Who takes what waits for the store: the warmest thread, all of one moment, nobody in vain."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from ksana.base.errors import StoreDownError
from ksana.store.sql.core import call_queue
from ksana.store.sql.core.call_queue import CallQueue

THREADS = 4


class Served:
    """A queue with threads that answer who took a call, and how many with it."""

    def __init__(self, limit: int = 512) -> None:
        self.queue = CallQueue(1000)
        self.takes = 0
        self.gate = threading.Event()
        self.gate.set()
        self._limit = limit
        self.threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(THREADS)]
        for thread in self.threads:
            thread.start()

    def _serve(self) -> None:
        while (batch := self.queue.take(self._limit)) is not None:
            self.takes += 1
            for call in batch:
                call.result = (threading.get_ident(), len(batch))
            assert self.gate.wait(30)
            self.queue.answer(batch)

    def ask(self) -> "asyncio.Future[tuple[int, int]]":
        return self.queue.add(lambda _: None)

    async def occupy_all(self) -> "list[asyncio.Future[tuple[int, int]]]":
        """While answers are held: every thread has taken a call of its own."""
        asked = []
        for number in range(1, THREADS + 1):
            asked.append(self.ask())
            while self.takes < number:
                await asyncio.sleep(0.001)
        return asked

    async def all_asleep(self) -> None:
        while len(self.queue._asleep) < THREADS:
            await asyncio.sleep(0.001)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.all_asleep()
    yield served
    await served.queue.close(served.threads)


@contextmanager
def held(served: Served) -> Iterator[None]:
    """Nobody gets an answer meanwhile."""
    served.gate.clear()
    try:
        yield
    finally:
        served.gate.set()


@contextmanager
def one_moment() -> Iterator[None]:
    """No other thread of ours runs meanwhile, however busy the machine is."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(30)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


async def test_a_caller_who_is_alone_is_served_by_the_same_thread_each_time(
    served: Served,
) -> None:
    first = await served.ask()
    for _ in range(20):
        await served.all_asleep()
        assert await served.ask() == first


async def test_calls_of_one_moment_are_taken_by_one_thread_and_wake_no_other(
    served: Served,
) -> None:
    with one_moment():
        asked = [served.ask() for _ in range(10)]
    answers = await asyncio.gather(*asked)
    assert served.takes == 1
    assert {size for _, size in answers} == {10}


async def test_many_calls_of_one_moment_are_divided_among_those_who_sleep(served: Served) -> None:
    count = 6 * call_queue.LEAST_SHARE
    with held(served):
        with one_moment():
            asked = [served.ask() for _ in range(count)]
        while not served.queue.is_empty():
            await asyncio.sleep(0.001)
    answers = await asyncio.gather(*asked)
    sizes = dict(answers)
    assert len(sizes) >= 3
    assert max(sizes.values()) <= count // 2


async def test_a_share_is_no_smaller_than_is_worth_a_commit(served: Served) -> None:
    with held(served):
        with one_moment():
            asked = [served.ask() for _ in range(call_queue.LEAST_SHARE)]
        while not served.queue.is_empty():
            await asyncio.sleep(0.001)
    await asyncio.gather(*asked)
    assert served.takes <= 2


async def test_who_is_alone_takes_all_that_waits(served: Served) -> None:
    with held(served):
        busy = await served.occupy_all()
        waiting = [served.ask() for _ in range(3 * call_queue.LEAST_SHARE)]
        await asyncio.sleep(0.01)
    await asyncio.gather(*busy)
    sizes = [size for _, size in await asyncio.gather(*waiting)]
    assert max(sizes) == 3 * call_queue.LEAST_SHARE, "nobody slept: there was none to share with"


async def test_who_comes_while_a_thread_is_busy_is_served_by_another(served: Served) -> None:
    with held(served):
        asked = await served.occupy_all()
        waiting = [served.ask() for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not served.queue.is_empty()
    assert len({thread for thread, _ in await asyncio.gather(*asked)}) == THREADS
    assert [size for _, size in await asyncio.gather(*waiting)] == [3, 3, 3]


async def test_what_one_thread_may_not_take_wakes_the_next() -> None:
    served = Served(limit=1)
    await served.all_asleep()
    with held(served):
        asked = [served.ask() for _ in range(THREADS)]
        while served.takes < THREADS:
            await asyncio.sleep(0.001)
    assert len({thread for thread, _ in await asyncio.gather(*asked)}) == THREADS
    await served.queue.close(served.threads)


async def test_closing_works_off_what_waits_and_ends_every_thread() -> None:
    served = Served(limit=1)
    asked = [served.ask() for _ in range(3 * THREADS)]
    closing = asyncio.ensure_future(served.queue.close(served.threads))
    assert len(await asyncio.gather(*asked)) == 3 * THREADS
    await closing
    assert not any(thread.is_alive() for thread in served.threads)
    with pytest.raises(StoreDownError, match="closed"):
        await served.ask()


async def test_what_nobody_takes_is_refused_in_time_and_the_rest_stays(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_queue, "STALE_SECONDS", 0.3)
    with held(served):
        begun = await served.occupy_all()
        old = served.ask()
        with pytest.raises(StoreDownError, match="not begun"):
            await asyncio.wait_for(old, 5)
        young = served.ask()
    assert (await young)[1] == 1
    await asyncio.gather(*begun)


async def test_a_receiver_that_fails_keeps_nobody_from_an_answer(served: Served) -> None:
    loop, failures = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    class Deaf:
        def done(self) -> bool:
            return False

        def set_result(self, _: object, /) -> None:
            raise ValueError("deaf")

        set_exception = set_result

    with held(served):
        busy = await served.occupy_all()
        served.queue.add_for(Deaf(), lambda _: None)
        after = served.ask()  # in the same take, behind the one that fails
    await asyncio.gather(*busy)
    assert (await asyncio.wait_for(after, 20))[1] == 2
    assert [str(one) for one in failures] == ["deaf"]
