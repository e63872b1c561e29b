"""What the client of the queue sends for each call, and what it makes of the answer."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ksana.client import QueueClient, shapes
from ksana.client.api_client import MAX_BATCH, WAIT_MARGIN_SEC
from ksana.client.connection import HttpReply
from ksana.client.errors import (
    ApiConflictError,
    ApiError,
    DuplicateRequestError,
    TransportError,
    from_body,
)
from ksana.client.queue import MAX_SUBMIT_BATCH
from ksana.client.transport import CallBackoff
from tests.client.fake_transport import FakeTransport

pytestmark = pytest.mark.spec("Q16")

JOB = {"job_id": "j/1", "addon_id": "a", "job_type": "t", "state": "QUEUED"}
LEASE = {"lease_id": "l/1", "job_id": "j/1", "state": "ACTIVE"}
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASE = "/api/scheduler"


@pytest.fixture
def client() -> QueueClient:
    return QueueClient("http://h:1", "key", deadline_sec=7.0)


@pytest.fixture
def wire(client: QueueClient) -> FakeTransport:
    return FakeTransport(client)


def refusal(code: str, status: int = 409, unknown: int = 0, **more: Any) -> ApiError:
    error = from_body(status, {"code": code, **more})
    error.unknown_tries = unknown
    return error


async def test_a_job_is_submitted_with_what_was_given_and_nothing_else(
    client: QueueClient, wire: FakeTransport
) -> None:
    wire.answers = [{"job": JOB}] * 2
    assert (await client.submit("a", "t")).job_id == "j/1"
    method, path, body = wire.last
    assert (method, path) == ("POST", f"{BASE}/jobs/submit")
    assert len(body.pop("client_request_id")) == 36
    assert body == {"addon_id": "a", "job_type": "t", "cost_units": 1}
    assert wire.how[-1] == {"deadline_sec": 7.0}
    await client.submit(
        "a",
        "t",
        {"x": 1},
        cost_units=3,
        priority="HIGH",
        constraints={"gpu": True},
        client_request_id="mine",
        max_attempts=4,
        run_at=WHEN,
        fairness_key="f",
    )
    assert wire.last[2] == {
        "addon_id": "a",
        "job_type": "t",
        "payload": {"x": 1},
        "cost_units": 3,
        "priority": "HIGH",
        "constraints": {"gpu": True},
        "client_request_id": "mine",
        "max_attempts": 4,
        "run_at": "2026-01-02T03:04:05Z",
        "fairness_key": "f",
    }


async def test_a_duplicate_is_our_own_only_after_a_lost_answer(
    client: QueueClient, wire: FakeTransport
) -> None:
    wire.answers = [refusal("DUPLICATE_REQUEST", unknown=1, job=JOB)]
    assert (await client.submit("a", "t")).job_id == "j/1"
    for unknown, more in ((0, {"job": JOB}), (1, {})):
        wire.answers = [refusal("DUPLICATE_REQUEST", unknown=unknown, **more)]
        with pytest.raises(DuplicateRequestError):
            await client.submit("a", "t")


@pytest.mark.parametrize("count", [0, 1, MAX_SUBMIT_BATCH, MAX_SUBMIT_BATCH + 1])
async def test_a_batch_of_jobs_is_bounded(
    client: QueueClient, wire: FakeTransport, count: int
) -> None:
    jobs = [shapes.NewJob(addon_id="a", job_type="t")] * count
    wire.answers = [{"jobs": [JOB] * count}]
    if 1 <= count <= MAX_SUBMIT_BATCH == 1_000:
        assert len(await client.submit_batch(jobs)) == count
        sent = wire.last[2]["jobs"]
        assert len({one["client_request_id"] for one in sent}) == count
        assert wire.last[:2] == ("POST", f"{BASE}/jobs/submit-batch")
        return
    with pytest.raises(ValueError, match=f"1 to {MAX_SUBMIT_BATCH}"):
        await client.submit_batch(jobs)


async def test_a_batch_whose_answer_was_lost_is_found_job_by_job(
    client: QueueClient, wire: FakeTransport
) -> None:
    mine = shapes.NewJob(addon_id="a", job_type="t", client_request_id="mine")
    fresh = shapes.NewJob(addon_id="a", job_type="t")
    lost = refusal("DUPLICATE_REQUEST", unknown=1, index=1, job=JOB)
    there = refusal("DUPLICATE_REQUEST", job={**JOB, "job_id": "j2"})
    wire.answers = [lost, {"job": JOB}, there]
    assert [job.job_id for job in await client.submit_batch([mine, fresh])] == ["j/1", "j2"]
    assert [path for _, path, _ in wire.sent[1:]] == [f"{BASE}/jobs/submit"] * 2
    assert wire.sent[1][2]["client_request_id"] == "mine"
    assert wire.sent[2][2] == wire.sent[0][2]["jobs"][1]
    # The id was the caller's, or no answer was lost: it may be the job of somebody else.
    for one in (
        refusal("DUPLICATE_REQUEST", unknown=1, index=0, job=JOB),
        refusal("DUPLICATE_REQUEST", unknown=0, index=1, job=JOB),
    ):
        wire.answers = [one]
        with pytest.raises(DuplicateRequestError):
            await client.submit_batch([mine, fresh])
    wire.answers = [lost, refusal("DUPLICATE_REQUEST")]
    with pytest.raises(DuplicateRequestError):
        await client.submit_batch([mine, fresh])


async def test_a_batch_with_the_callers_own_ids_is_sent_as_it_is(
    client: QueueClient, wire: FakeTransport
) -> None:
    wire.answers = [{"jobs": [JOB]}]
    mine = shapes.NewJob(addon_id="a", job_type="t", client_request_id="mine")
    await client.submit_batch([mine])
    assert wire.last[2]["jobs"][0]["client_request_id"] == "mine"


@pytest.mark.parametrize(
    ("how", "body"),
    [
        ({}, {}),
        ({"limit": 5}, {"limit": 5}),
        ({"wait_sec": 2.0}, {"wait_sec": 2}),
        ({"wait_sec": 2.5}, {"wait_sec": 2.5}),
        ({"lease": True}, {"lease": True}),
        ({"lease": True, "limit": 2}, {"lease": True, "limit": 2, "brief": True}),
        ({"lease": True, "ttl_sec": 9}, {"lease": True, "ttl_sec": 9}),
        ({"ttl_sec": 9}, {}),
        ({"accept_job_types": ("t",)}, {"accept_job_types": ["t"]}),
        ({"accept_job_types": ()}, {"accept_job_types": []}),
        ({"max_cost_units": 0}, {"max_cost_units": 0}),
        ({"capabilities": {"gpu": True}}, {"constraints_capabilities": {"gpu": True}}),
        ({"capabilities": {}}, {}),
    ],
)
async def test_a_claim_says_what_it_wants(
    client: QueueClient, wire: FakeTransport, how: dict[str, Any], body: dict[str, Any]
) -> None:
    wire.answers = [None]
    assert await client.claim("a", "w", **how, tries=1) == []
    expected = {"addon_id": "a", "worker_id": "w", "limit": 1, **body}
    assert wire.last == ("POST", f"{BASE}/jobs/claim", expected)
    deadline = how.get("wait_sec", 0.0) + WAIT_MARGIN_SEC
    assert wire.how[-1] == {
        "deadline_sec": deadline,
        "is_repeatable": False,
        "tries": 1,
        "is_poll": "wait_sec" in how,
    }


@pytest.mark.parametrize(
    ("deadline", "wait", "given"), [(7.0, 0.0, 5.0), (2.0, 0.0, 5.0), (30.0, 20.0, 25.0)]
)
async def test_a_claim_outlasts_its_long_poll_a_little(
    deadline: float, wait: float, given: float
) -> None:
    client = QueueClient("http://h:1", deadline_sec=deadline)
    wire = FakeTransport(client)
    wire.answers = [None]
    await client.claim("a", "w", wait_sec=wait)
    assert wire.how[-1]["deadline_sec"] == given
    assert wire.how[-1]["tries"] is None


@pytest.mark.parametrize("status", [200, 204])
async def test_a_claim_that_is_answered_without_a_body_found_no_jobs(
    client: QueueClient, wire: FakeTransport, status: int
) -> None:
    wire.answers = [HttpReply(status, b"", None, 0.0)]
    assert await client.claim("a", "w") == []


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"job": JOB}, [None]),
        ({"job": JOB, "claim_token": "c"}, ["c"]),
        ({"job": {**JOB, "claim_token": "own"}, "claim_token": "c"}, ["own"]),
        ({"jobs": [{**JOB, "claim_token": "x"}, JOB]}, ["x", None]),
        ({"jobs": []}, []),
        ({}, []),
    ],
)
async def test_a_claim_answers_jobs_with_their_tokens(
    client: QueueClient, wire: FakeTransport, answer: Any, tokens: list[str | None]
) -> None:
    wire.answers = [answer]
    assert [job.claim_token for job in await client.claim("a", "w")] == tokens


async def test_jobs_are_listed_page_after_page(client: QueueClient, wire: FakeTransport) -> None:
    wire.answers = [{"jobs": [JOB], "next_cursor": "c+1"}, {"jobs": [JOB, JOB]}]
    found = [
        job
        async for job in client.list_jobs(
            state="RUNNING", addon_id="a", job_type="t", created_after=WHEN, created_before=WHEN
        )
    ]
    assert len(found) == 3
    first, second = (path for _, path, _ in wire.sent)
    time = "2026-01-02T03%3A04%3A05Z"
    assert first == (
        f"{BASE}/jobs?state=RUNNING&addon_id=a&job_type=t&limit=100"
        f"&created_after={time}&created_before={time}"
    )
    assert second == f"{first}&cursor=c%2B1"
    wire.answers = [{"jobs": []}]
    assert [job async for job in client.list_jobs(page_size=5)] == []
    assert wire.last == ("GET", f"{BASE}/jobs?limit=5", None)


async def test_each_call_has_its_path_and_body(client: QueueClient, wire: FakeTransport) -> None:
    async def check(call: Any, answer: Any, method: str, path: str, body: Any = None) -> Any:
        wire.answers = [answer]
        found = await call
        assert wire.last == (method, f"{BASE}{path}", body)
        return found

    got = await check(client.get_job("j/1"), {"job": JOB}, "GET", "/jobs/j%2F1")
    assert (got.job.job_id, got.result) == ("j/1", None)
    body = {"state": "PREPARING", "claim_token": "c", "progress": 0.5, "note": "n"}
    call = client.status("j/1", "PREPARING", note="n", progress=0.5, claim_token="c")
    assert (await check(call, {"job": JOB}, "POST", "/jobs/j%2F1/status", body)).state == "QUEUED"
    call = client.status("j/1", "PREPARING", worker_id="w")
    body = {"state": "PREPARING", "worker_id": "w"}
    await check(call, {"job": JOB}, "POST", "/jobs/j%2F1/status", body)
    call = client.cancel("j/1", "why")
    await check(call, {"job": JOB}, "POST", "/jobs/j%2F1/cancel", {"reason": "why"})
    await check(client.cancel("j/1"), {"job": JOB}, "POST", "/jobs/j%2F1/cancel", {})
    fact = {"ts": "2026-01-02T03:04:05Z", "type": "X"}
    got = await check(client.events("j/1"), {"events": [fact]}, "GET", "/jobs/j%2F1/events")
    assert [one.type for one in got] == ["X"]
    got = await check(client.explain("j/1"), {"why": 1}, "GET", "/jobs/j%2F1/explain")
    assert got == {"why": 1}
    got = await check(client.get_lease("l/1"), {"lease": LEASE}, "GET", "/lease/l%2F1")
    assert got.lease_id == "l/1"
    snapshot = {"capacity": {"total": 1, "used": 0}, "jobs": {}, "leases": {}}
    assert (await check(client.snapshot(), snapshot, "GET", "/stats/snapshot")).capacity.total == 1
    series = {"metric": "m", "bucket": "5m", "points": []}
    path = "/stats/timeseries?metric=m&bucket=5m&range=24h"
    assert (await check(client.timeseries("m"), series, "GET", path)).metric == "m"


async def test_a_lease_is_asked_for_kept_and_released(
    client: QueueClient, wire: FakeTransport
) -> None:
    wire.answers = [{"approved": True, "lease": LEASE, "lease_token": "k"}]
    got = await client.request_lease("j", worker_id="w", claim_token="c", ttl_sec=5)
    body = {"job_id": "j", "worker_id": "w", "claim_token": "c", "ttl_sec": 5}
    assert wire.last == ("POST", f"{BASE}/lease/request", body)
    assert got.lease is not None
    assert got.lease.lease_token == "k"
    own = {**LEASE, "lease_token": "own"}
    for answer, token in (
        ({"approved": True, "lease": own, "lease_token": "k"}, "own"),
        ({"approved": True, "lease": LEASE}, None),
    ):
        wire.answers = [answer]
        got = await client.request_lease("j")
        assert got.lease is not None
        assert got.lease.lease_token == token
    wire.answers = [{"approved": False, "reason": "full", "lease_token": "k"}]
    assert (await client.request_lease("j")).lease is None
    both = {"lease": LEASE, "job": JOB}
    wire.answers = [both]
    await client.heartbeat(
        "l/1", job_id="j", worker_id="w", lease_token="k", progress=0.0, message="m"
    )
    proof = {"job_id": "j", "worker_id": "w", "lease_token": "k"}
    body = {**proof, "progress": 0.0, "message": "m"}
    assert wire.last == ("POST", f"{BASE}/lease/l%2F1/heartbeat", body)
    wire.answers = [both, both]
    await client.release("l/1", job_id="j", worker_id="w", lease_token="k")
    assert wire.last == ("POST", f"{BASE}/lease/l%2F1/release", {**proof, "status": "SUCCEEDED"})
    more: dict[str, Any] = {"status": "FAILED", "error": "e", "metrics": {"m": 1}}
    await client.release("l/1", job_id="j", worker_id="w", result_data=[1], retry=False, **more)
    expected = {"job_id": "j", "worker_id": "w", "result_data": [1], "retry": False, **more}
    assert wire.last[2] == expected


@pytest.mark.parametrize(
    ("unknown", "job", "is_ours"),
    [
        (1, {"state": "CANCELED"}, True),
        (1, {"state": "RUNNING", "cancel_requested": True}, True),
        (1, {"state": "RUNNING"}, False),
        (0, {"state": "CANCELED"}, False),
    ],
)
async def test_a_cancel_refused_after_a_lost_answer_may_be_our_own(
    client: QueueClient, wire: FakeTransport, unknown: int, job: Any, is_ours: bool
) -> None:
    wire.answers = [refusal("ILLEGAL_TRANSITION", unknown=unknown), {"job": {**JOB, **job}}]
    if is_ours:
        assert (await client.cancel("j/1")).state == job["state"]
    else:
        with pytest.raises(ApiConflictError):
            await client.cancel("j/1")
    assert len(wire.sent) == 1 + unknown


async def test_each_item_of_a_batch_is_answered_on_its_own(
    client: QueueClient, wire: FakeTransport
) -> None:
    beat = shapes.BeatItem(lease_id="l", job_id="j", worker_id="w")
    both = {"lease": LEASE, "job": JOB}
    refused = {"code": "LEASE_LOST", "message": "m"}
    wire.answers = [{"results": [both, refused, {"error": refused}]}]
    wire.unknown = 2
    good, *bad = await client.heartbeat_batch([beat] * 3)
    assert isinstance(good, shapes.Beat)
    assert [(one.code, one.unknown_tries) for one in bad] == [("LEASE_LOST", 2)] * 2  # type: ignore[union-attr]
    item = {"lease_id": "l", "job_id": "j", "worker_id": "w"}
    assert wire.last == ("POST", f"{BASE}/lease/heartbeat-batch", {"items": [item] * 3})
    assert wire.how[-1] == {"deadline_sec": 7.0}
    end = shapes.ReleaseItem(lease_id="l", job_id="j", worker_id="w", status="SUCCEEDED")
    wire.answers = [{"results": [both]}]
    assert isinstance((await client.release_batch([end]))[0], shapes.Release)
    assert wire.last[1:] == (
        f"{BASE}/lease/release-batch",
        {"items": [{**item, "status": "SUCCEEDED"}]},
    )
    wire.answers = [{"results": [{}, {}]}]
    assert await client.release_batch_briefly([end, end]) == [None, None]
    ended = {**item, "status": "SUCCEEDED"}
    body = {"items": [ended, ended], "brief": True}
    assert wire.last == ("POST", f"{BASE}/lease/release-batch", body)
    for results in ([{}, refused], [{}, {"error": refused}]):
        wire.answers = [{"results": results}]
        first, second = await client.release_batch_briefly([end, end])
        assert first is None
        assert second is not None
        assert second.code == "LEASE_LOST"
    for call in (client.heartbeat_batch([beat]), client.release_batch_briefly([end])):
        wire.answers = [{"results": []}]
        with pytest.raises(TransportError) as lost:
            await call
        assert lost.value.is_outcome_unknown
    for count in (0, MAX_BATCH + 1):
        with pytest.raises(ValueError, match=f"1 to {MAX_BATCH}"):
            await client.heartbeat_batch([beat] * count)
        with pytest.raises(ValueError, match=f"1 to {MAX_BATCH}"):
            await client.release_batch_briefly([end] * count)


async def test_a_twin_has_the_same_settings_but_those_given() -> None:
    backoff = CallBackoff(tries=2)
    client = QueueClient(
        "http://h:1/p", "key", deadline_sec=7.0, headers={"X-A": "b"}, backoff=backoff
    )
    twin = client.twin()
    assert (twin.base_url, twin.deadline_sec) == ("http://h:1/p", 7.0)
    assert twin._transport is not client._transport
    assert twin._transport.backoff == backoff
    assert twin._transport._head == client._transport._head
    other = client.twin(deadline_sec=1.0, backoff=CallBackoff(tries=9))
    assert (other.deadline_sec, other._transport.backoff.tries) == (1.0, 9)
    async with client as same:
        assert same is client
        wire = FakeTransport(client)
    assert wire.is_closed
