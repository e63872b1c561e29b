"""What the rules of governance do, on every store: moves, follow-ups, gates, budgets."""

import asyncio
from typing import Any

import pytest

from ksana.base.errors import ConflictError
from ksana.domain.governance.objects import ObjectFields
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import SqlStore
from tests.ground.governance import ME, SECOND, Governing


@pytest.fixture
def governing(store: SqlStore) -> Governing:
    return Governing(store)


@pytest.mark.spec("G7")
async def test_an_illegal_move_is_refused_and_changes_nothing(governing: Governing) -> None:
    await governing.put(status="active", weight=0.123456789012345678)
    with pytest.raises(ConflictError) as refused:
        await governing.put(status="rejected_poisoned", weight=0.5)
    assert refused.value.extra["current"] == {"state": "active", "requested": "rejected_poisoned"}
    governed = await governing.object()
    assert (governed.status, governed.version) == ("active", 1)
    assert governed.weight == 0.123456789012345678
    await governing.put(status="stale")
    assert await governing.events("OBJECT", "memory:m1") == ["OBJECT_REGISTERED", "OBJECT_MOVED"]


@pytest.mark.spec("G8")
async def test_a_new_next_action_moves_the_queued_follow_up_and_null_removes_it(
    governing: Governing,
) -> None:
    at = governing.clock.now() + 3600 * SECOND
    await governing.put(next_action_at=at)
    wanted = GovernanceJobFilter(object_id="m1")
    (first,) = (await governing.service.list_jobs(wanted, None, 10)).jobs
    assert (first.run_at, first.action) == (at, "verify")
    patch = ObjectFields(next_action_at=at + SECOND, next_action="archive")
    await governing.service.patch_object("memory", "m1", patch, ME)
    (moved,) = (await governing.service.list_jobs(wanted, None, 10)).jobs
    assert (moved.job_id, moved.run_at, moved.action) == (first.job_id, at + SECOND, "archive")
    await governing.service.patch_object("memory", "m1", ObjectFields(next_action_at=None), ME)
    assert (await governing.service.list_jobs(wanted, None, 10)).jobs == []
    assert (await governing.events("GOV_JOB", first.job_id))[-1] == "GOV_JOB_REMOVED"


@pytest.mark.spec("G3", "G4", "G8")
@pytest.mark.parametrize("way", ["fail", "illegal move", "ack"])
async def test_an_object_whose_follow_up_has_ended_says_that_nothing_comes_next(
    governing: Governing, way: str
) -> None:
    action = "archive" if way == "illegal move" else "decay"
    at = governing.clock.now()
    await governing.put("m1", status="active", next_action_at=at, next_action=action)
    (job,) = await governing.pull()
    if way == "fail":
        assert (await governing.fail(job, is_final=True)).status == "failed"
    else:
        await governing.ack(job)
    assert (await governing.object("m1")).next_action_at is None
    # So the same time again is news, and is queued.
    await governing.put("m1", next_action_at=at, next_action=action)
    assert len(await governing.pull()) == 1


@pytest.mark.spec("G3", "G8")
async def test_the_end_of_another_job_does_not_take_the_next_action_away(
    governing: Governing,
) -> None:
    at = governing.clock.now()
    await governing.put("m1", status="active", next_action_at=at, next_action="decay")
    await governing.enqueue("m1", action="verify", run_at=at - SECOND)
    other, follow_up = await governing.pull(2)
    await governing.ack(other)
    assert (await governing.object("m1")).next_action_at == at
    await governing.fail(follow_up)
    await governing.put("m1")  # leaves the next action out: that is null
    wanted = GovernanceJobFilter(object_id="m1", status="queued")
    assert (await governing.service.list_jobs(wanted, None, 10)).jobs == []


@pytest.mark.spec("G9")
async def test_a_closed_gate_defers_high_risk_until_it_opens(governing: Governing) -> None:
    await governing.put("risky", risk_tier="high")
    job = await governing.enqueue("risky")
    await governing.enqueue("harmless")
    await governing.close_gate()
    assert [one.object_id for one in await governing.pull(10)] == ["harmless"]
    waiting = await governing.job(job)
    assert (waiting.status, waiting.attempt, waiting.deferrals) == ("queued", 0, 1)
    assert await governing.pull(10) == []
    assert (await governing.job(job)).deferrals == 1
    assert await governing.open_gate() == 1
    assert [one.object_id for one in await governing.pull(10)] == ["risky"]


@pytest.mark.spec("G9")
async def test_deferrals_are_counted_each_time_and_the_tenth_raises_an_alert(
    governing: Governing,
) -> None:
    await governing.put("risky", risk_tier="high")
    job = await governing.enqueue("risky")
    for _ in range(10):
        await governing.close_gate("cognition")
        assert await governing.pull() == []
        await governing.open_gate("cognition")
    events = await governing.events("GOV_JOB", job.job_id)
    assert events.count("GATE_DEFERRED_LONG") == 1
    assert (await governing.pull())[0].attempt == 0


@pytest.mark.spec("G9")
async def test_no_hand_out_comes_after_a_gate_was_closed(governing: Governing) -> None:
    for number in range(60):
        await governing.put(f"m{number}", risk_tier="high")
        await governing.enqueue(f"m{number}")
    is_closed = asyncio.Event()
    after: list[str] = []

    async def pull_on(worker: str) -> None:
        for _ in range(10):
            began_closed = is_closed.is_set()
            jobs = await governing.pull(2, worker)
            if began_closed:
                after.extend(job.job_id for job in jobs)

    async def close() -> None:
        await governing.close_gate()
        is_closed.set()

    await asyncio.gather(*(pull_on(f"w{number}") for number in range(4)), close())
    assert after == []
    await governing.assert_audit_is_whole()


@pytest.mark.spec("G10")
async def test_a_budget_is_never_overspent_however_many_pull(governing: Governing) -> None:
    await governing.put("u", epistemic_state="uncertain", status="active", auto_verify_budget=2)
    now = governing.clock.now()
    jobs = [await governing.enqueue("u", action="verify", run_at=now - place) for place in range(8)]
    handed: list[Any] = []
    for got in await asyncio.gather(*(governing.pull(1, f"w{n}") for n in range(8))):
        handed += got
    while got := await governing.pull(10):
        handed += got
    assert len(handed) == 2
    governed = await governing.object("u")
    assert (governed.auto_verify_budget, governed.verify_count) == (0, 2)
    assert governed.status == "stale_uncertain"
    statuses = [(await governing.job(job)).status for job in jobs]
    assert sorted(statuses) == ["failed"] * 6 + ["running"] * 2
    failed = [job for job in jobs if (await governing.job(job)).status == "failed"]
    assert (await governing.job(failed[0])).reason == "BUDGET_SPENT"


@pytest.mark.spec("G11")
async def test_an_unknowable_object_is_never_verified_beyond_its_limit(
    governing: Governing,
) -> None:
    await governing.put("o", "cognition", unknown_type="ontic_unknowable")
    for _ in range(2):
        await governing.enqueue("o", object_type="cognition", action="revalidate")
        (job,) = await governing.pull()
        await governing.ack(job)
    with pytest.raises(ConflictError) as refused:
        await governing.enqueue("o", object_type="cognition", action="verify")
    assert refused.value.extra["current"]["verify_count"] == 2
    assert "ENQUEUE_REFUSED" in await governing.events("OBJECT", "cognition:o")
    with pytest.raises(ConflictError):
        planned = ObjectFields(next_action_at=1, next_action="verify")
        await governing.service.patch_object("cognition", "o", planned, ME)
    await governing.enqueue("o", object_type="cognition", action="decay")
    assert len(await governing.pull()) == 1
