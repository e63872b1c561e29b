"""A pull as one transaction: take what is due, read objects and gates, decide, write.

Who holds what: jobs are locked first, passing over those that another pull has locked; then the
objects whose verifications are counted; then the gates, if an object of high risk is among them. A
gate is set by who locks the same rows, so a hand-out that is committed after a gate was closed has
read it closed.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.ids import new_tokens
from ksana.base.instant import Instant, Micros
from ksana.domain.governance.changes import ObjectChange
from ksana.domain.governance.gates import GATED_TIER, is_gated
from ksana.domain.governance.hand_out import GovernanceLease, HandOut, decide_hand_out
from ksana.domain.governance.records import (
    VERIFYING,
    Gate,
    GovernanceJob,
    GovernedObject,
    Rules,
    Who,
)
from ksana.engine.governance.writer import write_changes
from ksana.ports.governance.tables import GovernanceTx, PullFilter

ROUNDS: Final = 20
"""How often a pull looks again for more, in place of jobs it had to defer or end."""


class Pull(msgspec.Struct, frozen=True, gc=False):
    """What a worker asks for."""

    worker_id: str
    limit: int
    lease_us: Micros
    now: Instant | None = None
    order: str = "run_at"
    actions: tuple[str, ...] = ()
    object_types: tuple[str, ...] = ()


class Pulled(msgspec.Struct, frozen=True, gc=False):
    """What it gets, and when to look again if that is nothing."""

    handed: list[HandOut]
    next_due_at: Instant | None = None


def pull_jobs(tx: GovernanceTx, pull: Pull, rules: Rules, who: Who) -> Pulled:
    """Hand out due jobs, each to one holder."""
    now = tx.now if pull.now is None else pull.now
    handed: list[HandOut] = []
    for _ in range(ROUNDS):
        wanted = PullFilter(
            now=now,
            limit=pull.limit - len(handed),
            order="priority" if pull.order == "priority" else "run_at",
            actions=pull.actions,
            object_types=pull.object_types,
        )
        jobs = tx.governance_due.take_due(wanted)
        if not jobs:
            break
        decided = _decide(tx, jobs, pull, rules)
        write_changes(
            tx,
            who,
            [one.job for one in decided],
            [one.governed for one in decided if one.governed is not None],
        )
        handed += [one for one in decided if one.is_handed_out]
        if len(jobs) < wanted.limit or len(handed) >= pull.limit:
            break
    next_due_at = None if handed else tx.governance_due.next_due()[0]
    return Pulled(handed=handed, next_due_at=next_due_at)


def _decide(
    tx: GovernanceTx, jobs: Sequence[GovernanceJob], pull: Pull, rules: Rules
) -> list[HandOut]:
    counted = {job.key for job in jobs if job.action in VERIFYING}
    others = {job.key for job in jobs} - counted
    objects: dict[str, GovernedObject] = {}
    if counted:
        objects = tx.objects.lock(list(counted))
    if others:  # of these only the gates want to know anything
        objects |= tx.objects.read_of_tier(list(others), GATED_TIER)
    gates: Sequence[Gate] = ()
    if any(is_gated(governed) for governed in objects.values()):
        gates = tx.gates.lock_gates()
    now = tx.now
    expires_at = now + pull.lease_us
    decided: list[HandOut] = []
    for job, token in zip(jobs, new_tokens(len(jobs)), strict=True):
        lease = GovernanceLease(pull.worker_id, token, expires_at)
        one = decide_hand_out(job, objects.get(job.key), gates, rules, lease, now)
        change: ObjectChange | None = one.governed
        if change is not None:  # another job of the same object is judged by what this one left
            objects[job.key] = change.new
        decided.append(one)
    return decided
