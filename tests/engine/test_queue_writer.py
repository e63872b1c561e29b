"""The writer of queue jobs: what each move leaves behind in rows, events, counts and gauges, and
that a move which no table has leaves nothing."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.dead_letters import LetterFilter
from ksana.domain.handover import job_id_of
from ksana.domain.histogram import bucket_of, pack
from ksana.domain.leases import Proof
from ksana.domain.queue.changes import JobChange, cancel_job, submit_job
from ksana.domain.queue.turns import Turns
from ksana.engine.queue.job_writer import enter_jobs, write_changes, write_held
from ksana.service.queue.jobs import Report
from tests.engine.queue_ground import TOTAL, TTL, Queueing, open_queue
from tests.unit.queue_rows import Numbers, a_job

WAITS = 5 * SECOND
RUNS = 20 * SECOND


@pytest.fixture
async def queue(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Queueing]:
    async with open_queue(tmp_path, clock) as queue:
        yield queue


async def spans(queue: Queueing, metric: str) -> int:
    """The histogram of the current minute, packed."""
    since = queue.clock.now() // MINUTE * MINUTE
    sums = await queue.store.read(
        lambda tx: tx.series.sum_stretches(metric, since, since + MINUTE, MINUTE)
    )
    return int(sums.get(since, 0))


async def letters(queue: Queueing) -> list[tuple[str, str, str, str]]:
    found = await queue.store.read(
        lambda tx: tx.dead_letters.list_letters("queue", LetterFilter(), None, 10)
    )
    return [(one.entity_id, one.source, one.status, one.error) for one in found]


@pytest.mark.spec("Q1", "Q15")
async def test_a_job_that_is_submitted_is_told_counted_and_waits(queue: Queueing) -> None:
    jobs = [await queue.submit(), await queue.submit()]
    assert await queue.counts() == {"submitted": 2, "queued": 2}
    assert await queue.gauges() == (2, 0, 2)
    assert [await queue.events(job) for job in jobs] == [["JOB_SUBMITTED"]] * 2


@pytest.mark.spec("Q15")
async def test_a_job_that_runs_is_counted_with_its_wait_and_its_units(queue: Queueing) -> None:
    job = await queue.submit(cost_units=7)
    await queue.clock.advance(WAITS)
    (lease,) = await queue.start()
    assert await queue.counts() == {"submitted": 1, "running": 1, "leases": 1, "units": 7}
    assert await queue.gauges() == (0, 1, 1)
    assert await queue.used() == (7, 1)
    assert await spans(queue, "queue.wait") == pack({bucket_of(WAITS / SECOND): 1})
    assert await spans(queue, "queue.run") == 0
    assert await queue.events(job) == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
    ]
    assert (await queue.service.get_lease(lease.lease_id)).state == "ACTIVE"


@pytest.mark.spec("Q11", "Q15")
@pytest.mark.parametrize(
    ("status", "error", "ended", "event"),
    [
        ("SUCCEEDED", None, "done", "JOB_DONE"),
        ("FAILED", "no", "failed", "JOB_FAILED"),
        ("FAILED", None, "failed", "JOB_FAILED"),
        ("TIMEOUT", None, "timeout", "JOB_TIMEOUT"),
        ("CANCELED", None, "canceled", "JOB_CANCELED"),
    ],
)
async def test_a_job_that_ends_is_counted_once_frees_its_units_and_is_buried_if_it_failed(
    queue: Queueing, status: str, error: str | None, ended: str, event: str
) -> None:
    job = await queue.submit(cost_units=7)
    (lease,) = await queue.start()
    await queue.clock.advance(RUNS)
    leased = await queue.release(lease, status, error=error)
    assert await queue.counts() == {"submitted": 1, ended: 1}
    assert await queue.gauges() == (0, 0, 2)
    assert await queue.used() == (0, 0)
    assert await spans(queue, "queue.run") == pack({bucket_of(RUNS / SECOND): 1})
    assert (await queue.events(job))[-2:] == ["LEASE_RELEASED", event]
    state = (await queue.service.get_lease(lease.lease_id)).state
    assert (state, leased.job.state) == ("RELEASED", ended.upper())
    dead = [(job.job_id, "a", leased.job.state, error or leased.job.state)]
    assert await letters(queue) == (dead if ended in ("failed", "timeout") else [])


@pytest.mark.spec("Q11", "Q15")
async def test_a_job_that_is_tried_again_is_queued_again_and_its_run_is_not_counted(
    queue: Queueing,
) -> None:
    await queue.submit(cost_units=7, max_attempts=2)
    (lease,) = await queue.start()
    await queue.release(lease, "FAILED")
    assert await queue.counts() == {"submitted": 1, "queued": 1}
    assert await queue.gauges() == (1, 0, 2)
    assert await spans(queue, "queue.run") == 0
    assert await letters(queue) == []


@pytest.mark.spec("Q12", "Q15")
async def test_a_lease_that_ran_out_is_counted_as_expired(queue: Queueing) -> None:
    job = await queue.submit(cost_units=7)
    (lease,) = await queue.start()
    await queue.clock.advance(TTL)
    await queue.service.leasing._step()
    assert await queue.counts() == {"submitted": 1, "expired": 1, "timeout": 1}
    assert (await queue.service.get_lease(lease.lease_id)).state == "EXPIRED"
    assert await queue.used() == (0, 0)
    assert await letters(queue) == [
        (job.job_id, "a", "TIMEOUT", f"the lease ran out after {TTL // SECOND} s")
    ]


async def test_a_failed_job_that_a_run_waits_for_is_noted_and_is_no_dead_letter(
    queue: Queueing,
) -> None:
    uid = "0190a1b2c3d47e5f8899aabbccddeeff"
    theirs, ours = job_id_of(uid, 1), queue.service.new_id()
    for job_id in (theirs, ours):
        await queue.submit(job_id=job_id)
    leases = await queue.start(2)
    for lease in leases:
        await queue.release(lease, "FAILED", error="no")
    assert [letter[0] for letter in await letters(queue)] == [ours]
    noted = await queue.store.read(lambda tx: tx._session.raw("SELECT job_id FROM handover_ends"))
    assert tuple(noted or ()) == (theirs,)


# Units kept for a job


async def keep_units(queue: Queueing) -> str:
    """A job that was refused a lease, and for which units are kept."""
    await queue.submit(cost_units=TOTAL)
    await queue.start()
    job = await queue.submit(cost_units=TOTAL, priority="HIGH")
    (claimed,) = await queue.claim()
    proof = Proof(token=claimed.claim_token)
    await queue.service.request_lease(job.job_id, 30.0, proof)
    assert await reserved_for(queue) == job.job_id
    return job.job_id


async def reserved_for(queue: Queueing) -> str | None:
    capacity = await queue.store.read(lambda tx: tx.capacity.read(TOTAL))
    found: str | None = capacity.reserved_for
    return found


@pytest.mark.spec("Q9")
async def test_units_kept_for_a_job_are_free_again_when_it_is_cancelled(queue: Queueing) -> None:
    job_id = await keep_units(queue)
    await queue.service.cancel(job_id, None)
    assert await reserved_for(queue) is None


@pytest.mark.spec("Q9")
async def test_a_job_that_waits_for_its_lease_keeps_its_units_whatever_its_worker_notes(
    queue: Queueing,
) -> None:
    job_id = await keep_units(queue)
    job = await queue.job(job_id)
    proof = Proof(token=job.claim_token)
    await queue.service.report(Report(job_id, note="soon", proof=proof))
    assert await reserved_for(queue) == job_id


# Guards


async def test_a_job_that_was_submitted_before_is_answered_with_no(queue: Queueing) -> None:
    first = queue.new_job(client_request_id="r")
    await queue.service.submit(first)
    again = queue.new_job(client_request_id="r")
    job = submit_job(again, queue.clock.now(), Turns(Numbers()))
    assert await queue.store.transact(lambda tx: enter_jobs(tx, [job], once=True)) is False


async def test_a_job_begins_queued(queue: Queueing) -> None:
    job = msgspec.structs.replace(
        submit_job(queue.new_job(), queue.clock.now(), Turns(Numbers())), state="RUNNING"
    )
    with pytest.raises(AssertionError, match="does not begin as RUNNING"):
        await queue.store.transact(lambda tx: enter_jobs(tx, [job], once=False))


async def test_a_change_whose_guard_says_no_is_answered_with_no(queue: Queueing) -> None:
    job = await queue.submit()
    stored = await queue.job(job)
    change = cancel_job(stored, None)
    await queue.service.cancel(job.job_id, None)
    assert await queue.store.transact(write_changes, [change]) is False
    assert await queue.store.transact(write_changes, []) is True
    with pytest.raises(AssertionError, match="no longer as it was found"):
        await queue.store.transact(write_held, [change])


@pytest.mark.parametrize("is_holder", [True, False])
async def test_only_the_token_of_the_lease_ends_it(queue: Queueing, is_holder: bool) -> None:
    job = await queue.submit()
    (lease,) = await queue.start()
    change = JobChange(
        move="finish",
        seq=(await queue.job(job)).seq,
        job_id=job.job_id,
        old="RUNNING",
        new="DONE",
        lease_id=lease.lease_id,
        lease_token=lease.lease_token if is_holder else 1,
        lease_end="RELEASED",
    )
    assert await queue.store.transact(write_changes, [change]) is is_holder


@pytest.mark.parametrize(
    ("old", "new", "lease_end"),
    [("DONE", "QUEUED", None), ("QUEUED", "DONE", None), ("RUNNING", "DONE", "ACTIVE")],
)
async def test_a_move_that_the_lifecycle_does_not_have_is_refused(
    queue: Queueing, old: str, new: str, lease_end: Any
) -> None:
    job = await queue.submit()
    change = JobChange(
        move="finish", seq=1, job_id=job.job_id, old=old, new=new, lease_end=lease_end
    )
    with pytest.raises(ConflictError) as raised:
        await queue.store.transact(write_changes, [change])
    assert raised.value.code == "ILLEGAL_TRANSITION"
    assert await queue.events(job) == ["JOB_SUBMITTED"]


class AskedTables:
    """The tables of a transaction as far as a cancel needs them."""

    def __init__(self) -> None:
        self.is_held: list[bool] = []
        """Of each write, whether it was made without a wait for its guard."""
        ignore = SimpleNamespace(append_packs=_ignore, add=_ignore, drop_reserve=_ignore)
        self.job_changes = self
        self.events = self.gauges = self.series = self.capacity = ignore
        self.now = 0

    def cancel(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        self.is_held.append(is_held)
        return len(changes)


def _ignore(*_: Any) -> None: ...


def test_only_changes_of_jobs_that_are_held_are_written_without_a_wait_for_their_guards() -> None:
    tables: Any = AskedTables()
    change = cancel_job(a_job(), None)
    write_held(tables, [change])
    assert write_changes(tables, [change]) is True
    assert tables.is_held == [True, False]
