"""When retention looks at a kind of rows again, how far a walk has come, and who may remove: on a
store that only has a clock and a lock."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.engine.core.retention import (
    BATCH,
    EVERY,
    FIRST_BATCH,
    GOAL,
    LEAST_BATCH,
    LOCK,
    LOCK_US,
    PAUSE,
    WALK_AGAIN,
    Look,
    Retention,
    choose_batch,
    choose_wait,
    remove_batch,
)
from ksana.ports.retention import START, OldRows, WalkPlace

ASK_AGAIN = LOCK_US // 5
"""How long the lock is believed before it is asked for again."""


class LockedStore:
    """A store with nothing but its clock and one lock."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.is_free = True
        self.asked: list[tuple[str, str, int]] = []
        self.locks = SimpleNamespace(take=self._take)

    @property
    def now(self) -> int:
        return self.clock.now()

    def _take(self, name: str, owner: str, lasts_us: int) -> bool:
        self.asked.append((name, owner, lasts_us))
        return self.is_free

    async def transact(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(self, *args)

    read = transact


class Rows:
    """A kind of rows: so many are old at each look, and removing them takes so long."""

    def __init__(self, clock: VirtualClock, *found: int, takes_us: int = GOAL) -> None:
        self.clock = clock
        self.found = list(found)
        self.takes_us = takes_us
        self.looks: list[int] = []
        self.asked: list[tuple[int, int]] = []

    def remove(self, _: Any, before: int, limit: int) -> int:
        self.looks.append(self.clock.now())
        self.asked.append((self.clock.now() - before, limit))
        self.clock._move_to(self.clock.monotonic() + self.takes_us)
        return min(self.found.pop(0) if self.found else 0, limit)


@pytest.fixture
async def store(clock: VirtualClock) -> LockedStore:
    await clock.advance(HOUR)
    return LockedStore(clock)


def make_retention(store: LockedStore) -> Retention:
    there: Any = store
    return Retention(there, store.clock, "one")


def add(retention: Retention, rows: Rows, name: str = "rows", keep_us: int = MINUTE) -> Rows:
    retention.add(name, keep_us, rows.remove)
    return rows


# Rules


@pytest.mark.parametrize(
    ("removed", "since_us", "wait_us"),
    [
        (0, 0, EVERY),
        (FIRST_BATCH, EVERY, EVERY),
        (FIRST_BATCH + 1, EVERY, EVERY * FIRST_BATCH // (FIRST_BATCH + 1)),
        (7, 3 * SECOND, 3 * SECOND * FIRST_BATCH // 7),
    ],
)
def test_the_wait_follows_from_how_fast_rows_grow_old(
    removed: int, since_us: int, wait_us: int
) -> None:
    assert choose_wait(removed, since_us) == wait_us


@pytest.mark.parametrize(
    ("batch", "has_more", "took_us", "wanted"),
    [
        (100, True, 2 * GOAL, 100),
        (100, True, 2 * GOAL + 1, 50),
        (100, False, 2 * GOAL + 1, 50),
        (2 * LEAST_BATCH, True, 2 * GOAL + 1, LEAST_BATCH),
        (2 * LEAST_BATCH - 2, True, 2 * GOAL + 1, LEAST_BATCH),
        (100, True, GOAL // 2, 100),
        (100, True, GOAL // 2 - 1, 200),
        (100, False, GOAL // 2 - 1, 100),
        (BATCH // 2, True, 0, BATCH),
        (BATCH // 2 + 1, True, 0, BATCH),
        (90, True, 0, 180),
    ],
)
def test_a_batch_is_halved_when_it_took_long_and_doubled_when_more_would_fit(
    batch: int, has_more: bool, took_us: int, wanted: int
) -> None:
    assert choose_batch(batch, Look(batch, has_more, took_us)) == wanted


def test_a_batch_is_removed_without_the_lock_or_with_it_and_never_against_it(
    store: LockedStore,
) -> None:
    rows = Rows(store.clock, 3, 3, takes_us=5)

    def remove(tx: Any) -> int:
        return rows.remove(tx, 0, 10)

    assert remove_batch(store, remove, None, store.clock) == (3, 5)
    assert store.asked == []
    assert remove_batch(store, remove, "one", store.clock) == (3, 5)
    store.is_free = False
    assert remove_batch(store, remove, "one", store.clock) == (None, 0)
    assert store.asked == [(LOCK, "one", LOCK_US)] * 2
    assert len(rows.looks) == 2


# When a kind is looked at


async def test_a_kind_is_looked_at_once_a_minute_while_there_is_nothing(
    store: LockedStore,
) -> None:
    clock, retention = store.clock, make_retention(store)
    rows = add(retention, Rows(clock))
    began_at = clock.now()
    assert await retention.step() == clock.now() + EVERY
    await clock.advance(EVERY - 1)
    assert await retention.step() == clock.now() + PAUSE
    await clock.advance(1)
    assert await retention.step() == clock.now() + EVERY
    assert rows.looks == [began_at, began_at + EVERY + GOAL]
    assert rows.asked == [(MINUTE, FIRST_BATCH)] * 2
    assert (retention.removed, retention.pump.name) == ({"rows": 0}, "retention")


async def test_a_kind_of_which_there_is_more_is_looked_at_again_after_a_pause(
    store: LockedStore,
) -> None:
    clock, retention = store.clock, make_retention(store)
    rows = add(retention, Rows(clock, FIRST_BATCH, FIRST_BATCH, FIRST_BATCH // 2))
    for _ in range(2):
        assert await retention.step() == clock.now() + PAUSE
        await clock.advance(PAUSE)
    # 250 in the first minute: 100 take 24 s to grow old.
    assert await retention.step() == clock.now() + 24 * SECOND
    assert (len(rows.looks), retention.removed) == (3, {"rows": 250})


async def test_the_next_wait_counts_from_the_last_look_that_left_nothing(
    store: LockedStore,
) -> None:
    clock, retention = store.clock, make_retention(store)
    add(retention, Rows(clock, 0, 50, 50, takes_us=0))
    assert await retention.step() == clock.now() + EVERY
    await clock.advance(EVERY)
    assert await retention.step() == clock.now() + EVERY, "50 in a minute: 100 in two"
    await clock.advance(EVERY // 2)
    retention._kinds[0].due_mono = 0
    assert await retention.step() == clock.now() + EVERY, "50 in half a minute: 100 in one"


async def test_the_loop_comes_back_for_the_kind_that_is_due_first(store: LockedStore) -> None:
    clock, retention = store.clock, make_retention(store)
    slow = add(retention, Rows(clock, takes_us=0), "slow")
    quick = add(retention, Rows(clock, FIRST_BATCH, takes_us=0), "quick")
    assert await retention.step() == clock.now() + PAUSE
    await clock.advance(PAUSE)
    await retention.step()
    assert (len(slow.looks), len(quick.looks)) == (1, 2)
    assert retention.removed == {"slow": 0, "quick": FIRST_BATCH}


async def test_where_there_is_nothing_to_remove_it_comes_back_in_a_minute(
    store: LockedStore,
) -> None:
    assert await make_retention(store).step() == store.clock.now() + EVERY


# Failures and the lock


def fails_with(text: str) -> Callable[..., int]:
    def remove(*_: Any) -> int:
        raise RuntimeError(text)

    return remove


async def test_of_several_kinds_that_fail_the_first_is_told_and_each_waits_a_minute(
    store: LockedStore,
) -> None:
    clock, retention = store.clock, make_retention(store)
    retention.add("one", MINUTE, fails_with("one"))
    retention.add("two", MINUTE, fails_with("two"))
    rows = add(retention, Rows(clock, takes_us=0))
    with pytest.raises(RuntimeError, match="one"):
        await retention.step()
    assert len(rows.looks) == 1
    await clock.advance(EVERY - 1)
    assert await retention.step() == clock.now() + PAUSE, "nothing is due, so nothing fails"
    await clock.advance(1)
    with pytest.raises(RuntimeError, match="one"):
        await retention.step()


async def test_a_store_that_is_away_keeps_the_other_kinds_for_later(store: LockedStore) -> None:
    def remove(*_: Any) -> int:
        raise StoreDownError("away")

    retention = make_retention(store)
    retention.add("first", MINUTE, remove)
    rows = add(retention, Rows(store.clock))
    with pytest.raises(StoreDownError):
        await retention.step()
    assert rows.looks == []


async def test_while_another_instance_removes_this_one_comes_back_in_a_minute(
    store: LockedStore,
) -> None:
    clock, retention = store.clock, make_retention(store)
    store.is_free = False
    rows = [add(retention, Rows(clock, 1), name) for name in "ab"]
    assert await retention.step() == clock.now() + EVERY
    assert (store.asked, [one.looks for one in rows]) == ([(LOCK, "one", LOCK_US)], [[], []])
    assert await retention.step() == clock.now() + EVERY
    assert len(store.asked) == 2, "it asks until it gets it"
    store.is_free = True
    await retention.step()
    assert retention.removed == {"a": 1, "b": 1}


async def test_the_lock_is_asked_for_now_and_then(store: LockedStore) -> None:
    clock, retention = store.clock, make_retention(store)
    add(retention, Rows(clock, takes_us=0))
    asked = []
    for wait_us in (0, ASK_AGAIN, ASK_AGAIN, ASK_AGAIN - 1, 1):
        await clock.advance(wait_us)
        retention._kinds[0].due_mono = 0
        await retention.step()
        asked.append(len(store.asked))
    assert asked == [1, 2, 3, 3, 4]


# Walks


class Trail:
    """Rows of which some stay: what each stretch finds."""

    def __init__(self, clock: VirtualClock, *found: OldRows) -> None:
        self.clock = clock
        self.found = list(found)
        self.asked: list[tuple[int, WalkPlace, int]] = []
        self.removed: list[list[int]] = []

    def find(self, _: Any, before: int, after: WalkPlace, limit: int) -> OldRows:
        self.asked.append((self.clock.now() - before, after, limit))
        return self.found.pop(0) if self.found else OldRows([], after, True)

    def remove(self, _: Any, keys: list[int]) -> int:
        self.removed.append(keys)
        return len(keys)


def add_walk(retention: Retention, trail: Trail) -> Trail:
    retention.add_walk("trail", MINUTE, trail.find, trail.remove)
    return trail


async def test_a_walk_goes_on_where_the_last_stretch_ended(store: LockedStore) -> None:
    clock, retention = store.clock, make_retention(store)
    trail = add_walk(
        retention,
        Trail(clock, OldRows([1, 2], (5, 2), False), OldRows([], (6, 4), False)),
    )
    for _ in range(2):
        assert await retention.step() == clock.now() + PAUSE
        await clock.advance(PAUSE)
    assert await retention.step() == clock.now() + EVERY
    assert trail.asked == [
        (MINUTE, START, FIRST_BATCH),
        (MINUTE, (5, 2), 2 * FIRST_BATCH),
        (MINUTE, (6, 4), 4 * FIRST_BATCH),
    ]
    assert (trail.removed, retention.removed) == ([[1, 2]], {"trail": 2})


async def test_a_stretch_that_found_nothing_asks_for_no_lock(store: LockedStore) -> None:
    retention = make_retention(store)
    store.is_free = False
    add_walk(retention, Trail(store.clock, OldRows([], (5, 2), True)))
    assert await retention.step() == store.clock.now() + EVERY
    assert (store.asked, retention.removed) == ([], {"trail": 0})


async def test_a_walk_that_another_instance_does_stays_where_it_was(store: LockedStore) -> None:
    retention = make_retention(store)
    store.is_free = False
    trail = add_walk(retention, Trail(store.clock, OldRows([1], (5, 2), True)))
    await retention.step()
    await retention.step()
    assert [after for _, after, _ in trail.asked] == [START, START]
    assert trail.removed == []


async def test_what_was_passed_over_is_looked_at_again_every_hour(store: LockedStore) -> None:
    clock, retention = store.clock, make_retention(store)
    trail = add_walk(retention, Trail(clock, OldRows([], (5, 2), True)))
    after = []
    for wait_us in (0, WALK_AGAIN - 1, 1, 0, WALK_AGAIN):
        await clock.advance(wait_us)
        retention._kinds[0].due_mono = 0
        trail.found = trail.found or [OldRows([], (6, 4), True)]
        await retention.step()
        after.append(trail.asked[-1][1])
    # The look that finds the hour over is the last of that walk; the next begins anew.
    assert after == [START, (5, 2), (6, 4), START, (6, 4)]


async def test_a_walk_that_has_not_come_to_its_end_goes_on_whatever_the_hour(
    store: LockedStore,
) -> None:
    clock, retention = store.clock, make_retention(store)
    stretches = [OldRows([], (place, 0), False) for place in (5, 6, 7)]
    trail = add_walk(retention, Trail(clock, *stretches))
    for _ in range(3):
        await retention.step()
        await clock.advance(2 * WALK_AGAIN)
    assert [after for _, after, _ in trail.asked] == [START, (5, 0), (6, 0)]
