"""The built-in worker: what it does itself, what it has done by others within their time, and when
it comes back."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import DAY, HOUR
from ksana.domain.governance.decay import FLOOR, next_decay_at
from ksana.domain.governance.records import (
    LEASE_US,
    MAX_ERROR,
    RETRY_DELAY_US,
    GovernanceJob,
    GovernedObject,
)
from ksana.engine.governance.by_callable import PLACES, PerformByCallable, is_async
from ksana.engine.governance.ending import ack_jobs
from ksana.engine.governance.performing import Performed
from ksana.engine.governance.worker import (
    AT_ONCE,
    BATCH,
    PAUSE,
    PERFORM_US,
    GovernanceWorker,
    work_off,
)
from ksana.engine.governance.writer import LostRaceError
from ksana.service.governance.transactions import enqueue_job
from ksana.store.sql import open_store
from tests.ground.governance import ME, SECOND, Governing
from tests.ground.logs import capture_logs

INTERVAL = 5 * SECOND


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Governing]:
    await clock.advance(HOUR)
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", clock, inline=True)
    yield Governing(store, clock)
    await store.close()


def make_worker(governing: Governing, perform: Any = None, **more: Any) -> GovernanceWorker:
    store = more.pop("store", governing.store)
    rules = governing.service.rules
    return GovernanceWorker(store, governing.clock, rules, INTERVAL, perform, **more)


class Performing:
    """Performs by telling what it was told to; remembers what it was given."""

    def __init__(self, answer: Callable[[], Performed] = Performed) -> None:
        self.answer = answer
        self.given: list[tuple[GovernanceJob, GovernedObject | None]] = []

    async def __call__(self, job: GovernanceJob, governed: GovernedObject | None) -> Performed:
        self.given.append((job, governed))
        return self.answer()


class Racing:
    """A store on which so many acks lose a race first."""

    sole = True

    def __init__(self, governing: Governing, races: int) -> None:
        self._store = governing.store
        self.races = races

    async def read(self, fn: Any, *args: Any) -> Any:
        return await self._store.read(fn, *args)

    async def transact(self, fn: Any, *args: Any) -> Any:
        if fn in (ack_jobs, work_off) and self.races:
            self.races -= 1
            raise LostRaceError
        return await self._store.transact(fn, *args)


async def enqueue_many(governing: Governing, count: int, **more: Any) -> None:
    """So many jobs, in one transaction."""
    jobs = [governing.new_job(f"m{number}", **more) for number in range(count)]

    def enter(tx: Any) -> None:
        for job in jobs:
            enqueue_job(tx, job, governing.service.rules, ME)

    await governing.store.transact(enter)


# What it does itself


@pytest.mark.spec("G13")
@pytest.mark.parametrize(("count", "rest_us"), [(BATCH - 1, INTERVAL), (BATCH, PAUSE)])
async def test_after_a_full_batch_it_only_pauses(
    governing: Governing, count: int, rest_us: int
) -> None:
    await enqueue_many(governing, count)
    worker = make_worker(governing)
    assert await worker._step() == governing.clock.now() + rest_us
    assert await governing.store.transact(work_off, BATCH, governing.service.rules) == 0
    assert (worker.pump.name, worker.asking.name) == ("governance-worker", "governance-asking")


@pytest.mark.spec("G13")
async def test_a_lost_race_is_tried_again_after_a_pause(governing: Governing) -> None:
    job = await governing.enqueue()
    worker = make_worker(governing, store=Racing(governing, 1))
    now = governing.clock.now()
    assert [await worker._step() for _ in range(2)] == [now + PAUSE, now + INTERVAL]
    assert (await governing.job(job)).status == "succeeded"


@pytest.mark.spec("G13")
async def test_a_weight_is_worked_out_and_the_next_time_is_planned(
    governing: Governing, clock: VirtualClock
) -> None:
    await governing.put("m1", half_life_us=DAY, status="active")
    job = await governing.enqueue(run_at=clock.now() + DAY)
    await clock.advance(DAY)
    assert await governing.store.transact(work_off, 1, governing.service.rules) == 1
    governed = await governing.object()
    assert governed.weight == pytest.approx(FLOOR + (1 - FLOOR) / 2)
    assert governed.next_action == "decay"
    assert governed.next_action_at == next_decay_at(governed, clock.now()) == clock.now() + DAY // 4
    done = await governing.job(job)
    assert (done.status, done.worker_id) == ("succeeded", "built-in")


@pytest.mark.spec("G13")
async def test_an_object_that_does_not_fade_gets_no_next_time(governing: Governing) -> None:
    await governing.put("m1", status="active")
    await governing.enqueue()
    await governing.store.transact(work_off, 1, governing.service.rules)
    governed = await governing.object()
    assert (governed.weight, governed.next_action_at) == (1.0, None)


@pytest.mark.spec("G13")
@pytest.mark.parametrize("action", ["decay", "archive"])
async def test_an_object_that_nobody_registered_is_worked_off_too(
    governing: Governing, action: str
) -> None:
    job = await governing.enqueue(action=action)
    assert await governing.store.transact(work_off, 1, governing.service.rules) == 1
    assert (await governing.job(job)).status == "succeeded"


@pytest.mark.spec("G13")
async def test_an_archive_changes_no_weight(governing: Governing, clock: VirtualClock) -> None:
    await governing.put("m1", half_life_us=HOUR, status="stale")
    await governing.enqueue(action="archive", run_at=clock.now() + DAY)
    await clock.advance(DAY)
    await governing.store.transact(work_off, 1, governing.service.rules)
    governed = await governing.object()
    assert (governed.status, governed.weight, governed.next_action_at) == ("archived", 1.0, None)


# What it has done by others


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("count", "rest_us"), [(0, INTERVAL), (AT_ONCE - 1, INTERVAL), (AT_ONCE, PAUSE)]
)
async def test_after_as_many_as_it_may_have_performed_at_once_it_only_pauses(
    governing: Governing, count: int, rest_us: int
) -> None:
    if count:
        await enqueue_many(governing, count, action="verify")
    perform = Performing()
    worker = make_worker(governing, perform)
    assert await worker._ask() == governing.clock.now() + rest_us
    assert len(perform.given) == count


@pytest.mark.spec("G13")
async def test_without_anybody_to_perform_it_takes_nothing(governing: Governing) -> None:
    job = await governing.enqueue(action="verify")
    assert await make_worker(governing)._ask() == governing.clock.now() + INTERVAL
    assert (await governing.job(job)).status == "queued"


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("free", "taken"), [(-1, 0), (0, 0), (1, 1), (2, 2), (AT_ONCE + 5, AT_ONCE)]
)
async def test_it_takes_no_more_than_there_are_places(
    governing: Governing, free: int, taken: int
) -> None:
    await enqueue_many(governing, AT_ONCE + 2, action="verify")
    perform = Performing()
    worker = make_worker(governing, perform, count_free=lambda: free)
    rest_us = PAUSE if taken == AT_ONCE else INTERVAL
    assert await worker._ask() == governing.clock.now() + rest_us
    assert len(perform.given) == taken


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("perform_us", "lease_us"),
    [(SECOND, LEASE_US), (LEASE_US // 2, LEASE_US), (LEASE_US, 2 * LEASE_US)],
)
async def test_a_lease_lasts_twice_as_long_as_an_action_may(
    governing: Governing, perform_us: int, lease_us: int
) -> None:
    await governing.put("m1", status="active")
    await governing.enqueue(action="verify")
    perform = Performing()
    await make_worker(governing, perform, perform_us=perform_us)._ask()
    [(job, governed)] = perform.given
    assert job.lease_expires_at == governing.clock.now() + lease_us
    assert governed is not None
    assert (governed.key, governed.verify_count) == ("memory:m1", 1)


class Freezing(Racing):
    """A store at which the machine is suspended while it reads."""

    def __init__(self, governing: Governing, frozen_us: int) -> None:
        super().__init__(governing, 0)
        self.clock: Any = governing.clock
        self.frozen_us = frozen_us

    async def read(self, fn: Any, *args: Any) -> Any:
        self.clock.suspend(self.frozen_us)
        return await super().read(fn, *args)


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("frozen_us", "count"), [(LEASE_US - SECOND - 1, 1), (LEASE_US - SECOND, 0), (LEASE_US, 0)]
)
async def test_what_may_not_be_done_before_the_lease_ends_is_not_begun(
    governing: Governing, frozen_us: int, count: int
) -> None:
    await governing.enqueue(action="verify")
    perform = Performing()
    store = Freezing(governing, frozen_us)
    worker = make_worker(governing, perform, perform_us=SECOND, store=store)
    assert await worker._ask() == governing.clock.now() + INTERVAL
    assert len(perform.given) == count


@pytest.mark.spec("G13")
@pytest.mark.parametrize(("error", "kept"), [("no", "no"), ("x" * 2000, "x" * MAX_ERROR), ("", "")])
async def test_an_action_that_failed_is_tried_again_later_with_its_error(
    governing: Governing, error: str, kept: str
) -> None:
    job = await governing.enqueue(action="verify")
    await make_worker(governing, Performing(lambda: Performed(error=error)))._ask()
    failed = await governing.job(job)
    assert (failed.status, failed.attempt, failed.last_error) == ("queued", 1, kept)
    assert failed.run_at == governing.clock.now() + RETRY_DELAY_US


@pytest.mark.spec("G13")
@pytest.mark.parametrize("races", [0, 1, 3])
async def test_an_ack_that_lost_its_race_is_written_again(governing: Governing, races: int) -> None:
    job = await governing.enqueue(action="verify")
    perform = Performing()
    worker = make_worker(governing, perform, store=Racing(governing, races))
    await worker._ask()
    assert ((await governing.job(job)).status, len(perform.given)) == ("succeeded", 1)


@pytest.mark.spec("G13")
async def test_an_action_that_takes_too_long_is_ended_and_has_failed(
    governing: Governing, clock: VirtualClock
) -> None:
    ended: list[int] = []

    async def perform(*_: Any) -> Performed:
        try:
            await clock.sleep_until(clock.now() + DAY)
        finally:
            ended.append(clock.now())
        return Performed()

    job = await governing.enqueue(action="verify")
    began_at = clock.now()
    asking = asyncio.ensure_future(make_worker(governing, perform)._ask())
    await clock.advance(PERFORM_US - 1)
    assert (ended, (await governing.job(job)).status) == ([], "running")
    await clock.advance(1)
    await asking
    assert ended == [began_at + PERFORM_US]
    failed = await governing.job(job)
    assert (failed.status, failed.last_error) == ("queued", "not done within 1m")


# By a function


class OnTheLoop:
    """An instance that is called on the event loop."""

    async def __call__(self, job: dict[str, Any]) -> None:
        """Succeed."""


async def succeed(job: dict[str, Any]) -> None:
    """Succeed on the event loop."""


@pytest.mark.parametrize(
    ("function", "expected"),
    [(succeed, True), (OnTheLoop(), True), (lambda job: None, False), (print, False)],
    ids=["async def", "async __call__", "def", "built-in"],
)
def test_a_function_runs_on_the_event_loop_if_it_can(function: Any, expected: bool) -> None:
    assert is_async(function) is expected


@pytest.mark.spec("G13")
@pytest.mark.parametrize("raised", [None, LookupError("no evidence")])
async def test_a_thread_that_ended_gives_its_place_back_and_its_failure_is_logged(
    governing: Governing, raised: Exception | None
) -> None:
    job = await governing.enqueue(action="verify")
    free: list[int] = []
    threads: list[threading.Thread] = []

    def run(_: Any) -> None:
        free.append(perform.count_free())
        threads.append(threading.current_thread())
        if raised is not None:
            raise raised

    perform = PerformByCallable(run)
    with capture_logs() as logs:
        performed = await perform(job, None)
    assert (free, perform.count_free()) == ([PLACES - 1], PLACES)
    assert threads[0].daemon, "nobody waits for it at the end of the program"
    if raised is None:
        assert (performed, logs) == (Performed(), [])
    else:
        assert performed == Performed(error="LookupError: no evidence")
        assert [(log["event"], log["job_id"], log["action"]) for log in logs] == [
            ("the callable failed", job.job_id, "verify")
        ]
