"""What a worker says of its job, and what a caller takes back, through the service on the virtual
clock: who is believed, what is written, what is told."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, KsanaError, NotFoundError
from ksana.base.instant import SECOND
from ksana.domain.handover import job_id_of
from ksana.domain.queue.admission import Limits, grant_lease
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.jobs import CLAIM_TTL_US, Job, JobPosition
from ksana.ports.queue.tables import JobFilter
from ksana.service.queue.jobs import Report
from ksana.service.queue.service import QueueService
from tests.engine.queue_world import QueueWorld, by

W = by("w")
GHOST = "00000000-0000-0000-0000-000000000000"


def told(error: KsanaError) -> tuple[str, str, Any]:
    return error.code, error.message, error.extra.get("current")


async def refused(queue: QueueWorld, report: Report) -> tuple[str, str, Any]:
    before = await queue.job(report.job_id)
    with pytest.raises(ConflictError) as error:
        await queue.queue.report(report)
    assert await queue.job(report.job_id) == before
    return told(error.value)


@pytest.mark.spec("Q4")
@pytest.mark.parametrize("to", ["PREPARING", "LEASE_PENDING"])
async def test_a_report_moves_the_job_and_extends_its_claim(queue: QueueWorld, to: str) -> None:
    job = await queue.claimed()
    await queue.clock.advance(10 * SECOND)
    said = await queue.queue.report(Report(job.job_id, to, 0.25, "loading", W))
    now = queue.clock.now()
    assert said == msgspec.structs.replace(
        job,
        state=to,
        progress=0.25,
        note="loading",
        claim_expires_at=now + CLAIM_TTL_US,
        updated_at=now,
        position=JobPosition.CLAIMED,
    )
    assert await queue.job(job.job_id) == said
    kept = {"worker_id": "w", "note": "loading"}
    assert (await queue.events(job.job_id))[-1] == (f"JOB_{to}", kept)


async def test_a_claim_is_extended_by_the_limit_that_is_set(queue: QueueWorld) -> None:
    queue.queue = QueueService(queue.store, queue.clock, Limits(100, claim_ttl_us=7 * SECOND))
    job = await queue.claimed()
    assert job.claim_expires_at == queue.clock.now() + 7 * SECOND
    await queue.clock.advance(3 * SECOND)
    said = await queue.queue.report(Report(job.job_id, proof=W))
    assert said.claim_expires_at == queue.clock.now() + 7 * SECOND


@pytest.mark.spec("Q4")
async def test_what_a_report_leaves_out_stays_as_it_was(queue: QueueWorld) -> None:
    job_id = (await queue.claimed()).job_id
    await queue.queue.report(Report(job_id, "PREPARING", 0.25, "loading", W))
    events = await queue.event_types(job_id)
    said = await queue.queue.report(Report(job_id, progress=0.5, proof=W))
    assert (said.state, said.progress, said.note) == ("PREPARING", 0.5, "loading")
    said = await queue.queue.report(Report(job_id, note="cutting", proof=W))
    assert (said.state, said.progress, said.note) == ("PREPARING", 0.5, "cutting")
    assert await queue.job(job_id) == said
    assert await queue.event_types(job_id) == events, "a note is no event"


@pytest.mark.spec("Q4", "Q10")
async def test_a_running_job_is_noted_and_its_lease_is_not_extended(queue: QueueWorld) -> None:
    taken = await queue.running()
    await queue.clock.advance(10 * SECOND)
    first = await queue.queue.report(Report(taken.job.job_id, "RUNNING", 0.25, "cutting", W))
    assert first == msgspec.structs.replace(
        taken.job, progress=0.25, note="cutting", updated_at=queue.clock.now(), seq=first.seq
    )
    assert await queue.job(taken.job.job_id) == first
    second = await queue.queue.report(Report(taken.job.job_id, progress=0.5, proof=W))
    third = await queue.queue.report(Report(taken.job.job_id, note="done", proof=W))
    assert [(one.progress, one.note) for one in (second, third)] == [
        (0.5, "cutting"),
        (0.5, "done"),
    ]
    assert await queue.lease(taken.lease.lease_id) == taken.lease


@pytest.mark.spec("Q4")
@pytest.mark.parametrize("to", ["PREPARING", "QUEUED", "DONE"])
async def test_a_running_job_cannot_be_reported_into_another_state(
    queue: QueueWorld, to: str
) -> None:
    taken = await queue.running()
    code, _, current = await refused(queue, Report(taken.job.job_id, to, proof=W))
    assert (code, current) == ("ILLEGAL_TRANSITION", {"state": "RUNNING", "requested": to})


@pytest.mark.spec("Q4")
@pytest.mark.parametrize("to", ["QUEUED", "RUNNING", "DONE", "CLAIMED"])
async def test_a_claimed_job_is_only_reported_forward(queue: QueueWorld, to: str) -> None:
    job_id = (await queue.claimed()).job_id
    await queue.queue.report(Report(job_id, "PREPARING", proof=W))
    assert (await refused(queue, Report(job_id, to, proof=W)))[0] == "ILLEGAL_TRANSITION"


@pytest.mark.spec("Q4")
async def test_a_job_that_nobody_holds_cannot_be_reported_on(queue: QueueWorld) -> None:
    job_id = (await queue.submit()).job_id
    code, _, current = await refused(queue, Report(job_id, "PREPARING"))
    assert code == "ILLEGAL_TRANSITION"
    assert current == {"state": "QUEUED", "requested": "PREPARING"}
    # Who names itself held it once: it is told that it does not any more.
    assert await refused(queue, Report(job_id, "PREPARING", proof=W)) == (
        "CLAIM_LOST",
        "another worker holds this job",
        {"state": "QUEUED", "claimed_by": None},
    )


@pytest.mark.spec("Q4")
async def test_a_job_that_has_ended_cannot_be_reported_on(queue: QueueWorld) -> None:
    taken = await queue.running()
    proof = by(token=taken.lease.lease_token)
    await queue.queue.release(Release(taken.lease.lease_id, "SUCCEEDED", proof=proof))
    for to, report in (
        ("DONE", Report(taken.job.job_id, proof=W)),
        ("PREPARING", Report(taken.job.job_id, "PREPARING")),
    ):
        code, _, current = await refused(queue, report)
        assert (code, current) == ("ILLEGAL_TRANSITION", {"state": "DONE", "requested": to})


@pytest.mark.spec("Q4", "Q12")
@pytest.mark.parametrize(
    ("proof", "message"),
    [
        (by("x"), "another worker holds this job"),
        (by(token=5), "the token is not that of who holds this job now"),
        (by("w", token=5), "the token is not that of who holds this job now"),
    ],
)
async def test_a_report_of_somebody_else_is_refused(
    queue: QueueWorld, proof: Any, message: str
) -> None:
    job = await queue.claimed()
    current = {"state": "CLAIMED", "claimed_by": "w"}
    report = Report(job.job_id, "PREPARING", proof=proof)
    assert await refused(queue, report) == ("CLAIM_LOST", message, current)


@pytest.mark.spec("Q12")
async def test_a_job_that_was_claimed_twice_needs_proof(queue: QueueWorld) -> None:
    async with queue.sweeping():
        job = await queue.claimed("x")
        await queue.clock.advance(CLAIM_TTL_US)
    [job] = (await queue.claim("w")).jobs
    assert await refused(queue, Report(job.job_id, "PREPARING")) == (
        "CLAIM_LOST",
        "this job was claimed more than once: send the worker_id or the token it was answered with",
        {"state": "CLAIMED", "claimed_by": "w"},
    )
    said = await queue.queue.report(Report(job.job_id, note="x", proof=by(token=job.claim_token)))
    assert said.note == "x"


@pytest.mark.spec("Q4", "Q12")
async def test_who_shows_nothing_of_a_job_that_many_had_is_told_its_state(
    queue: QueueWorld,
) -> None:
    """That proof is missing is no reason where no proof would help."""
    async with queue.sweeping():
        job = await queue.claimed("x")
        await queue.clock.advance(CLAIM_TTL_US)
        await queue.claim("w")
        await queue.clock.advance(CLAIM_TTL_US)
    assert (await queue.job(job.job_id)).claims == 2
    report = Report(job.job_id, "PREPARING")
    assert (await refused(queue, report))[0] == "ILLEGAL_TRANSITION"
    await queue.queue.cancel(job.job_id, None)
    assert (await refused(queue, report))[0] == "ILLEGAL_TRANSITION"


@pytest.mark.spec("Q12")
async def test_a_claim_or_a_lease_that_ran_out_is_told_as_lost(queue: QueueWorld) -> None:
    taken = await queue.running(ttl_sec=CLAIM_TTL_US / SECOND)
    job = await queue.claimed()
    await queue.clock.advance(CLAIM_TTL_US)
    assert await refused(queue, Report(job.job_id, proof=W)) == (
        "CLAIM_LOST",
        "the claim on this job has run out",
        {"state": "CLAIMED"},
    )
    assert await refused(queue, Report(taken.job.job_id, note="x", proof=W)) == (
        "LEASE_LOST",
        "the lease of this job has run out",
        {"state": "RUNNING"},
    )


async def test_what_is_not_there_is_named(queue: QueueWorld) -> None:
    for ask in (
        queue.queue.report(Report(GHOST)),
        queue.queue.cancel(GHOST, None),
        queue.queue.list_events(GHOST),
        queue.queue.get_job(GHOST),
    ):
        with pytest.raises(NotFoundError, match=rf"^there is no job {GHOST}$"):
            await ask
    with pytest.raises(NotFoundError, match=r"^there is no lease l$"):
        await queue.queue.get_lease("l")


async def in_state(queue: QueueWorld, state: str, **members: Any) -> Job:
    if state == "QUEUED":
        await queue.submit(**members)
        return (await queue.queue.list_jobs(*EVERY)).jobs[0]
    job = await queue.claimed(**members)
    if state != "CLAIMED":
        job = await queue.queue.report(Report(job.job_id, state, 0.5, "x", W))
    return job


@pytest.mark.spec("Q7")
@pytest.mark.parametrize("state", ["QUEUED", "CLAIMED", "PREPARING", "LEASE_PENDING"])
async def test_what_does_not_run_is_cancelled_at_once(queue: QueueWorld, state: str) -> None:
    job = await in_state(queue, state)
    await queue.clock.advance(SECOND)
    now = queue.clock.now()
    canceled = await queue.queue.cancel(job.job_id, "not needed")
    assert canceled == msgspec.structs.replace(
        job,
        state="CANCELED",
        final_status="CANCELED",
        cancel_requested=1,
        cancel_reason="not needed",
        claim_expires_at=None,
        finished_at=now,
        updated_at=now,
        position=None,
    )
    assert await queue.job(job.job_id) == canceled
    ended = ("JOB_CANCELED", {"reason": "not needed", "from": state})
    assert (await queue.events(job.job_id))[-1] == ended
    with pytest.raises(ConflictError) as again:
        await queue.queue.cancel(job.job_id, None)
    assert again.value.code == "ILLEGAL_TRANSITION"


@pytest.mark.spec("Q7")
async def test_the_worker_of_a_running_job_is_asked_once(queue: QueueWorld) -> None:
    taken = await queue.running()
    await queue.clock.advance(SECOND)
    asked = await queue.queue.cancel(taken.job.job_id, "not needed")
    assert asked == msgspec.structs.replace(
        taken.job,
        seq=asked.seq,
        cancel_requested=1,
        cancel_reason="not needed",
        updated_at=queue.clock.now(),
    )
    assert await queue.job(taken.job.job_id) == asked
    assert (await queue.events(taken.job.job_id))[-1] == (
        "JOB_CANCEL_REQUESTED",
        {"reason": "not needed", "lease_id": taken.lease.lease_id},
    )
    events = await queue.event_types(taken.job.job_id)
    await queue.clock.advance(SECOND)
    assert await queue.queue.cancel(taken.job.job_id, "again") == asked
    assert await queue.event_types(taken.job.job_id) == events
    assert await queue.used() == 10, "it runs until its worker stops"


EVERY = (JobFilter(), None, 9)
HANDED_OVER = job_id_of("0" * 32, 1)


@pytest.mark.parametrize(
    ("job_id", "is_told"), [(HANDED_OVER, True), (GHOST, False)], ids=["a run's", "nobody's"]
)
async def test_who_waits_for_a_job_of_a_run_is_told_that_it_may_have_ended(
    queue: QueueWorld, job_id: str, is_told: bool
) -> None:
    heard: list[str] = []
    queue.queue.on_handed_over = lambda: heard.append("ended")
    await queue.submit(job_id=job_id)
    assert heard == []
    await queue.queue.cancel(job_id, None)
    assert heard == ["ended"] * is_told


@pytest.mark.parametrize(
    ("job_id", "is_told"), [(HANDED_OVER, True), (GHOST, False)], ids=["a run's", "nobody's"]
)
async def test_a_release_or_an_expiry_of_a_job_of_a_run_is_told_too(
    queue: QueueWorld, job_id: str, is_told: bool
) -> None:
    heard: list[str] = []
    queue.queue.on_handed_over = lambda: heard.append("ended")
    taken = await queue.running(job_id=job_id, max_attempts=3)
    await queue.queue.release(
        Release(taken.lease.lease_id, "FAILED", proof=by(token=taken.lease.lease_token))
    )
    assert heard == ["ended"] * is_told
    async with queue.sweeping():
        await queue.clock.advance(10 * SECOND)
        assert len((await queue.claim(has_lease=True, ttl_sec=5)).taken) == 1
        await queue.clock.advance(10 * SECOND)
    assert heard == ["ended"] * (3 if is_told else 0), "promoted, and the lease ran out"


async def test_the_events_of_a_job_and_its_leases_are_told_in_order(queue: QueueWorld) -> None:
    taken = await queue.running(max_attempts=2)
    await queue.running("other", addon="b")
    proof = by(token=taken.lease.lease_token)
    await queue.queue.release(Release(taken.lease.lease_id, "FAILED", proof=proof))
    events = await queue.queue.list_events(taken.job.job_id)
    assert [event.type for event in events] == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
        "LEASE_RELEASED",
        "JOB_REQUEUED",
    ]
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    lease_events = [event for event in events if event.entity_type == "LEASE"]
    assert {event.entity_id for event in lease_events} == {taken.lease.lease_id}


async def test_a_lease_whose_events_do_not_lie_with_its_jobs_is_told_of_too(
    queue: QueueWorld,
) -> None:
    """Leases of an older program recorded their events by themselves."""
    job = await queue.claimed()
    change = grant_lease(job, queue.queue.new_id(), 5, 30, queue.clock.now() + SECOND)
    now = queue.clock.now()
    change = msgspec.structs.replace(change, move="requeue", lease_end="EXPIRED", started_at=now)

    def grant_as_before(tx: Any) -> None:
        tx.leases.keep([change])
        tx.events.append("LEASE", change.lease_id, "LEASE_GRANTED", {"job_id": job.job_id})

    await queue.store.transact(grant_as_before)
    events = await queue.queue.list_events(job.job_id)
    assert [event.type for event in events] == ["JOB_SUBMITTED", "JOB_CLAIMED", "LEASE_GRANTED"]
    assert (events[-1].entity_type, events[-1].entity_id) == ("LEASE", change.lease_id)


async def test_a_list_of_jobs_goes_on_before_the_last_that_was_shown(queue: QueueWorld) -> None:
    made = [(await queue.submit()).job_id for _ in range(3)]
    first = await queue.queue.list_jobs(JobFilter(), None, 2)
    assert [job.job_id for job in first.jobs] == [made[2], made[1]]
    assert first.next_before == first.jobs[-1].seq
    second = await queue.queue.list_jobs(JobFilter(), first.next_before, 2)
    assert ([job.job_id for job in second.jobs], second.next_before) == ([made[0]], None)
