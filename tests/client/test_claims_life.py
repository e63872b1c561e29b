"""The claiming loop on a loop whose time jumps: when it asks, for how many, and what it does
after a failure."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.client.claims import Claims
from ksana.client.errors import ApiError, TransportError, from_body
from ksana.client.shapes import Job
from tests.client.fake_socket import EvenBackoff
from tests.ground.jumping import LoopClock, loop_time, on_jumping_time, pass_time

pytestmark = pytest.mark.spec("Q2", "Q16")

CUT = TransportError("cut", is_outcome_unknown=True)
NOT_REACHED = TransportError("not reached", is_outcome_unknown=False)


def job(name: str) -> Job:
    return Job(
        job_id=name,
        addon_id="a",
        job_type="t",
        state="RUNNING",
        lease_id=f"l{name}",
        claimed_by="w",
    )


class House:
    """A worker whose slots the test frees, and a server that has so many jobs. A claim takes a
    second; one that finds nothing waits as long as it was asked to."""

    base_url = "http://h"
    ahead = begun = 0
    waiting: tuple[Job, ...] = ()

    def __init__(self, concurrency: int, jobs: int = 0) -> None:
        self.clock = LoopClock()
        self.client = self
        self.concurrency = concurrency
        self.addon_id, self.worker_id = "a", "w"
        self.wait_sec, self.ttl_sec = 5.0, 30
        self.handlers = {"t": None}
        self.max_cost_units, self.capabilities = None, {}
        self.stats = SimpleNamespace(adopted=0)
        self.waiting_jobs, self.given = jobs, 0
        self.failures: list[Exception] = []
        self.ends: list[tuple[float, Exception | None]] = []
        """After how long the next claims end, and with what, where it is not as usual."""
        self.asked: list[tuple[float, int, float]] = []
        self.running: list[Job] = []
        self.looked_at: list[float] = []
        self.held: dict[str, Job] = {}
        self.has_room = asyncio.Event()
        self.jobs: Any = self
        self.stopping = asyncio.Event()
        self.claims = Claims(self, EvenBackoff())  # type: ignore[arg-type]

    # --- the worker ---

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    def count_room(self, ahead: int) -> int:
        return self.count_free_slots() + ahead

    async def wait_for_stop(self) -> None:
        await self.stopping.wait()

    def count_free_slots(self) -> int:
        return self.concurrency - len(self.held)

    def begin(self, job: Job, sent_at: int) -> None:
        assert job.lease_id is not None
        self.held[job.lease_id] = job

    def finish(self, count: int) -> None:
        """So many handlers end."""
        for lease_id in list(self.held)[:count]:
            del self.held[lease_id]
        self.has_room.set()

    # --- the server ---

    async def claim(self, addon_id: str, worker_id: str, **how: Any) -> list[Job]:
        limit = how["limit"]
        self.asked.append((loop_time(), limit, how["wait_sec"]))
        if self.failures:
            raise self.failures.pop(0)
        found = min(limit, self.waiting_jobs)
        usual = 1.0 if found else max(how["wait_sec"], 1.0)
        takes_sec, failure = self.ends.pop(0) if self.ends else (usual, None)
        await asyncio.sleep(takes_sec)
        if failure is not None:
            raise failure
        self.waiting_jobs -= found
        self.given += found
        return [job(str(self.given - n)) for n in range(found)]

    async def list_jobs(self, **how: Any) -> AsyncIterator[Job]:
        self.looked_at.append(loop_time())
        for one in self.running:
            yield one

    async def heartbeat(self, lease_id: str, **how: Any) -> None:
        """It is still ours."""


@contextlib.asynccontextmanager
async def claiming(house: House, *, burst: bool = False) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(house.claims.claim_until_stopped(burst=burst))
    yield task
    house.stopping.set()
    house.has_room.set()
    await asyncio.wait_for(task, 60)
    await pass_time()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"


@on_jumping_time
async def test_one_claim_follows_the_other_while_there_is_room() -> None:
    house = House(10, jobs=6)
    async with claiming(house):
        await pass_time(8.0)
        assert house.asked == [(0.0, 10, 5.0), (1.0, 4, 5.0), (6.0, 4, 5.0)]
        assert len(house.held) == 6


@on_jumping_time
async def test_a_full_worker_claims_when_handlers_have_ended() -> None:
    house = House(4, jobs=100)
    async with claiming(house):
        await pass_time(20.0)
        assert house.asked == [(0.0, 4, 5.0)]
        house.finish(1)
        await pass_time(20.0)
        assert house.asked[1:] == [(20.0, 1, 5.0)]
        house.finish(1)
        await pass_time(20.0)
        assert house.asked[2:] == [(40.0, 1, 5.0)]


@on_jumping_time
async def test_a_server_that_is_away_is_asked_after_growing_pauses() -> None:
    house = House(10)
    house.failures = [NOT_REACHED, NOT_REACHED]
    async with claiming(house):
        await pass_time(4.0)
        assert [at for at, _, _ in house.asked] == [0.0, 1.0, 3.0]
        await pass_time(5.0)
        house.failures = [from_body(503, {"code": "STORE_DOWN"})]
        await pass_time(6.0)
        assert [at for at, _, _ in house.asked[3:]] == [8.0, 13.0, 14.0], "the pauses begin anew"


@on_jumping_time
async def test_a_burst_looks_again_while_handlers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ksana.client.claims.EARLY_EMPTY", EvenBackoff())
    house = House(10, jobs=1)
    async with claiming(house, burst=True) as task:
        await pass_time(6.5)
        # Each claim takes a second, and a second passes before the next.
        assert [at for at, _, _ in house.asked] == [0.0, 1.0, 3.0, 5.0]
        assert {wait_sec for _, _, wait_sec in house.asked} == {0.0}
        house.finish(1)
        await asyncio.wait_for(task, 5)
        assert loop_time() == 8.0


@on_jumping_time
async def test_jobs_of_a_lost_answer_are_looked_for_at_once_and_when_its_poll_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ksana.client")
    house = House(10)
    house.failures = [CUT]
    house.running = [job("mine")]
    async with claiming(house):
        await pass_time(0.5)
        assert house.looked_at == [], "first the pause"
        await pass_time(30.0)
        # The long poll of five seconds, and five more for it to be over there too.
        assert house.looked_at == [1.0, 11.0]
    assert (list(house.held), house.stats.adopted) == (["lmine"], 1)
    assert "job mine was handed out in a lost answer: taken up" in caplog.messages


@on_jumping_time
async def test_a_worker_that_stops_looks_for_jobs_of_a_lost_answer_once_more() -> None:
    house = House(10)
    house.failures = [CUT]
    async with claiming(house) as task:
        await pass_time(2.0)
        house.running = [job("late")]
        house.stopping.set()
        await asyncio.wait_for(task, 10)
    assert list(house.held) == ["llate"]


@on_jumping_time
async def test_a_worker_that_stops_takes_what_the_second_claim_brings() -> None:
    house = House(100, jobs=1_000)
    async with claiming(house) as task:
        await pass_time(2.0)
        house.ends = [(1.0, None), (3.0, None)]
        house.finish(100)
        await pass_time(0.5)
        assert house.asked[1:] == [(2.0, 50, 5.0), (2.0, 50, 0.0)]
        house.stopping.set()
        await asyncio.wait_for(task, 10)
        assert (loop_time(), len(house.held)) == (5.0, 100)


@on_jumping_time
async def test_a_refusal_for_good_leaves_no_second_claim_behind() -> None:
    house = House(100, jobs=1_000)
    task = asyncio.create_task(house.claims.claim_until_stopped(burst=False))
    await pass_time(2.0)
    house.ends = [(1.0, from_body(403, {"code": "FORBIDDEN"})), (3.0, None)]
    house.finish(100)
    with pytest.raises(ApiError, match="FORBIDDEN"):
        await asyncio.wait_for(task, 10)
    await pass_time()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"


async def fill_then_free(house: House, free: int) -> None:
    """The first claim fills all slots at 1 s; so many of them are free again at 2 s."""
    await pass_time(2.0)
    assert len(house.held) == house.concurrency
    house.finish(free)


@on_jumping_time
async def test_while_few_jobs_wait_one_claim_is_under_way() -> None:
    house = House(1_000, jobs=6)
    async with claiming(house):
        await pass_time(7.0)
        assert house.asked == [(0.0, 500, 5.0), (1.0, 500, 5.0), (6.0, 500, 5.0)]


@pytest.mark.parametrize(
    ("slots", "free", "limits"),
    [
        (50, 50, [25, 25]),
        (49, 49, [49]),  # half of the slots is not worth a claim
        (400, 300, [200, 100]),
        (400, 299, [200]),  # nor is less than half of what it may ask for
    ],
)
@on_jumping_time
async def test_a_second_claim_is_made_where_it_is_worth_one(
    slots: int, free: int, limits: list[int]
) -> None:
    house = House(slots, jobs=10_000)
    async with claiming(house):
        await fill_then_free(house, free)
        await pass_time(0.5)
        assert [limit for _, limit, _ in house.asked[1:]] == limits


@on_jumping_time
async def test_two_claims_together_ask_for_no_more_than_is_free() -> None:
    house = House(100, jobs=10_000)
    async with claiming(house):
        await fill_then_free(house, 100)
        await pass_time(10.0)
        assert [limit for _, limit, _ in house.asked] == [100, 50, 50]
        assert len(house.held) == 100


@on_jumping_time
async def test_a_second_claim_that_fails_is_not_made_again_before_the_first_finds_jobs() -> None:
    house = House(100, jobs=10_000)
    async with claiming(house):
        await fill_then_free(house, 100)
        house.ends = [(3.0, None), (0.5, NOT_REACHED)]
        await pass_time(2.9)
        assert house.asked[1:] == [(2.0, 50, 5.0), (2.0, 50, 0.0)]
        await pass_time(1.0)
        assert house.asked[3:] == [(5.0, 50, 5.0)]
        assert house.looked_at == [], "no answer was lost"


@on_jumping_time
async def test_jobs_of_a_second_claim_whose_answer_was_lost_are_looked_for() -> None:
    house = House(100, jobs=10_000)
    async with claiming(house):
        await fill_then_free(house, 100)
        house.ends = [(1.0, None), (0.5, CUT)]
        house.running = [job("mine")]
        await pass_time(1.5)
        assert house.looked_at == [3.0]
        assert "lmine" in house.held


@on_jumping_time
async def test_jobs_of_a_lost_answer_are_looked_for_when_the_second_claim_has_ended() -> None:
    """What it brings is not known yet, and not lost."""
    house = House(100, jobs=10_000)
    async with claiming(house):
        await fill_then_free(house, 100)
        house.ends = [(1.0, CUT), (4.0, None)]
        await pass_time(6.0)
        assert house.looked_at == [6.0]


@on_jumping_time
async def test_no_second_claim_is_made_until_a_lost_answer_must_be_over() -> None:
    house = House(100, jobs=10_000)
    async with claiming(house):
        await fill_then_free(house, 100)
        house.ends = [(1.0, CUT), (1.0, None)]
        await pass_time(5.0)  # the poll of the lost claim is over at 13 s
        claims = len(house.asked)
        house.finish(100)
        await pass_time(2.5)
        assert house.asked[claims:] == [(7.0, 50, 5.0), (8.0, 50, 5.0)]
        await pass_time(10.0)
        house.finish(100)
        await pass_time(2.5)
        assert house.looked_at[1:] == [19.5]
        house.finish(100)
        claims = len(house.asked)
        await pass_time(0.5)
        assert house.asked[claims:] == [(22.0, 50, 5.0), (22.0, 50, 0.0)]
