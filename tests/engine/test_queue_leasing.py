"""What time does to the queue: leases, claims and scheduled jobs on the virtual clock, and the
recount that puts counters right."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.domain.queue.admission import Capacity
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.escrow import Allotment
from ksana.domain.queue.jobs import CLAIM_TTL_US
from ksana.engine.queue.claims import ClaimWaiter
from ksana.engine.queue.leasing import POLL, RECOUNT_EVERY, SWEEP, Leasing, recount, sweep
from ksana.ports.queue.tables import QueueDue
from tests.engine.queue_ground import TOTAL, TTL, Queueing, open_queue

LATER = 40 * SECOND


@pytest.fixture
async def queue(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Queueing]:
    async with open_queue(tmp_path, clock) as queue:
        await clock.advance(SECOND)
        yield queue


@asynccontextmanager
async def running(leasing: Leasing, clock: VirtualClock) -> AsyncIterator[None]:
    loop = asyncio.ensure_future(leasing.pump.run())
    await clock.settle()
    yield
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


async def lease_one(queue: Queueing) -> int:
    await queue.submit(max_attempts=2)
    await queue.start()
    return TTL


async def claim_one(queue: Queueing) -> int:
    await queue.submit()
    await queue.claim()
    return CLAIM_TTL_US


async def schedule_one(queue: Queueing) -> int:
    await queue.submit(run_at=queue.clock.now() + LATER)
    return LATER


Prepare = Callable[[Queueing], Awaitable[int]]


@pytest.mark.spec("Q12")
@pytest.mark.parametrize(
    ("prepare", "move"),
    [(lease_one, "requeue"), (claim_one, "take_back"), (schedule_one, "promote")],
)
async def test_what_is_over_is_written_down_at_that_instant_and_not_before(
    queue: Queueing, prepare: Prepare, move: str
) -> None:
    lasts_us = await prepare(queue)
    due_at = queue.clock.now() + lasts_us
    await queue.clock.advance(lasts_us - 1)
    early = await queue.store.transact(sweep, 10)
    assert (early.changes, early.is_full, early.due.soonest()) == ([], False, due_at)
    await queue.clock.advance(1)
    swept = await queue.store.transact(sweep, 10)
    assert [change.move for change in swept.changes] == [move]
    assert swept.due == QueueDue(None, None, None)
    assert swept.wake.has_ready
    assert bool(swept.wake.freed_units) is (move == "requeue")
    assert len(await queue.start()) == 1, "it is ready"


async def test_a_sweep_where_nothing_waits_does_nothing(queue: Queueing) -> None:
    swept = await queue.store.transact(sweep, 10)
    assert (swept.changes, swept.is_full) == ([], False)


@pytest.mark.parametrize(("limit", "moved", "is_full"), [(1, 2, True), (2, 3, True), (3, 3, False)])
async def test_a_sweep_that_left_something_of_one_kind_says_so(
    queue: Queueing, limit: int, moved: int, is_full: bool
) -> None:
    for _ in range(2):
        await schedule_one(queue)
    await lease_one(queue)
    await queue.clock.advance(LATER)
    swept = await queue.store.transact(sweep, limit)
    assert (len(swept.changes), swept.is_full) == (moved, is_full)


# The loop


@pytest.mark.spec("Q12")
@pytest.mark.parametrize("prepare", [lease_one, claim_one, schedule_one])
async def test_the_loop_wakes_when_something_is_due_wakes_who_waits_and_tells_what_it_did(
    queue: Queueing, prepare: Prepare
) -> None:
    told: list[Sequence[JobChange]] = []
    service = queue.service
    leasing = Leasing(queue.store, queue.clock, TOTAL, service.poll, told.append)
    lasts_us = await prepare(queue)
    async with running(leasing, queue.clock):
        with ClaimWaiter(service.poll, Wants(), queue.clock) as waiter:
            await queue.clock.advance(lasts_us - 1)
            assert (told, waiter.came.is_set()) == ([], False)
            await queue.clock.advance(1)
            assert ([len(changes) for changes in told], waiter.came.is_set()) == ([1], True)
    assert leasing.pump.name == "queue-leasing"


async def test_a_backlog_is_swept_in_portions_one_after_the_other(queue: Queueing) -> None:
    told: list[int] = []
    run_at = queue.clock.now() + SECOND
    await queue.service.submit_batch([queue.new_job(run_at=run_at) for _ in range(SWEEP + 1)])
    await queue.clock.advance(SECOND)
    leasing = Leasing(
        queue.store, queue.clock, TOTAL, queue.service.poll, lambda done: told.append(len(done))
    )
    async with running(leasing, queue.clock):
        assert told == [SWEEP, 1]


async def test_something_earlier_than_all_that_is_known_wakes_the_loop(queue: Queueing) -> None:
    leasing = Leasing(queue.store, queue.clock, TOTAL, queue.service.poll)
    await schedule_one(queue)
    known_at = queue.clock.now() + LATER
    async with running(leasing, queue.clock):
        steps = leasing.pump.steps
        leasing.note_due(known_at)
        await queue.clock.settle()
        assert leasing.pump.steps == steps, "it comes then anyway"
        leasing.note_due(known_at - 1)
        await queue.clock.settle()
        assert leasing.pump.steps == steps + 1


async def test_a_loop_that_knows_of_nothing_is_woken_by_anything(queue: Queueing) -> None:
    leasing = Leasing(queue.store, queue.clock, TOTAL, queue.service.poll)
    async with running(leasing, queue.clock):
        leasing.note_due(queue.clock.now() + LATER)
        await queue.clock.settle()
        assert leasing.pump.steps == 2


@pytest.mark.parametrize(
    ("is_sole", "due_us", "next_us"),
    [
        (True, LATER, LATER),
        (True, None, None),
        (False, LATER, POLL),
        (False, SECOND, SECOND),
        (False, None, POLL),
    ],
)
async def test_on_a_shared_store_it_looks_for_what_others_did_too(
    queue: Queueing,
    monkeypatch: pytest.MonkeyPatch,
    is_sole: bool,
    due_us: int | None,
    next_us: int | None,
) -> None:
    monkeypatch.setattr(queue.store, "sole", is_sole)
    now = queue.clock.now()
    if due_us is not None:
        await queue.submit(run_at=now + due_us)
    leasing = Leasing(queue.store, queue.clock, TOTAL, queue.service.poll)
    assert await leasing._step() == (None if next_us is None else now + next_us)


async def test_a_loop_that_knows_of_nothing_looks_every_ten_seconds(queue: Queueing) -> None:
    leasing = Leasing(queue.store, queue.clock, TOTAL, queue.service.poll)
    async with running(leasing, queue.clock):
        await queue.clock.advance(90 * SECOND)
        assert leasing.pump.steps == 10


# The recount


async def alter(queue: Queueing, *statements: str) -> None:
    """Change rows as somebody does who has only a database shell."""

    def change(tx: Any) -> None:
        for sql in statements:
            tx._session.raw(sql)
        tx._session.wrote = True

    await queue.store.transact(change)


async def recounted(queue: Queueing) -> list[tuple[str, str, Any]]:
    """(entity_type, entity_id, data) of each event that tells of it."""
    events = await queue.store.read(
        lambda tx: tx.events.list_after(0, 100, event_type="CAPACITY_RECOUNTED")
    )
    return [
        (event.entity_type, event.entity_id, msgspec.json.decode(event.data)) for event in events
    ]


@pytest.mark.spec("Q9")
@pytest.mark.parametrize(
    ("used", "active", "off"),
    [(7, 1, (0, 0)), (8, 1, (1, 0)), (7, 2, (0, 1)), (6, 1, (-1, 0)), (7, 0, (0, -1))],
)
async def test_counters_that_somebody_changed_by_hand_are_put_right_and_told_of(
    queue: Queueing, used: int, active: int, off: tuple[int, int]
) -> None:
    await queue.submit(cost_units=7)
    await queue.start()
    await alter(queue, f"UPDATE queue_capacity SET used = {used}, active = {active}")
    assert await queue.store.transact(recount, TOTAL) == off
    assert await queue.used() == (7, 1)
    data = {"used": used, "counted": 7, "leases": 1, "alert": True}
    told = [] if off == (0, 0) else [("LEASE", "capacity", data)]
    assert await recounted(queue) == told
    assert await queue.store.transact(recount, TOTAL) == (0, 0)


@pytest.mark.spec("Q9")
async def test_units_set_aside_on_another_store_come_home_when_its_rows_were_copied(
    queue: Queueing,
) -> None:
    await queue.submit(cost_units=7)
    await queue.start()
    at = queue.clock.now()
    await alter(
        queue,
        "UPDATE queue_capacity SET used = used + 5",
        f"INSERT INTO queue_allotments VALUES (1, 1, 5, 0, {at}, 1)",
    )
    assert await queue.store.transact(recount, TOTAL) == (0, 0)
    pool = await queue.store.read(lambda tx: tx._session.raw("SELECT used FROM queue_capacity"))
    left = await queue.store.read(
        lambda tx: tx._session.raw("SELECT SUM(units) FROM queue_allotments")
    )
    assert ((pool or [None])[0], (left or [None])[0]) == (7, 0)
    assert await recounted(queue) == []


class SharedCapacity:
    """The capacity of a shared store, all of it well: 5 of 12 units are set aside."""

    is_shared = True

    def __init__(self) -> None:
        self.written: list[Capacity] = []

    def lock_whole(self, total: int) -> Capacity:
        return Capacity(total, 7, 1, 0, None, 0, 0)

    def sum_active(self) -> tuple[int, int]:
        return 1, 7

    def list_held(self) -> list[Allotment]:
        return [Allotment(1, 1, 5, 0, 0, 1)]

    def write(self, capacity: Capacity) -> None:
        self.written.append(capacity)


def test_units_set_aside_on_a_shared_store_are_left_where_they_are() -> None:
    capacity = SharedCapacity()
    tx: Any = SimpleNamespace(capacity=capacity, gauges=SimpleNamespace(recount=lambda: None))
    assert recount(tx, TOTAL) == (0, 0)
    assert capacity.written == []


async def test_the_loop_recounts_at_its_start_and_then_every_hour(queue: Queueing) -> None:
    await queue.submit()
    leasing = Leasing(queue.store, queue.clock, TOTAL, queue.service.poll)

    async def step_with_wrong_gauges() -> bool:
        """Whether a step put them right."""
        await alter(queue, "UPDATE queue_gauges SET queued = 100")
        await leasing._step()
        return (await queue.gauges())[0] == 1

    await queue.clock.advance(RECOUNT_EVERY)
    assert await step_with_wrong_gauges()
    assert not await step_with_wrong_gauges()
    await queue.clock.advance(RECOUNT_EVERY)
    assert not await step_with_wrong_gauges()
    await queue.clock.advance(1)
    assert await step_with_wrong_gauges()
