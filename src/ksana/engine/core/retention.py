"""Retention: what is old is removed, in small batches with a pause between, so that the database
stops growing.

Each surface adds what it wants removed; the core adds its own. One instance at a time does the
removing, by a lock that is taken in the very transaction that removes. Losing the lock is harmless:
a purge removes old rows, and twice is once.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import DAY, MILLISECOND, MINUTE, Instant, Micros
from ksana.engine.core.pump import Pump
from ksana.ports.store import Store, Tx

EVERY: Final[Micros] = MINUTE
"""Time from a round that left nothing old to the next."""

PAUSE: Final[Micros] = 10 * MILLISECOND
"""Pause between two batches: what serves callers goes first."""

BATCH: Final = 500
"""Rows in one transaction: a few milliseconds of the writer's time."""

LOCK: Final = "retention"
LOCK_US: Final[Micros] = 5 * MINUTE
MARKS_KEPT_US: Final[Micros] = DAY
"""Commit marks are asked for within a minute or never."""

Remove = Callable[[Any, Instant, int], int]
"""`remove(tx, before, limit)` removes up to `limit` rows older than `before` and answers how many,
by the row count."""


class Purge(NamedTuple):
    """One kind of row that grows old."""

    name: str
    keep_us: Micros
    remove: Remove


class Retention:
    """The loop, on the pump. `removed` counts rows per kind since the start."""

    def __init__(self, store: Store, clock: Clock, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._purges: list[Purge] = []
        self.removed: dict[str, int] = {}
        self.pump = Pump("retention", clock, self.step, EVERY)

    def add(self, name: str, keep_us: Micros, remove: Remove) -> None:
        """Have rows of this kind removed once they are older than `keep_us`."""
        self._purges.append(Purge(name, keep_us, remove))
        self.removed[name] = 0

    async def step(self) -> Instant | None:
        """Remove one batch of each kind; answer when to come back."""
        has_more = False
        failure: Exception | None = None
        for purge in self._purges:
            try:
                removed = await self._store.transact(remove_batch, purge, self._owner, BATCH)
            except UnavailableError:
                raise
            except Exception as error:  # one kind that cannot be removed must not keep the others
                failure = failure or error
                continue
            if removed is None:
                return self._clock.now() + EVERY
            self.removed[purge.name] += removed
            has_more = has_more or removed >= BATCH
        if failure is not None:
            raise failure
        return self._clock.now() + (PAUSE if has_more else EVERY)


def remove_batch(tx: Any, purge: Purge, owner: str, limit: int) -> int | None:
    """Remove one batch if this instance has the lock; None if another has."""
    if not tx.locks.take(LOCK, owner, LOCK_US):
        return None
    return purge.remove(tx, tx.now - purge.keep_us, limit)


def add_core_rows(retention: Retention, keep_us: Micros) -> None:
    """The core's own rows: events, instances with their outages, counts, commit marks, and answers
    remembered by Idempotency-Key, which expire by themselves."""
    retention.add("events", keep_us, _remove_events)
    retention.add("instances", keep_us, _remove_instances)
    retention.add("rollups", keep_us, _remove_rollups)
    retention.add("marks", MARKS_KEPT_US, _remove_marks)
    retention.add("idempotency", 0, _remove_answers)


def _remove_events(tx: Tx, before: Instant, limit: int) -> int:
    return tx.events.purge(before, limit)


def _remove_instances(tx: Tx, before: Instant, limit: int) -> int:
    return tx.instances.purge(before, limit)


def _remove_rollups(tx: Tx, before: Instant, limit: int) -> int:
    return tx.rollups.purge(before, limit)


def _remove_marks(tx: Tx, before: Instant, limit: int) -> int:
    return tx.marks.purge(before, limit)


def _remove_answers(tx: Tx, before: Instant, limit: int) -> int:
    return tx.idempotency.purge(before, limit)
