"""Long polls: who is woken by what, who is not, and how the store is watched for the others."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.effects import Wake
from ksana.engine.core.long_poll import HEARD_LOOK_EVERY, LOOK_EVERY, LongPoll, Waiter
from ksana.engine.queue.claims import FREE_UNITS, LOOK_AGAIN, ClaimPoll, ClaimWaiter, notify_of


class Watched:
    """A poll on a store that is looked into, with the instants of the looks."""

    def __init__(self, clock: VirtualClock, *, is_shared: bool = True) -> None:
        self.clock = clock
        self.is_shared = is_shared
        self.looks: list[int] = []
        self.mark = 0
        self.told = 0
        self.poll: LongPoll[str] = LongPoll(clock, self._read, lambda: self.is_shared)
        self.poll.tell = self._tell

    async def _read(self) -> int:
        self.looks.append(self.clock.now())
        return self.mark

    def _tell(self) -> None:
        self.told += 1


@pytest.fixture
def watched(clock: VirtualClock) -> Watched:
    return Watched(clock)


@asynccontextmanager
async def watching(watched: Watched) -> AsyncIterator[None]:
    loop = asyncio.ensure_future(watched.poll.watch())
    await watched.clock.settle()
    yield
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


def takes(*names: str) -> Callable[[str], bool]:
    return names.__contains__


@pytest.mark.parametrize(
    ("came", "woken"),
    [(["a"], "a"), (["b"], "b"), (["a", "x"], "a"), (["x"], ""), ([], ""), (["b", "a"], "ab")],
)
async def test_what_comes_wakes_those_whom_one_of_it_concerns(
    watched: Watched, came: list[str], woken: str
) -> None:
    with (
        Waiter(watched.poll, takes("a")) as one,
        Waiter(watched.poll, takes("b")) as two,
    ):
        watched.poll.notify(came)
        named = {"a": one, "b": two}
        assert [name for name, waiter in named.items() if waiter.came.is_set()] == list(woken)
    assert watched.told == 1, "the other instances are told, whoever waits here"


async def test_a_waiter_that_was_woken_stays_so_whatever_comes_after(watched: Watched) -> None:
    with Waiter(watched.poll, takes("a")) as waiter:
        watched.poll.notify(["a"])
        watched.poll.notify(["x"])
        assert waiter.came.is_set()


async def test_where_nobody_waits_the_others_are_told_all_the_same(watched: Watched) -> None:
    watched.poll.notify(["a"])
    watched.poll.notify_all()
    assert watched.told == 2


async def test_what_is_not_known_wakes_everybody_and_who_has_left_is_not_woken(
    watched: Watched,
) -> None:
    with Waiter(watched.poll, takes("a")) as one, Waiter(watched.poll, takes()) as two:
        watched.poll.notify_all()
        assert (one.came.is_set(), two.came.is_set()) == (True, True)
    one.came.clear()
    watched.poll.notify_all()
    assert not one.came.is_set()
    assert not watched.poll.waiters


async def test_a_wait_ends_with_what_comes_or_with_its_time(watched: Watched) -> None:
    clock = watched.clock
    with Waiter(watched.poll, takes("a")) as waiter:
        waiting = asyncio.ensure_future(watched.poll.wait(waiter, clock.now() + SECOND))
        await clock.advance(SECOND - 1)
        assert not waiting.done()
        watched.poll.notify(["a"])
        assert await waiting is True
        assert not waiter.came.is_set(), "the next wait is for something else"
        waiting = asyncio.ensure_future(watched.poll.wait(waiter, clock.now() + SECOND))
        await clock.advance(SECOND)
        assert await waiting is False


async def test_a_poll_that_closes_lets_every_waiter_go_with_nothing(watched: Watched) -> None:
    clock = watched.clock
    assert not watched.poll.is_closed
    with Waiter(watched.poll, takes()) as waiter:
        waiting = asyncio.ensure_future(watched.poll.wait(waiter, clock.now() + SECOND))
        await clock.settle()
        watched.poll.close()
        await clock.settle()
        assert (waiting.done(), waiting.result()) == (True, False)
        assert watched.poll.is_closed
        late = asyncio.ensure_future(watched.poll.wait(waiter, clock.now() + SECOND))
        await clock.settle()
        assert (late.done(), late.result()) == (True, False), "nobody waits any more"


@pytest.mark.parametrize(
    ("is_told", "every_us"), [(False, LOOK_EVERY), (True, HEARD_LOOK_EVERY), (None, LOOK_EVERY)]
)
async def test_a_shared_store_is_looked_into_only_while_somebody_waits(
    watched: Watched, is_told: bool | None, every_us: int
) -> None:
    clock = watched.clock
    if is_told is not None:
        watched.poll.is_told = lambda: is_told
    async with watching(watched):
        await clock.advance(SECOND)
        assert watched.looks == []
        began_at = clock.now()
        with Waiter(watched.poll, takes()):
            await clock.advance(3 * every_us)
        await clock.advance(SECOND)
        assert watched.looks == [began_at + nth * every_us for nth in range(5)]
        with Waiter(watched.poll, takes()):
            await clock.advance(every_us)
        assert len(watched.looks) == 7, "the next waiter is served as the first was"


async def test_a_change_that_another_instance_made_wakes_once(watched: Watched) -> None:
    clock = watched.clock
    async with watching(watched):
        with Waiter(watched.poll, takes()) as waiter:
            await clock.settle()
            assert waiter.came.is_set(), "what came before the first look is in no difference"
            waiter.came.clear()
            await clock.advance(LOOK_EVERY)
            assert not waiter.came.is_set()
            watched.mark += 1
            await clock.advance(LOOK_EVERY)
            assert waiter.came.is_set()
            waiter.came.clear()
            await clock.advance(2 * LOOK_EVERY)
            assert not waiter.came.is_set()
    assert watched.told == 0, "what was heard is not told on"


async def test_a_store_that_nobody_shares_is_not_looked_into_until_it_is_shared(
    clock: VirtualClock,
) -> None:
    watched = Watched(clock, is_shared=False)
    async with watching(watched):
        with Waiter(watched.poll, takes()) as waiter:
            await clock.advance(SECOND - 1)
            watched.is_shared = True
            await clock.settle()
            assert (watched.looks, waiter.came.is_set()) == ([], False)
            await clock.advance(1)
            assert watched.looks == [clock.now()]


# Claims


SMALL, LARGE = class_of("a", "t", 1, ()), class_of("a", "t", 9, ())


@pytest.fixture
def claims(clock: VirtualClock) -> ClaimPoll:
    async def read() -> int:
        return 0

    return LongPoll(clock, read, lambda: False)


@pytest.fixture
async def started(clock: VirtualClock) -> VirtualClock:
    """A clock that has run for a while: no difference to its start is small."""
    await clock.advance(60 * SECOND)
    return clock


async def test_a_claim_is_woken_by_jobs_of_a_class_that_it_takes(
    claims: ClaimPoll, started: VirtualClock
) -> None:
    with ClaimWaiter(claims, Wants(max_cost_units=5), started) as waiter:
        claims.notify([LARGE])
        assert not waiter.came.is_set()
        claims.notify([LARGE, SMALL])
        assert waiter.came.is_set()


@pytest.mark.parametrize(
    ("is_short", "since_us", "is_woken"),
    [
        (True, 0, True),
        (False, 0, False),
        (False, LOOK_AGAIN - 1, False),
        (False, LOOK_AGAIN, True),
    ],
)
async def test_free_units_wake_a_claim_that_lacked_some_or_has_not_looked_for_long(
    claims: ClaimPoll, started: VirtualClock, is_short: bool, since_us: int, is_woken: bool
) -> None:
    waiter = ClaimWaiter(claims, Wants(), started)
    with waiter:
        waiter.begin_try()
        waiter.end_try(is_short)
        await started.advance(since_us)
        claims.notify([FREE_UNITS])
        assert waiter.came.is_set() is is_woken


async def test_a_claim_that_has_not_tried_yet_has_just_looked(
    claims: ClaimPoll, started: VirtualClock
) -> None:
    with ClaimWaiter(claims, Wants(), started) as waiter:
        claims.notify([FREE_UNITS])
        assert not waiter.came.is_set()


@pytest.mark.parametrize(
    ("is_freed", "is_short", "is_woken"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
async def test_units_that_became_free_during_a_try_that_lacked_them_count(
    claims: ClaimPoll, started: VirtualClock, is_freed: bool, is_short: bool, is_woken: bool
) -> None:
    waiter = ClaimWaiter(claims, Wants(), started)
    with waiter:
        waiter.begin_try()
        if is_freed:
            claims.notify([FREE_UNITS])
        assert not waiter.came.is_set(), "it looks now"
        waiter.end_try(is_short)
        assert waiter.came.is_set() is is_woken


async def test_a_new_try_forgets_what_the_one_before_lacked(
    claims: ClaimPoll, started: VirtualClock
) -> None:
    waiter = ClaimWaiter(claims, Wants(), started)
    with waiter:
        claims.notify([FREE_UNITS])
        waiter.end_try(True)
        waiter.came.clear()
        waiter.begin_try()
        claims.notify([SMALL])
        waiter.came.clear()
        waiter.end_try(True)
        assert not waiter.came.is_set(), "those units were there when it looked"
        waiter.begin_try()
        claims.notify([FREE_UNITS])
        assert not waiter.came.is_set(), "it looks now"


@pytest.mark.parametrize(
    ("wake", "granted", "woken"),
    [
        (Wake(has_ready=True), 0, {"short", "idle"}),
        (Wake(has_ready=True, freed_units=5), 5, {"short", "idle"}),
        (Wake(freed_units=5), 0, {"short"}),
        (Wake(freed_units=5), 4, {"short"}),
        (Wake(freed_units=5), 5, set()),
        (Wake(freed_units=5), 6, set()),
        (Wake(next_due=10 * MILLISECOND), 0, set()),
    ],
)
async def test_changes_of_jobs_wake_whom_they_concern(
    claims: ClaimPoll, started: VirtualClock, wake: Wake, granted: int, woken: set[str]
) -> None:
    waiters = {name: ClaimWaiter(claims, Wants(), started) for name in ("short", "idle")}
    with waiters["short"], waiters["idle"]:
        waiters["short"].end_try(True)
        waiters["idle"].end_try(False)
        notify_of(claims, wake, granted)
        assert {name for name, waiter in waiters.items() if waiter.came.is_set()} == woken
