"""How leases are released: one transaction for a set of them, each item answered on its own."""

from collections.abc import Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

import msgspec

from ksana.base.errors import KsanaError, NotFoundError
from ksana.domain.queue.attempt_ends import Release, after_release, end_attempt
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.effects import ended_job
from ksana.domain.queue.jobs import LeasedJob, LeaseWithJob
from ksana.domain.queue.turns import Turns
from ksana.engine.queue.job_writer import write_held
from ksana.engine.queue.leasing import expire_leases
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue.leases import (
    LeaseAnswer,
    lease_lost,
    lease_with_job,
    refuse_other_lease,
)

KIBIBYTES_A_ROW: Final = 16
"""Results weigh in a set as so many rows: with its most of them it has some 16 MB."""


class Released(msgspec.Struct, frozen=True, gc=False):
    """What became of a job by a release, or had become by the same one before."""

    lease_id: str
    job_id: str
    state: str


Answer = TypeVar("Answer", Released, LeasedJob)


class ReleasedSet(msgspec.Struct, Generic[Answer], frozen=True):
    """A set of releases, answered in order, and all changes that were written with it."""

    answers: Sequence[Answer | KsanaError]
    changes: Sequence[JobChange]


def weigh(items: Sequence[Release]) -> int:
    """How much of a set they take up: their rows, and their results by size."""
    size = sum([len(item.result_json or "") + len(item.metrics_json or "") for item in items])
    return len(items) + size // (KIBIBYTES_A_ROW * 1024)


def release_compactly(tx: QueueTx, items: Sequence[Release]) -> ReleasedSet[Released]:
    """End attempts, each on its own, and answer only what became of the jobs. A repeat of the same
    release is answered the same; a late one is refused, and what its job has become by right is
    written down with it."""
    held = tx.leases.lock_with_jobs(list(dict.fromkeys([item.lease_id for item in items])))
    return _release(tx, items, held)


def release_together(tx: QueueTx, sets: Sequence[Sequence[Release]]) -> list[ReleasedSet[Released]]:
    """The same for sets of several callers that wait together: one set, its answers handed out. All
    changes are named with the first."""
    return _hand_out(sets, release_compactly(tx, [item for items in sets for item in items]))


def release_wholes(tx: QueueTx, sets: Sequence[Sequence[Release]]) -> list[ReleasedSet[LeasedJob]]:
    """The same for sets that are answered whole."""
    return _hand_out(sets, release_leases(tx, [item for items in sets for item in items]))


def _hand_out(
    sets: Sequence[Sequence[Release]], released: ReleasedSet[Answer]
) -> list[ReleasedSet[Answer]]:
    if len(sets) == 1:
        return [released]
    answers: list[ReleasedSet[Answer]] = []
    left = iter(released.answers)
    for items in sets:
        own = list(islice(left, len(items)))
        answers.append(ReleasedSet(own, () if answers else released.changes))
    return answers


def release_leases(tx: QueueTx, items: Sequence[Release]) -> ReleasedSet[LeasedJob]:
    """The same, and answer the leases and jobs whole."""
    now = tx.now
    found = tx.leases.lock_leases(list(dict.fromkeys([item.lease_id for item in items])))
    held = {
        lease_id: lease_with_job(one.lease, is_live, one.job)
        for lease_id, (one, is_live) in found.items()
    }
    released = _release(tx, items, held)
    written = {change.lease_id: change for change in released.changes}
    answers: list[LeaseAnswer] = []
    for item, answer in zip(items, released.answers, strict=True):
        if isinstance(answer, KsanaError):
            answers.append(answer)
            continue
        whole = found[item.lease_id][0]
        lease, job = whole.lease, whole.job
        change = written.get(item.lease_id)
        if change is not None:
            job = ended_job(job, change, now)
            lease = msgspec.structs.replace(
                lease,
                state="RELEASED",
                released_at=now,
                release_status=change.release_status,
                release_digest=change.release_digest,
            )
        answers.append(LeasedJob(lease, job))
    return ReleasedSet(answers, released.changes)


def _release(
    tx: QueueTx, items: Sequence[Release], held: dict[str, LeaseWithJob]
) -> ReleasedSet[Released]:
    now, turns = tx.now, Turns(tx.job_order)
    answers: list[Released | KsanaError] = []
    ended: dict[str, JobChange] = {}
    late: dict[str, LeaseWithJob] = {}
    for item in items:
        lease_id = item.lease_id
        one = held.get(lease_id)
        if one is None:
            answers.append(NotFoundError(f"there is no lease {lease_id}"))
            continue
        refusal = refuse_other_lease(one, item.job_id, item.proof)
        if refusal is not None:
            answers.append(refusal)
            continue
        digest, lease_state = item.digest(), one.lease_state
        if not one.is_live:
            if lease_state == "ACTIVE":
                late[lease_id] = one
            is_same = lease_state == "RELEASED" and one.release_digest == digest
            state = one.job_state
        elif lease_id not in ended:
            decision = after_release(one, item.status, item.may_retry)
            ended[lease_id] = end_attempt(one, decision, item, digest, now, turns)
            is_same, state = True, decision.state
        else:
            before, lease_state = ended[lease_id], "RELEASED"
            is_same, state = before.release_digest == digest, before.new
        answers.append(
            Released(lease_id, one.job_id, state) if is_same else lease_lost(lease_state)
        )
    written = list(ended.values())
    if written:
        write_held(tx, written)
    if late:
        written += expire_leases(tx, list(late.values()))
    return ReleasedSet(answers, written)
