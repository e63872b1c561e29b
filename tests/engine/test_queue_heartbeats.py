"""Signs of life through the service on the virtual clock: each of a set is answered on its own,
whatever becomes of the others."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, InvalidError, NotFoundError
from ksana.base.instant import SECOND
from ksana.domain.queue.jobs import LeasedJob
from ksana.service.queue.leases import Heartbeat, extend_together
from tests.engine.queue_world import QueueWorld, by, proof_of, release, stored, told


def beat(taken: LeasedJob, **members: Any) -> Heartbeat:
    return Heartbeat(taken.lease.lease_id, **{"proof": proof_of(taken)} | members)


@pytest.mark.spec("Q10")
async def test_a_heartbeat_lets_the_lease_last_its_time_again(queue: QueueWorld) -> None:
    taken = await queue.running(ttl_sec=30)
    await queue.clock.advance(29 * SECOND)
    now = queue.clock.now()
    answer = await queue.queue.heartbeat(beat(taken))
    lease = msgspec.structs.replace(
        taken.lease, last_heartbeat_at=now, expires_at=now + 30 * SECOND
    )
    before = await queue.job(taken.job.job_id)
    assert answer == LeasedJob(lease, before)
    assert await stored(queue, taken) == answer


@pytest.mark.spec("Q10")
async def test_a_heartbeat_may_choose_another_time_from_now_on(queue: QueueWorld) -> None:
    taken = await queue.running(ttl_sec=30)
    answer = await queue.queue.heartbeat(beat(taken, ttl_sec=1.5))
    assert answer.lease.ttl_sec == 1.5
    assert answer.lease.expires_at == queue.clock.now() + 1_500_000
    again = await queue.queue.heartbeat(beat(taken))
    assert again.lease == answer.lease


@pytest.mark.spec("Q10")
async def test_a_heartbeat_carries_progress_and_a_note(queue: QueueWorld) -> None:
    taken = await queue.running()
    await queue.clock.advance(SECOND)
    now = queue.clock.now()
    first = await queue.queue.heartbeat(beat(taken, progress=0.5, message="half"))
    assert (first.job.progress, first.job.note, first.job.updated_at) == (0.5, "half", now)
    assert await stored(queue, taken) == first
    await queue.clock.advance(SECOND)
    second = await queue.queue.heartbeat(beat(taken, progress=0.75))
    assert (second.job.progress, second.job.note) == (0.75, "half")
    third = await queue.queue.heartbeat(beat(taken, message="late"))
    assert (third.job.progress, third.job.note) == (0.75, "late")
    assert third.job.updated_at == now + SECOND
    await queue.clock.advance(SECOND)
    same = await queue.queue.heartbeat(beat(taken, progress=0.75, message="late"))
    assert same.job == msgspec.structs.replace(
        third.job, heartbeat_at=now + 2 * SECOND, lease_expires_at=same.lease.expires_at
    ), "nothing new was said of the job"
    assert await stored(queue, taken) == same


@pytest.mark.spec("Q10", "Q12")
async def test_heartbeats_of_a_set_are_answered_each_on_its_own(queue: QueueWorld) -> None:
    live, dead = await queue.running(), await queue.running(ttl_sec=5)
    await queue.clock.advance(5 * SECOND)
    answers = await queue.queue.heartbeat_batch(
        [
            Heartbeat("none"),
            beat(dead),
            beat(live, job_id=dead.job.job_id),
            beat(live, proof=by("x")),
            beat(live, job_id=live.job.job_id, progress=0.1),
            beat(live, ttl_sec=9),
        ]
    )
    assert isinstance(answers[0], NotFoundError)
    assert [told(answer) for answer in answers[:4]] == [
        ("NOT_FOUND", "there is no lease none", None),
        ("LEASE_LOST", "this lease is EXPIRED", {"state": "EXPIRED"}),
        ("INVALID_ARGUMENT", f"this lease is for job {live.job.job_id}", None),
        ("LEASE_LOST", "another worker holds this lease", {"state": "ACTIVE"}),
    ]
    assert isinstance(answers[2], InvalidError) and answers[2].extra == {"field": "job_id"}
    last = answers[5]
    assert isinstance(last, LeasedJob)
    assert (last.job.progress, last.lease.ttl_sec) == (0.1, 9), "each goes on from the one before"
    assert await stored(queue, live) == last
    assert await stored(queue, dead) == msgspec.structs.replace(
        dead, job=await queue.job(dead.job.job_id)
    )


@pytest.mark.spec("Q12")
async def test_a_heartbeat_of_a_lease_that_is_over_is_refused(queue: QueueWorld) -> None:
    taken = await queue.running()
    await queue.queue.release(release(taken))
    with pytest.raises(ConflictError) as error:
        await queue.queue.heartbeat(beat(taken))
    assert told(error.value) == (
        "LEASE_LOST",
        "this lease is RELEASED",
        {"state": "RELEASED"},
    )


async def test_callers_that_wait_together_get_the_answers_to_their_own(queue: QueueWorld) -> None:
    one, two = await queue.running(), await queue.running()
    sets = [[beat(one)], [], [Heartbeat("none"), beat(two)]]
    answers = await queue.store.transact(extend_together, sets)
    shown = [
        [answer.lease.lease_id if isinstance(answer, LeasedJob) else None for answer in some]
        for some in answers
    ]
    assert shown == [[one.lease.lease_id], [], [None, two.lease.lease_id]]
