"""How a worker asks for jobs: how many, how often, and where it looks after an answer that was
lost. On the virtual clock, over a server that answers as told."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.client import pace
from ksana.client.claims import Claims, _Asked
from ksana.client.errors import ClientError, TransportError, from_body
from ksana.client.queue import MAX_CLAIM
from ksana.client.shapes import Job
from ksana.client.transport import CallBackoff

pytestmark = pytest.mark.spec("Q2", "Q16")


def job(name: str, **more: Any) -> Job:
    members = {"lease_id": f"l{name}", "claimed_by": "w", **more}
    return Job(job_id=name, addon_id="a", job_type="t", state="RUNNING", **members)


class Server:
    """What claims and lists are answered."""

    base_url = "http://h"

    def __init__(self) -> None:
        self.claims: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.running: list[Job] = []
        self.refused: dict[str, ClientError] = {}
        self.beaten: list[tuple[str, str, str]] = []
        self.listed: list[dict[str, Any]] = []

    async def claim(self, addon_id: str, worker_id: str, **how: Any) -> list[Job]:
        self.asked.append({"addon_id": addon_id, "worker_id": worker_id, **how})
        answer = self.claims.pop(0) if self.claims else []
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    async def list_jobs(self, **how: Any) -> AsyncIterator[Job]:
        self.listed.append(how)
        for one in self.running:
            yield one

    async def heartbeat(self, lease_id: str, *, job_id: str, worker_id: str) -> None:
        self.beaten.append((lease_id, job_id, worker_id))
        if lease_id in self.refused:
            raise self.refused[lease_id]


class FakeWorker:
    def __init__(self, clock: VirtualClock, concurrency: int = 8) -> None:
        self.clock = clock
        self.client = Server()
        self.concurrency = concurrency
        self.addon_id, self.worker_id = "a", "w"
        self.wait_sec, self.ttl_sec, self.ahead = 5.0, 30, pace.MOST
        self.handlers = {"t": None}
        self.max_cost_units, self.capabilities = 3, {"gpu": True}
        self.is_stopping = False
        self.stats = SimpleNamespace(adopted=0)
        self.begun: list[tuple[str, int]] = []
        self.free = concurrency
        self.held: dict[str, Any] = {}
        self.jobs: Any = SimpleNamespace(
            has_room=asyncio.Event(),
            held=self.held,
            waiting=[],
            begun=0,
            count_free_slots=lambda: self.free,
            count_room=lambda ahead: self.free + ahead,
            begin=lambda job, at: self.begun.append((job.job_id, at)),
        )

    async def wait_for_stop(self) -> None:
        await asyncio.Event().wait()


def make(clock: VirtualClock, concurrency: int = 8) -> tuple[Any, FakeWorker, Server]:
    worker = FakeWorker(clock, concurrency)
    claims = Claims(worker, CallBackoff(first_sec=0.0, most_sec=0.0))  # type: ignore[arg-type]
    return claims, worker, worker.client


@pytest.fixture(autouse=True)
async def later(clock: VirtualClock) -> None:
    await clock.advance(100 * SECOND)


async def test_a_claim_says_what_the_worker_takes_and_begins_from_when_it_left(
    clock: VirtualClock,
) -> None:
    claims, worker, server = make(clock)
    server.claims = [[job("a"), job("b")]]
    claims._asked = 5
    assert await claims._claim(_Asked(5, 0, 500), 2.0) == 2
    assert server.asked == [
        {
            "addon_id": "a",
            "worker_id": "w",
            "limit": 5,
            "wait_sec": 2.0,
            "lease": True,
            "ahead": 0,
            "ttl_sec": 30,
            "accept_job_types": ["t"],
            "max_cost_units": 3,
            "capabilities": {"gpu": True},
            "tries": 1,
        }
    ]
    assert worker.begun == [("a", 100 * SECOND), ("b", 100 * SECOND)]
    assert claims._asked == 0
    assert worker.jobs.has_room.is_set()


@pytest.mark.parametrize(
    ("limit", "ahead", "found", "is_deep", "may_ask"),
    [
        (5, 0, 5, True, True),
        (5, 0, 4, False, True),
        (1, 0, 0, False, True),
        (5, 2, 5, True, True),
        (5, 2, 4, True, False),  # all that is begun at once
        (5, 2, 3, True, False),
        (5, 2, 2, False, False),
        (5, 5, 1, True, False),
        (5, 5, 0, False, False),
    ],
)
async def test_jobs_abound_while_all_come_that_can_be_begun(
    clock: VirtualClock, limit: int, ahead: int, found: int, is_deep: bool, may_ask: bool
) -> None:
    claims, worker, server = make(clock)
    if not is_deep:
        claims._is_deep.set()
    server.claims = [[job(str(at)) for at in range(found)]]
    await claims._claim(_Asked(limit, ahead, 500), 0.0)
    assert claims._is_deep.is_set() is is_deep
    # Those that cannot be taken ahead now are not asked for again and again.
    for later, asks in ((SECOND - 1, may_ask), (SECOND, True)):
        claims._pace._rate = 1.0
        worker.clock._move_to(100 * SECOND + later)
        assert bool(claims._pace.count_ahead(0, worker.clock.monotonic())) is asks


async def test_a_claim_asks_for_all_that_is_free_or_half_while_jobs_abound(
    clock: VirtualClock,
) -> None:
    claims, worker, _ = make(clock, 450)
    assert claims._plan() == (450, 0, MAX_CLAIM)
    claims._asked = 400
    assert claims._plan() == (50, 0, MAX_CLAIM)
    claims._asked = 0
    claims._is_deep.set()
    assert claims._plan() == (225, 0, 225)
    claims, worker, _ = make(clock, 5 * MAX_CLAIM)
    assert claims._plan() == (MAX_CLAIM, 0, MAX_CLAIM)
    worker.free = 3
    assert claims._plan() == (3, 0, MAX_CLAIM)


@pytest.mark.parametrize(("slots", "limit"), [(1, 1), (2, 2), (49, 49), (50, 25), (51, 25)])
async def test_a_worker_of_few_slots_asks_for_all_that_are_free_while_jobs_abound(
    clock: VirtualClock, slots: int, limit: int
) -> None:
    claims, _, _ = make(clock, slots)
    claims._is_deep.set()
    assert claims._plan() == (limit, 0, limit)


async def test_while_jobs_abound_as_many_are_taken_ahead_as_are_begun_in_a_moment(
    clock: VirtualClock,
) -> None:
    claims, worker, _ = make(clock, 10)
    claims._is_deep.set()
    worker.jobs.begun = 400
    worker.clock._move_to(200 * SECOND)  # 4 a second
    assert claims._plan() == (10, 0, 10)  # of so few, half is not worth a claim
    worker.jobs.begun += 1_000
    worker.clock._move_to(201 * SECOND)  # (4 + 1,000) / 2 a second: 50 in a tenth of it
    assert claims._plan() == (30, 20, 30)
    claims._asked = 30
    assert claims._plan() == (30, 30, 30)
    claims._asked, worker.free = 0, 0
    assert claims._plan() == (30, 30, 30)
    worker.jobs.begun += 1_000_000
    worker.clock._move_to(202 * SECOND)
    assert claims._plan() == (MAX_CLAIM, MAX_CLAIM, MAX_CLAIM)
    claims._is_deep.clear()
    assert claims._plan().limit == 0


async def test_nothing_is_waited_for_that_is_begun_later(clock: VirtualClock) -> None:
    claims, _, server = make(clock, 10)
    claims._is_deep.set()
    claims._pace._rate = 1.0
    server.claims = [[], from_body(403, {"code": "FORBIDDEN"})]
    with pytest.raises(ClientError, match="FORBIDDEN"):
        await claims._claim_on(burst=False)
    assert [(one["ahead"], one["wait_sec"]) for one in server.asked] == [(490, 0.0), (0, 5.0)]


async def test_a_little_room_is_no_reason_for_a_claim_while_jobs_wait_for_slots(
    clock: VirtualClock,
) -> None:
    claims, worker, server = make(clock, 10)
    worker.jobs.waiting = [object()]
    worker.free = 4
    claiming = asyncio.create_task(claims._claim_on(burst=False))
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.asked == []
    worker.jobs.waiting = []
    server.claims = [from_body(403, {"code": "FORBIDDEN"})]
    worker.jobs.has_room.set()
    with pytest.raises(ClientError, match="FORBIDDEN"):
        await asyncio.wait_for(claiming, 5)
    assert [one["limit"] for one in server.asked] == [4]


@pytest.mark.parametrize(("room", "asks"), [(19, False), (20, True), (21, True)])
async def test_while_jobs_wait_for_slots_a_claim_is_worth_half_of_what_it_may_ask_for(
    clock: VirtualClock, room: int, asks: bool
) -> None:
    claims, worker, server = make(clock, 40)
    claims._is_deep.set()
    worker.jobs.waiting = [object()]
    worker.free = room
    server.claims = [from_body(403, {"code": "FORBIDDEN"})]
    claiming = asyncio.create_task(claims._claim_on(burst=False))
    for _ in range(10):
        await asyncio.sleep(0)
    assert [one["limit"] for one in server.asked] == ([room] if asks else [])
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)


async def test_an_older_server_is_asked_without_ahead(clock: VirtualClock) -> None:
    claims, _, server = make(clock)
    unknown = from_body(400, {"code": "INVALID_ARGUMENT", "field": "ahead"})
    server.claims = [unknown, unknown]
    claims._pace._rate = 1.0
    assert claims._pace.count_ahead(0, 100 * SECOND) == pace.MOST
    assert await claims._claim(_Asked(5, 2, 500), 0.0) == 0
    assert claims._pace.count_ahead(0, 10_000 * SECOND) == 0
    with pytest.raises(ClientError, match="INVALID_ARGUMENT"):
        await claims._claim(_Asked(5, 0, 500), 0.0)


@pytest.mark.parametrize(
    ("jobs", "took", "wait_sec", "pauses"),
    [
        ([], 0, 4.0, 2),
        ([], 2 * SECOND - 1, 4.0, 2),
        ([], 2 * SECOND, 4.0, 0),
        ([job("a")], 0, 4.0, 0),
        ([], 0, 0.0, 0),
    ],
)
async def test_a_server_that_does_not_wait_is_not_asked_at_once_again(
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[Job],
    took: int,
    wait_sec: float,
    pauses: int,
) -> None:
    claims, _, server = make(clock)
    paused: list[float] = []

    async def pause(pause_sec: float) -> None:
        paused.append(pause_sec)

    async def claim(*_: Any, **__: Any) -> list[Job]:
        clock._move_to(clock.monotonic() + took)
        return jobs

    monkeypatch.setattr(claims._recovery, "pause", pause)
    monkeypatch.setattr(server, "claim", claim)
    for _ in range(2):
        await claims._claim(_Asked(1, 0, 500), wait_sec)
    assert len(paused) == pauses
    assert claims._early_empties == pauses


async def test_after_a_lost_answer_the_worker_looks_at_once_and_when_the_poll_is_over(
    clock: VirtualClock,
) -> None:
    claims, _, server = make(clock)
    claims._note_unknown(TransportError("x", is_outcome_unknown=False))
    claims._note_unknown(from_body(503, {"code": "STORE_DOWN"}))
    assert claims._rechecks == []
    claims._note_unknown(TransportError("x", is_outcome_unknown=True))
    assert claims._rechecks == [100 * SECOND, 110 * SECOND]
    await claims._recheck_due(100 * SECOND - 1)
    assert server.listed == []
    await claims._recheck_due(100 * SECOND)
    assert server.listed == [{"state": "RUNNING", "addon_id": "a", "page_size": 500}]
    assert claims._rechecks == [110 * SECOND]
    await claims._recheck_due(110 * SECOND)
    assert (len(server.listed), claims._rechecks) == (2, [])


@pytest.mark.parametrize("status", [409, 404])
async def test_jobs_of_a_lost_answer_are_taken_up_unless_they_are_gone(
    clock: VirtualClock, status: int
) -> None:
    claims, worker, server = make(clock)
    worker.held["lheld"] = object()
    server.running = [
        job("other", claimed_by="x"),
        job("bare", lease_id=None),
        job("held"),
        job("gone"),
        job("mine"),
    ]
    server.refused = {"lgone": from_body(status, {"code": "LEASE_LOST"})}
    await claims._adopt()
    assert server.beaten == [("lgone", "gone", "w"), ("lmine", "mine", "w")]
    assert worker.begun == [("mine", 100 * SECOND)]
    assert worker.stats.adopted == 1
    server.refused = {"lgone": TransportError("x", is_outcome_unknown=True)}
    with pytest.raises(TransportError):
        await claims._adopt()


async def test_a_burst_ends_when_nothing_is_found_and_nothing_runs(clock: VirtualClock) -> None:
    claims, worker, server = make(clock)
    server.claims = [[job("a")], []]
    await asyncio.wait_for(claims.claim_until_stopped(burst=True), 5)
    assert worker.begun == [("a", 100 * SECOND)]
    assert [one["wait_sec"] for one in server.asked] == [0.0, 0.0]
    assert [one["limit"] for one in server.asked] == [8, 8]


async def test_a_failure_is_waited_out_and_a_lost_answer_looked_for(clock: VirtualClock) -> None:
    claims, worker, server = make(clock)
    server.claims = [TransportError("x", is_outcome_unknown=True), []]
    server.running = [job("mine")]
    claiming = asyncio.create_task(claims.claim_until_stopped(burst=True))
    for _ in range(50):
        await asyncio.sleep(0)
    assert worker.begun == [("mine", 100 * SECOND)]
    worker.is_stopping = True
    await asyncio.wait_for(claiming, 5)
    assert len(server.listed) >= 2  # and once more at its end: the second look was not due yet


async def test_a_refusal_for_good_ends_the_worker(clock: VirtualClock) -> None:
    claims, _, server = make(clock)
    server.claims = [from_body(403, {"code": "FORBIDDEN"})]
    with pytest.raises(ClientError, match="FORBIDDEN"):
        await claims.claim_until_stopped(burst=False)


async def test_without_room_nothing_is_asked_until_there_is_some(clock: VirtualClock) -> None:
    claims, worker, server = make(clock)
    worker.free = 0
    claiming = asyncio.create_task(claims._claim_on(burst=False))
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.asked == []
    worker.free = 2
    server.claims = [[job("a")]]
    begin = worker.jobs.begin

    def begin_and_stop(job: Job, sent_at: int) -> None:
        begin(job, sent_at)
        worker.is_stopping = True

    worker.jobs.begin = begin_and_stop
    worker.jobs.has_room.set()
    await asyncio.wait_for(claiming, 5)
    assert [one["limit"] for one in server.asked] == [2]
    assert server.asked[0]["wait_sec"] == 5.0
    assert claims._asked == 0
