"""Stores of tests that run transactions by being awaited, for those who want to be told."""

import asyncio
from typing import Any, Final

_under_way: Final[set["asyncio.Task[None]"]] = set()
"""An event loop alone does not keep a task."""


class AwaitedStore:
    """`transact_for` by way of `transact`."""

    transact: Any

    def transact_for(self, receiver: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        async def run() -> None:
            try:
                made = await self.transact(fn, *args, **kwargs)
            except Exception as error:
                receiver.set_exception(error)
            else:
                if not receiver.done():
                    receiver.set_result(made)

        task = asyncio.get_running_loop().create_task(run())
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
