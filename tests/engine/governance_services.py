"""Governance at its service, on the virtual clock and an inline store: who waits is told, and how
often the store was asked is counted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from ksana.base.clock import VirtualClock
from ksana.domain.governance.records import Rules
from ksana.engine.governance.pulling import pull_jobs
from ksana.engine.governance.writer import LostRaceError
from ksana.ports.store import Store
from ksana.store.sql import open_store
from tests.ground.governance import Governing


class RacingStore:
    """A store on which others may be faster, and which others may share."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.sole = True
        self.races = 0
        """So many transactions more are lost to others."""
        self.pulls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.pulls += fn is pull_jobs
        if self.races:
            self.races -= 1
            raise LostRaceError
        return await self._store.transact(fn, *args, **kwargs)


class Watched(Governing):
    """The service; what it tells other instances is counted."""

    def __init__(self, store: RacingStore, clock: VirtualClock, rules: Rules | None = None) -> None:
        super().__init__(store, clock, rules)  # type: ignore[arg-type]
        self.races = store
        self.virtual = clock
        self.told = 0
        self.service.waiting.tell = self._tell

    def _tell(self) -> None:
        self.told += 1

    def take_told(self) -> bool:
        """Whether anybody was told of something since the last time."""
        told, self.told = self.told, 0
        return told > 0

    async def facts(self, kind: str) -> list[tuple[str, str, Any]]:
        """(entity, id, data) of the events of one type."""
        events = await self.store.read(lambda tx: tx.events.list_after(0, 1000))
        return [
            (one.entity_type, one.entity_id, msgspec.json.decode(one.data))
            for one in events
            if one.type == kind
        ]

    @contextlib.asynccontextmanager
    async def beside(self, run: Callable[[], Any]) -> AsyncIterator[None]:
        """A loop that runs meanwhile."""
        loop = asyncio.ensure_future(run())
        await self.virtual.settle()
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_governing(
    path: Path, clock: VirtualClock, rules: Rules | None = None
) -> AsyncIterator[Watched]:
    """Governance over an empty store."""
    store = await open_store(f"sqlite:///{path}/ksana.db", clock, inline=True)
    try:
        yield Watched(RacingStore(store), clock, rules)
    finally:
        await store.close()
