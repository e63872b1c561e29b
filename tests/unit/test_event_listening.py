"""The live event log over a table in memory, on the virtual clock: who hears what and when, what
the tail costs, and what becomes of it when the store fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import RateLimitedError, StoreDownError, UnavailableError
from ksana.base.instant import MILLISECOND, MINUTE, SECOND
from ksana.service.core import events as service
from ksana.service.core.events import EVERYTHING, POLL_US, EventFilter, EventLog
from tests.ground.logs import capture_logs
from tests.unit.events_ground import EventStore, ids_of

pytestmark = pytest.mark.spec("X11")

SMALL_PAGE = 4
SMALL_RING = 10
HEARTBEAT = 15 * SECOND


class Listener:
    """Somebody who listens: the ids of each batch, and whether it was told of the end."""

    def __init__(
        self, log: EventLog, after: int | None = None, wanted: EventFilter = EVERYTHING
    ) -> None:
        self.batches: list[list[int]] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self._events = log.listen(wanted, after, HEARTBEAT)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self._events:
            self.batches.append(ids_of(batch))
            await self.may_go_on.wait()

    @property
    def heard(self) -> list[int]:
        return [one for batch in self.batches for one in batch]

    async def hang_up(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._events.aclose()  # type: ignore[attr-defined]


class Ground:
    def __init__(self, clock: VirtualClock, **how: Any) -> None:
        self.clock = clock
        self.store = EventStore(clock)
        self.log = EventLog(self.store, clock, **how)  # type: ignore[arg-type]
        self.listeners: list[Listener] = []

    async def listen(self, after: int | None = None, **wanted: str) -> Listener:
        listener = Listener(self.log, after, EventFilter(**wanted))
        self.listeners.append(listener)
        await self.clock.settle()
        return listener

    async def commit(self, *ids: int, **members: str) -> None:
        """Commit events, and tell of it."""
        self.store.commit(*ids, **members)
        self.log.wake()
        await self.clock.settle()


@asynccontextmanager
async def opened(clock: VirtualClock, **how: Any) -> AsyncIterator[Ground]:
    ground = Ground(clock, **how)
    yield ground
    for listener in ground.listeners:
        await listener.hang_up()
    assert ground.log.listeners == 0


@pytest.fixture
async def ground(clock: VirtualClock) -> AsyncIterator[Ground]:
    async with opened(clock) as ground:
        yield ground


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and the ring of a size that a test can fill."""
    monkeypatch.setattr(service, "MAX_PAGE", SMALL_PAGE)
    monkeypatch.setattr(service, "RING", SMALL_RING)


async def test_who_listens_from_now_on_hears_what_is_committed_at_once(ground: Ground) -> None:
    ground.store.commit(1, 2)
    listener = await ground.listen()
    assert ground.log.listeners == 1
    await ground.commit(3)
    await ground.commit(4, 5)
    assert listener.batches == [[3], [4, 5]]


async def test_who_names_an_id_hears_from_the_next_one_on(ground: Ground) -> None:
    ground.store.commit(1, 2, 3)
    from_begin, from_second = await ground.listen(0), await ground.listen(2)
    assert (from_begin.heard, from_second.heard) == ([1, 2, 3], [3])
    await ground.commit(4)
    assert (from_begin.heard, from_second.heard) == ([1, 2, 3, 4], [3, 4])


async def test_a_listener_hears_only_what_it_wants_live_and_from_before(ground: Ground) -> None:
    ground.store.commit(1)
    ground.store.commit(2, entity_type="LEASE")
    listener = await ground.listen(0, entity_type="LEASE")
    await ground.commit(3)
    await ground.commit(4, entity_type="LEASE")
    assert listener.batches == [[2], [4]]


async def test_nothing_for_a_heartbeat_is_told_as_an_empty_batch(ground: Ground) -> None:
    listener = await ground.listen()
    await ground.clock.advance(HEARTBEAT - 1)
    assert listener.batches == []
    await ground.clock.advance(1)
    assert listener.batches == [[]]
    await ground.clock.advance(HEARTBEAT)
    assert listener.batches == [[], []]


async def test_events_of_others_are_no_heartbeat_and_put_it_off(ground: Ground) -> None:
    listener = await ground.listen(None, type="NEVER")
    await ground.clock.advance(10 * SECOND)
    await ground.commit(1)
    await ground.clock.advance(10 * SECOND)
    assert listener.batches == []
    await ground.clock.advance(5 * SECOND)
    assert listener.batches == [[]]


async def test_what_nobody_told_of_is_heard_by_the_next_poll(ground: Ground) -> None:
    listener = await ground.listen()
    ground.store.commit(1)
    await ground.clock.advance(POLL_US - 1)
    assert listener.heard == []
    await ground.clock.advance(1)
    assert listener.heard == [1]


async def test_nothing_is_read_while_nobody_listens(ground: Ground) -> None:
    ground.log.wake()
    await ground.clock.advance(MINUTE)
    assert ground.store.read_at == []
    listener = await ground.listen()
    # Its place, what is new, and nothing for the wake-up before anybody listened.
    assert len(ground.store.read_at) == 2
    await listener.hang_up()
    await ground.clock.advance(MINUTE)
    assert len(ground.store.read_at) == 2


async def test_all_listeners_share_one_tail_and_it_stays_for_the_last(ground: Ground) -> None:
    first, second = await ground.listen(), await ground.listen()
    assert len(ground.store.read_at) == 2
    await first.hang_up()
    assert ground.log.listeners == 1
    await ground.commit(1)
    assert (first.heard, second.heard) == ([], [1])


async def test_a_tail_that_begins_again_begins_at_what_is_newest_then(ground: Ground) -> None:
    first = await ground.listen()
    await ground.commit(1)
    await first.hang_up()
    ground.store.commit(2)
    second = await ground.listen()
    await ground.commit(3)
    third = await ground.listen(1)
    assert (second.heard, third.heard) == ([3], [2, 3])


@pytest.mark.parametrize("count", [SMALL_PAGE - 1, SMALL_PAGE, SMALL_PAGE + 1, SMALL_RING])
@pytest.mark.usefixtures("small")
async def test_many_at_once_are_heard_in_pages_without_a_pause(ground: Ground, count: int) -> None:
    listener = await ground.listen()
    await ground.commit(*range(1, count + 1))
    assert listener.heard == list(range(1, count + 1))
    assert max(map(len, listener.batches)) <= SMALL_PAGE


@pytest.mark.usefixtures("small")
async def test_a_long_past_is_caught_up_with_in_pages_and_then_goes_on_live(
    ground: Ground,
) -> None:
    ground.store.commit(*range(1, 3 * SMALL_PAGE + 2))
    listener = await ground.listen(0)
    assert listener.heard == list(range(1, 3 * SMALL_PAGE + 2))
    reads = len(ground.store.read_at)
    await ground.commit(50)
    assert listener.heard[-1] == 50
    assert len(ground.store.read_at) == reads + 1, "live it costs the tail's read alone"


@pytest.mark.spec("X13")
@pytest.mark.usefixtures("small")
async def test_who_falls_behind_the_ring_reads_pages_until_it_is_back(ground: Ground) -> None:
    slow, quick = await ground.listen(), await ground.listen()
    slow.may_go_on.clear()
    for first in range(1, 41, 4):
        await ground.commit(*range(first, first + 4))
    assert quick.heard == list(range(1, 41))
    assert slow.heard == [1, 2, 3, 4]
    assert ids_of(ground.log._ring) == list(range(31, 41))
    slow.may_go_on.set()
    await ground.clock.settle()
    assert slow.heard == list(range(1, 41))


@pytest.mark.usefixtures("small")
async def test_who_is_just_within_the_ring_is_served_from_memory(ground: Ground) -> None:
    await ground.listen()
    await ground.commit(*range(1, SMALL_RING + 3))
    reads = len(ground.store.read_at)
    inside = await ground.listen(2)
    assert inside.heard == list(range(3, SMALL_RING + 3))
    assert len(ground.store.read_at) == reads
    outside = await ground.listen(1)
    assert outside.heard == list(range(2, SMALL_RING + 3))
    assert len(ground.store.read_at) == reads + 1


@pytest.mark.usefixtures("small")
async def test_a_ring_that_is_just_full_keeps_all(ground: Ground) -> None:
    await ground.listen()
    await ground.commit(*range(1, SMALL_RING + 1))
    reads = len(ground.store.read_at)
    assert (await ground.listen(0)).heard == list(range(1, SMALL_RING + 1))
    assert len(ground.store.read_at) == reads


@pytest.mark.usefixtures("small")
async def test_what_is_wanted_behind_a_page_of_other_events_is_heard_at_once(
    ground: Ground,
) -> None:
    await ground.listen()
    await ground.commit(*range(1, 2 * SMALL_PAGE))
    await ground.commit(9, entity_type="LEASE")
    from_ring = await ground.listen(0, entity_type="LEASE")
    assert from_ring.batches == [[9]]


async def test_who_wants_nothing_of_the_past_hears_what_came_since_at_once(
    ground: Ground,
) -> None:
    ground.store.commit(1, 2)
    early = await ground.listen(0, entity_type="LEASE")
    await ground.commit(3, entity_type="LEASE")
    late = await ground.listen(0, entity_type="LEASE")
    assert (early.batches, late.batches) == ([[3]], [[3]])


@pytest.mark.spec("X4")
@pytest.mark.usefixtures("small")
async def test_a_full_page_of_the_past_ends_before_what_is_not_settled(
    clock: VirtualClock,
) -> None:
    ground = Ground(clock)
    ground.store.sole = False
    ground.store.commit(1, 2, 3, 5)  # a page, and 4 is still on its way
    listener = await ground.listen(0)
    assert listener.heard == [1, 2, 3]
    ground.store.commit(4)
    await clock.advance(SECOND)
    assert listener.heard == [1, 2, 3, 4, 5]
    await listener.hang_up()


@pytest.mark.spec("X4")
async def test_from_the_past_nothing_is_shown_beyond_what_is_settled(clock: VirtualClock) -> None:
    ground = Ground(clock)
    ground.store.sole = False
    ground.store.commit(1, 2, 4)
    listener = await ground.listen(0)
    assert listener.heard == [1, 2]
    ground.store.commit(3)
    await clock.advance(SECOND)
    assert listener.heard == [1, 2, 3, 4]
    await listener.hang_up()


async def test_a_listener_too_many_is_refused_and_a_place_that_is_left_is_free(
    clock: VirtualClock,
) -> None:
    async with opened(clock, max_listeners=2) as ground:
        first = await ground.listen()
        ground.log.ensure_room()
        await ground.listen()
        with pytest.raises(
            RateLimitedError, match=r"^at most 2 live streams are served at a time$"
        ):
            ground.log.ensure_room()
        with pytest.raises(RateLimitedError):
            await anext(ground.log.listen(EVERYTHING, None, HEARTBEAT))
        assert ground.log.listeners == 2
        await first.hang_up()
        ground.log.ensure_room()


@pytest.mark.spec("X14")
async def test_closing_ends_who_listens_and_refuses_who_comes(ground: Ground) -> None:
    listeners = [await ground.listen(), await ground.listen()]
    await ground.log.close()
    await ground.clock.settle()
    assert [one.task.done() for one in listeners] == [True, True]
    assert [one.batches for one in listeners] == [[], []]
    with pytest.raises(UnavailableError, match=r"^the server is going down$"):
        ground.log.ensure_room()
    reads = len(ground.store.read_at)
    await ground.clock.advance(MINUTE)
    assert len(ground.store.read_at) == reads


def tasks_by_name() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks()]


@pytest.mark.spec("X14")
async def test_once_closed_the_tail_has_ended_though_somebody_does_not_read_on(
    ground: Ground,
) -> None:
    slow = await ground.listen()
    slow.may_go_on.clear()
    await ground.commit(1)
    assert tasks_by_name().count("event-tail") == 1
    await ground.log.close()
    assert "event-tail" not in tasks_by_name()


@pytest.mark.spec("X14")
async def test_closing_ends_who_could_not_be_told_a_place_yet(ground: Ground) -> None:
    ground.store.error = StoreDownError("away")
    listener = await ground.listen()
    await ground.log.close()
    await ground.clock.settle()
    assert listener.task.done() and listener.batches == []


def waits_of(read_at: list[int]) -> list[int]:
    """Between one read and the next, in milliseconds."""
    return [(later - earlier) // MILLISECOND for earlier, later in pairwise(read_at)]


@pytest.mark.parametrize(
    ("error", "logged"),
    [(StoreDownError("away"), []), (RuntimeError("broken"), ["the event tail failed"] * 7)],
    ids=["the store is away", "a bug"],
)
async def test_the_tail_outlives_failures_and_asks_more_and_more_rarely(
    ground: Ground, error: Exception, logged: list[str]
) -> None:
    listener = await ground.listen()
    await ground.clock.advance(POLL_US)
    ground.store.read_at.clear()
    ground.store.error = error
    with capture_logs() as logs:
        await ground.clock.advance(40 * SECOND)
    assert waits_of(ground.store.read_at) == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]
    assert [entry["event"] for entry in logs] == logged
    assert all(entry["exc_info"] is error for entry in logs)
    ground.store.error = None
    ground.store.commit(1)
    await ground.clock.advance(10 * SECOND)
    assert listener.heard == [1]
    ground.store.read_at.clear()
    await ground.clock.advance(2 * SECOND)
    assert set(waits_of(ground.store.read_at)) == {POLL_US // MILLISECOND}


async def test_a_wake_up_ends_the_pause_after_a_failure(ground: Ground) -> None:
    listener = await ground.listen()
    ground.store.error = StoreDownError("away")
    await ground.clock.advance(5 * SECOND)
    ground.store.error = None
    await ground.commit(1)
    assert listener.heard == [1]


async def test_who_comes_while_the_store_is_away_hears_from_its_return_on(ground: Ground) -> None:
    ground.store.commit(1)
    ground.store.error = StoreDownError("away")
    listener = await ground.listen()
    await ground.clock.advance(MINUTE)
    assert listener.batches == []
    ground.store.error = None
    await ground.clock.advance(10 * SECOND)
    await ground.commit(2)
    assert listener.heard == [2]
