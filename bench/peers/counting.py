"""What every worker written in Python tells: how many jobs are done, and when the first and the
last was."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

TELL_EVERY_SEC = 0.02


class Counter:
    """Counts jobs and tells of them on a line of its own, now and then."""

    def __init__(self) -> None:
        self.done = 0
        self.first = self.last = 0.0

    def count(self) -> None:
        self.last = time.time()
        if not self.done:
            self.first = self.last
        self.done += 1

    async def tell_often(self) -> None:
        told = 0
        tell(ready=True)
        while True:
            await asyncio.sleep(TELL_EVERY_SEC)
            if self.done != told:
                tell(done=self.done, first=self.first, last=self.last)
                told = self.done


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def add_batches(jobs: int, batch: int, add: Callable[[int], Awaitable[Any]]) -> None:
    """Add jobs in batches, four batches at a time; tells the seconds it took."""
    left, began = jobs, time.perf_counter()

    async def feed() -> None:
        nonlocal left
        while left > 0:
            size = min(batch, left)
            left -= size
            await add(size)

    await asyncio.gather(*(feed() for _ in range(4)))
    tell(sec=time.perf_counter() - began)


async def add_one_by_one(seconds: float, add: Callable[[], Awaitable[Any]]) -> None:
    """Add one job after the other for so long."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        await add()
        count += 1
    tell(count=count, sec=time.perf_counter() - began)


class Starts:
    """A job every 10 ms; milliseconds from before the add to the handler's first line."""

    def __init__(self, count: int) -> None:
        self.count, self.began = count, dict[int, float]()
        self.waits: list[float] = []
        self.over = asyncio.Event()

    def seen(self, number: int) -> None:
        self.waits.append((time.perf_counter() - self.began[number]) * 1000)
        if len(self.waits) == self.count:
            self.over.set()

    async def time(self, add: Callable[[int], Awaitable[Any]]) -> None:
        for number in range(self.count):
            await asyncio.sleep(0.01)
            self.began[number] = time.perf_counter()
            await add(number)
        await asyncio.wait_for(self.over.wait(), 60)
        tell(waits=self.waits)


def act(actions: dict[str, Callable[..., Any]]) -> Any:
    """The action named on the command line, with its options."""
    return actions[sys.argv[1]](**json.loads(sys.argv[2]))
