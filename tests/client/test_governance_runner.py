"""The governance jobs a worker holds: how a handler's end becomes an ack or a failure, and what the
server's answer does."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.client import held_lease
from ksana.client.context import Fail, JobCancelled, Retry
from ksana.client.errors import ApiError, TransportError, from_body
from ksana.client.governance_context import Done, GovernanceContext, RetryAfter
from ksana.client.governance_runner import (
    GovernanceHandler,
    GovernanceResults,
    GovernanceRunner,
    HeldGovernanceJob,
)
from ksana.client.governance_shapes import AckItem, FailItem
from ksana.client.handlers import MAX_RESULT_BYTES
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff
from tests.client.governor_house import FakeGovernance, job

pytestmark = pytest.mark.spec("G5")

TTL = 60 * SECOND
LEASE_LOST = from_body(409, {"code": "LEASE_LOST", "message": "gone"})
ILLEGAL = from_body(409, {"code": "ILLEGAL_TRANSITION", "message": "not now"})
INVALID = from_body(400, {"code": "INVALID_ARGUMENT", "message": "odd"})


class House:
    """A runner over a server that answers as told; its handler answers what it is told."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.server: Any = FakeGovernance()
        self.stats = WorkerStats()
        self.lost: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.seen: list[GovernanceContext] = []
        self.answer: Any = None
        self.runner = GovernanceRunner(
            self.server,
            "w",
            {"verify": GovernanceHandler("verify", self.verify, None)},
            self.stats,
            clock,
            concurrency=2,
            ttl_us=TTL,
            backoff=CallBackoff(first_sec=0.0, most_sec=0.0),
            retry_delay_sec=300.0,
            on_lost=lambda job, why: self.lost.append((job.job_id, why)),
        )
        self.runner.start(None)  # type: ignore[arg-type]

    async def verify(self, ctx: GovernanceContext) -> Any:
        self.seen.append(ctx)
        await self.gate.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def begin(self, name: str = "j", **more: Any) -> HeldGovernanceJob:
        self.runner.begin(job(name, **more), self.clock.monotonic())
        return self.runner.held[name]

    async def finish(self) -> Any:
        """Let everything end; what the server was sent last."""
        self.gate.set()
        await asyncio.gather(*self.runner.tasks)
        assert await self.runner.drain(5.0) == 0
        sent = [item for items in self.server.acked + self.server.failed for item in items]
        return sent[-1] if sent else None

    @property
    def counts(self) -> dict[str, int]:
        counts = {name: getattr(self.stats, name) for name in WorkerStats.__slots__}
        return {name: count for name, count in counts.items() if count}


@pytest.fixture
async def house(clock: VirtualClock) -> House:
    await clock.advance(100 * SECOND)
    return House(clock)


def failure(error: str, **more: Any) -> FailItem:
    given = {"job_id": "j", "lease_token": "kj", "worker_id": "w", "error": error, **more}
    return FailItem(**given)


def ack(**more: Any) -> AckItem:
    return AckItem(**{"job_id": "j", "lease_token": "kj", "worker_id": "w", **more})


# --- what a handler's end becomes ---


async def test_a_job_is_run_and_acknowledged_under_its_lease(house: House) -> None:
    house.gate.clear()
    held = house.begin(attempt=1, gates={"web": "degraded"})
    assert (held.key, held.job_id, held.is_async) == ("j", "j", True)
    assert (held.beaten_at, held.fence_at) == (100 * SECOND, 160 * SECOND)
    assert (house.runner.running, house.runner.count_free_slots()) == (1, 1)
    await asyncio.sleep(0)
    [ctx] = house.seen
    assert (ctx.object_type, ctx.object_id, ctx.action, ctx.worker_id) == (
        "memory",
        "oj",
        "verify",
        "w",
    )
    assert (ctx.attempt, ctx.is_last_attempt, ctx.gates) == (2, False, {"web": "degraded"})
    house.runner.has_room.clear()
    assert await house.finish() == ack()
    assert (house.runner.held, house.runner.running) == ({}, 0)
    assert house.counts == {"claimed": 1, "succeeded": 1}
    assert house.runner.has_room.is_set()


WHEN = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (None, ack()),
        (Done(), ack()),
        (Done(next_action_at=None), ack(next_action_at=None)),
        (Done(next_action_at=WHEN), ack(next_action_at="2026-05-01T00:00:00Z")),
        (
            Done(next_action="archive", audit_event_id="e"),
            ack(next_action="archive", audit_event_id="e"),
        ),
        (
            Done(changes={"status": "verified", "review_due_at": WHEN}, evidence_refs=("a", 1)),
            ack(
                object={"status": "verified", "review_due_at": "2026-05-01T00:00:00Z"},
                evidence_refs=["a", 1],
            ),
        ),
        (Done(changes={}), ack(object={})),
        ("done", failure("the handler answered a str, not None or Done(…)")),
        (
            Done(changes={"x": object()}),
            failure(
                "what the handler answered is not JSON:"
                " Encoding objects of type object is unsupported"
            ),
        ),
        (
            Done(changes={"x": "y" * MAX_RESULT_BYTES}),
            failure(f"the handler answered {MAX_RESULT_BYTES + 15} bytes, not {MAX_RESULT_BYTES}"),
        ),
        (
            Done(evidence_refs=["y" * (MAX_RESULT_BYTES - 11)]),
            ack(evidence_refs=["y" * (MAX_RESULT_BYTES - 11)]),
        ),
        (RetryAfter(7.5, "later"), failure("later", retry_delay_sec=7.5)),
        (RetryAfter(0), failure("RetryAfter", retry_delay_sec=0)),
        (Retry("again"), failure("again", retry_delay_sec=300.0)),
        (Fail("never"), failure("never", retry=False)),
        (Fail("perhaps", retry=True), failure("perhaps", retry=True)),
        (ZeroDivisionError("by zero"), failure("ZeroDivisionError: by zero")),
        (JobCancelled("gave up"), failure("the handler was cancelled")),
    ],
)
async def test_how_a_handler_ends_is_what_the_server_hears(
    house: House, answer: Any, sent: AckItem | FailItem
) -> None:
    house.answer = answer
    house.begin()
    assert await house.finish() == sent
    is_done = isinstance(sent, AckItem)
    assert house.counts == {"claimed": 1, "succeeded" if is_done else "failed": 1}
    assert house.runner.held == {}


async def test_a_handler_that_runs_longer_than_its_deadline_has_failed(house: House) -> None:
    handler = GovernanceHandler("verify", house.verify, 0.01)
    house.runner._handlers = {"verify": handler}
    house.gate.clear()
    house.begin()
    await asyncio.gather(*house.runner.tasks)
    assert await house.finish() == failure("ran longer than 0.01 s")


async def test_an_action_without_a_handler_fails_and_says_so(house: House) -> None:
    held = house.begin(action="archive")
    assert not held.is_async
    assert await house.finish() == failure("this worker has no handler for 'archive'")


@pytest.mark.parametrize(
    ("answer", "level"), [(Retry("again"), logging.WARNING), (KeyError("k"), logging.ERROR)]
)
async def test_each_failure_is_one_line_in_the_log(
    house: House, caplog: pytest.LogCaptureFixture, answer: Exception, level: int
) -> None:
    house.answer = answer
    house.begin(attempt=1, max_attempts=5)
    await house.finish()
    [record] = caplog.records
    told = "again" if level == logging.WARNING else "KeyError: 'k'"
    assert record.getMessage() == f"job j (verify of memory oj): attempt 2 of 5 failed: {told}"
    assert (record.levelno, bool(record.exc_info)) == (level, level == logging.ERROR)


async def test_a_stop_gives_the_job_to_another_worker_at_once(house: House) -> None:
    house.gate.clear()
    held = house.begin()
    await asyncio.sleep(0)
    await house.runner.interrupt_all(5.0)
    assert held.cause == held_lease.BY_STOP
    sent = await house.finish()
    assert sent == failure("the worker stopped before the job ended", retry_delay_sec=0.0)


async def test_a_lost_lease_ends_the_handler_and_nothing_is_sent(house: House) -> None:
    house.gate.clear()
    held = house.begin()
    await asyncio.sleep(0)
    house.runner.on_lost_in_thread(held, "409 LEASE_LOST: gone")
    assert await house.finish() is None
    assert house.lost == [("j", "409 LEASE_LOST: gone")]
    assert house.counts == {"claimed": 1, "lost": 1}
    assert house.seen[0].cancelled.reason == "the lease is lost: 409 LEASE_LOST: gone"


# --- what the server answers ---


@pytest.mark.parametrize(
    ("answer", "count", "why"),
    [
        (None, "succeeded", None),
        (LEASE_LOST, "lost", "409 LEASE_LOST: gone"),
        (
            from_body(404, {"code": "NOT_FOUND", "message": "no job"}),
            "lost",
            "404 NOT_FOUND: no job",
        ),
    ],
)
async def test_an_ack_that_is_refused_is_a_lost_job(
    house: House, answer: ApiError | None, count: str, why: str | None
) -> None:
    house.server.ack_answers = [[answer]]
    held = house.begin()
    await house.finish()
    assert house.counts == {"claimed": 1, count: 1}
    assert house.lost == ([] if why is None else [("j", why)])
    assert held.phase == (held_lease.FINISHED if why is None else held_lease.LOST)
    assert house.runner.held == {}


async def test_an_answer_makes_room_for_more(house: House) -> None:
    held = house.begin()
    await asyncio.gather(*house.runner.tasks)
    house.runner.has_room.clear()  # too many results wait
    house.runner.settle(held, ack(), None)
    assert house.runner.has_room.is_set()


@pytest.mark.parametrize("refusal", [ILLEGAL, INVALID])
async def test_an_ack_that_the_server_cannot_take_becomes_a_failure(
    house: House, refusal: ApiError
) -> None:
    house.server.ack_answers = [[refusal]]
    house.begin()
    sent = await house.finish()
    assert sent == failure(f"the server refused the result: {refusal}")
    assert house.counts == {"claimed": 1, "failed": 1}


def results(server: Any) -> GovernanceResults:
    return GovernanceResults(server, lambda *_: None, CallBackoff())


async def test_acks_and_failures_go_apart_and_are_answered_in_their_order() -> None:
    server = FakeGovernance()
    server.ack_answers, server.fail_answers = [[None, INVALID]], [[job(), LEASE_LOST]]
    items = [failure("x", job_id=n) if n in "ac" else ack(job_id=n) for n in "abcd"]
    assert await results(server).send(items) == [None, None, LEASE_LOST, INVALID]
    assert [[item.job_id for item in sent] for sent in server.failed] == [["a", "c"]]
    assert [[item.job_id for item in sent] for sent in server.acked] == [["b", "d"]]
    await results(server).send([ack()])
    await results(server).send([failure("x")])
    assert (len(server.failed), len(server.acked)) == (2, 2), "nothing empty is sent"


@pytest.mark.parametrize(
    ("before", "answer", "found"),
    [
        # The first may have arrived: then the lease ended by ourselves.
        (TransportError("cut", is_outcome_unknown=True), LEASE_LOST, None),
        (TransportError("off", is_outcome_unknown=False), LEASE_LOST, LEASE_LOST),
        (TransportError("cut", is_outcome_unknown=True), INVALID, INVALID),
        (TransportError("cut", is_outcome_unknown=True), job(), None),
    ],
)
async def test_a_failure_sent_again_is_refused_by_ourselves(
    before: Exception, answer: Any, found: ApiError | None
) -> None:
    server = FakeGovernance()
    box = results(server)
    server.fail_answers = [before, [answer], [LEASE_LOST]]
    with pytest.raises(TransportError):
        await box.send([failure("x")])
    assert await box.send([failure("x")]) == [found]
    assert await box.send([failure("x")]) == [LEASE_LOST], "and that is known once"


async def test_a_try_within_the_call_that_may_have_arrived_counts_too() -> None:
    server = FakeGovernance()
    refusal = from_body(409, {"code": "LEASE_LOST"})
    refusal.unknown_tries = 1
    server.fail_answers = [[refusal, LEASE_LOST]]
    sent = [failure("x", job_id="a"), failure("x", job_id="b", lease_token="kb")]
    assert await results(server).send(sent) == [None, LEASE_LOST]


def test_a_result_is_as_large_as_what_it_carries() -> None:
    box = results(None)
    sizes = [
        box.size_of(item)
        for item in (
            ack(),
            ack(object={"a": 1}),
            ack(evidence_refs=["b"]),
            ack(next_action="archive"),
            failure("four"),
        )
    ]
    assert sizes == [0, len('[{"a":1},null]'), len('[null,["b"]]'), 0, 16]
    long = from_body(400, {"code": "X", "message": "m" * 2000})
    assert len(box.substitute(ack(), long).error) == 1024
