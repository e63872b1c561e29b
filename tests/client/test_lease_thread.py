"""When leases are renewed, and what an answer does to them: the rounds of the thread, on the
virtual clock and without the thread."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import SystemClock, VirtualClock
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.client import held_lease
from ksana.client.errors import TransportError, from_body
from ksana.client.heartbeats import PROGRESS_GAP, Heartbeats
from ksana.client.leased_job import LeasedJob
from ksana.client.queue import MAX_LEASE_BATCH
from ksana.client.shapes import BeatItem, Job

pytestmark = pytest.mark.spec("Q10", "Q16")

TTL: Micros = 30 * SECOND


def job(name: str = "j", **more: Any) -> Job:
    return Job(job_id=name, addon_id="a", job_type="t", state="RUNNING", **more)


def beat(is_cancel: bool = False) -> Any:
    return SimpleNamespace(job=SimpleNamespace(cancel_requested=is_cancel))


class FakeClient:
    """A server that answers heartbeats as told."""

    def __init__(self) -> None:
        self.deadline_sec = 60.0
        self.answers: list[Any] = []
        self.asked: list[list[BeatItem]] = []
        self.running: list[Job] = []
        self.listed: list[dict[str, Any]] = []

    async def heartbeat_batch(self, items: list[BeatItem]) -> list[Any]:
        self.asked.append(list(items))
        answer = self.answers.pop(0) if self.answers else [beat()] * len(items)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    async def list_jobs(self, **how: Any) -> AsyncIterator[Job]:
        self.listed.append(how)
        for one in self.running:
            yield one


class Round:
    """The thread's parts, called from here."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.client: Any = FakeClient()
        self.held: dict[str, LeasedJob] = {}
        self.lost: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.thread = Heartbeats(
            self.client,
            "a",
            "w",
            self.held,
            TTL,
            clock,
            on_lost=lambda held, why: self.lost.append((held.key, why)),
            on_cancel=lambda held: self.cancelled.append(held.key),
        )

    def hold(self, name: str) -> LeasedJob:
        self.held[name] = LeasedJob(
            job(name, lease_token=f"k{name}"), name, self.clock.monotonic(), TTL
        )
        return self.held[name]

    def alive(self) -> list[str]:
        return [held.key for held in self.thread._list_alive(self.clock.monotonic())]


@pytest.fixture
async def round_(clock: VirtualClock) -> Round:
    await clock.advance(100 * SECOND)
    return Round(clock)


def test_a_lease_counts_from_when_the_request_left() -> None:
    held = LeasedJob(job(), "l", 7, TTL)
    assert (held.beaten_at, held.beat_at, held.fence_at) == (7, 7 + TTL // 3, 7 + TTL)
    assert (held.reported, held.sent, held.phase) == (0, 0, held_lease.RUNNING)
    assert held.is_async is False


async def test_a_lease_whose_own_time_has_passed_is_lost(
    round_: Round, clock: VirtualClock
) -> None:
    held, ended, gone = round_.hold("a"), round_.hold("b"), round_.hold("c")
    ended.phase, gone.phase = held_lease.FINISHED, held_lease.LOST
    assert round_.alive() == ["a", "b"]
    await clock.advance(TTL - 1)
    assert round_.alive() == ["a", "b"]
    await clock.advance(1)
    assert round_.alive() == []
    assert round_.lost == [("a", "its own lease time has passed")]
    held.renew(clock.monotonic(), TTL)
    assert round_.alive() == ["a"]


async def test_a_beat_renews_and_carries_what_was_reported(
    round_: Round, clock: VirtualClock
) -> None:
    one, two = round_.hold("a"), round_.hold("b")
    one.progress, one.message, one.reported = 0.5, "half", 3
    await clock.advance(SECOND)
    round_.client.answers = [[beat(), beat(is_cancel=True)]]
    await round_.thread.renew(round_.client, [one, two])
    first, second = round_.client.asked[0]
    assert first == BeatItem(
        lease_id="a", job_id="a", worker_id="w", lease_token="ka", progress=0.5, message="half"
    )
    assert (second.lease_id, second.progress) == ("b", None)
    now = clock.monotonic()
    assert (one.sent, two.sent) == (3, 0)
    assert {one.fence_at, two.fence_at} == {now + TTL}
    assert {one.beat_at, two.beat_at} == {now + TTL // 3}
    assert round_.cancelled == ["b"]
    assert round_.lost == []


@pytest.mark.parametrize("status", [409, 404])
async def test_a_lease_that_is_refused_is_lost_at_once(round_: Round, status: int) -> None:
    held = round_.hold("a")
    round_.client.answers = [[from_body(status, {"code": "LEASE_LOST", "message": "gone"})]]
    await round_.thread.renew(round_.client, [held])
    assert held.fence_at == round_.clock.monotonic()
    assert round_.lost == [("a", f"{status} LEASE_LOST: gone")]


@pytest.mark.parametrize("ttl_us", [TTL, 4 * SECOND])
@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_beat_that_failed_is_repeated_soon(
    round_: Round,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    is_whole: bool,
    ttl_us: Micros,
) -> None:
    held = round_.hold("a")
    held.reported = 1
    fence_at = held.fence_at
    round_.thread._ttl_us = ttl_us
    error = TransportError("x", is_outcome_unknown=True)
    round_.client.answers = [error] if is_whole else [[from_body(500, {"code": "X"})]]
    await clock.advance(SECOND)
    await round_.thread.renew(round_.client, [held])
    again_at = clock.monotonic() + min(ttl_us // 10, 2 * SECOND)
    assert (held.beat_at, held.fence_at, held.sent) == (again_at, fence_at, 0)
    assert held.beaten_at == max(100 * SECOND, again_at - PROGRESS_GAP)
    assert round_.thread.due_at(held) == again_at
    assert round_.lost == []
    whole, single = "heartbeat of 1 leases failed: x", "heartbeat of lease a failed: 500 X: "
    assert caplog.messages == [whole if is_whole else single]


async def test_progress_is_sent_within_a_second_while_it_runs(round_: Round) -> None:
    held = round_.hold("a")
    beat_at = held.beat_at
    assert round_.thread.due_at(held) == beat_at
    held.reported = 1
    assert round_.thread.due_at(held) == held.beaten_at + PROGRESS_GAP
    held.beat_at = held.beaten_at + 5
    assert round_.thread.due_at(held) == held.beat_at
    held.beat_at, held.phase = beat_at, held_lease.FINISHED
    assert round_.thread.due_at(held) == beat_at


@pytest.mark.parametrize(
    ("ttl_us", "tick_us"), [(TTL, TTL // 6), (60 * MILLISECOND, 20 * MILLISECOND)]
)
def test_the_thread_looks_six_times_in_a_lease(
    clock: VirtualClock, ttl_us: Micros, tick_us: Micros
) -> None:
    async def make() -> Micros:
        made = Heartbeats(
            FakeClient(),  # type: ignore[arg-type]
            "a",
            "w",
            {},
            ttl_us,
            clock,
            on_lost=lambda *_: None,
            on_cancel=lambda *_: None,
        )
        return made._tick_us

    assert asyncio.run(make()) == tick_us


async def test_the_thread_sleeps_until_the_first_is_due(
    round_: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def timeout(seconds: float) -> Any:
        waits.append(seconds)
        return real(0)

    real = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", timeout)
    round_.thread._wake = asyncio.Event()
    one, two = round_.hold("a"), round_.hold("b")
    await round_.thread._sleep([])
    one.beat_at = round_.clock.monotonic() + 2 * SECOND
    await round_.thread._sleep([one, two])
    two.fence_at = round_.clock.monotonic() + SECOND
    await round_.thread._sleep([one, two])
    two.fence_at = 0
    await round_.thread._sleep([one, two])
    assert waits == [5.0, 2.0, 1.0, 0.0]


async def test_only_what_is_due_is_renewed_in_requests_of_a_bounded_size(
    round_: Round, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(MAX_LEASE_BATCH + 1):
        round_.hold(str(at))
    await clock.advance(TTL // 3)
    round_.hold("fresh")
    seen: dict[str, Any] = {}

    class Twin:
        async def __aenter__(self) -> Any:
            return round_.client

        async def __aexit__(self, *_: object) -> None:
            return None

    def twin(**how: Any) -> Twin:
        seen.update(how)
        return Twin()

    async def sleep(alive: list[LeasedJob]) -> None:
        seen["alive"] = len(alive)
        round_.thread._is_stopping = True

    round_.client.twin = twin
    round_.thread._wake = asyncio.Event()
    monkeypatch.setattr(round_.thread, "_sleep", sleep)
    await round_.thread.keep()
    assert [len(items) for items in round_.client.asked] == [MAX_LEASE_BATCH, 1]
    assert seen["alive"] == MAX_LEASE_BATCH + 2
    assert seen["deadline_sec"] == 7.5  # a quarter of the lease
    assert seen["backoff"].tries == 1


async def test_a_loop_that_gives_no_sign_for_a_third_of_the_lease_is_blocked(
    round_: Round, clock: VirtualClock
) -> None:
    thread, now = round_.thread, clock.monotonic()
    assert thread._is_blocked(now) is False
    assert thread._is_blocked(now + TTL // 3) is False
    assert thread._is_blocked(now + TTL // 3 + 1) is True
    await asyncio.sleep(0)  # the sign
    assert thread._is_blocked(now + TTL) is False


async def test_jobs_of_an_answer_that_was_not_read_are_kept_meanwhile(
    round_: Round, clock: VirtualClock
) -> None:
    thread, client = round_.thread, round_.client
    round_.hold("known")
    client.running = [
        job("known", claimed_by="w", lease_id="known"),
        job("mine", claimed_by="w", lease_id="l1"),
        job("refused", claimed_by="w", lease_id="l2"),
        job("other", claimed_by="x", lease_id="l3"),
        job("bare", claimed_by="w"),
    ]
    client.answers = [[beat(), from_body(409, {"code": "LEASE_LOST"})]]
    thread._pinged_at = clock.monotonic() - TTL
    await thread.look_around(client, clock.monotonic())
    assert [item.lease_id for item in client.asked[0]] == ["l1", "l2"]
    assert client.asked[0][0] == BeatItem(lease_id="l1", job_id="mine", worker_id="w")
    assert thread.kept == {"l1": clock.monotonic()}
    assert client.listed == [{"state": "RUNNING", "addon_id": "a", "page_size": MAX_LEASE_BATCH}]
    await thread.look_around(client, clock.monotonic())
    assert len(client.listed) == 1  # not before a third of the lease
    client.running = []
    await clock.advance(TTL // 3 - 1)
    await thread.look_around(client, clock.monotonic())
    assert len(client.listed) == 1
    await clock.advance(1)
    await thread.look_around(client, clock.monotonic())
    assert len(client.listed) == 2
    await clock.advance(TTL - TTL // 3)
    await thread.look_around(client, clock.monotonic())
    assert len(thread.kept) == 1
    await clock.advance(TTL // 3)
    await thread.look_around(client, clock.monotonic())
    assert thread.kept == {}  # nobody took it up


async def test_a_look_that_failed_is_repeated_soon(
    round_: Round, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    thread, client = round_.thread, round_.client
    client.running = [job("mine", claimed_by="w", lease_id="l1")]
    client.answers = [TransportError("x", is_outcome_unknown=True)]
    thread._pinged_at = clock.monotonic() - TTL
    await thread.look_around(client, clock.monotonic())
    assert (thread.kept, len(client.listed)) == ({}, 1)
    assert caplog.messages == ["jobs of answers not read yet could not be kept: x"]
    await clock.advance(TTL // 10 - 1)
    await thread.look_around(client, clock.monotonic())
    assert len(client.listed) == 1
    await clock.advance(1)
    await thread.look_around(client, clock.monotonic())
    assert list(thread.kept) == ["l1"]


async def test_the_thread_runs_until_it_is_stopped_and_looks_when_it_is_woken() -> None:
    clock = SystemClock()
    client: Any = FakeClient()
    beaten = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Twin:
        async def __aenter__(self) -> Any:
            return client

        async def __aexit__(self, *_: object) -> None:
            return None

    async def heartbeat_batch(items: list[BeatItem]) -> list[Any]:
        loop.call_soon_threadsafe(beaten.set)
        return [beat()] * len(items)

    client.twin = lambda **_: Twin()
    client.heartbeat_batch = heartbeat_batch
    held: dict[str, LeasedJob] = {}
    ttl_us = 600 * SECOND
    nobody: Any = lambda *_: None  # noqa: E731
    thread = Heartbeats(client, "a", "w", held, ttl_us, clock, on_lost=nobody, on_cancel=nobody)
    thread.wake()  # before it runs: nothing
    thread.start()
    held["l"] = LeasedJob(job(), "l", clock.monotonic() - ttl_us // 2, ttl_us)
    while not beaten.is_set():
        thread.wake()
        await asyncio.sleep(0.005)
    fence_at = held["l"].fence_at
    assert fence_at > clock.monotonic() + ttl_us - 60 * SECOND
    began = loop.time()
    await thread.stop()
    assert not thread._thread.is_alive()
    assert thread._thread.daemon
    assert loop.time() - began < 60  # it was woken, not waited for
    thread.wake()  # after its end: nothing


async def test_each_round_looks_around_and_forgets_that_it_was_woken(
    round_: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    async def look_around(client: Any, now: int) -> None:
        looks.append(now)

    async def sleep(alive: Any) -> None:
        assert round_.thread._wake is not None
        assert not round_.thread._wake.is_set()
        round_.thread._is_stopping = True

    class Twin:
        async def __aenter__(self) -> Any:
            return round_.client

        async def __aexit__(self, *_: object) -> None:
            return None

    round_.client.twin = lambda **_: Twin()
    round_.thread._wake = asyncio.Event()
    round_.thread._wake.set()
    monkeypatch.setattr(round_.thread, "look_around", look_around)
    monkeypatch.setattr(round_.thread, "_sleep", sleep)
    await round_.thread.keep()
    assert looks == [round_.clock.monotonic()]
