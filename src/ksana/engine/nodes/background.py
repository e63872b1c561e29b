"""Work that nobody waits for: referenced until it ends, its faults told, none left behind."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from ksana.base import log
from ksana.base.errors import UnavailableError


class Background:
    """Tasks of the nodes surface."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self, within_sec: float = 1.0) -> None:
        """Wait a moment, then end what is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_sec)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, UnavailableError):
            log.warning("work for a node was given up", err=str(error))
        else:
            log.error("work for a node failed", exc_info=error)
