"""Objects, gates, budgets, the audit and figures through the API."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest

from ksana.domain.governance.changes import OBJECT_LIFECYCLES
from ksana.domain.governance.records import Gate, ObjectStatus
from tests.api.governance_ground import SECOND, GovernanceGround, open_governance


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[GovernanceGround]:
    async with open_governance(tmp_path) as ground:
        yield ground


WHOLE: dict[str, Any] = {
    "status": "active",
    "epistemic_state": "uncertain",
    "unknown_type": "multipath",
    "risk_tier": "medium",
    "impact_tier": "high",
    "auto_verify_budget": 5,
    "verify_count": 1,
    "uncertainty_ttl": "24h",
    "review_due_at": "2026-03-01T00:00:00Z",
    "expires_at": "2027-01-01T00:00:00Z",
    "next_action_at": "2026-02-01T00:00:00Z",
    "next_action": "verify",
    "weight": 0.75,
    "half_life": "48h",
    "reinforcement_count": 3,
    "last_reinforced_at": "2026-01-01T00:00:00Z",
    "evidence_refs": ["doc:1", {"url": "http://example.org"}],
    "data": {"text": "the sky is blue", "n": 1.5},
}


@pytest.mark.spec("G7")
async def test_every_member_of_an_object_is_kept(ground: GovernanceGround) -> None:
    made = await ground.put("memory/a%2Fb", **WHOLE)
    assert {name: made[name] for name in WHOLE} == WHOLE
    assert made["object_id"] == "a/b"
    assert await ground.get("/objects/memory/a%2Fb") == made
    again = await ground.put("memory/a%2Fb", 200, **{**made, "weight": 0.5})
    assert (again["weight"], again["version"]) == (0.5, 2)


@pytest.mark.spec("G7")
async def test_a_patch_changes_what_it_names_and_null_sets_back(ground: GovernanceGround) -> None:
    await ground.put("memory/m1", **WHOLE)
    changed = await ground.patch("memory/m1", risk_tier="high", half_life=None, data=None)
    assert (changed["risk_tier"], changed["half_life"], changed["data"]) == ("high", None, {})
    assert changed["weight"] == 0.75
    assert (await ground.patch("memory/nobody", 404, weight=1))["code"] == "NOT_FOUND"
    assert (await ground.get("/objects/memory/nobody", 404))["code"] == "NOT_FOUND"


@pytest.mark.spec("G7", "X12")
async def test_an_illegal_move_names_both_states_and_changes_nothing(
    ground: GovernanceGround,
) -> None:
    await ground.put("cognition/c1", status="refuted")
    before = await ground.get("/objects/cognition/c1")
    for send in (ground.put, ground.patch):
        refused = await send("cognition/c1", 409, status="active", weight=0.1)
        assert refused["code"] == "ILLEGAL_TRANSITION"
        assert refused["current"] == {"state": "refuted", "requested": "active"}
    assert await ground.get("/objects/cognition/c1") == before
    assert (await ground.patch("cognition/c1", status="archived"))["status"] == "archived"


MOVES = {
    "memory": """
        candidate → verified quarantine stale_uncertain
        quarantine → verified rejected_poisoned
        verified → active stale stale_uncertain
        active → stale stale_uncertain
        stale → active stale_uncertain archived
        stale_uncertain → active verified archived
        rejected_poisoned → archived
        archived →""",
    "experience": """
        candidate → active needs_review
        needs_review → active archived
        active → needs_review invalidated archived
        invalidated → archived
        archived →""",
    "cognition": """
        candidate → active archived
        active → needs_revalidate refuted
        needs_revalidate → active stale refuted
        stale → active refuted archived
        refuted → archived
        archived →""",
}
"""As the contract has them, not as the program does."""


@pytest.mark.spec("G7", "X12")
@pytest.mark.parametrize("kind", MOVES)
async def test_an_object_makes_every_move_of_the_contract_and_no_other(
    ground: GovernanceGround, kind: str
) -> None:
    lines = [line.split(" →") for line in MOVES[kind].strip().splitlines()]
    moves = {old.strip(): new.split() for old, new in lines}
    for old, new in itertools.permutations(moves, 2):
        path = f"{kind}/{old}-{new}"
        await ground.put(path, status=old)
        may = new in moves[old]
        answer = await ground.patch(path, 200 if may else 409, status=new)
        assert answer["status" if may else "code"] == (new if may else "ILLEGAL_TRANSITION")


@pytest.mark.spec("G7", "X8")
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("status", "dreaming"),
        ("epistemic_state", "maybe"),
        ("unknown_type", "odd"),
        ("risk_tier", "extreme"),
        ("auto_verify_budget", -1),
        ("half_life", "soon"),
        ("next_action_at", "tomorrow"),
        ("next_action", "forget"),
        ("weight", -1),
        ("data", [1]),
        ("colour", "red"),
    ],
)
async def test_an_object_that_cannot_be_is_refused_by_name(
    ground: GovernanceGround, member: str, value: Any
) -> None:
    refused = await ground.put("memory/m1", 400, **{member: value})
    assert refused["field"] == member


@pytest.mark.spec("G7")
async def test_a_type_that_is_none_is_refused(ground: GovernanceGround) -> None:
    assert (await ground.put("dream/d1", 400))["code"] == "INVALID_ID"


@pytest.mark.spec("G8")
async def test_setting_the_next_action_queues_moves_and_removes_its_job(
    ground: GovernanceGround,
) -> None:
    await ground.put("memory/m1", next_action_at=ground.at(60))
    (job,) = (await ground.get("/jobs?object_id=m1"))["jobs"]
    assert (job["action"], job["run_at"]) == ("verify", ground.at(60))
    await ground.patch("memory/m1", next_action_at=ground.at(90), next_action="decay")
    (moved,) = (await ground.get("/jobs?object_id=m1"))["jobs"]
    assert (moved["job_id"], moved["action"]) == (job["job_id"], "decay")
    assert moved["run_at"] == ground.at(90)
    await ground.patch("memory/m1", weight=0.3)
    assert len((await ground.get("/jobs?object_id=m1"))["jobs"]) == 1
    await ground.patch("memory/m1", next_action_at=None)
    assert (await ground.get("/jobs?object_id=m1"))["jobs"] == []


@pytest.mark.spec("G9")
async def test_gates_close_degrade_and_open(ground: GovernanceGround) -> None:
    gates = (await ground.get("/gates"))["gates"]
    assert [(one["gate"], one["state"]) for one in gates] == [
        ("persona", "open"),
        ("cognition", "open"),
    ]
    await ground.put("memory/risky", risk_tier="high")
    job = await ground.enqueue("risky")
    await ground.gate("closed", reason="an incident")
    assert await ground.pull() == []
    waiting = await ground.get(f"/jobs/{job['job_id']}")
    assert (waiting["status"], waiting["attempt"], waiting["deferred_by"]) == (
        "queued",
        0,
        "persona/",
    )
    assert (await ground.gate("degraded"))["woken"] == 1
    (handed,) = await ground.pull()
    assert handed["gates"] == {"persona": "degraded", "cognition": "open"}


@pytest.mark.spec("G9")
async def test_a_scope_keeps_only_what_it_fits(ground: GovernanceGround) -> None:
    for path in ("memory/a", "cognition/b"):
        await ground.put(path, risk_tier="high")
    await ground.enqueue("a")
    await ground.enqueue("b", object_type="cognition")
    await ground.gate("closed", "cognition", scope="memory")
    assert [job["object_id"] for job in await ground.pull()] == ["b"]
    refused = await ground.ask("PUT", "/gates/persona", 400, {"state": "open", "scope": "x"})
    assert refused["field"] == "scope"
    assert (await ground.ask("PUT", "/gates/heart", 400, {"state": "open"}))["code"] == "INVALID_ID"
    assert (await ground.ask("PUT", "/gates/persona", 400, {"state": "ajar"}))["field"] == "state"


@pytest.mark.spec("G9")
async def test_a_gate_that_opens_wakes_a_worker_that_waits(ground: GovernanceGround) -> None:
    await ground.put("memory/risky", risk_tier="high")
    await ground.enqueue("risky")
    await ground.gate("closed")
    waiting = asyncio.create_task(ground.pull(wait_sec=30))
    await ground.clock.settle()
    await ground.gate("open")
    assert [job["object_id"] for job in await waiting] == ["risky"]


@pytest.mark.spec("G9")
async def test_the_sweep_wakes_what_an_instance_that_died_left(ground: GovernanceGround) -> None:
    await ground.put("memory/risky", risk_tier="high")
    await ground.enqueue("risky")
    await ground.gate("closed")
    assert await ground.pull() == []
    # As by an instance that set the gate and died before it woke anything.
    opened = Gate(gate="persona", scope="", state="open", reason=None, updated_at=1)
    await ground.store.transact(lambda tx: tx.gates.set_gate(opened))
    await ground.clock.advance(11 * SECOND)
    assert [job["object_id"] for job in await ground.pull()] == ["risky"]


@pytest.mark.spec("G10")
async def test_a_cognition_is_verified_within_its_budget_and_then_turns_stale(
    ground: GovernanceGround,
) -> None:
    await ground.put("cognition/c", status="needs_revalidate", epistemic_state="uncertain")
    for left in (1, 0):
        await ground.enqueue("c", object_type="cognition", action="revalidate")
        (job,) = await ground.pull()
        assert (await ground.get("/objects/cognition/c"))["auto_verify_budget"] == left
        await ground.ack(job)
        await ground.clock.advance(SECOND)
    last = await ground.enqueue("c", object_type="cognition", action="verify")
    assert await ground.pull() == []
    ended = await ground.get(f"/jobs/{last['job_id']}")
    assert (ended["status"], ended["reason"]) == ("failed", "BUDGET_SPENT")
    governed = await ground.get("/objects/cognition/c")
    assert (governed["status"], governed["epistemic_state"]) == ("stale", "uncertain")
    told = await ground.get(f"/jobs/{last['job_id']}/explain")
    assert [reason["code"] for reason in told["reasons"]] == ["BUDGET_SPENT"]


@pytest.mark.spec("G11")
async def test_what_cannot_be_known_is_not_asked_for_ever(ground: GovernanceGround) -> None:
    await ground.put("memory/o", unknown_type="ontic_unknowable", verify_count=1)
    first = await ground.enqueue("o", action="verify")
    second = await ground.enqueue("o", action="verify", run_at=ground.at(0.5))
    (job,) = await ground.pull()
    assert job["job_id"] == first["job_id"]
    refused = await ground.enqueue("o", 409, action="revalidate", run_at=ground.at(9))
    assert refused["current"]["reason"] == "VERIFY_LIMIT"
    await ground.clock.advance(SECOND)
    assert await ground.pull() == []
    assert (await ground.get(f"/jobs/{second['job_id']}"))["reason"] == "VERIFY_LIMIT"


@pytest.mark.spec("G12")
async def test_the_audit_is_listed_filtered_and_paged(ground: GovernanceGround) -> None:
    for number in range(5):
        await ground.enqueue(f"m{number}")
    page = await ground.get("/audit?limit=3&event_type=job.enqueue")
    rest = await ground.get(f"/audit?limit=3&event_type=job.enqueue&cursor={page['next_cursor']}")
    objects = [entry["object_id"] for entry in page["events"] + rest["events"]]
    assert objects == ["m4", "m3", "m2", "m1", "m0"]
    assert rest["next_cursor"] is None
    entry = page["events"][0]
    assert entry.keys() >= {
        "id",
        "event_type",
        "actor",
        "object_type",
        "object_id",
        "before",
        "after",
        "reason",
        "evidence_refs",
        "job_id",
        "correlation_id",
        "decision_trace_id",
        "timestamp",
    }
    assert entry["id"].startswith("aud_")
    assert await ground.get(f"/audit/{entry['id']}") == entry
    assert (await ground.get("/audit/aud_0000000000ffffff", 404))["code"] == "NOT_FOUND"
    for bad in ("aud_x", "aud_000000000000fffg", "job_0000000000000001"):
        assert (await ground.get(f"/audit/{bad}", 400))["code"] == "INVALID_ID"
    only = await ground.get("/audit?object_type=memory&object_id=m2")
    assert len(only["events"]) == 1
    assert (await ground.get("/audit?cursor=x", 400))["field"] == "cursor"
    assert (await ground.get("/audit?since=x", 400))["field"] == "since"


@pytest.mark.spec("G12", "X22")
async def test_an_entry_names_the_request_and_the_trace_it_came_in(
    ground: GovernanceGround,
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    body = {"object_type": "memory", "object_id": "m", "action": "decay", "run_at": ground.at()}
    await ground.http.post(
        "/scheduler/jobs",
        json=body,
        headers={"x-request-id": "r-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
    )
    entry = (await ground.get("/audit"))["events"][0]
    assert (entry["correlation_id"], entry["decision_trace_id"]) == ("r-1", trace)


@pytest.mark.spec("G14")
async def test_figures_tell_what_waits_and_how_it_went(ground: GovernanceGround) -> None:
    for number in range(4):
        await ground.enqueue(f"m{number}", max_attempts=1 if number == 3 else 3)
    await ground.clock.advance(10 * SECOND)
    figures = await ground.get("/metrics")
    assert (figures["jobs_due_count"], figures["jobs_lag_seconds"]) == (4, 10.0)
    assert figures["job_success_rate"] is None
    jobs = {job["object_id"]: job for job in await ground.pull()}
    await ground.ack(jobs["m0"])
    for name in ("m1", "m3"):
        await ground.post(f"/jobs/{jobs[name]['job_id']}/fail", 200, error="x")
    figures = await ground.get("/metrics")
    assert figures["jobs_due_count"] == 0
    assert figures["job_success_rate"] == 0.5  # one succeeded, one is a dead letter
    assert figures["job_retry_rate"] == pytest.approx(2 / 3)
    assert figures["dead_letter_count"] == 1


@pytest.mark.spec("B1")
async def test_a_waiting_job_and_its_object_are_explained(ground: GovernanceGround) -> None:
    await ground.put("memory/m1", risk_tier="high", next_action_at=ground.at(60))
    (job,) = (await ground.get("/jobs"))["jobs"]
    told = await ground.get(f"/jobs/{job['job_id']}/explain")
    assert told["reasons"][0]["code"] == "NOT_DUE"
    await ground.gate("closed")
    told = await ground.get("/objects/memory/m1/explain")
    codes = [reason["code"] for reason in told["reasons"]]
    assert codes[0] == "ACTION_PLANNED"
    assert "GATE_WILL_DEFER" in codes
    assert told["summary"]
    unknown = await ground.get("/objects/memory/nobody/explain")
    assert unknown["reasons"][0]["code"] == "NOT_REGISTERED"


@pytest.mark.spec("G7", "X13")
async def test_objects_are_listed_a_page_at_a_time_by_type_status_and_the_beginning_of_their_ids(
    ground: GovernanceGround,
) -> None:
    for name in ("memory/b", "memory/a", "memory/a1", "cognition/z", "experience/a"):
        await ground.put(name, status="active")
    await ground.put("memory/c", status="candidate")

    async def keys(query: str) -> list[str]:
        page = await ground.get(f"/objects?{query}")
        return [f"{one['object_type']}/{one['object_id']}" for one in page["objects"]]

    everything = ["cognition/z", "experience/a", "memory/a", "memory/a1", "memory/b", "memory/c"]
    assert await keys("") == everything
    assert await keys("object_type=memory") == everything[2:]
    assert await keys("status=candidate") == ["memory/c"]
    assert await keys("object_type=memory&status=active") == everything[2:5]
    assert await keys("object_type=memory&id_prefix=a") == ["memory/a", "memory/a1"]
    walked, cursor = [], ""
    while True:
        page = await ground.get(f"/objects?limit=2{cursor}")
        walked += [f"{one['object_type']}/{one['object_id']}" for one in page["objects"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert walked == everything


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("id_prefix=a", "id_prefix"),
        ("object_type=memory&id_prefix=%00", "id_prefix"),
        ("status=nothing", "status"),
        ("object_type=memory&status=refuted", "status"),
        ("object_type=plant", "object_type"),
        ("cursor=plant:1", "cursor"),
        ("limit=501", "limit"),
    ],
)
async def test_a_list_of_objects_that_cannot_be_is_refused_by_name(
    ground: GovernanceGround, query: str, field: str
) -> None:
    refused = await ground.get(f"/objects?{query}", 400)
    assert refused["field"] == field


def test_the_statuses_that_can_be_asked_for_are_those_of_the_lifecycles() -> None:
    states = {state for one in OBJECT_LIFECYCLES.values() for state in one.states}
    assert set(get_args(ObjectStatus)) == states
