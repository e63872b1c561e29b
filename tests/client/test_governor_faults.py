"""The governor when leases, answers and the server are lost, and when it stops."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ksana.client import (
    Done,
    GovernanceContext,
    Retry,
)
from ksana.domain.governance.records import GovernanceJob
from ksana.ports.governance.tables import GovernanceJobFilter
from tests.client.governance_server import (
    GovernanceServer,
    at_work,
    make_governor,
    until,
    work_off,
)

SECOND = 1_000_000


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GovernanceServer]:
    server = await asyncio.to_thread(GovernanceServer, tmp_path)
    yield server
    await asyncio.to_thread(server.close)


@pytest.mark.spec("G5")
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    server: GovernanceServer,
) -> None:
    job = await server.enqueue()
    governor = make_governor(server, lease_sec=4)
    may_end = threading.Event()

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> None:
        may_end.wait(60)  # blocks the loop, not just the task

    def run() -> None:
        asyncio.run(work_off(governor))

    running = asyncio.create_task(asyncio.to_thread(run))
    await until(lambda: governor.running)
    first = (await server.job(job)).lease_expires_at
    assert first is not None
    try:
        async with asyncio.timeout(30):
            while ((await server.job(job)).lease_expires_at or 0) < first + 2 * SECOND:
                await asyncio.sleep(0.02)
    finally:
        may_end.set()
    await running
    ended = await server.job(job)
    assert (ended.status, ended.attempt) == ("succeeded", 0)


@pytest.mark.spec("G5")
async def test_a_job_that_is_ours_no_longer_is_stopped_and_nothing_is_sent(
    server: GovernanceServer,
) -> None:
    job = await server.enqueue()
    lost: list[tuple[str, str]] = []
    governor = make_governor(
        server, lease_sec=1, on_lost=lambda job, why: lost.append((job.job_id, why))
    )
    reasons: list[str | None] = []

    @governor.action("verify")
    async def verify(ctx: GovernanceContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(ctx.cancelled.reason)

    async with at_work(governor):
        await until(lambda: governor.running)
        await server.take_away(job)
        await until(lambda: reasons)
    assert "LEASE_LOST" in (reasons[0] or "")
    assert [name for name, _ in lost] == [job.job_id]
    assert (governor.stats.lost, governor.stats.succeeded, governor.stats.failed) == (1, 0, 0)
    assert (await server.job(job)).last_error == "taken away"


@pytest.mark.spec("G5")
async def test_a_lease_is_not_believed_in_longer_than_its_time(server: GovernanceServer) -> None:
    await server.enqueue()
    governor = make_governor(server, lease_sec=1)
    ended = asyncio.Event()

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with at_work(governor):
        await until(lambda: governor.running)
        server.proxy.blackhole()
        await asyncio.wait_for(ended.wait(), 10)
        assert governor.stats.lost == 1
        server.proxy.heal()  # a pull that was under way may bring it once more, too late again


@pytest.mark.spec("G3")
@pytest.mark.parametrize("tries", [1, 50], ids=["by the outbox", "by the transport"])
@pytest.mark.parametrize("kind", ["ack", "fail"])
async def test_a_result_whose_answer_was_lost_is_sent_again_and_counted_once(
    server: GovernanceServer, kind: str, tries: int
) -> None:
    job = await server.enqueue()
    governor = make_governor(server, tries=tries)

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> Done:
        if kind == "fail":
            raise Retry("no")
        return Done(next_action_at=timedelta(days=1))

    lost = server.proxy.lose_reply_to(f"/jobs/{kind}-batch".encode())
    await work_off(governor)
    assert lost.count == 1
    ended = await server.job(job)
    expected = ("succeeded", 0) if kind == "ack" else ("queued", 1)
    assert (ended.status, ended.attempt) == expected
    stats = governor.stats
    assert (stats.succeeded, stats.failed, stats.lost) == (kind == "ack", kind == "fail", 0)
    wanted = GovernanceJobFilter(object_id="m1", status="queued")
    queued = (await server.do(server.governing.service.list_jobs(wanted, None, 10))).jobs
    assert len(queued) == 1


@pytest.mark.spec("G2", "G5")
async def test_jobs_of_a_pull_whose_answer_was_lost_come_back_after_their_lease(
    server: GovernanceServer, caplog: pytest.LogCaptureFixture
) -> None:
    job = await server.enqueue()
    governor = make_governor(server, lease_sec=1)

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> None:
        return None

    server.proxy.lose_reply_to(b"/jobs/pull")
    with caplog.at_level(logging.WARNING, "ksana.client"):
        async with at_work(governor):
            await until(lambda: governor.stats.succeeded)
    ended = await server.job(job)
    assert (ended.status, ended.attempt) == ("succeeded", 1)
    assert any("comes back within 1 s" in record.getMessage() for record in caplog.records)


@pytest.mark.spec("G2")
async def test_an_outage_is_ridden_out_and_said_once(
    server: GovernanceServer, caplog: pytest.LogCaptureFixture
) -> None:
    governor = make_governor(server)
    done: list[str] = []

    @governor.action("verify")
    async def verify(ctx: GovernanceContext) -> None:
        done.append(ctx.object_id)

    with caplog.at_level(logging.INFO, "ksana.client"):
        async with at_work(governor):
            await server.enqueue("before")
            await until(lambda: done == ["before"])
            cut = server.proxy.cut_before(b"/jobs/pull", times=20)  # many tries in vain
            await until(lambda: cut.count == 20)
            await server.enqueue("after")
            await until(lambda: done == ["before", "after"])
    said = [record.getMessage() for record in caplog.records]
    assert sum("lost http" in one for one in said) == 1
    assert sum("again after" in one for one in said) == 1
    assert sum("the answer to a pull was lost" in one for one in said) == 1


@pytest.mark.spec("X14")
async def test_a_stop_lets_handlers_finish_and_brings_their_results_home(
    server: GovernanceServer,
) -> None:
    job = await server.enqueue()
    governor = make_governor(server, concurrency=1)
    may_end = asyncio.Event()

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> None:
        await may_end.wait()

    running = asyncio.create_task(governor.run())
    await until(lambda: governor.running)
    governor.stop()
    late = await server.enqueue("late")
    may_end.set()
    await asyncio.wait_for(running, 10)
    await governor.client.close()
    assert (await server.job(job)).status == "succeeded"
    assert (await server.job(late)).status == "queued"


@pytest.mark.spec("X14")
async def test_after_the_grace_a_handler_is_ended_and_its_job_is_due_at_once(
    server: GovernanceServer,
) -> None:
    job = await server.enqueue()
    governor = make_governor(server, grace_sec=0.05)

    @governor.action("verify")
    async def verify(_: GovernanceContext) -> None:
        await asyncio.sleep(60)

    async with at_work(governor):
        await until(lambda: governor.running)
    ended: GovernanceJob = await server.job(job)
    assert (ended.status, ended.attempt) == ("queued", 1)
    assert ended.last_error == "the worker stopped before the job ended"
    assert ended.run_at <= server.governing.clock.now()
