"""Single writes that wait for the same commit, written as one batch.

Each caller adds one item and gets its own answer. What comes in while the last commit runs is one
batch and one transaction: a function, a wake-up, a statement and a commit are shared by all of
them. Only for items that nothing in the store can refuse, or whose refusal is an answer like any
other: one whose refusal must undo what it wrote is a transaction of its own.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from ksana.base.errors import StoreDownError
from ksana.ports.store import Store, Tx

MAX_ITEMS: Final = 256
"""Items in one batch at most: the first should not wait long for the last."""

TURNS: Final = 8
"""Turns of the event loop in which a batch is filled at most. It is written as soon as a turn has
brought nothing more, so a lone item waits for one turn. A commit for thirty costs half as much for
each as a commit for fifteen."""

MAX_WEIGHT: Final = 1_000
"""What the items of one batch weigh together at most, unless the first alone weighs more: rows,
mostly."""

Item = TypeVar("Item")
Made = TypeVar("Made")


class _Batch(Generic[Item, Made]):
    """Items on their way. Filled by the event loop until the writer takes it up."""

    __slots__ = ("_enter", "_weight", "futures", "is_open", "items", "lock")

    def __init__(self, enter: Callable[[Any, Sequence[Item]], list[Made]]) -> None:
        self._enter = enter
        self.items: list[Item] = []
        self.futures: list[asyncio.Future[Made]] = []
        self.is_open = True
        self.lock = threading.Lock()
        self._weight = 0

    def add(self, item: Item, future: "asyncio.Future[Made]", weight: int) -> bool:
        """Add an item; False if the writer was faster, or there is no room."""
        with self.lock:
            if not self.is_open or len(self.items) >= MAX_ITEMS:
                return False
            if self.items and self._weight + weight > MAX_WEIGHT:
                return False
            self._weight += weight
            self.items.append(item)
            self.futures.append(future)
            return True

    def enter(self, tx: Tx, drops_gone: bool = False) -> list[Made]:
        """The transaction. What is in the batch when it first runs is what it enters, however often
        it must run."""
        with self.lock:
            if self.is_open and drops_gone:
                here = [at for at, future in enumerate(self.futures) if not future.done()]
                self.items = [self.items[at] for at in here]
                self.futures = [self.futures[at] for at in here]
            self.is_open = False
        return self._enter(tx, self.items) if self.items else []

    async def fill(self) -> None:
        """Wait while each turn of the event loop brings more."""
        count = 0
        for _ in range(TURNS):
            if len(self.items) == count:
                return
            count = len(self.items)
            await asyncio.sleep(0)


class Batcher(Generic[Item, Made]):
    """Takes items one by one and enters them together. `enter` writes a set and answers what was
    made, in order; `entered` is called with those that are durable. With `at_once`, so many batches
    are under way at most, and the last one grows while it waits for its turn. With `drops_gone`,
    items whose caller has gone before the batch is begun are not entered."""

    def __init__(
        self,
        store: Store,
        enter: Callable[[Any, Sequence[Item]], list[Made]],
        entered: Callable[[Sequence[Item], Sequence[Made]], None],
        at_once: int | None = None,
        drops_gone: bool = False,
    ) -> None:
        self._drops_gone = drops_gone
        self._at_once = at_once
        self._free = at_once or 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._store = store
        self._enter = enter
        self._entered = entered
        self._batch: _Batch[Item, Made] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def add(self, item: Item, weight: int = 1) -> "asyncio.Future[Made]":
        """Enter one item; the answer comes when it is durable."""
        loop = self._loop
        if loop is None or loop.is_closed():
            # Kept: each question asks the system for our process id.
            loop = self._loop = asyncio.get_running_loop()
            self._free, self._batch = self._at_once or 0, None
            self._line.clear()
        future: asyncio.Future[Made] = loop.create_future()
        if self._batch is None or not self._batch.add(item, future, weight):
            batch = self._batch = _Batch(self._enter)
            batch.add(item, future, weight)
            write = self._write if self._at_once is None else self._write_in_turn
            task = loop.create_task(write(batch))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return future

    async def _write_in_turn(self, batch: _Batch[Item, Made]) -> None:
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            await turn
        try:
            await self._write(batch)
        finally:
            if self._line:
                self._line.popleft().set_result(None)
            else:
                self._free += 1

    async def _write(self, batch: _Batch[Item, Made]) -> None:
        await batch.fill()
        try:
            made = await self._store.transact(batch.enter, self._drops_gone)
        except StoreDownError as error:
            _refuse(batch.futures, error)
        except Exception as error:
            if len(batch.items) == 1:
                _refuse(batch.futures, error)
                return
            # Not all can be at fault: each on its own shows whose it is.
            for item, future in zip(batch.items, batch.futures, strict=True):
                alone = _Batch(self._enter)
                alone.add(item, future, 1)
                await self._write(alone)
        else:
            for future, one in zip(batch.futures, made, strict=True):
                if not future.done():  # its caller may have gone
                    future.set_result(one)
            self._entered(batch.items, made)


def _refuse(futures: Sequence["asyncio.Future[Made]"], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
