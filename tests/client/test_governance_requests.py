"""What the client of Governance sends for each call, and what it makes of the answer."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET

from ksana.base.clock import VirtualClock
from ksana.client import governance_client
from ksana.client.errors import ApiConflictError, ApiNotFoundError, from_body
from ksana.client.governance_client import GovernanceClient, show_members, show_next, show_when
from ksana.client.governance_shapes import AckItem, FailItem, GovernanceJob, RenewItem
from tests.client.fake_transport import FakeTransport

pytestmark = pytest.mark.spec("G2")

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TEXT = "2026-01-02T03:04:05Z"
JOB = {
    "job_id": "j/1",
    "object_type": "memory",
    "object_id": "o",
    "action": "verify",
    "run_at": TEXT,
    "status": "queued",
}
THING = {"object_type": "memory", "object_id": "o/1", "status": "active"}


@pytest.fixture
def client() -> GovernanceClient:
    return GovernanceClient("http://h:1", deadline_sec=7.0)


@pytest.fixture
def wire(client: GovernanceClient) -> FakeTransport:
    return FakeTransport(client)


def test_a_time_is_shown_with_its_zone_or_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock(1_767_323_045_000_000)
    monkeypatch.setattr(governance_client, "_clock", clock)
    assert show_when(WHEN) == TEXT
    assert show_when(timedelta(0)) == TEXT
    assert show_when(timedelta(minutes=1, milliseconds=500)) == "2026-01-02T03:05:05.5Z"
    assert show_when(timedelta(seconds=-5)) == "2026-01-02T03:04:00Z"
    with pytest.raises(ValueError, match="no time zone"):
        show_when(datetime(2026, 1, 2))
    assert show_next(None) is None
    assert show_next(UNSET) is UNSET
    assert show_next(WHEN) == TEXT
    assert show_members({"review_due_at": WHEN, "weight": 2}) == {
        "review_due_at": TEXT,
        "weight": 2,
    }


async def test_each_call_has_its_path_and_body(
    client: GovernanceClient, wire: FakeTransport
) -> None:
    async def check(call: Any, answer: Any, method: str, path: str, body: Any = None) -> Any:
        wire.answers = [answer]
        found = await call
        assert wire.last == (method, f"/scheduler{path}", body)
        return found

    made = {
        "object_type": "memory",
        "object_id": "o",
        "action": "verify",
        "run_at": TEXT,
        "priority": "medium",
        "max_attempts": 3,
        "allow_past": False,
    }
    call = client.enqueue("memory", "o", "verify", WHEN)
    assert (await check(call, JOB, "POST", "/jobs", made)).job_id == "j/1"
    call = client.enqueue("memory", "o", "verify", WHEN, idempotency_key="i", allow_past=True)
    more = {**made, "idempotency_key": "i", "allow_past": True}
    await check(call, JOB, "POST", "/jobs", more)
    await check(client.get_job("j/1"), JOB, "GET", "/jobs/j%2F1")
    fail = {"job_id": "j/1", "error": "e", "retry_delay_sec": 300, "retry": True}
    fail |= {"lease_token": None, "worker_id": None}
    await check(client.fail("j/1", "e"), JOB, "POST", "/jobs/j%2F1/fail", fail)
    call = client.fail("j/1", "e", retry=False, retry_delay_sec=1, lease_token="k", worker_id="w")
    fail |= {"retry": False, "retry_delay_sec": 1, "lease_token": "k", "worker_id": "w"}
    await check(call, JOB, "POST", "/jobs/j%2F1/fail", fail)
    await check(client.renew("j/1"), JOB, "POST", "/jobs/j%2F1/renew", {"lease_sec": 120})
    call = client.renew("j/1", lease_sec=5, lease_token="k")
    body = {"lease_sec": 5, "lease_token": "k"}
    await check(call, JOB, "POST", "/jobs/j%2F1/renew", body)
    assert await check(client.explain_job("j/1"), {"a": 1}, "GET", "/jobs/j%2F1/explain") == {
        "a": 1
    }
    put = client.put_object("memory", "o/1", review_due_at=WHEN)
    path, body = "/objects/memory/o%2F1", {"review_due_at": TEXT}
    assert (await check(put, THING, "PUT", path, body)).object_id == "o/1"
    await check(client.patch_object("memory", "o/1", weight=2), THING, "PATCH", path, {"weight": 2})
    await check(client.get_object("memory", "o/1"), THING, "GET", path)
    await check(client.explain_object("memory", "o/1"), {}, "GET", f"{path}/explain")
    gate = {"gate": "g", "state": "open"}
    gates = await check(client.list_gates(), {"gates": [gate]}, "GET", "/gates")
    assert [one.gate for one in gates] == ["g"]
    await check(client.set_gate("g/1", "open"), gate, "PUT", "/gates/g%2F1", {"state": "open"})
    call = client.set_gate("g", "closed", scope="s", reason="r")
    await check(call, gate, "PUT", "/gates/g", {"state": "closed", "scope": "s", "reason": "r"})
    assert await check(client.metrics(), {"m": 1}, "GET", "/metrics") == {"m": 1}
    body = {"filter": {"action": "verify", "run_after": TEXT}, "dry_run": True}
    call = client.requeue_matching(dry_run=True, action="verify", run_after=WHEN, object_id=None)
    assert await check(call, {"matched": 4}, "POST", "/jobs/requeue", body) == 4
    call = client.requeue_matching()
    await check(call, {"matched": 0}, "POST", "/jobs/requeue", {"filter": {}, "dry_run": False})


@pytest.mark.parametrize(
    ("how", "body"),
    [
        ({}, {}),
        ({"wait_sec": 2.5, "limit": 5, "lease_sec": 9}, {"wait_sec": 2.5}),
        ({"actions": ("verify",), "object_types": ()}, {"actions": ["verify"], "object_types": []}),
        ({"order": "priority"}, {"order": "priority"}),
    ],
)
async def test_a_pull_says_what_it_wants_and_is_never_repeated(
    client: GovernanceClient, wire: FakeTransport, how: dict[str, Any], body: dict[str, Any]
) -> None:
    wire.answers = [{"jobs": [JOB]}, None]
    assert [job.job_id for job in await client.pull("w", **how, tries=1)] == ["j/1"]
    common = {
        "worker_id": "w",
        "limit": how.get("limit", 100),
        "lease_sec": how.get("lease_sec", 120),
    }
    assert wire.last == ("POST", "/scheduler/jobs/pull", {**common, **body})
    deadline = how.get("wait_sec", 0.0) + 5.0
    assert wire.how[-1] == {
        "deadline_sec": deadline,
        "is_repeatable": False,
        "tries": 1,
        "is_poll": "wait_sec" in how,
    }
    assert await client.pull("w") == []


async def test_an_ack_names_what_was_given(client: GovernanceClient, wire: FakeTransport) -> None:
    wire.answers = [JOB] * 3
    await client.ack("j/1")
    assert wire.last == ("POST", "/scheduler/jobs/j%2F1/ack", {"job_id": "j/1"})
    await client.ack("j/1", next_action_at=None)
    assert wire.last[2] == {"job_id": "j/1", "next_action_at": None}
    await client.ack(
        "j/1",
        lease_token="k",
        worker_id="w",
        next_action_at=WHEN,
        next_action="decay",
        changes={"expires_at": WHEN},
        evidence_refs=("e",),
        audit_event_id="a",
    )
    assert wire.last[2] == {
        "job_id": "j/1",
        "lease_token": "k",
        "worker_id": "w",
        "next_action_at": TEXT,
        "next_action": "decay",
        "object": {"expires_at": TEXT},
        "evidence_refs": ["e"],
        "audit_event_id": "a",
    }


async def test_batches_are_answered_item_by_item(
    client: GovernanceClient, wire: FakeTransport
) -> None:
    refused = {"code": "LEASE_LOST", "message": "m"}
    ack, fail = AckItem(job_id="j"), FailItem(job_id="j", error="e")
    for call, path in (
        (client.ack_batch([ack, ack]), "/scheduler/jobs/ack-batch"),
        (client.fail_batch([fail, fail]), "/scheduler/jobs/fail-batch"),
    ):
        wire.answers = [{"results": [JOB, refused]}]
        good, bad = await call
        assert isinstance(good, GovernanceJob)
        assert getattr(bad, "code", None) == "LEASE_LOST"
        assert wire.last[1] == path
    for brief, path, more in (
        (client.ack_batch_briefly([ack, ack]), "/scheduler/jobs/ack-batch", {}),
        (
            client.renew_batch([RenewItem(job_id="j")] * 2),
            "/scheduler/jobs/renew-batch",
            {"lease_sec": 120},
        ),
    ):
        wire.answers = [{"results": [{}, refused]}]
        first, second = await brief
        assert first is None
        assert getattr(second, "code", None) == "LEASE_LOST"
        method, sent_to, body = wire.last
        assert (method, sent_to, len(body.pop("items"))) == ("POST", path, 2)
        assert body == more
    wire.answers = [{"results": [{"error": {"code": "NOT_FOUND"}}]}]
    [only] = await client.ack_batch_briefly([ack])
    assert isinstance(only, ApiNotFoundError)


@pytest.mark.parametrize(
    ("unknown", "status", "is_ours"),
    [(1, "queued", True), (1, "dead_letter", False), (0, "queued", False)],
)
async def test_a_requeue_refused_after_a_lost_answer_may_be_our_own(
    client: GovernanceClient, wire: FakeTransport, unknown: int, status: str, is_ours: bool
) -> None:
    refusal = from_body(409, {"code": "ILLEGAL_TRANSITION"})
    refusal.unknown_tries = unknown
    wire.answers = [refusal, {**JOB, "status": status}]
    if is_ours:
        assert (await client.requeue("j/1")).status == "queued"
        assert wire.last == ("GET", "/scheduler/jobs/j%2F1", None)
    else:
        with pytest.raises(ApiConflictError):
            await client.requeue("j/1")
    assert wire.sent[0] == ("POST", "/scheduler/jobs/j%2F1/requeue", {})
    wire.answers = [JOB]
    assert (await client.requeue("j/1")).job_id == "j/1"


async def test_an_object_that_nobody_registered_is_none_or_an_error(
    client: GovernanceClient, wire: FakeTransport
) -> None:
    gone = from_body(404, {"code": "NOT_FOUND"})
    wire.answers = [gone, gone, THING]
    assert await client.find_object("memory", "o") is None
    with pytest.raises(ApiNotFoundError):
        await client.get_object("memory", "o")
    assert await client.find_object("memory", "o") is not None


async def test_lists_go_on_page_after_page(client: GovernanceClient, wire: FakeTransport) -> None:
    wire.answers = [{"jobs": [JOB], "next_cursor": "c"}, {"jobs": [JOB]}]
    found = [
        job
        async for job in client.list_jobs(
            status="queued",
            object_type="memory",
            object_id="o",
            action="verify",
            worker_id="w",
            run_after=WHEN,
            run_before=WHEN,
        )
    ]
    assert len(found) == 2
    time = "2026-01-02T03%3A04%3A05Z"
    first = (
        "/scheduler/jobs?status=queued&object_type=memory&object_id=o&action=verify"
        f"&worker_id=w&run_after={time}&run_before={time}&limit=100"
    )
    assert [path for _, path, _ in wire.sent] == [first, f"{first}&cursor=c"]
    wire.sent.clear()
    wire.answers = [{"events": [{"a": 1}], "next_cursor": "c"}, {"events": [{"a": 2}]}]
    facts = [one async for one in client.list_audit(actor="me", since=WHEN, page_size=5)]
    assert facts == [{"a": 1}, {"a": 2}]
    first = f"/scheduler/audit?actor=me&since={time}&limit=5"
    assert [path for _, path, _ in wire.sent] == [first, f"{first}&cursor=c"]
