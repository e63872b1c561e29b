"""Governance at the service: dead letters queued again, objects and their follow-ups."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, InvalidError, NotFoundError
from ksana.base.instant import HOUR, SECOND
from ksana.domain.dead_letters import LetterFilter
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import GovernanceJob
from ksana.engine.governance.pulling import Pull
from ksana.ports.governance.tables import AuditFilter, GovernanceJobFilter, ObjectFilter
from ksana.service.core.dead_letters import Operator, ReplayedLetter
from ksana.service.governance import service
from ksana.service.governance.dead_letters import make_section
from tests.engine.governance_services import Watched, open_governing
from tests.ground.governance import ME

MEMORIES = GovernanceJobFilter(object_type="memory")


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Watched]:
    async with open_governing(tmp_path, clock) as governing:
        yield governing


async def kill(governing: Watched) -> GovernanceJob:
    """The one job that is due fails until it is given up."""
    while True:
        [held] = await governing.pull()
        job = await governing.fail(held)
        if job.status == "dead_letter":
            governing.take_told()
            return await governing.job(job)


async def follow_ups(governing: Watched, object_id: str = "m1") -> list[GovernanceJob]:
    """The queued follow-ups of a memory, oldest first."""
    wanted = GovernanceJobFilter(object_id=object_id, object_type="memory", status="queued")
    page = await governing.service.list_jobs(wanted, None, 10)
    return [job for job in reversed(page.jobs) if job.follow_key is not None]


async def patch(governing: Watched, **fields: Any) -> Any:
    return await governing.service.patch_object("memory", "m1", ObjectFields(**fields), ME)


# Dead letters


@pytest.mark.spec("G6")
async def test_a_dead_letter_is_queued_again_and_told_of(governing: Watched) -> None:
    await governing.enqueue(max_attempts=1)
    dead = await kill(governing)
    await governing.virtual.advance(HOUR)
    queued = await governing.service.requeue(dead.job_id, ME)
    stored = await governing.job(dead.job_id)
    assert msgspec.structs.asdict(stored).items() <= msgspec.structs.asdict(queued).items()
    assert (queued.status, queued.attempt, queued.reason) == ("queued", 0, "REQUEUED")
    assert queued.run_at == governing.clock.now()
    assert governing.take_told()
    with pytest.raises(ConflictError) as refused:
        await governing.service.requeue(dead.job_id, ME)
    assert refused.value.code == "ILLEGAL_TRANSITION"
    assert "from queued to queued;" in str(refused.value)
    with pytest.raises(NotFoundError):
        await governing.service.requeue("job_nobody", ME)
    assert not governing.take_told()


@pytest.mark.spec("G6")
async def test_a_dead_letter_that_is_queued_again_wakes_whom_it_is_for(governing: Watched) -> None:
    await governing.enqueue(max_attempts=1)
    dead = await kill(governing)
    pull = Pull(worker_id="w1", limit=1, lease_us=SECOND)
    pulling = asyncio.ensure_future(governing.service.pull(pull, ME, HOUR))
    await governing.virtual.settle()
    await governing.service.requeue(dead.job_id, ME)
    await governing.virtual.settle()
    assert [one.job.job.job_id for one in (await pulling).handed] == [dead.job_id]


@pytest.mark.spec("G6")
@pytest.mark.parametrize("number", [0, 1, 2, 4, 5])
async def test_all_dead_letters_that_match_are_counted_and_queued_again(
    governing: Watched, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "REQUEUE_BATCH", 2)
    await governing.enqueue("c", object_type="cognition", max_attempts=1)
    other = await kill(governing)
    dead = []
    for at in range(number):
        await governing.enqueue(f"m{at}", max_attempts=1)
        dead.append(await kill(governing))
    waits = await governing.enqueue("waits")
    governing.take_told()
    wanted = msgspec.structs.replace(
        MEMORIES, status="running"
    )  # dead letters are meant all the same
    assert await governing.service.count_dead_letters(wanted) == number
    assert await governing.service.requeue_all(wanted, ME) == number
    assert governing.take_told() is (number > 0)
    assert [(await governing.job(job)).reason for job in dead] == ["REQUEUED"] * number
    assert (await governing.job(waits)).reason == "ENQUEUED"
    assert (await governing.job(other)).status == "dead_letter"
    assert await governing.service.count_dead_letters(wanted) == 0


@pytest.mark.spec("G6", "G8")
async def test_an_object_has_one_follow_up_however_many_are_queued_again(
    governing: Watched,
) -> None:
    dead = []
    for _ in range(2):
        await governing.put(next_action_at=governing.clock.now())
        dead.append(await kill(governing))
        await governing.virtual.advance(HOUR)
    assert await governing.service.requeue_all(MEMORIES, ME) == 2
    queued = [await governing.job(job) for job in dead]
    assert [job.status for job in queued] == ["queued", "queued"]
    assert len(await follow_ups(governing)) == 1


@pytest.mark.spec("G6", "G8")
async def test_a_follow_up_that_is_queued_again_does_not_take_anothers_place(
    governing: Watched,
) -> None:
    await governing.put(next_action_at=governing.clock.now())
    dead = await kill(governing)
    await governing.put(next_action_at=governing.clock.now() + HOUR)
    [present] = await follow_ups(governing)
    queued = await governing.service.requeue(dead.job_id, ME)
    assert (queued.follow_key, queued.is_follow_up) == (None, 1)
    assert await follow_ups(governing) == [present]


@pytest.mark.spec("B12")
async def test_letters_of_governance_are_replayed_as_the_same_job(governing: Watched) -> None:
    section = make_section(governing.service)
    assert (section.surface, section.entity_type) == ("governance", "GOV_JOB")
    assert section.dismissed == "GOV_JOB_DISMISSED"
    dead = []
    for name in ("a", "b"):
        await governing.enqueue(name, max_attempts=1)
        dead.append(await kill(governing))
    found = await governing.store.read(
        lambda tx: tx.dead_letters.list_letters("governance", LetterFilter(), None, 10)
    )
    second, first = found
    await governing.service.requeue(dead[0].job_id, ME)
    gone = msgspec.structs.replace(first, entity_id="job_nobody")
    who = Operator("ann", "req-7", "trace-7")
    outcomes = await governing.store.transact(section.replay, [first, second, gone], who)
    assert isinstance(outcomes[0], ConflictError)
    assert "from queued to queued;" in str(outcomes[0])
    assert outcomes[1] == ReplayedLetter(dead[1].job_id)
    assert isinstance(outcomes[2], NotFoundError)
    [alone] = await governing.store.transact(section.replay, [gone], who)
    assert isinstance(alone, NotFoundError)
    page = await governing.audit.list_entries(AuditFilter(event_type="job.requeue"), None, 10)
    told = [(one.actor, one.correlation_id, one.decision_trace_id) for one in page.entries]
    assert told[0] == ("ann", "req-7", "trace-7")
    governing.take_told()
    section.notify([])
    assert governing.take_told()


# Objects and their follow-ups


@pytest.mark.spec("G7")
async def test_an_object_is_put_patched_and_told_of(governing: Watched) -> None:
    first, is_new = await governing.service.put_object("memory", "m1", ObjectFields(weight=0.5), ME)
    assert (first.weight, first.version, is_new) == (0.5, 1, True)
    assert governing.take_told()
    second, is_new = await governing.service.put_object("memory", "m1", ObjectFields(), ME)
    assert (second.weight, second.version, is_new) == (1.0, 2, False)
    await patch(governing, weight=0.25)
    patched = await patch(governing, data='{"a":1}')
    assert (patched.weight, patched.data, patched.version) == (0.25, '{"a":1}', 4)
    assert await governing.object() == patched
    governing.take_told()
    with pytest.raises(NotFoundError) as refused:
        await governing.service.patch_object("memory", "m2", ObjectFields(), ME)
    assert "memory m2" in str(refused.value)
    with pytest.raises(NotFoundError):
        await governing.object("m2")
    assert not governing.take_told()


@pytest.mark.spec("G8")
async def test_the_next_action_of_an_object_is_a_queued_job(governing: Watched) -> None:
    at = governing.clock.now() + HOUR
    await governing.put(next_action_at=at)
    [job] = await follow_ups(governing)
    assert (job.action, job.run_at, job.urgency, job.max_attempts) == ("verify", at, 1, 3)
    assert (job.follow_key, job.is_follow_up, job.reason) == ("memory:m1", 1, "FOLLOW_UP")
    await patch(governing, next_action="decay")
    [moved] = await follow_ups(governing)
    assert (moved.job_id, moved.action, moved.run_at) == (job.job_id, "decay", at)
    await patch(governing, next_action_at=at + SECOND)
    [later] = await follow_ups(governing)
    assert (later.job_id, later.run_at) == (job.job_id, at + SECOND)
    await patch(governing, weight=0.5)
    assert await follow_ups(governing) == [later]
    await patch(governing, next_action_at=None)
    assert await follow_ups(governing) == []


@pytest.mark.spec("G8")
async def test_the_same_next_action_again_is_no_news(governing: Watched) -> None:
    at = governing.clock.now()
    await governing.put(next_action_at=at, next_action="verify")
    [held] = await governing.pull()
    await governing.put(next_action_at=at, next_action="verify")
    await patch(governing, next_action_at=at)
    assert await follow_ups(governing) == []
    assert (await governing.job(held)).status == "running"
    await patch(governing, next_action_at=at + HOUR)
    assert len(await follow_ups(governing)) == 1


@pytest.mark.spec("G8")
@pytest.mark.parametrize("is_put", [True, False])
async def test_that_nothing_comes_next_removes_a_follow_up_that_was_queued_again(
    governing: Watched, is_put: bool
) -> None:
    await governing.put(next_action_at=governing.clock.now())
    dead = await kill(governing)
    await governing.put()
    await governing.service.requeue(dead.job_id, ME)
    assert [job.job_id for job in await follow_ups(governing)] == [dead.job_id]
    await patch(governing, weight=0.5)  # says nothing about what comes next
    assert len(await follow_ups(governing)) == 1
    await (governing.put() if is_put else patch(governing, next_action_at=None))
    assert await follow_ups(governing) == []


@pytest.mark.spec("G11")
async def test_what_was_verified_often_enough_is_not_planned_again(governing: Watched) -> None:
    at = governing.clock.now() + HOUR
    await governing.put(next_action_at=at, unknown_type="ontic_unknowable")
    await patch(governing, verify_count=2)
    with pytest.raises(ConflictError) as refused:
        await patch(governing, next_action_at=at + HOUR)
    assert refused.value.extra["current"]["reason"] == "VERIFY_LIMIT"
    assert [job.run_at for job in await follow_ups(governing)] == [at]
    await patch(governing, next_action_at=None)
    assert await follow_ups(governing) == []
    await patch(governing, next_action_at=at, next_action="decay")
    assert [job.action for job in await follow_ups(governing)] == ["decay"]


@pytest.mark.spec("G7")
@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"id_prefix": "m"}, "id_prefix"),
        ({"id_prefix": "m\n", "object_type": "memory"}, "id_prefix"),
        ({"object_type": "memory", "status": "refuted"}, "status"),
        ({"object_type": "memory", "status": "candidate"}, None),
        ({"object_type": "memory", "id_prefix": "m"}, None),
        ({"object_type": "memory"}, None),
        ({"status": "candidate"}, None),
        ({}, None),
    ],
)
async def test_objects_are_listed_by_what_they_can_be(
    governing: Watched, wanted: dict[str, str], field: str | None
) -> None:
    made = await governing.put()
    if field is None:
        assert await governing.service.list_objects(ObjectFilter(**wanted), "", 10) == [made]
        return
    with pytest.raises(InvalidError) as refused:
        await governing.service.list_objects(ObjectFilter(**wanted), "", 10)
    assert refused.value.field == field
