"""The governor against the real server: handlers and what becomes of their ends, leases, lost
answers, outages, stops."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ksana.client import (
    AccessError,
    CallBackoff,
    Done,
    Fail,
    GovernanceClient,
    GovernanceContext,
    Governor,
    Retry,
    RetryAfter,
)
from tests.client.governance_server import (
    QUICK,
    GovernanceServer,
    make_governor,
    work_off,
)

SECOND = 1_000_000


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GovernanceServer]:
    server = await asyncio.to_thread(GovernanceServer, tmp_path)
    yield server
    await asyncio.to_thread(server.close)


@pytest.mark.spec("G3", "G7")
async def test_what_a_handler_answers_is_written_with_the_end_of_its_job(
    server: GovernanceServer,
) -> None:
    await server.do(server.governing.put("m1", status="candidate"))
    job = await server.enqueue("m1")
    governor = make_governor(server)
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)

    @governor.action("verify")
    async def verify(ctx: GovernanceContext) -> Done:
        known = await ctx.find_object()
        assert known is not None and known.status == "candidate"
        assert (ctx.object_type, ctx.object_id, ctx.action) == ("memory", "m1", "verify")
        assert (ctx.attempt, ctx.is_last_attempt, ctx.gates) == (1, False, {})
        return Done(
            next_action_at=later,
            next_action="decay",
            changes={"status": "verified", "review_due_at": later},
            evidence_refs=["doc:17"],
            audit_event_id="aud_mine",
        )

    await work_off(governor)
    ended = await server.job(job)
    assert (ended.status, ended.audit_event_id) == ("succeeded", "aud_mine")
    governed = await server.object("m1")
    assert (governed.status, governed.next_action) == ("verified", "decay")
    assert governed.next_action_at == governed.review_due_at == int(later.timestamp()) * SECOND
    assert (governor.stats.claimed, governor.stats.succeeded) == (1, 1)


@pytest.mark.spec("G3")
async def test_sync_handlers_run_in_threads_and_a_time_may_be_counted_from_now(
    server: GovernanceServer,
) -> None:
    await server.do(server.governing.put("m1", status="active"))
    jobs = [await server.enqueue(name, action="reinstate-check") for name in ("m1", "nobody")]
    governor = make_governor(server)
    seen: dict[str, Any] = {}

    @governor.action("reinstate-check")
    def check(ctx: GovernanceContext) -> Done | None:
        seen[ctx.object_id] = (threading.current_thread().name, ctx.find_object_in_thread())
        return Done(next_action_at=timedelta(hours=2)) if ctx.object_id == "m1" else None

    await work_off(governor)
    assert seen["m1"][0].startswith("ksana-governor")
    assert seen["m1"][1].status == "active"
    assert seen["nobody"][1] is None
    assert {(await server.job(job)).status for job in jobs} == {"succeeded"}
    governed = await server.object("m1")
    in_two_hours = server.governing.clock.now() + 7200 * SECOND
    assert abs(governed.next_action_at - in_two_hours) < 60 * SECOND
    assert governed.next_action == "reinstate-check"


@pytest.mark.spec("G4")
@pytest.mark.parametrize(
    ("raised", "status", "error", "delay_sec"),
    [
        (ValueError("no such source\nand more"), "queued", "ValueError: no such source", 50),
        (Retry("not yet"), "queued", "not yet", 50),
        (RetryAfter(7, "later"), "queued", "later", 7),
        (Fail("never"), "failed", "never", None),
        (Fail("perhaps", retry=True), "queued", "perhaps", 50),
    ],
    ids=["an exception", "Retry", "RetryAfter", "Fail", "Fail with retry"],
)
async def test_how_a_handler_ends_decides_how_the_attempt_ends(
    server: GovernanceServer,
    raised: Exception,
    status: str,
    error: str,
    delay_sec: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = await server.enqueue()
    governor = make_governor(server, retry_delay_sec=50.0)

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> None:
        raise raised

    with caplog.at_level(logging.INFO, "ksana.client"):
        await work_off(governor)
    ended = await server.job(job)
    assert (ended.status, ended.last_error) == (status, error)
    if delay_sec is not None:
        assert abs(ended.run_at - ended.updated_at - delay_sec * SECOND) < 5 * SECOND
    assert governor.stats.failed == 1
    [told] = [record for record in caplog.records if "failed:" in record.getMessage()]
    assert error in told.getMessage()
    # What the handler did not mean comes with its traceback, which is kept nowhere else.
    assert (told.exc_info is not None) == isinstance(raised, ValueError)


@pytest.mark.spec("G3", "G7")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Done(changes={"status": "archived"}), "409 ILLEGAL_TRANSITION"),
        (Done(changes={"status": "nonsense"}), "is no status of a memory"),
        (Done(changes={"colour": "red"}), "colour"),
        (Done(changes={"data": {"x": object()}}), "is not JSON"),
        (Done(next_action_at=datetime(2030, 1, 1)), "is not JSON"),
        (Done(evidence_refs=["x" * 1_000_000]), "bytes"),
        ({"status": "verified"}, "answered a dict"),
    ],
    ids=["move", "status", "member", "object", "naive time", "size", "kind"],
)
async def test_an_answer_that_cannot_be_taken_fails_its_own_attempt_and_no_other(
    server: GovernanceServer, answer: Any, error: str
) -> None:
    await server.do(server.governing.put("bad", status="active"))
    bad, good = await server.enqueue("bad"), await server.enqueue("good")
    governor = make_governor(server)

    @governor.action("verify")
    async def verify(ctx: GovernanceContext) -> Any:
        return answer if ctx.object_id == "bad" else None

    await work_off(governor)
    ended = await server.job(bad)
    assert (ended.status, ended.attempt) == ("queued", 1)
    assert error in (ended.last_error or "")
    assert (await server.job(good)).status == "succeeded"
    assert (await server.object("bad")).status == "active"


@pytest.mark.spec("G4")
async def test_a_deadline_ends_an_async_handler(server: GovernanceServer) -> None:
    job = await server.enqueue()
    governor = make_governor(server)

    @governor.action("verify", deadline_sec=0.05)
    async def verify(_: GovernanceContext) -> None:
        await asyncio.sleep(60)

    await work_off(governor)
    assert (await server.job(job)).last_error == "ran longer than 0.05 s"


@pytest.mark.spec("G2")
async def test_it_pulls_only_what_it_has_handlers_and_types_for(server: GovernanceServer) -> None:
    await server.enqueue("m1", action="decay")
    await server.enqueue("e1", object_type="experience")
    await server.enqueue("m2")
    governor = make_governor(server, object_types=["memory"])
    done: list[str] = []

    @governor.action("verify")
    async def verify(ctx: GovernanceContext) -> None:
        done.append(ctx.object_id)

    await work_off(governor)
    assert done == ["m2"]


@pytest.mark.spec("G2", "G3")
async def test_many_jobs_go_in_batches_within_the_concurrency(server: GovernanceServer) -> None:
    jobs = [await server.enqueue(f"m{number}") for number in range(60)]
    governor = make_governor(server, concurrency=20)
    most = 0

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> None:
        nonlocal most
        most = max(most, governor.running)
        await asyncio.sleep(0.01)

    await work_off(governor)
    assert {(await server.job(job)).status for job in jobs} == {"succeeded"}
    assert most == 20


async def test_a_server_that_refuses_us_for_good_ends_the_run(server: GovernanceServer) -> None:
    client = GovernanceClient(server.url, headers={"Origin": "http://evil.example"}, backoff=QUICK)
    governor = Governor(client, backoff=CallBackoff(first_sec=0.01))
    governor.add_action("verify", lambda ctx: None)
    with pytest.raises(AccessError):
        await asyncio.wait_for(governor.run(), 10)
    await client.close()


def test_bad_settings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="concurrency is 1 or more"):
        Governor("http://127.0.0.1:1", concurrency=0)
    with pytest.raises(ValueError, match="object_types: 'dream' is not one; allowed: memory"):
        Governor("http://127.0.0.1:1", object_types=["dream"])
    governor = Governor("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="the action: 'guess' is not one; allowed: verify"):
        governor.action("guess")(lambda ctx: None)
    governor.add_action("verify", lambda ctx: None)
    with pytest.raises(ValueError, match="'verify' has a handler already"):
        governor.add_action("verify", lambda ctx: None)
    with pytest.raises(TypeError, match="one argument, the context"):
        governor.add_action("decay", lambda: None)
    with pytest.raises(ValueError, match="for async handlers only"):
        governor.add_action("archive", lambda ctx: None, deadline_sec=1.0)
    with pytest.raises(ValueError, match="between 0 and a year"):
        RetryAfter(-1)


async def test_a_governor_without_handlers_does_not_run() -> None:
    with pytest.raises(ValueError, match="has no handler"):
        await Governor("http://127.0.0.1:1").run()
