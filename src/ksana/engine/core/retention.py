"""Retention: what is old is removed as fast as it comes, in small batches with a pause between, so
that the database stops growing and nobody waits long for the writer.

Each surface adds what it wants removed; the core adds its own. Each kind is looked at by itself: at
once again while there is more, else when about a small batch of it will have grown old, as the last
look tells. A batch is as large as fits into a few milliseconds of the writer's time. One instance
at a time does the removing, by a lock that is renewed in a transaction that removes. Losing the
lock is harmless: a purge removes old rows, and twice is once.

Where some old rows must stay (dead letters, unfinished work) they are found by a walk: on a reading
connection, from where the last stretch ended. What was passed over may have become free to go, so
the walk begins anew every hour.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Instant, Micros
from ksana.engine.core.pump import Pump
from ksana.ports.clock_steps import ClockStepTx
from ksana.ports.retention import START, OldRows, WalkPlace
from ksana.ports.store import Store, Tx

EVERY: Final[Micros] = MINUTE
"""Time from a look that found nothing to the next."""

LEAST: Final[Micros] = SECOND
"""Least time from a look that left nothing old to the next."""

PAUSE: Final[Micros] = 10 * MILLISECOND
"""Pause between two batches: what serves callers goes first."""

LEAST_BATCH, FIRST_BATCH, BATCH = 25, 100, 500
"""Rows in one transaction: at least, at first, at most."""

GOAL: Final[Micros] = 4 * MILLISECOND
"""What a batch may take of the writer's time."""

WALK_AGAIN: Final[Micros] = HOUR
"""When rows that were passed over are looked at again."""

LOCK: Final = "retention"
LOCK_US: Final[Micros] = 5 * MINUTE
MARKS_KEPT_US: Final[Micros] = DAY
"""Commit marks are asked for within a minute or never."""

SHARES_KEPT_US: Final[Micros] = 10 * MINUTE
"""When writers' shares of a minute are folded: nobody counts in it any more, and what is packed by
the hour has been."""

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


class Look(NamedTuple):
    """What came of one look at a kind."""

    removed: int
    has_more: bool
    took_us: Micros
    """How long the writer was kept."""


class RowKind:
    """When a kind is looked at next, and how many rows are removed at once."""

    def __init__(self, name: str, look: Callable[["RowKind"], Awaitable[Look | None]]) -> None:
        self.name = name
        self.look = look
        self.batch = FIRST_BATCH
        self.due_mono: Micros = 0
        self._settled_mono: Micros | None = None
        self._removed = 0
        """Since a look left nothing old, and when that was."""

    def plan(self, look: Look, now_mono: Micros) -> None:
        """Set batch and time by what came of a look."""
        self.batch = choose_batch(self.batch, look)
        self._removed += look.removed
        if look.has_more:
            self.due_mono = now_mono + PAUSE
            return
        since_us = EVERY if self._settled_mono is None else now_mono - self._settled_mono
        self.due_mono = now_mono + choose_wait(self._removed, since_us)
        self._settled_mono, self._removed = now_mono, 0


def choose_wait(removed: int, since_us: Micros) -> Micros:
    """How long to wait when nothing old is left and so many were removed in such a time: until
    about a small batch has grown old again."""
    if not removed:
        return EVERY
    return max(LEAST, min(since_us * FIRST_BATCH // removed, EVERY))


def choose_batch(batch: int, look: Look) -> int:
    """How many rows to remove at once, after a batch of so many."""
    if look.took_us > 2 * GOAL:
        return max(batch // 2, LEAST_BATCH)
    if look.has_more and look.took_us < GOAL // 2:
        return min(batch * 2, BATCH)
    return batch


class Retention:
    """The loop, on the pump. `removed` counts rows per kind since the start."""

    def __init__(self, store: Store, clock: Clock, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._kinds: list[RowKind] = []
        self._lock_until: Micros = 0
        self.removed: dict[str, int] = {}
        self.pump = Pump("retention", clock, self.step, EVERY)

    def add(self, name: str, keep_us: Micros, remove: Remove) -> None:
        """Have rows of this kind removed once they are older than `keep_us`."""
        self._kinds.append(RowKind(name, partial(self._purge, Purge(name, keep_us, remove))))
        self.removed[name] = 0

    def add_walk(self, name: str, keep_us: Micros, find: Find, remove: RemoveFound) -> None:
        """The same for rows of which some stay however old they are."""
        self._kinds.append(RowKind(name, partial(self._walk, Walk(name, keep_us, find, remove))))
        self.removed[name] = 0

    async def step(self) -> Instant | None:
        """Remove one batch of each kind that is due; answer when to come back."""
        failure: Exception | None = None
        began_mono = self._clock.monotonic()
        for kind in self._kinds:
            if kind.due_mono > began_mono:
                continue
            try:
                look = await kind.look(kind)
            except UnavailableError:
                raise
            except Exception as error:  # one kind that cannot be removed must not keep the others
                failure = failure or error
                kind.due_mono = self._clock.monotonic() + EVERY
                continue
            if look is None:
                return self._clock.now() + EVERY
            self.removed[kind.name] += look.removed
            kind.plan(look, self._clock.monotonic())
        if failure is not None:
            raise failure
        due_mono = min((kind.due_mono for kind in self._kinds), default=began_mono + EVERY)
        return self._clock.now() + max(due_mono - self._clock.monotonic(), PAUSE)

    async def _purge(self, purge: Purge, kind: RowKind) -> Look | None:
        """Remove one batch; None if another instance removes."""

        def remove(tx: Any) -> int:
            return purge.remove(tx, tx.now - purge.keep_us, kind.batch)

        removed, took_us = await self._remove(remove)
        return None if removed is None else Look(removed, removed >= kind.batch, took_us)

    async def _walk(self, walk: Walk, kind: RowKind) -> Look | None:
        """The same for the next stretch of a walk."""
        found = await self._store.read(find_batch, walk, kind.batch)
        removed: int | None = 0
        took_us = 0
        if found.keys:
            removed, took_us = await self._remove(lambda tx: walk.remove(tx, found.keys))
            if removed is None:
                return None
        walk.advance(found, self._clock.now())
        return Look(removed or 0, not found.is_end, took_us)

    async def _remove(self, remove: Callable[[Any], int]) -> tuple[int | None, Micros]:
        """Remove if this instance has the lock, and tell how many and how long it took; None if
        another has it. The lock is asked for now and then: it lasts for minutes."""
        asked_mono = self._clock.monotonic()
        is_asked = asked_mono >= self._lock_until
        removed, took_us = await self._store.transact(
            remove_batch, remove, self._owner if is_asked else None, self._clock
        )
        if removed is not None and is_asked:
            self._lock_until = asked_mono + LOCK_US // 5
        return removed, took_us


def find_batch(tx: Any, walk: Walk, limit: int) -> OldRows:
    """Find the next rows that may go."""
    return walk.find(tx, tx.now - walk.keep_us, walk.after, limit)


def remove_batch(
    tx: Any, remove: Callable[[Any], int], owner: str | None, clock: Clock
) -> tuple[int | None, Micros]:
    """Remove one batch, with the lock for `owner` if it is named; None if another has it."""
    if owner is not None and not tx.locks.take(LOCK, owner, LOCK_US):
        return None, 0
    began_mono = clock.monotonic()
    removed = remove(tx)
    return removed, clock.monotonic() - began_mono


def add_core_rows(retention: Retention, keep_us: Micros) -> None:
    """The core's own rows: events, instances with their outages, counts, commit marks, steps of the
    clock, and answers remembered by Idempotency-Key, which expire by themselves."""
    retention.add("events", keep_us, _remove_events)
    retention.add("instances", keep_us, _remove_instances)
    retention.add("rollups", keep_us, _remove_rollups)
    retention.add("shares of counts", SHARES_KEPT_US, _fold_rollups)
    retention.add("marks", MARKS_KEPT_US, _remove_marks)
    retention.add("clock steps", keep_us, _remove_clock_steps)
    retention.add("idempotency", 0, _remove_answers)


def _remove_events(tx: Tx, before: Instant, limit: int) -> int:
    return tx.events.purge(before, limit)


def _remove_instances(tx: Tx, before: Instant, limit: int) -> int:
    return tx.instances.purge(before, limit)


def _remove_rollups(tx: Tx, before: Instant, limit: int) -> int:
    return tx.rollups.purge(before, limit)


def _fold_rollups(tx: Tx, before: Instant, limit: int) -> int:
    return tx.rollups.fold(before, limit)


def _remove_clock_steps(tx: ClockStepTx, before: Instant, limit: int) -> int:
    return tx.clock_steps.purge(before, limit)


def _remove_marks(tx: Tx, before: Instant, limit: int) -> int:
    return tx.marks.purge(before, limit)


def _remove_answers(tx: Tx, before: Instant, limit: int) -> int:
    return tx.idempotency.purge(before, limit)
