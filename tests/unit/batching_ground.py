"""Stores that run transactions when they are told to, and a ledger of what was entered in sets."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ksana.base.errors import ConflictError
from ksana.service.core.batching import Batcher
from tests.ground.receivers import AwaitedStore


class FakeStore(AwaitedStore):
    """Runs each transaction when it is told to, as often as it is told to."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()

    async def transact(self, fn: Any, *args: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        await self.waiting.put((lambda tx: fn(tx, *args), future))
        return await future

    async def run_next(self, times: int = 1, error: Exception | None = None) -> Any:
        """Run the next transaction; as a store does after a deadlock or a lost connection, perhaps
        more than once."""
        fn, future = await asyncio.wait_for(self.waiting.get(), 5)
        try:
            for _ in range(times):
                result = fn(None)
            if error is not None:
                raise error
        except Exception as raised:
            future.set_exception(raised)
            return None
        future.set_result(result)
        return result


class Ledger:
    """What was entered, and who was told."""

    def __init__(self) -> None:
        self.sets: list[list[int]] = []
        self.told: list[int] = []

    def enter(self, _: Any, items: Sequence[int]) -> list[str]:
        self.sets.append(list(items))
        if 13 in items:
            raise ConflictError("thirteen is not taken here")
        return [f"made {item}" for item in items]

    def entered(self, items: Sequence[int], made: Sequence[str]) -> None:
        assert [f"made {item}" for item in items] == list(made)
        self.told += items


def make(**how: Any) -> tuple[FakeStore, Ledger, Batcher[int, str]]:
    store, ledger = FakeStore(), Ledger()
    batcher: Batcher[int, str] = Batcher(store, ledger.enter, ledger.entered, **how)  # type: ignore[arg-type]
    return store, ledger, batcher


class QuickStore:
    """Runs each transaction as soon as it is asked to."""

    def transact_for(self, receiver: Any, fn: Any, *args: Any) -> None:
        try:
            made = fn(None, *args)
        except Exception as error:
            receiver.set_exception(error)
        else:
            receiver.set_result(made)

    async def transact(self, fn: Any, *args: Any) -> Any:
        return fn(None, *args)


def make_quick() -> tuple[Ledger, Batcher[int, str]]:
    ledger = Ledger()
    return ledger, Batcher(QuickStore(), ledger.enter, ledger.entered)  # type: ignore[arg-type]


async def begin(store: FakeStore) -> tuple[Any, "asyncio.Future[Any]"]:
    """The next transaction, begun; its end is not told yet."""
    fn, answer = await asyncio.wait_for(store.waiting.get(), 5)
    return fn(None), answer
