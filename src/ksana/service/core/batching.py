"""Single writes that wait for the same commit, written as one batch.

Each caller adds one item and gets its own answer. What comes in while the last commit runs is one
batch and one transaction: a function, a wake-up, a statement and a commit are shared by all of
them. Only for items that nothing in the store can refuse, or whose refusal is an answer like any
other: one whose refusal must undo what it wrote is a transaction of its own.
"""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from ksana.base.clock import Clock
from ksana.base.errors import StoreDownError
from ksana.base.instant import Instant
from ksana.ports.store import Store, Tx

MAX_ITEMS: Final = 256
"""Items in one batch at most: the first should not wait long for the last."""

TURNS: Final = 8
"""Turns of the event loop in which a batch is filled at most. It is written as soon as a turn has
brought nothing more, so a lone item waits for one turn; not if the one before was alone too. A
commit for thirty costs half as much for each as a commit for fifteen."""

HANDED_TURNS: Final = 2
"""Turns of the event loop in which a request that was handed something is answered: its wait ends
in the first, and it goes on in the second."""

MAX_WEIGHT: Final = 1_000
"""What the items of one batch weigh together at most, unless the first alone weighs more: rows,
mostly."""

Item = TypeVar("Item")
Made = TypeVar("Made")


class _Batch(Generic[Item, Made]):
    """Items on their way. Filled by the event loop until the writer takes it up; told what came of
    its transaction, which it passes on."""

    __slots__ = (
        "_batcher",
        "_untils",
        "_weight",
        "first_until",
        "futures",
        "has_turn",
        "is_open",
        "items",
        "lock",
        "stirred",
    )

    def __init__(
        self,
        batcher: "Batcher[Item, Made]",
        item: Item,
        future: "asyncio.Future[Made]",
        weight: int,
        until: Instant | None,
    ) -> None:
        self._batcher = batcher
        self.items = [item]
        self.futures = [future]
        self.is_open = True
        self.lock = threading.Lock()
        self._weight = weight
        self._untils = {} if until is None else {future: until}
        self.first_until = until
        """When the first of those who wait no longer than that gives up."""
        self.has_turn = False
        self.stirred: asyncio.Event | None = None
        """While it waits for its turn: it has it, or somebody gives up earlier than was known."""

    done = staticmethod(bool)
    """It is to be told, whoever of its callers has gone."""

    def set_result(self, made: list[Made], /, turns: int | None = None) -> None:
        """Answer those whose items are durable, after others who were handed something by them:
        after so many turns of the event loop."""
        batcher = self._batcher
        if turns is None:
            turns = 0
            try:
                if batcher.entered(self.items, made):
                    turns = HANDED_TURNS
            except Exception as error:  # what is durable is answered, whoever fails to hear of it
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "what was entered could not be told", "exception": error}
                )
        if turns:
            asyncio.get_running_loop().call_soon(self.set_result, made, turns - 1)
            return
        try:
            for future, one in zip(self.futures, made, strict=True):
                if not future.done():  # its caller may have gone
                    future.set_result(one)
        finally:
            batcher.end_turn()

    def set_exception(self, error: Exception, /) -> None:
        """Find out whose fault it is."""
        self._batcher.write_apart(self, error)

    def add(
        self, item: Item, future: "asyncio.Future[Made]", weight: int, until: Instant | None = None
    ) -> bool:
        """Add an item; False if the writer was faster, or there is no room."""
        with self.lock:
            if not self.is_open or len(self.items) >= MAX_ITEMS:
                return False
            if self.items and self._weight + weight > MAX_WEIGHT:
                return False
            self._weight += weight
            self.items.append(item)
            self.futures.append(future)
        if until is not None:
            self._untils[future] = until
            if self.first_until is None or until < self.first_until:
                self.first_until = until
                self._stir()
        return True

    def give_turn(self) -> None:
        """It need not wait for those before it any more."""
        self.has_turn = True
        self._stir()

    def _stir(self) -> None:
        if self.stirred is not None:
            self.stirred.set()

    def give_up(self, now: Instant, instead: Made) -> None:
        """Answer those who wait no longer, and leave them out."""
        late = {future for future, until in self._untils.items() if until <= now}
        with self.lock:
            if not self.is_open:
                return
            here = [at for at, future in enumerate(self.futures) if future not in late]
            self.items = [self.items[at] for at in here]
            self.futures = [self.futures[at] for at in here]
        for future in late:
            del self._untils[future]
            if not future.done():
                future.set_result(instead)
        self.first_until = min(self._untils.values(), default=None)

    def close(self) -> None:
        """Take nothing more: what was refused before it began would never be answered."""
        with self.lock:
            self.is_open = False

    def enter(self, tx: Tx, drops_gone: bool = False) -> list[Made]:
        """The transaction. What is in the batch when it first runs is what it enters, however often
        it must run."""
        with self.lock:
            if self.is_open and drops_gone:
                here = [at for at, future in enumerate(self.futures) if not future.done()]
                self.items = [self.items[at] for at in here]
                self.futures = [self.futures[at] for at in here]
            self.is_open = False
        return self._batcher.enter(tx, self.items) if self.items else []


def _tell_nobody(_: Sequence[Any]) -> None:
    """Nobody need know what could not be entered but its callers."""


class Batcher(Generic[Item, Made]):
    """Takes items one by one and enters them together. `enter` writes a set and answers what was
    made, in order; `entered` is called with those that are durable, before their callers are
    answered, and may say that it handed something to others, who are answered first.

    With `at_once`, so many batches are under way at most, and the last one grows while it waits for
    its turn. With `drops_gone`, items whose caller has gone before the batch is begun are not
    entered. With `clock`, items may say until when they wait for their turn; who gives up is
    answered `late`. `refused` is called with items that could not be entered."""

    def __init__(
        self,
        store: Store,
        enter: Callable[[Any, Sequence[Item]], list[Made]],
        entered: Callable[[Sequence[Item], Sequence[Made]], bool | None],
        at_once: int | None = None,
        drops_gone: bool = False,
        clock: Clock | None = None,
        late: Made | None = None,
        refused: Callable[[Sequence[Item]], None] = _tell_nobody,
    ) -> None:
        self._refused = refused
        self._clock = clock
        self._late = late
        self._drops_gone = drops_gone
        self._at_once = math.inf if at_once is None else at_once
        self._free = self._at_once
        self._line: deque[_Batch[Item, Made]] = deque()
        self._store = store
        self.enter = enter
        self.entered = entered
        self._batch: _Batch[Item, Made] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._expected = 0
        """How many items are waited for no longer: 1 after one that was alone, else 0."""

    def add(
        self, item: Item, weight: int = 1, until: Instant | None = None
    ) -> "asyncio.Future[Made]":
        """Enter one item; the answer comes when it is durable."""
        loop = self._loop
        if loop is None or loop.is_closed():
            # Kept: each question asks the system for our process id.
            loop = self._loop = asyncio.get_running_loop()
            self._free, self._batch = self._at_once, None
            self._line.clear()
        future: asyncio.Future[Made] = loop.create_future()
        if self._batch is None or not self._batch.add(item, future, weight, until):
            batch = self._batch = _Batch(self, item, future, weight, until)
            if self._free:
                self._free -= 1
                loop.call_soon(self._fill, batch, self._expected, TURNS)
            else:
                self._line.append(batch)
                self._keep(loop.create_task(self._wait_for_turn(batch)))
        return future

    async def _wait_for_turn(self, batch: _Batch[Item, Made]) -> None:
        stirred = batch.stirred = asyncio.Event()
        while not batch.has_turn:
            if self._clock is None or self._late is None:
                await stirred.wait()
            elif not await self._clock.wait(stirred, batch.first_until):
                batch.give_up(self._clock.now(), self._late)
            stirred.clear()
        self._fill(batch, self._expected, TURNS)

    def _fill(self, batch: _Batch[Item, Made], count: int, turns: int) -> None:
        """Enter a batch whose turn has come once the event loop brings no more items for it."""
        found = len(batch.items)
        if found != count and turns:
            asyncio.get_running_loop().call_soon(self._fill, batch, found, turns - 1)
            return
        self._expected = 1 if found == 1 else 0
        self._store.transact_for(batch, batch.enter, self._drops_gone)

    def write_apart(self, batch: _Batch[Item, Made], error: Exception) -> None:
        """Enter the items of a batch that failed one by one."""
        loop = asyncio.get_running_loop()
        self._keep(loop.create_task(self._write_each(batch, error)))

    def end_turn(self) -> None:
        """Let the next batch that waits begin."""
        if self._line:
            self._line.popleft().give_turn()
        else:
            self._free += 1

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _write_each(self, batch: _Batch[Item, Made], error: Exception) -> None:
        """Enter the items of a batch that failed one by one: not all can be at fault, and this
        shows whose it is."""
        batch.close()
        try:
            if isinstance(error, StoreDownError) or len(batch.items) == 1:
                self._refused(batch.items)
                _refuse(batch.futures, error)
                return
            for item, future in zip(batch.items, batch.futures, strict=True):
                if not (future.done() and self._drops_gone):
                    await self._write_one(item, future)
        finally:
            self.end_turn()

    async def _write_one(self, item: Item, future: "asyncio.Future[Made]") -> None:
        try:
            made = await self._store.transact(self.enter, [item])
        except Exception as error:
            self._refused([item])
            _refuse([future], error)
        else:
            if not future.done():
                future.set_result(made[0])
            self.entered([item], made)


def _refuse(futures: Sequence["asyncio.Future[Made]"], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
