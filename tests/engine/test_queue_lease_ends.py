"""Ends of attempts through the service on the virtual clock: each item of a set is answered on its
own, whatever becomes of the others, and who waits for what became free is woken."""

import asyncio
from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.leases import ANYBODY
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import LeasedJob
from ksana.service.queue.claims import Claim
from ksana.service.queue.releases import (
    KIBIBYTES_A_ROW,
    Released,
    release_together,
    release_wholes,
    weigh,
)
from tests.engine.queue_world import QueueWorld, by, release, stored, told


@pytest.mark.spec("Q11")
@pytest.mark.parametrize(
    ("status", "state"),
    [("SUCCEEDED", "DONE"), ("FAILED", "FAILED"), ("CANCELED", "CANCELED"), ("TIMEOUT", "TIMEOUT")],
)
async def test_a_release_ends_the_attempt_and_is_answered_whole(
    queue: QueueWorld, status: str, state: str
) -> None:
    taken = await queue.running()
    await queue.clock.advance(SECOND)
    now = queue.clock.now()
    said = release(taken, status, result_json="[1]", error="x", metrics_json='{"a":1}')
    answer = await queue.queue.release(said)
    assert answer == LeasedJob(
        msgspec.structs.replace(
            taken.lease,
            state="RELEASED",
            released_at=now,
            release_status=status,
            release_digest=said.digest(),
        ),
        msgspec.structs.replace(
            taken.job,
            seq=answer.job.seq,
            state=state,
            final_status="SUCCEEDED" if state == "DONE" else state,
            error_text="x",
            result_json="[1]",
            metrics_json='{"a":1}',
            finished_at=now,
            updated_at=now,
            position=None,
            release_status=status,
            release_digest=said.digest(),
        ),
    )
    assert await stored(queue, taken) == answer
    assert await queue.used() == 0


@pytest.mark.spec("Q11")
async def test_a_failed_attempt_is_tried_again_unless_its_worker_says_no(
    queue: QueueWorld,
) -> None:
    again, for_good = [await queue.running(max_attempts=2) for _ in range(2)]
    first = await queue.queue.release(release(again, "FAILED"))
    assert (first.job.state, first.job.due_at) == ("QUEUED", queue.clock.now() + 5 * SECOND)
    assert await stored(queue, again) == first
    last = await queue.queue.release(release(for_good, "FAILED", may_retry=False))
    assert last.job.state == "FAILED"


@pytest.mark.spec("Q11")
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "in short"])
async def test_the_same_release_again_is_answered_the_same(
    queue: QueueWorld, is_whole: bool
) -> None:
    taken = await queue.running()
    send = queue.queue.release_batch if is_whole else queue.queue.release_batch_compactly
    first, twin = await send([release(taken), release(taken)])
    assert first == twin
    [later, different] = await send([release(taken), release(taken, "FAILED")])
    assert later == first
    assert told(different) == ("LEASE_LOST", "this lease is RELEASED", {"state": "RELEASED"})
    if not is_whole:
        assert first == Released(taken.lease.lease_id, taken.job.job_id, "DONE")
    events = await queue.event_types(taken.job.job_id)
    assert events[-2:] == ["LEASE_RELEASED", "JOB_DONE"]


@pytest.mark.spec("Q11")
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "in short"])
async def test_of_two_releases_in_one_set_that_differ_the_second_finds_the_lease_released(
    queue: QueueWorld, is_whole: bool
) -> None:
    taken = await queue.running()
    send = queue.queue.release_batch if is_whole else queue.queue.release_batch_compactly
    _, other = await send([release(taken), release(taken, result_json="1")])
    assert told(other) == ("LEASE_LOST", "this lease is RELEASED", {"state": "RELEASED"})
    assert (await queue.job(taken.job.job_id)).result_json is None


@pytest.mark.spec("Q11", "Q12")
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "in short"])
async def test_releases_of_a_set_are_answered_each_on_its_own(
    queue: QueueWorld, is_whole: bool
) -> None:
    live, dead = await queue.running(), await queue.running(ttl_sec=5, max_attempts=2)
    await queue.clock.advance(5 * SECOND)
    send = queue.queue.release_batch if is_whole else queue.queue.release_batch_compactly
    answers = await send(
        [
            Release("none", "SUCCEEDED"),
            release(live, proof=by("x")),
            release(live, job_id=dead.job.job_id),
            release(dead),
            release(live, job_id=live.job.job_id),
        ]
    )
    assert [told(answer) for answer in answers[:4]] == [
        ("NOT_FOUND", "there is no lease none", None),
        ("LEASE_LOST", "another worker holds this lease", {"state": "ACTIVE"}),
        ("INVALID_ARGUMENT", f"this lease is for job {live.job.job_id}", None),
        ("LEASE_LOST", "this lease is EXPIRED", {"state": "EXPIRED"}),
    ]
    done = answers[4]
    state = done.job.state if isinstance(done, LeasedJob) else getattr(done, "state", None)
    assert state == "DONE"
    # What the late one's job has become by right is written down with it.
    assert (await queue.lease(dead.lease.lease_id)).state == "EXPIRED"
    assert (await queue.job(dead.job.job_id)).state == "QUEUED"
    assert await queue.used() == 0


@pytest.mark.spec("Q12")
async def test_a_release_after_the_sweep_is_refused_too(queue: QueueWorld) -> None:
    taken = await queue.running(ttl_sec=5)
    async with queue.sweeping():
        await queue.clock.advance(5 * SECOND)
    with pytest.raises(ConflictError) as error:
        await queue.queue.release(release(taken))
    assert told(error.value)[1:] == ("this lease is EXPIRED", {"state": "EXPIRED"})


@pytest.mark.spec("Q12")
async def test_without_proof_a_lease_is_believed_only_on_the_first_claim(
    queue: QueueWorld,
) -> None:
    first = await queue.running(max_attempts=2)
    assert (await queue.queue.release(release(first, "FAILED", proof=ANYBODY))).job.claims == 1
    await queue.clock.advance(5 * SECOND)
    taken = await queue.claim(has_lease=True)
    [answer] = await queue.queue.release_batch_compactly(
        [Release(taken.leases[0].lease_id, "SUCCEEDED")]
    )
    assert told(answer)[1] == (
        "this lease was claimed more than once: "
        "send the worker_id or the token it was answered with"
    )


async def test_sets_that_wait_together_are_answered_apart_and_told_once(queue: QueueWorld) -> None:
    one, two = await queue.running(), await queue.running()
    sets = [[release(one)], [], [Release("none", "FAILED"), release(two)]]
    released = await queue.store.transact(release_together, sets)
    assert [[getattr(answer, "job_id", None) for answer in some.answers] for some in released] == [
        [one.job.job_id],
        [],
        [None, two.job.job_id],
    ]
    told_of = [[change.job_id for change in some.changes] for some in released]
    assert told_of == [[one.job.job_id, two.job.job_id], [], []]
    wholes = await queue.store.transact(release_wholes, sets)
    assert [len(some.answers) for some in wholes] == [1, 0, 2]
    assert [len(some.changes) for some in wholes] == [0, 0, 0], "they had been released before"


@pytest.mark.parametrize(
    ("sizes", "weight"),
    [
        ([], 0),
        ([(0, 0)], 1),
        ([(KIBIBYTES_A_ROW * 1024 - 1, 0)], 1),
        ([(KIBIBYTES_A_ROW * 1024 - 1, 1)], 2),
        ([(0, KIBIBYTES_A_ROW * 1024), (KIBIBYTES_A_ROW * 1024, 0), (0, 0)], 5),
    ],
)
def test_releases_weigh_their_rows_and_their_results(
    sizes: list[tuple[int, int]], weight: int
) -> None:
    items = [
        Release(
            "l", "SUCCEEDED", result_json="x" * result or None, metrics_json="x" * metrics or None
        )
        for result, metrics in sizes
    ]
    assert weigh(items) == weight


# Who is woken


async def waiting_for_units(queue: QueueWorld) -> "asyncio.Task[Any]":
    """A claim that found a job and no units for it."""
    claim = Claim("late", Wants(), has_lease=True)
    waiting = asyncio.create_task(queue.queue.claim(claim, 5 * MINUTE))
    await queue.clock.settle()
    assert not waiting.done()
    return waiting


@pytest.mark.spec("Q3", "Q11")
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "in short"])
async def test_units_that_are_given_back_wake_who_waits_for_them(
    queue: QueueWorld, is_whole: bool
) -> None:
    taken = await queue.running(cost=60)
    job = await queue.submit(cost=60)
    waiting = await waiting_for_units(queue)
    send = queue.queue.release_batch if is_whole else queue.queue.release_batch_compactly
    await send([release(taken)])
    await queue.clock.settle()
    assert [one.job_id for one in waiting.result().jobs] == [job.job_id]


@pytest.mark.spec("Q2", "Q11")
async def test_a_job_that_is_put_off_is_handed_out_when_its_pause_is_over(
    queue: QueueWorld,
) -> None:
    async with queue.sweeping():
        taken = await queue.running(max_attempts=2, ttl_sec=600)
        waiting = asyncio.create_task(queue.queue.claim(Claim("late", Wants()), 5 * MINUTE))
        await queue.clock.settle()
        await queue.queue.release(release(taken, "FAILED"))
        await queue.clock.advance(5 * SECOND - 1)
        assert not waiting.done()
        await queue.clock.advance(1)
        assert [job.job_id for job in waiting.result().jobs] == [taken.job.job_id]


@pytest.mark.spec("Q10")
@pytest.mark.parametrize("has_lease", [True, False], ids=["a lease", "a claim"])
async def test_the_sweep_comes_when_what_was_handed_out_runs_out(
    queue: QueueWorld, has_lease: bool
) -> None:
    async with queue.sweeping():
        await queue.submit(max_attempts=2)
        taken = await queue.claim(has_lease=has_lease, ttl_sec=7)
        lasts = 7 * SECOND if has_lease else MINUTE
        assert taken.until == queue.clock.now() + lasts
        await queue.clock.advance(lasts - 1)
        [job] = taken.jobs
        assert (await queue.job(job.job_id)).state == job.state
        await queue.clock.advance(1)
        assert (await queue.job(job.job_id)).state == "QUEUED"


@pytest.mark.spec("Q10")
async def test_of_leases_that_were_handed_out_together_the_first_to_run_out_is_waited_for(
    queue: QueueWorld,
) -> None:
    async with queue.sweeping():
        await queue.running(ttl_sec=5)
        await queue.clock.settle()  # the sweep knows of this one
        for _ in range(2):
            await queue.submit(max_attempts=2)
        claims = [Claim("w", Wants(), has_lease=True, ttl_sec=ttl_sec) for ttl_sec in (9, 3)]
        _, short = await asyncio.gather(*map(queue.queue.claim, claims))
        await queue.clock.advance(3 * SECOND)
        assert (await queue.job(short.taken[0].job_id)).state == "QUEUED"


@pytest.mark.spec("Q10")
async def test_the_sweep_comes_when_a_lease_that_was_asked_for_runs_out(queue: QueueWorld) -> None:
    async with queue.sweeping():
        job = await queue.claimed(max_attempts=2)
        await queue.clock.settle()
        await queue.queue.request_lease(job.job_id, 7, by("w"))
        await queue.clock.advance(7 * SECOND)
        assert (await queue.job(job.job_id)).state == "QUEUED"


async def test_holders_are_listed_the_first_to_run_out_first(queue: QueueWorld) -> None:
    leases = [(await queue.running(ttl_sec=ttl_sec)).lease for ttl_sec in (30, 10, 20)]
    assert await queue.queue.list_holders(9) == [leases[1], leases[2], leases[0]]
    assert await queue.queue.list_holders(2) == [leases[1], leases[2]]
