"""How governance jobs end over HTTP: acks, failures, leases."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.domain.governance.records import Rules
from tests.api.governance_ground import SECOND, GovernanceGround, open_governance


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[GovernanceGround]:
    async with open_governance(tmp_path) as ground:
        yield ground


@pytest.mark.spec("G3")
async def test_an_ack_ends_the_job_and_plans_the_next(ground: GovernanceGround) -> None:
    await ground.enqueue("cg", object_type="cognition", action="revalidate", priority="high")
    (job,) = await ground.pull()
    at = ground.at(7 * 86400)
    done = await ground.ack(job, audit_event_id="aud_789", next_action_at=at)
    assert (done["status"], done["audit_event_id"]) == ("succeeded", "aud_789")
    governed = await ground.get("/objects/cognition/cg")
    assert (governed["next_action_at"], governed["next_action"]) == (at, "revalidate")
    follow_up = await ground.get(f"/jobs/{done['follow_up_job_id']}")
    assert (follow_up["run_at"], follow_up["priority"]) == (at, "high")
    entries = (await ground.get(f"/audit?job_id={job['job_id']}"))["events"]
    ack = next(entry for entry in entries if entry["event_type"] == "job.ack")
    assert ack["after"]["audit_event_id"] == "aud_789"


@pytest.mark.spec("G3")
async def test_the_same_ack_again_is_answered_the_same(ground: GovernanceGround) -> None:
    await ground.enqueue()
    (job,) = await ground.pull()
    first = await ground.ack(job, next_action_at=ground.at(60))
    await ground.clock.advance(SECOND)
    sent = {"result": "succeeded", "lease_token": job["lease_token"]}
    sent["next_action_at"] = ground.at(59)
    assert await ground.post(f"/jobs/{job['job_id']}/ack", 200, **sent) == first
    other = await ground.ack(job, 409, next_action_at=ground.at(100))
    assert other["code"] in ("LEASE_LOST", "ILLEGAL_TRANSITION")
    assert len((await ground.get("/jobs?status=queued"))["jobs"]) == 1


@pytest.mark.spec("G3")
async def test_an_ack_may_change_the_object_or_be_refused_with_it(
    ground: GovernanceGround,
) -> None:
    await ground.put("memory/m1", status="candidate")
    await ground.enqueue(action="verify")
    (job,) = await ground.pull()
    refused = await ground.ack(job, 409, object={"status": "archived"})
    assert refused["code"] == "ILLEGAL_TRANSITION"
    assert (await ground.get(f"/jobs/{job['job_id']}"))["status"] == "running"
    changed = {"status": "verified", "epistemic_state": "supported"}
    await ground.ack(job, object=changed, evidence_refs=["doc:1"])
    governed = await ground.get("/objects/memory/m1")
    assert (governed["status"], governed["epistemic_state"]) == ("verified", "supported")
    moves = (await ground.get("/audit?event_type=object.move"))["events"]
    assert (moves[0]["evidence_refs"], moves[0]["job_id"]) == (["doc:1"], job["job_id"])


@pytest.mark.spec("G3", "G7")
async def test_an_archive_that_is_not_legal_ends_the_job_failed(ground: GovernanceGround) -> None:
    await ground.put("memory/m1", status="active")
    await ground.enqueue(action="archive")
    (job,) = await ground.pull()
    ended = await ground.ack(job)
    assert (ended["status"], ended["reason"]) == ("failed", "ILLEGAL_MOVE")
    assert (await ground.get("/objects/memory/m1"))["status"] == "active"


@pytest.mark.spec("G3", "G7", "X8")
@pytest.mark.parametrize("action", ["verify", "archive", "reinstate-check"])
@pytest.mark.parametrize("is_registered", [True, False])
async def test_a_status_that_does_not_exist_is_a_mistake_and_ends_nothing(
    ground: GovernanceGround, action: str, is_registered: bool
) -> None:
    if is_registered:
        await ground.put("memory/m1", status="stale")
    await ground.enqueue(action=action)
    (job,) = await ground.pull()
    refused = await ground.ack(job, 400, object={"status": "refuted"})  # of a cognition
    assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", "object.status")
    assert "archived" in refused["message"]
    assert (await ground.get(f"/jobs/{job['job_id']}"))["status"] == "running"


@pytest.mark.spec("G3")
async def test_a_batch_of_acks_answers_each_on_its_own(ground: GovernanceGround) -> None:
    for number in range(3):
        await ground.enqueue(f"m{number}")
    one, two, three = await ground.pull()
    items = [
        {"job_id": one["job_id"], "lease_token": one["lease_token"]},
        {"job_id": two["job_id"], "lease_token": "feed"},
        {"job_id": "job_0000"},
        {"job_id": three["job_id"], "lease_token": three["lease_token"]},
    ]
    results = (await ground.post("/jobs/ack-batch", 200, items=items))["results"]
    assert [one.get("code", one["status"]) for one in results] == [
        "succeeded",
        "LEASE_LOST",
        "NOT_FOUND",
        "succeeded",
    ]


@pytest.mark.spec("G4")
async def test_many_failures_are_answered_one_by_one(ground: GovernanceGround) -> None:
    for number in range(3):
        await ground.enqueue(f"m{number}", max_attempts=2 if number else 1)
    jobs = await ground.pull()
    items = [
        {"job_id": job["job_id"], "lease_token": job["lease_token"], "error": "no", **more}
        for job, more in zip(jobs, ({}, {"retry": False}, {"retry_delay_sec": 60}), strict=True)
    ]
    stranger = {"job_id": "job_0", "error": "no"}
    results = (await ground.post("/jobs/fail-batch", 200, items=[*items, items[0], stranger]))[
        "results"
    ]
    assert [one.get("code", one["status"]) for one in results] == [
        "dead_letter",
        "failed",
        "queued",
        "LEASE_LOST",
        "NOT_FOUND",
    ]
    assert results[3]["status"] == 409
    assert results[2]["run_at"] == ground.at(60)


@pytest.mark.spec("G5")
async def test_many_leases_are_renewed_each_by_its_token(ground: GovernanceGround) -> None:
    for number in range(3):
        await ground.enqueue(f"m{number}")
    jobs = await ground.pull(lease_sec=10)
    tokens = [jobs[0]["lease_token"], jobs[1]["lease_token"], "ff"]
    items = [
        {"job_id": job["job_id"], "lease_token": token}
        for job, token in zip(jobs, tokens, strict=True)
    ]
    sent = [*items, items[0], {"job_id": "job_0"}]
    results = (await ground.post("/jobs/renew-batch", 200, items=sent, lease_sec=60))["results"]
    assert [one.get("code", one["status"]) for one in results] == [
        "running",
        "running",
        "LEASE_LOST",
        "running",
        "NOT_FOUND",
    ]
    assert results[0]["lease_expires_at"] == ground.at(60)
    assert "lease_token" not in results[0]
    await ground.clock.advance(11 * SECOND)
    late = (await ground.post("/jobs/renew-batch", 200, items=items, lease_sec=60))["results"]
    assert [one.get("code", one["status"]) for one in late] == ["running", "running", "LEASE_LOST"]
    assert (await ground.get(f"/jobs/{jobs[2]['job_id']}"))["attempt"] == 1


@pytest.mark.spec("G4", "G5", "X8")
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/jobs/renew-batch", {"items": [{"job_id": "j"}], "lease_sec": 0}, "lease_sec"),
        ("/jobs/renew-batch", {"items": [{}]}, "items[0].job_id"),
        ("/jobs/renew-batch", {"items": [{"job_id": "j"}] * 501}, "items"),
        ("/jobs/fail-batch", {"items": [{"job_id": "j"}]}, "items[0].error"),
        ("/jobs/fail-batch", {"items": [{"job_id": "j", "error": "e"}] * 501}, "items"),
    ],
)
async def test_bad_batches_are_refused_by_name(
    ground: GovernanceGround, path: str, body: dict[str, Any], field: str
) -> None:
    refused = await ground.post(path, 400, **body)
    assert refused["field"] == field


@pytest.mark.spec("G4")
async def test_a_failure_is_retried_after_the_delay_then_a_dead_letter(
    ground: GovernanceGround,
) -> None:
    due = ground.clock.now()
    await ground.enqueue()
    (job,) = await ground.pull()
    sent = {"error": "timeout while verifying evidence", "lease_token": job["lease_token"]}
    failed = await ground.post(f"/jobs/{job['job_id']}/fail", 200, **sent)
    assert (failed["status"], failed["attempt"]) == ("queued", 1)
    assert failed["run_at"] == ground.at(300)
    assert failed["last_error"] == "timeout while verifying evidence"
    await ground.clock.advance(3600 * SECOND)
    (job,) = await ground.pull()
    sent = {"error": "again", "lease_token": job["lease_token"], "retry_delay_sec": 10}
    failed = await ground.post(f"/jobs/{job['job_id']}/fail", 200, **sent)
    assert failed["run_at"] == ground.at(10)  # its own time plus the delay is past
    await ground.clock.advance(10 * SECOND)
    (job,) = await ground.pull()
    dead = await ground.post(
        f"/jobs/{job['job_id']}/fail", 200, error="x", lease_token=job["lease_token"]
    )
    assert (dead["status"], dead["attempt"]) == ("dead_letter", 3)
    events = await ground.store.read(
        lambda tx: tx.events.list_after(0, 100, "GOV_JOB", job["job_id"], "GOV_JOB_DEAD_LETTER")
    )
    assert b'"alert":true' in bytes(events[0].data)
    assert due < ground.clock.now()


@pytest.mark.spec("G4")
async def test_a_worker_may_end_a_job_for_good(ground: GovernanceGround) -> None:
    await ground.enqueue()
    (job,) = await ground.pull()
    ended = await ground.post(f"/jobs/{job['job_id']}/fail", 200, error="never", retry=False)
    assert (ended["status"], ended["attempt"]) == ("failed", 0)


@pytest.mark.spec("G5")
async def test_an_expired_lease_queues_the_job_again_and_refuses_the_zombie(
    ground: GovernanceGround,
) -> None:
    await ground.enqueue()
    (zombie,) = await ground.pull(lease_sec=10)
    await ground.clock.advance(11 * SECOND)
    (job,) = await ground.pull()
    assert job["attempt"] == 1
    for path, body in (
        ("ack", {}),
        ("fail", {"error": "late"}),
        ("renew", {}),
    ):
        refused = await ground.post(
            f"/jobs/{zombie['job_id']}/{path}", 409, **body, lease_token=zombie["lease_token"]
        )
        assert refused["code"] == "LEASE_LOST"
    await ground.ack(job)


@pytest.mark.spec("G5")
async def test_a_lease_is_renewed_from_now_on(ground: GovernanceGround) -> None:
    await ground.enqueue()
    (job,) = await ground.pull(lease_sec=10)
    await ground.clock.advance(9 * SECOND)
    renewed = await ground.post(
        f"/jobs/{job['job_id']}/renew", 200, lease_token=job["lease_token"], lease_sec=60
    )
    assert renewed["lease_expires_at"] == ground.at(60)
    assert "lease_token" not in renewed
    await ground.clock.advance(50 * SECOND)
    await ground.ack(job)


@pytest.mark.spec("G5")
async def test_a_missing_token_is_accepted_unless_one_is_required(
    ground: GovernanceGround, tmp_path: Path
) -> None:
    await ground.enqueue()
    (job,) = await ground.pull()
    assert (await ground.post(f"/jobs/{job['job_id']}/ack"))["status"] == "succeeded"
    (tmp_path / "strict").mkdir()
    async with open_governance(tmp_path / "strict", Rules(require_lease_token=True)) as strict:
        await strict.enqueue()
        (job,) = await strict.pull()
        refused = await strict.post(f"/jobs/{job['job_id']}/ack", 409)
        assert refused["code"] == "LEASE_LOST"
        await strict.ack(job)
