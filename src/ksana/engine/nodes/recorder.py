"""Events of nodes, sessions and node jobs: collected, and written to the store in bulk.

Node jobs live in the fabric, not in the store, so their events cannot share a transaction with
them. They are written a moment later; while the store is away they wait, up to a bound.
"""

from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import MILLISECOND, SECOND, Instant
from ksana.engine.core.pump import AGAIN, Pump
from ksana.ports.store import Store, Tx

_MOST: Final = 50_000
"""Events that wait for the store."""
_BATCH: Final = 2_000


class EventRecorder:
    """Collects events; its pump writes them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._waiting: list[tuple[str, str, str, str]] = []
        self._encode = msgspec.json.Encoder().encode
        self.dropped = 0
        self.pump = Pump(
            "node-events", clock, self._write, poll_us=5 * SECOND, min_interval_us=20 * MILLISECOND
        )

    def note(self, entity: str, entity_id: str, name: str, data: dict[str, Any]) -> None:
        """Record one event, soon."""
        if len(self._waiting) >= _MOST:
            self.dropped += 1
            return
        self._waiting.append((entity, entity_id, name, self._encode(data).decode()))
        self.pump.signal()

    async def flush(self) -> None:
        """Write all that waits."""
        while self._waiting:
            await self._write()

    async def _write(self) -> Instant | None:
        batch = self._waiting[:_BATCH]
        if not batch:
            return None
        await self._store.transact(_append, batch)
        del self._waiting[: len(batch)]
        return AGAIN if self._waiting else None


def _append(tx: Tx, batch: list[tuple[str, str, str, str]]) -> None:
    tx.events.append_texts(batch)
