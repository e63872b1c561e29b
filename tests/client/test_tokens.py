"""Tokens: what a claim and a lease answer, the client sends back with every call on them."""

import asyncio

import pytest

from ksana.client import (
    BeatItem,
    ClaimLostError,
    JobContext,
    LeaseLostError,
    QueueClient,
    ReleaseItem,
    Worker,
)
from tests.client.conftest import QUICK
from tests.client.fake_queue import FakeQueue


@pytest.mark.spec("Q5", "Q8", "X12")
async def test_a_claim_is_proved_by_its_token(server: FakeQueue, client: QueueClient) -> None:
    [job_id] = server.add()
    [job] = await client.claim("shop", "w1")
    assert job.claim_token == server.tokens[job_id]
    with pytest.raises(ClaimLostError):
        await client.status(job_id, "PREPARING", claim_token="another")
    assert (await client.status(job_id, "PREPARING", claim_token=job.claim_token)).state
    with pytest.raises(ClaimLostError):
        await client.request_lease(job_id, claim_token="another", ttl_sec=30)
    decision = await client.request_lease(job_id, claim_token=job.claim_token, ttl_sec=30)
    assert decision.lease is not None
    assert decision.lease.lease_token == server.tokens[decision.lease.lease_id]


@pytest.mark.spec("Q10", "Q11", "Q16", "X12")
async def test_a_lease_is_proved_by_its_token(server: FakeQueue, client: QueueClient) -> None:
    server.add()
    [job] = await client.claim("shop", "w1", lease=True, ttl_sec=30)
    lease_id, token = job.lease_id, job.lease_token
    assert lease_id is not None and token == server.tokens[lease_id]
    held = {"job_id": job.job_id, "worker_id": "w1"}
    with pytest.raises(LeaseLostError):
        await client.heartbeat(lease_id, lease_token="another", **held)
    await client.heartbeat(lease_id, lease_token=token, **held)
    beat = BeatItem(lease_id=lease_id, lease_token="another", **held)
    [refused] = await client.heartbeat_batch([beat])
    assert isinstance(refused, LeaseLostError)
    item = ReleaseItem(lease_id=lease_id, lease_token="another", status="SUCCEEDED", **held)
    [refused] = await client.release_batch([item])
    assert isinstance(refused, LeaseLostError)
    with pytest.raises(LeaseLostError):
        await client.release(lease_id, lease_token="another", **held)
    done = await client.release(lease_id, lease_token=token, status="FAILED", retry=False, **held)
    assert done.job.state == "FAILED"
    assert server.calls[-1][1]["retry"] is False


@pytest.mark.spec("X12")
@pytest.mark.parametrize("has_tokens", [True, False], ids=["tokens", "an older server"])
async def test_the_worker_sends_the_tokens_it_was_given_and_no_others(
    server: FakeQueue, has_tokens: bool
) -> None:
    server.has_tokens = has_tokens
    worker = Worker(server.url, "shop", "w1", ttl_sec=1, wait_sec=0.2, backoff=QUICK)

    @worker.job("work")
    async def work(ctx: JobContext) -> None:
        lease = server.leases[ctx.job.lease_id or ""]
        await server.until(lambda: lease.get("beats", 0) >= 1)

    job_ids = server.add(count=3)
    await asyncio.wait_for(worker.run(burst=True), 20)
    assert sorted(server.accepted) == sorted(job_ids)
    for path in ("heartbeat-batch", "release-batch"):
        items = [item for called, body in server.calls if path in called for item in body["items"]]
        assert items
        for item in items:
            assert item.get("lease_token") == server.tokens.get(item["lease_id"])
            assert ("lease_token" in item) is has_tokens
