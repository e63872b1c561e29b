"""Retention: what is old is removed, in small batches with a pause between, so that the database
stops growing.

Each surface adds what it wants removed; the core adds its own. One instance at a time does the
removing, by a lock that is taken in the very transaction that removes. Losing the lock is harmless:
a purge removes old rows, and twice is once.

Where some old rows must stay (dead letters, unfinished work) they are found by a walk: on a reading
connection, from where the last stretch ended. What was passed over may have become free to go, so
the walk begins anew every hour.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE, Instant, Micros
from ksana.engine.core.pump import Pump
from ksana.ports.clock_steps import ClockStepTx
from ksana.ports.retention import START, OldRows, WalkPlace
from ksana.ports.store import Store, Tx

EVERY: Final[Micros] = MINUTE
"""Time from a round that left nothing old to the next."""

PAUSE: Final[Micros] = 10 * MILLISECOND
"""Pause between two batches: what serves callers goes first."""

BATCH: Final = 500
"""Rows in one transaction: a few milliseconds of the writer's time."""

WALK_AGAIN: Final[Micros] = HOUR
"""When rows that were passed over are looked at again."""

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


Find = Callable[[Any, Instant, WalkPlace, int], OldRows]
"""`find(tx, before, after, limit)` finds up to `limit` rows older than `before` that may go."""

RemoveFound = Callable[[Any, list[int]], int]
"""Removes what was found, and answers how many, by the row count."""


class Walk:
    """One kind of row that grows old, of which some stay; and how far it was looked at."""

    def __init__(self, name: str, keep_us: Micros, find: Find, remove: RemoveFound) -> None:
        self.name = name
        self.keep_us = keep_us
        self.find = find
        self.remove = remove
        self.after = START
        self._again_at: Instant | None = None

    def advance(self, found: OldRows, now: Instant) -> None:
        """Go on after what was found; from the start again if the time for it has come."""
        self.after = found.after
        if self._again_at is None:
            self._again_at = now + WALK_AGAIN
        elif found.is_end and now >= self._again_at:
            self.after, self._again_at = START, now + WALK_AGAIN


class Retention:
    """The loop, on the pump. `removed` counts rows per kind since the start."""

    def __init__(self, store: Store, clock: Clock, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._work: list[Callable[[], Awaitable[bool | None]]] = []
        self.removed: dict[str, int] = {}
        self.pump = Pump("retention", clock, self.step, EVERY)

    def add(self, name: str, keep_us: Micros, remove: Remove) -> None:
        """Have rows of this kind removed once they are older than `keep_us`."""
        self._work.append(partial(self._purge, Purge(name, keep_us, remove)))
        self.removed[name] = 0

    def add_walk(self, name: str, keep_us: Micros, find: Find, remove: RemoveFound) -> None:
        """The same for rows of which some stay however old they are."""
        self._work.append(partial(self._walk, Walk(name, keep_us, find, remove)))
        self.removed[name] = 0

    async def step(self) -> Instant | None:
        """Remove one batch of each kind; answer when to come back."""
        has_more = False
        failure: Exception | None = None
        for work in self._work:
            try:
                more = await work()
            except UnavailableError:
                raise
            except Exception as error:  # one kind that cannot be removed must not keep the others
                failure = failure or error
                continue
            if more is None:
                return self._clock.now() + EVERY
            has_more = has_more or more
        if failure is not None:
            raise failure
        return self._clock.now() + (PAUSE if has_more else EVERY)

    async def _purge(self, purge: Purge) -> bool | None:
        """Remove one batch; answer whether there is more, None if another instance removes."""
        removed = await self._store.transact(remove_batch, purge, self._owner, BATCH)
        if removed is None:
            return None
        self.removed[purge.name] += removed
        return removed >= BATCH

    async def _walk(self, walk: Walk) -> bool | None:
        """The same for the next stretch of a walk."""
        found = await self._store.read(find_batch, walk, BATCH)
        if found.keys:
            removed = await self._store.transact(remove_found, walk, self._owner, found.keys)
            if removed is None:
                return None
            self.removed[walk.name] += removed
        walk.advance(found, self._clock.now())
        return not found.is_end


def find_batch(tx: Any, walk: Walk, limit: int) -> OldRows:
    """Find the next rows that may go."""
    return walk.find(tx, tx.now - walk.keep_us, walk.after, limit)


def remove_found(tx: Any, walk: Walk, owner: str, keys: list[int]) -> int | None:
    """Remove what was found if this instance has the lock; None if another has."""
    if not tx.locks.take(LOCK, owner, LOCK_US):
        return None
    return walk.remove(tx, keys)


def remove_batch(tx: Any, purge: Purge, owner: str, limit: int) -> int | None:
    """Remove one batch if this instance has the lock; None if another has."""
    if not tx.locks.take(LOCK, owner, LOCK_US):
        return None
    return purge.remove(tx, tx.now - purge.keep_us, limit)


def add_core_rows(retention: Retention, keep_us: Micros) -> None:
    """The core's own rows: events, instances with their outages, counts, commit marks, steps of the
    clock, and answers remembered by Idempotency-Key, which expire by themselves."""
    retention.add("events", keep_us, _remove_events)
    retention.add("instances", keep_us, _remove_instances)
    retention.add("rollups", keep_us, _remove_rollups)
    retention.add("marks", MARKS_KEPT_US, _remove_marks)
    retention.add("clock steps", keep_us, _remove_clock_steps)
    retention.add("idempotency", 0, _remove_answers)


def _remove_events(tx: Tx, before: Instant, limit: int) -> int:
    return tx.events.purge(before, limit)


def _remove_instances(tx: Tx, before: Instant, limit: int) -> int:
    return tx.instances.purge(before, limit)


def _remove_rollups(tx: Tx, before: Instant, limit: int) -> int:
    return tx.rollups.purge(before, limit)


def _remove_clock_steps(tx: ClockStepTx, before: Instant, limit: int) -> int:
    return tx.clock_steps.purge(before, limit)


def _remove_marks(tx: Tx, before: Instant, limit: int) -> int:
    return tx.marks.purge(before, limit)


def _remove_answers(tx: Tx, before: Instant, limit: int) -> int:
    return tx.idempotency.purge(before, limit)
