"""Releases that claim, as the client sends them and as it takes their answers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.client import LeaseLostError, QueueClient, ReleaseItem
from ksana.client.api_client import WAIT_MARGIN_SEC
from ksana.client.errors import ClientError, TransportError, from_body
from ksana.client.shapes import Job
from tests.client.conftest import QUICK
from tests.client.fake_queue import FakeQueue
from tests.client.fake_transport import FakeTransport

pytestmark = pytest.mark.spec("Q11", "Q16")

PATH = "/api/scheduler/lease/release-batch"
JOB = {"job_id": "j2", "addon_id": "a", "job_type": "t", "state": "RUNNING", "lease_id": "l2"}
ITEM = {"lease_id": "l1", "job_id": "j1", "worker_id": "w", "status": "SUCCEEDED"}
DONE = {"lease_id": "l1", "job_id": "j1", "job_state": "DONE"}
ITEMS = [ReleaseItem(lease_id="l1", job_id="j1", worker_id="w", status="SUCCEEDED")]


@pytest.fixture
def client() -> QueueClient:
    return QueueClient("http://h:1", "key", deadline_sec=7.0)


@pytest.fixture
def wire(client: QueueClient) -> FakeTransport:
    return FakeTransport(client)


async def test_one_call_releases_and_claims(client: QueueClient, wire: FakeTransport) -> None:
    wire.answers = [{"results": [DONE], "next": {"job": JOB, "jobs": [JOB]}}]
    made = await client.release_and_claim(ITEMS, "a", "w")
    assert (made.refused, made.is_claim_lost) == ([None], False)
    assert [job.job_id for job in made.jobs] == ["j2"]
    assert wire.last == (
        "POST",
        PATH,
        {
            "items": [ITEM],
            "brief": True,
            "next": {
                "addon_id": "a",
                "worker_id": "w",
                "limit": 1,
                "brief": True,
                "lease": True,
            },
        },
    )
    assert wire.how[-1]["is_repeatable"] is False
    assert wire.how[-1]["deadline_sec"] == WAIT_MARGIN_SEC


async def test_what_is_wanted_is_sent_and_nothing_else(
    client: QueueClient, wire: FakeTransport
) -> None:
    wire.answers = [{"results": [DONE], "next": None}]
    made = await client.release_and_claim(
        ITEMS,
        "a",
        "w",
        limit=9,
        ahead=4,
        ttl_sec=15,
        accept_job_types=["t", "u"],
        max_cost_units=3,
        capabilities={"gpu": True},
    )
    assert (made.refused, made.jobs) == ([None], [])
    assert wire.last[2]["next"] == {
        "addon_id": "a",
        "worker_id": "w",
        "limit": 9,
        "brief": True,
        "lease": True,
        "ttl_sec": 15,
        "ahead": 4,
        "accept_job_types": ["t", "u"],
        "max_cost_units": 3,
        "constraints_capabilities": {"gpu": True},
    }


async def test_refusals_stand_in_the_order_of_the_items(
    client: QueueClient, wire: FakeTransport
) -> None:
    lost = {"lease_id": "l1", "code": "LEASE_LOST", "message": "this lease is EXPIRED"}
    wire.answers = [{"results": [DONE, lost, DONE], "next": {"jobs": [JOB]}}]
    made = await client.release_and_claim(ITEMS * 3, "a", "w")
    assert [None if one is None else one.code for one in made.refused] == [
        None,
        "LEASE_LOST",
        None,
    ]
    assert isinstance(made.refused[1], LeaseLostError)
    assert [job.job_id for job in made.jobs] == ["j2"]


@pytest.mark.parametrize(
    "error",
    [
        TransportError("cut", is_outcome_unknown=True),
        from_body(500, {"code": "INTERNAL"}),
        from_body(502, {"code": ""}),
    ],
)
async def test_after_a_lost_answer_the_releases_alone_are_sent_again(
    client: QueueClient, wire: FakeTransport, error: ClientError
) -> None:
    wire.answers = [error, {"results": [DONE]}]
    made = await client.release_and_claim(ITEMS, "a", "w")
    assert (made.refused, made.jobs, made.is_claim_lost) == ([None], [], True)
    assert [path for _, path, _ in wire.sent] == [PATH, PATH]
    assert wire.last[2] == {"items": [ITEM], "brief": True}
    assert wire.how[-1] == {"deadline_sec": 7.0}


async def test_releases_whose_answer_is_lost_again_are_an_error(
    client: QueueClient, wire: FakeTransport
) -> None:
    errors = [TransportError("cut", is_outcome_unknown=True) for _ in range(2)]
    wire.answers = [*errors]
    with pytest.raises(TransportError) as caught:
        await client.release_and_claim(ITEMS, "a", "w")
    assert caught.value is errors[1]


@pytest.mark.parametrize(
    "answer",
    [None, {"results": [], "next": None}, {"results": [DONE, DONE]}, {"results": [1]}, {"next": 1}],
)
async def test_an_answer_that_cannot_be_read_is_as_good_as_lost(
    client: QueueClient, wire: FakeTransport, answer: Any
) -> None:
    wire.answers = [answer, {"results": [DONE]}]
    made = await client.release_and_claim(ITEMS, "a", "w")
    assert (made.refused, made.jobs, made.is_claim_lost) == ([None], [], True)
    assert wire.last[2] == {"items": [ITEM], "brief": True}


@pytest.mark.parametrize(
    "error",
    [
        TransportError("refused", is_outcome_unknown=False),
        from_body(400, {"code": "INVALID_ARGUMENT", "message": "no"}),
        from_body(503, {"code": "STORE_DOWN", "message": "no"}),
    ],
)
async def test_what_did_not_happen_is_an_error(
    client: QueueClient, wire: FakeTransport, error: ClientError
) -> None:
    wire.answers = [error]
    with pytest.raises(ClientError) as caught:
        await client.release_and_claim(ITEMS, "a", "w")
    assert caught.value is error
    assert len(wire.sent) == 1


async def test_a_server_that_does_not_know_of_it_hands_out_nothing(
    client: QueueClient, wire: FakeTransport
) -> None:
    wire.answers = [{"results": [DONE]}]
    made = await client.release_and_claim(ITEMS, "a", "w")
    assert (made.refused, made.jobs, made.is_claim_lost) == ([None], [], False)


@pytest.mark.parametrize("count", [0, 501])
async def test_a_batch_has_1_to_500_items(
    client: QueueClient, wire: FakeTransport, count: int
) -> None:
    with pytest.raises(ValueError, match="1 to 500"):
        await client.release_and_claim(ITEMS * count, "a", "w")
    assert wire.sent == []


class ExchangingQueue(FakeQueue):
    """The fake server, which also claims with a release."""

    async def _act(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        status, answer = await super()._act(method, target, body)
        if "next" in (body or {}):
            found = self._take(body["next"])
            answer["next"] = {"jobs": found} if found else None
        return status, answer


@pytest.fixture
async def exchanging() -> AsyncIterator[ExchangingQueue]:
    async with ExchangingQueue() as server:
        yield server


async def hold(server: FakeQueue, client: QueueClient, count: int) -> list[ReleaseItem]:
    """So many leases of one worker, and how they are released."""
    server.add(count=count)
    return [
        end_of(job) for job in await client.claim("shop", "w", limit=count, lease=True, ttl_sec=30)
    ]


def end_of(job: Job) -> ReleaseItem:
    assert job.lease_id is not None and job.lease_token is not None
    return ReleaseItem(
        lease_id=job.lease_id,
        job_id=job.job_id,
        worker_id="w",
        lease_token=job.lease_token,
        status="SUCCEEDED",
    )


async def test_a_worker_goes_from_job_to_job_by_one_call_each(exchanging: ExchangingQueue) -> None:
    async with QueueClient(exchanging.url, backoff=QUICK) as client:
        items = await hold(exchanging, client, 1)
        exchanging.add(count=3)
        while items:
            made = await client.release_and_claim(items, "shop", "w", ttl_sec=30)
            assert (made.refused, made.is_claim_lost) == ([None], False)
            items = [end_of(job) for job in made.jobs]
    assert exchanging.states() == {"DONE": 4}
    assert (exchanging.count("release-batch"), exchanging.count("claim")) == (4, 1)


async def test_an_answer_lost_on_its_way_doubles_neither_release_nor_claim(
    exchanging: ExchangingQueue,
) -> None:
    async with QueueClient(exchanging.url, backoff=QUICK) as client:
        items = await hold(exchanging, client, 2)
        exchanging.expire(items[0].lease_id)
        exchanging.add(count=3)
        exchanging.fail("release-batch", "lost")
        made = await client.release_and_claim(items, "shop", "w", ttl_sec=30)
        assert isinstance(made.refused[0], LeaseLostError)
        assert (made.refused[1], made.jobs, made.is_claim_lost) == (None, [], True)
        unseen = [job async for job in client.list_jobs(state="RUNNING")]
    assert exchanging.accepted == [items[1].job_id]
    assert len(unseen) == 1, "one job was claimed, and the claim was not repeated"
    assert exchanging.states() == {"TIMEOUT": 1, "DONE": 1, "RUNNING": 1, "QUEUED": 2}


async def test_an_older_server_releases_and_keeps_the_jobs(server: FakeQueue) -> None:
    async with QueueClient(server.url, backoff=QUICK) as client:
        items = await hold(server, client, 1)
        server.add()
        made = await client.release_and_claim(items, "shop", "w", ttl_sec=30)
    assert (made.refused, made.jobs, made.is_claim_lost) == ([None], [], False)
    assert server.states() == {"DONE": 1, "QUEUED": 1}
