"""Every call of the governance client, against the real server."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ksana.client import (
    AckItem,
    ApiConflictError,
    ApiError,
    ApiNotFoundError,
    FailItem,
    GovernanceClient,
    GovernanceJob,
    InvalidRequestError,
    LeaseLostError,
    RenewItem,
)
from tests.client.governance_server import QUICK, GovernanceServer

NOW = timedelta()
SOON = timedelta(hours=1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GovernanceServer]:
    server = await asyncio.to_thread(GovernanceServer, tmp_path)
    yield server
    await asyncio.to_thread(server.close)


@pytest.fixture
async def client(server: GovernanceServer) -> AsyncIterator[GovernanceClient]:
    async with GovernanceClient(server.url, deadline_sec=5.0, backoff=QUICK) as client:
        yield client


@pytest.mark.spec("G1")
async def test_a_job_is_enqueued_once_and_found(client: GovernanceClient) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + SOON
    job = await client.enqueue("memory", "m1", "verify", at, priority="high", max_attempts=5)
    again = await client.enqueue("memory", "m1", "verify", at)
    assert (again.job_id, again.duplicate, job.duplicate) == (job.job_id, True, False)
    assert (job.run_at, job.priority, job.max_attempts) == (at, "high", 5)
    assert await client.get_job(job.job_id) == job
    for number in range(5):
        await client.enqueue("memory", f"x{number}", "decay", SOON)
    listed = [one async for one in client.list_jobs(action="decay", page_size=2)]
    assert [one.object_id for one in listed] == ["x4", "x3", "x2", "x1", "x0"]
    assert (await client.explain_job(job.job_id))["reasons"]
    with pytest.raises(InvalidRequestError, match="run_at"):
        await client.enqueue("memory", "m1", "verify", timedelta(hours=-1))


@pytest.mark.spec("G1")
async def test_an_enqueue_whose_answer_was_lost_finds_its_job(
    server: GovernanceServer, client: GovernanceClient
) -> None:
    lost = server.proxy.lose_reply_to(b"POST /scheduler/jobs ")
    job = await client.enqueue("memory", "m1", "verify", SOON)
    assert lost.count == 1
    assert [one.job_id async for one in client.list_jobs()] == [job.job_id]


@pytest.mark.spec("G2", "G3", "G4", "G5")
async def test_jobs_are_pulled_held_and_ended_by_their_token(client: GovernanceClient) -> None:
    for number in range(4):
        await client.enqueue("memory", f"m{number}", "verify", NOW, allow_past=True)
    jobs = await client.pull("w1", limit=10, lease_sec=60, actions=["verify"])
    assert [job.status for job in jobs] == ["running"] * 4
    one, two, three, four = jobs
    renewed = await client.renew(one.job_id, lease_sec=600, lease_token=one.lease_token)
    assert renewed.lease_expires_at is not None and one.lease_expires_at is not None
    assert renewed.lease_expires_at > one.lease_expires_at
    done = await client.ack(
        one.job_id,
        lease_token=one.lease_token,
        next_action_at=SOON,
        next_action="decay",
        changes={"status": "active"},
        evidence_refs=["doc:1"],
        audit_event_id="mine",
    )
    assert (done.status, done.audit_event_id) == ("succeeded", "mine")
    follow_up = await client.get_job(done.follow_up_job_id or "")
    assert (follow_up.action, follow_up.status) == ("decay", "queued")
    failed = await client.fail(
        two.job_id, "no", retry_delay_sec=60, lease_token=two.lease_token, worker_id="w1"
    )
    assert (failed.status, failed.attempt, failed.last_error) == ("queued", 1, "no")
    with pytest.raises(LeaseLostError):
        await client.ack(two.job_id, lease_token=two.lease_token)
    items = [RenewItem(job_id=job.job_id, lease_token=job.lease_token) for job in jobs]
    refusals = await client.renew_batch(items)
    assert [refusal is None for refusal in refusals] == [False, False, True, True]
    acks = [AckItem(job_id=job.job_id, lease_token=job.lease_token) for job in (three, two)]
    answers = await client.ack_batch(acks)
    assert isinstance(answers[0], GovernanceJob) and isinstance(answers[1], LeaseLostError)
    failures = [FailItem(job_id=four.job_id, error="no", lease_token=four.lease_token, retry=False)]
    [ended] = await client.fail_batch(failures)
    assert not isinstance(ended, ApiError) and ended.status == "failed"


@pytest.mark.spec("G6")
async def test_dead_letters_are_queued_again(client: GovernanceClient) -> None:
    for number in range(2):
        await client.enqueue("memory", f"m{number}", "decay", NOW, allow_past=True, max_attempts=1)
    for job in await client.pull("w1"):
        assert (await client.fail(job.job_id, "no")).status == "dead_letter"
    assert await client.requeue_matching(dry_run=True, object_type="memory") == 2
    [first, _] = [job async for job in client.list_jobs(status="dead_letter")]
    assert (await client.requeue(first.job_id)).status == "queued"
    with pytest.raises(ApiConflictError):
        await client.requeue(first.job_id)
    assert await client.requeue_matching(run_before=datetime.now(UTC)) == 1


@pytest.mark.spec("G7", "G9", "G12", "G14")
async def test_objects_gates_the_audit_and_figures(client: GovernanceClient) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + SOON
    assert await client.find_object("memory", "m 1/ä") is None
    with pytest.raises(ApiNotFoundError):
        await client.get_object("memory", "m 1/ä")
    made = await client.put_object(
        "memory", "m 1/ä", risk_tier="high", next_action_at=at, data={"k": 1}, half_life="2d"
    )
    assert (made.next_action_at, made.data, made.half_life) == (at, {"k": 1}, "48h")
    changed = await client.patch_object("memory", "m 1/ä", weight=0.5)
    assert (changed.weight, changed.version) == (0.5, 2)
    assert await client.find_object("memory", "m 1/ä") == changed
    assert (await client.explain_object("memory", "m 1/ä"))["summary"]
    closed = await client.set_gate("persona", "closed", scope="memory:verify", reason="review")
    assert (closed.state, closed.scope) == ("closed", "memory:verify")
    assert closed.state in {gate.state for gate in await client.list_gates()}
    entries = [entry async for entry in client.list_audit(page_size=1)]
    assert entries[0]["event_type"] == "gate.change"
    assert len(entries) == 4
    assert (await client.metrics())["dead_letter_count"] == 0
