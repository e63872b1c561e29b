"""The client of the Queue surface: what each call sends, what it makes of the answer, and what it
does when there is none."""

import asyncio
import shutil
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ksana.client import (
    ApiNotFoundError,
    BusyError,
    CallBackoff,
    DeadlineError,
    DuplicateRequestError,
    InvalidRequestError,
    LeaseLostError,
    NewJob,
    QueueClient,
    ReleaseItem,
    TransportError,
)
from ksana.client.shapes import BeatItem
from tests.client.fake_queue import FakeQueue


@pytest.mark.spec("Q1")
async def test_a_submitted_job_comes_back_typed_and_later_members_are_passed_over(
    server: FakeQueue, client: QueueClient
) -> None:
    job = await client.submit(
        "shop",
        "render",
        {"n": 1},
        cost_units=3,
        priority="HIGH",
        max_attempts=2,
        run_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert (job.state, job.priority, job.cost_units, job.payload, job.max_attempts) == (
        "QUEUED",
        "HIGH",
        3,
        {"n": 1},
        2,
    )
    assert job.created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert server.calls[0][1]["run_at"] == "2026-01-01T00:00:00Z"
    assert "Authorization: Bearer key-1" in server.heads[0]


async def test_a_submit_whose_answer_was_lost_makes_one_job(
    server: FakeQueue, client: QueueClient
) -> None:
    server.fail("submit", "lost")
    job = await client.submit("shop", "render")
    assert list(server.jobs) == [job.job_id]
    assert server.count("submit") == 2


async def test_a_batch_whose_answer_was_lost_makes_each_job_once(
    server: FakeQueue, client: QueueClient
) -> None:
    server.fail("submit-batch", "lost")
    jobs = await client.submit_batch(
        [NewJob(addon_id="shop", job_type="a"), NewJob(addon_id="shop", job_type="b")]
    )
    assert [job.job_type for job in jobs] == ["a", "b"]
    assert list(server.jobs) == [job.job_id for job in jobs]


async def test_a_request_id_used_before_is_an_error_with_the_job(client: QueueClient) -> None:
    first = await client.submit("shop", "render", client_request_id="order-7")
    with pytest.raises(DuplicateRequestError) as caught:
        await client.submit("shop", "render", client_request_id="order-7")
    assert caught.value.job is not None
    assert caught.value.job["job_id"] == first.job_id


async def test_a_duplicate_in_a_batch_of_own_ids_is_an_error_with_its_index(
    client: QueueClient,
) -> None:
    await client.submit("shop", "render", client_request_id="order-7")
    batch = [
        NewJob(addon_id="shop", job_type="a"),
        NewJob(addon_id="shop", job_type="a", client_request_id="order-7"),
    ]
    with pytest.raises(DuplicateRequestError) as caught:
        await client.submit_batch(batch)
    assert caught.value.index == 1


@pytest.mark.spec("X8")
async def test_a_refusal_is_an_exception_with_code_status_field_and_request_id(
    client: QueueClient,
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await client.submit("shop", "render", cost_units=0)
    error = caught.value
    assert (error.status, error.code, error.field, error.request_id) == (
        400,
        "INVALID_ARGUMENT",
        "cost_units",
        "r-1",
    )
    with pytest.raises(ApiNotFoundError):
        await client.get_job("2b0d7b3d-0000-4000-8000-000000000000")


@pytest.mark.spec("Q2", "Q9", "Q10", "Q11", "Q13")
async def test_the_cycle_step_by_step(client: QueueClient) -> None:
    await client.submit("shop", "render")
    [job] = await client.claim(
        "shop",
        "w1",
        accept_job_types=["render"],
        max_cost_units=5,
        capabilities={"gpu_available": True},
    )
    assert (
        await client.status(job.job_id, "PREPARING", note="warming", progress=0.1, worker_id="w1")
    ).state == "PREPARING"
    decision = await client.request_lease(job.job_id, worker_id="w1", ttl_sec=30)
    assert decision.approved
    assert decision.lease is not None
    lease_id = decision.lease.lease_id
    assert (await client.get_lease(lease_id)).state == "ACTIVE"
    beat = await client.heartbeat(
        lease_id, job_id=job.job_id, worker_id="w1", progress=0.5, message="half"
    )
    assert beat.job.progress == 0.5
    done = await client.release(
        lease_id, job_id=job.job_id, worker_id="w1", result_data={"path": "/x"}
    )
    assert done.job.state == "DONE"
    again = await client.release(
        lease_id, job_id=job.job_id, worker_id="w1", result_data={"path": "/x"}
    )
    assert again.result == done.result
    status = await client.get_job(job.job_id)
    assert status.job.is_finished
    assert status.result is not None
    assert status.result.result_data == {"path": "/x"}
    with pytest.raises(LeaseLostError) as caught:
        await client.heartbeat(lease_id, job_id=job.job_id, worker_id="w1")
    assert caught.value.current == {"state": "RELEASED"}


async def test_a_denied_lease_is_an_answer_with_its_reason(
    server: FakeQueue, client: QueueClient
) -> None:
    server.capacity = 0
    await client.submit("shop", "render")
    [job] = await client.claim("shop", "w1")
    decision = await client.request_lease(job.job_id, worker_id="w1", ttl_sec=30)
    assert (decision.approved, decision.reason, decision.retry_after_sec) == (
        False,
        "Capacity exceeded",
        10,
    )


async def test_an_empty_queue_claims_nothing(client: QueueClient) -> None:
    assert await client.claim("shop", "w1") == []


async def test_a_long_poll_wakes_when_a_job_comes(server: FakeQueue, client: QueueClient) -> None:
    polling = asyncio.create_task(client.claim("shop", "w1", limit=5, wait_sec=10))
    await server.until(lambda: server.count("claim") == 1)
    await client.submit("shop", "render")
    [job] = await polling
    assert job.claimed_by == "w1"


@pytest.mark.spec("Q7")
async def test_a_listing_goes_through_all_pages(server: FakeQueue, client: QueueClient) -> None:
    made = server.add(count=7)
    server.add("other", count=2)
    assert [job.job_id async for job in client.list_jobs(job_type="work", page_size=3)] == made
    assert server.count("/jobs?") == 3


@pytest.mark.spec("Q16")
async def test_batches_answer_each_item_on_its_own(server: FakeQueue, client: QueueClient) -> None:
    server.add(count=2)
    first, second = await client.claim("shop", "w1", limit=2, lease=True, ttl_sec=30)
    assert first.lease_id is not None and second.lease_id is not None
    server.expire(first.lease_id)
    ids = [(job.lease_id or "", job.job_id) for job in (first, second)]
    beats = await client.heartbeat_batch(
        [BeatItem(lease_id=lease, job_id=job, worker_id="w1") for lease, job in ids]
    )
    assert isinstance(beats[0], LeaseLostError)
    assert not isinstance(beats[1], Exception)
    items = [
        ReleaseItem(lease_id=lease, job_id=job, worker_id="w1", status="SUCCEEDED")
        for lease, job in ids
    ]
    releases = await client.release_batch(items)
    assert isinstance(releases[0], LeaseLostError)
    assert not isinstance(releases[1], Exception)
    assert releases[1].job.state == "DONE"
    assert [type(verdict) for verdict in await client.release_batch_briefly(items)] == [
        LeaseLostError,
        type(None),
    ]


@pytest.mark.parametrize("size", [0, 501])
async def test_a_batch_of_a_wrong_size_is_refused_before_it_is_sent(
    client: QueueClient, size: int
) -> None:
    with pytest.raises(ValueError, match="1 to 500"):
        await client.heartbeat_batch([BeatItem(lease_id="a", job_id="b", worker_id="c")] * size)


async def test_stats_events_and_explanations_are_read(client: QueueClient) -> None:
    job = await client.submit("shop", "render")
    assert (await client.snapshot()).capacity.total == 70
    series = await client.timeseries("leases_active", bucket="5m", span="24h")
    assert [point.value for point in series.points] == [1]
    assert (await client.events(job.job_id))[0].type == "JOB_SUBMITTED"
    assert (await client.explain(job.job_id))["reasons"] == ["WAITING"]


async def test_cancelling_twice_because_of_a_lost_answer_is_no_conflict(
    server: FakeQueue, client: QueueClient
) -> None:
    job = await client.submit("shop", "render")
    server.fail("cancel", "lost")
    assert (await client.cancel(job.job_id, "not wanted")).state == "CANCELED"


async def test_503_is_tried_again_and_then_told(server: FakeQueue, client: QueueClient) -> None:
    server.fail("snapshot", 503, times=2)
    assert (await client.snapshot()).capacity.used == 60
    server.fail("snapshot", 503, times=10)
    with pytest.raises(BusyError) as caught:
        await client.snapshot()
    assert (caught.value.code, caught.value.retry_after_sec) == ("STORE_DOWN", 0)


async def test_a_claim_is_not_repeated_after_a_lost_answer(
    server: FakeQueue, client: QueueClient
) -> None:
    server.fail("claim", "lost")
    with pytest.raises(TransportError) as caught:
        await client.claim("shop", "w1")
    assert caught.value.is_outcome_unknown
    assert server.count("claim") == 1


async def test_a_server_that_is_not_there_is_a_transport_error_that_did_nothing() -> None:
    async with FakeQueue() as gone:
        url = gone.url
    async with QueueClient(
        url, backoff=CallBackoff(first_sec=0.01, most_sec=0.01, tries=2)
    ) as client:
        with pytest.raises(TransportError) as caught:
            await client.claim("shop", "w1")
    assert not caught.value.is_outcome_unknown


async def test_a_silent_server_ends_with_the_deadline(server: FakeQueue) -> None:
    server.fail("snapshot", "silent", times=9)
    async with QueueClient(server.url, deadline_sec=0.2) as client:
        with pytest.raises(DeadlineError):
            await client.snapshot()


async def test_connections_are_kept_and_used_again(server: FakeQueue, client: QueueClient) -> None:
    for _ in range(5):
        await client.snapshot()
    assert server.connections == 1
    await asyncio.gather(*(client.snapshot() for _ in range(5)))
    assert server.connections <= 5


async def test_a_cancelled_call_does_not_leave_its_answer_to_the_next_one(
    server: FakeQueue, client: QueueClient
) -> None:
    polling = asyncio.create_task(client.claim("shop", "w1", wait_sec=20))
    await client.snapshot()
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    assert (await client.snapshot()).capacity.total == 70


async def test_a_server_that_restarts_is_found_again(
    server: FakeQueue, client: QueueClient
) -> None:
    await client.snapshot()
    await server.stop()
    await server.start()
    assert (await client.snapshot()).capacity.total == 70


@pytest.mark.parametrize("url", ["127.0.0.1:7100", "ftp://a", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        QueueClient(url)


def test_a_key_that_would_break_the_request_is_refused() -> None:
    with pytest.raises(ValueError, match="header"):
        QueueClient("http://127.0.0.1:1", "a\r\nX-Evil: 1")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody else has signed, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("MISSING SERVER: openssl is not installed")
    made, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        program,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(made), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


async def test_tls_is_spoken_to_https_addresses_and_certificates_are_checked(
    certificate: tuple[Path, Path],
) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*certificate)
    async with FakeQueue(served) as server:
        trusting = ssl.create_default_context(cafile=certificate[0])
        async with QueueClient(server.url, tls=trusting) as client:
            assert (await client.snapshot()).capacity.total == 70
        async with QueueClient(server.url, backoff=CallBackoff(tries=1)) as client:
            with pytest.raises(TransportError, match="certificate"):
                await client.snapshot()
        assert len(server.calls) == 1
