"""Every guard of governance's statements, by itself: a change is written over what it was decided
on, or not at all."""

from typing import Any

import msgspec
import pytest

from ksana.domain.governance.audit import AuditEntry
from ksana.store.sql import SqlStore
from tests.ground.governance import SECOND, Governing

replace = msgspec.structs.replace


@pytest.fixture
def governing(store: SqlStore) -> Governing:
    return Governing(store)


async def write(governing: Governing, old: Any, new: Any) -> None:
    await governing.store.transact(lambda tx: tx.governance.write([(old, new)]))


async def find(governing: Governing, job_id: str) -> Any:
    return await governing.store.read(lambda tx: tx.governance.find(job_id))


async def held(governing: Governing) -> Any:
    made = await governing.enqueue()
    (job,) = await governing.pull()
    assert job.job_id == made.job_id
    return await find(governing, job.job_id)


@pytest.mark.spec("X12", "G2")
async def test_only_a_queued_job_is_handed_out_or_removed(governing: Governing) -> None:
    job = await held(governing)
    stale = replace(job, status="queued", position=0)
    with pytest.raises(RuntimeError):
        await write(governing, stale, replace(job, lease_token=5))
    with pytest.raises(RuntimeError):
        await write(governing, stale, None)
    assert await find(governing, job.job_id) == job


@pytest.mark.fault("F12")
@pytest.mark.spec("X12", "G3")
async def test_a_job_is_ended_only_while_it_runs_under_the_token(governing: Governing) -> None:
    job = await held(governing)
    done = replace(job, status="succeeded", finished_at=1)
    with pytest.raises(RuntimeError):
        await write(governing, replace(job, lease_token=job.lease_token + 1), done)
    assert await find(governing, job.job_id) == job
    await governing.ack(job)
    ended = await find(governing, job.job_id)
    with pytest.raises(RuntimeError):
        await write(governing, replace(ended, status="running"), replace(done, status="failed"))
    assert await find(governing, job.job_id) == ended


@pytest.mark.spec("X12", "G4", "G5")
async def test_any_other_change_needs_the_status_and_the_token(governing: Governing) -> None:
    job = await held(governing)
    back = replace(
        job, status="queued", position=0, lease_token=0, lease_expires_at=None, attempt=1
    )
    with pytest.raises(RuntimeError):
        await write(governing, replace(job, lease_token=job.lease_token + 1), back)
    with pytest.raises(RuntimeError):
        await write(governing, replace(job, status="dead_letter"), back)
    assert await find(governing, job.job_id) == job


@pytest.mark.spec("X12", "G7")
async def test_an_object_is_changed_only_from_the_version_and_the_status_it_had(
    governing: Governing,
) -> None:
    governed = await governing.put(status="active")
    for stale in (replace(governed, version=7), replace(governed, status="stale")):
        changed = await governing.store.transact(
            lambda tx, old=stale: tx.objects.update_if_unchanged([(old, governed)])
        )
        assert changed == 0
    new = replace(governed, version=2, weight=0.5)
    changed = await governing.store.transact(
        lambda tx: tx.objects.update_if_unchanged([(governed, new)])
    )
    assert changed == 1
    assert await governing.object() == new


@pytest.mark.spec("X12", "G12")
async def test_a_chain_is_continued_only_from_the_end_that_was_read(governing: Governing) -> None:
    def move_the_end(tx: Any) -> None:
        tx.audit.append(AuditEntry(event_type="test", actor="me"))
        tx._session.run("audit.set_head", chain=tx.audit.chain, seq=9, hash="0" * 64, old_seq=0)

    with pytest.raises(RuntimeError):
        await governing.store.transact(move_the_end)
    await governing.enqueue()
    await governing.assert_audit_is_whole()


@pytest.mark.spec("X12", "G12")
async def test_a_beginning_is_moved_only_from_where_it_was(governing: Governing) -> None:
    for number in range(5):
        await governing.enqueue(f"m{number}")
    (head,) = await governing.store.read(lambda tx: tx.audit.list_heads())
    later = governing.clock.now() + SECOND

    def purge(tx: Any) -> Any:
        return tx.audit._purge_chain(head, later, 2)

    assert (await governing.store.transact(purge)).count == 2
    assert await governing.store.transact(purge) is None  # it read where the chain began before
    (after,) = await governing.store.read(lambda tx: tx.audit.list_heads())
    assert after.base_seq == 2


@pytest.mark.spec("X13", "G5")
async def test_a_job_that_runs_again_since_it_was_listed_is_not_removed(
    governing: Governing,
) -> None:
    job = await held(governing)
    remove = lambda tx: tx.governance.remove([job.seq])  # noqa: E731
    assert await governing.store.transact(remove) == 0
    assert await find(governing, job.job_id) == job
    await governing.ack(job)
    assert await governing.store.transact(remove) == 1
