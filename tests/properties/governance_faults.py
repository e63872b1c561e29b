"""Faults put into governance on purpose, each as somebody might make it. The model must find every
one of them."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ksana.base.instant import SECOND
from ksana.domain.governance import acks, gates, hand_out, jobs
from ksana.domain.governance.records import Who
from ksana.engine.governance import ending, pulling, writer
from ksana.engine.governance import sweep as sweeping
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.ports.retention import OldRows
from ksana.service.governance import transactions
from ksana.service.governance.service import GovernanceService
from ksana.store.sql.governance.due import SqlGovernanceDue
from ksana.store.sql.governance.jobs import SqlGovernanceJobs
from ksana.store.sql.governance.objects import SqlGates

Patch = pytest.MonkeyPatch
replace = msgspec.structs.replace


def read_gates_before_the_transaction(patch: Patch) -> None:
    """The service asks for the gates, and then for the jobs."""
    pull, lock_gates = GovernanceService._pull, SqlGates.lock_gates
    seen: list[Any] = []

    async def pull_later(self: Any, *args: Any) -> Any:
        settings = await self._store.read(lambda tx: tx.gates.list_gates())
        await asyncio.sleep(0)
        seen.append(settings)
        try:
            return await pull(self, *args)
        finally:
            seen.pop()

    patch.setattr(GovernanceService, "_pull", pull_later)
    patch.setattr(SqlGates, "lock_gates", lambda self: seen[-1] if seen else lock_gates(self))


def read_objects_before_the_transaction(patch: Patch) -> None:
    """The same for budgets: two pulls at once each find the last one there."""
    pull, decide = GovernanceService._pull, pulling.decide_hand_out
    seen: list[Any] = []

    async def pull_later(self: Any, *args: Any) -> Any:
        keys = ["memory:a", "experience:b", "cognition:c"]
        objects = await self._store.read(lambda tx: tx.objects.read(keys))
        await asyncio.sleep(0)
        seen.append(objects)
        try:
            return await pull(self, *args)
        finally:
            seen.pop()

    def decide_by_what_was_seen(job: Any, governed: Any, *rest: Any) -> Any:
        known = seen[-1].get(job.key, governed) if governed is not None else None
        if known is not None and known.auto_verify_budget > governed.auto_verify_budget:
            governed = replace(governed, auto_verify_budget=known.auto_verify_budget)
        return decide(job, governed, *rest)

    patch.setattr(GovernanceService, "_pull", pull_later)
    patch.setattr(pulling, "decide_hand_out", decide_by_what_was_seen)


def take_a_budget_twice(patch: Patch) -> None:
    count = hand_out._count_verification

    def twice(job: Any, old: Any, now: int) -> Any:
        once = count(job, old, now)
        left = max(0, once.new.auto_verify_budget - (old.epistemic_state == "uncertain"))
        return replace(once, new=replace(once.new, auto_verify_budget=left))

    patch.setattr(hand_out, "_count_verification", twice)


def judge_jobs_of_one_object_by_the_same_budget(patch: Patch) -> None:
    """In one pull each job is judged by what the object was before it."""
    decide, pull = pulling.decide_hand_out, pulling.pull_jobs
    first: dict[str, Any] = {}

    def decide_by_the_first(job: Any, governed: Any, *rest: Any) -> Any:
        return decide(job, first.setdefault(job.key, governed), *rest)

    def pull_afresh(*args: Any) -> Any:
        first.clear()
        return pull(*args)

    patch.setattr(pulling, "decide_hand_out", decide_by_the_first)
    patch.setattr("ksana.service.governance.service.pull_jobs", pull_afresh)


def verify_once_too_often(patch: Patch) -> None:
    """The limit of what cannot be known is off by one."""

    def has_passed_limit(governed: Any, action: str, rules: Any) -> bool:
        return hand_out_limit(governed, action, replace(rules, verify_limit=rules.verify_limit + 1))

    hand_out_limit = hand_out.has_reached_limit
    patch.setattr(hand_out, "has_reached_limit", has_passed_limit)
    patch.setattr(jobs, "has_reached_limit", has_passed_limit)


def double_follow_ups(patch: Patch) -> None:
    """The queued follow-up is not looked for, and nothing in the database minds."""
    decide = jobs.decide_follow_up

    def another(governed: Any, queued: Any, **more: Any) -> Any:
        change = decide(governed, None, **more)
        if change is None or change.new is None:
            return change
        return replace(change, new=replace(change.new, follow_key=None))

    patch.setattr(acks, "decide_follow_up", another)
    patch.setattr(transactions, "decide_follow_up", another)


def overlook_queued_follow_ups(patch: Patch) -> None:
    patch.setattr(SqlGovernanceJobs, "lock_follow_ups", lambda self, keys: {})


def forget_follow_ups(patch: Patch) -> None:
    patch.setattr(acks, "_follow", lambda *_: None)


def leave_a_follow_up_where_it_was(patch: Patch) -> None:
    """A new `next_action_at` does not move the follow-up that is queued."""
    decide = transactions.decide_follow_up

    def only_new(governed: Any, queued: Any, **more: Any) -> Any:
        return None if queued is not None else decide(governed, queued, **more)

    patch.setattr(transactions, "decide_follow_up", only_new)


def believe_any_token(patch: Patch) -> None:
    patch.setattr(ending, "refuse_holder", lambda *_: None)


def believe_an_old_token_of_a_running_job(patch: Patch) -> None:
    """The state is looked at, the token is not."""
    refuse = ending.refuse_holder

    def by_state(job: Any, token: Any, *rest: Any) -> Any:
        return refuse(job, job.lease_token if job.status == "running" else token, *rest)

    patch.setattr(ending, "refuse_holder", by_state)


def believe_a_late_worker(patch: Patch) -> None:
    refuse = ending.refuse_holder
    patch.setattr(
        ending,
        "refuse_holder",
        lambda job, token, _, wanted, rules: refuse(job, token, False, wanted, rules),
    )
    patch.setattr(ending, "_late", lambda *_: [])


def count_an_attempt_twice_on_expiry(patch: Patch) -> None:
    expire = jobs.expire
    patch.setattr(
        ending,
        "expire",
        lambda job, *rest: expire(replace(job, attempt=job.attempt + 1), *rest),
    )


def count_no_attempt_on_expiry(patch: Patch) -> None:
    expire = jobs.expire
    patch.setattr(
        ending,
        "expire",
        lambda job, *rest: expire(replace(job, attempt=job.attempt - 1), *rest),
    )


def try_once_too_often(patch: Patch) -> None:
    end = jobs._end_attempt

    def end_later(job: Any, *rest: Any) -> Any:
        change = end(replace(job, max_attempts=job.max_attempts + 1), *rest)
        return replace(change, old=job, new=replace(change.new, max_attempts=job.max_attempts))

    patch.setattr(jobs, "_end_attempt", end_later)


def expire_nothing(patch: Patch) -> None:
    patch.setattr(SqlGovernanceDue, "lock_expired", lambda self, limit: [])


def raise_dead_letters(patch: Patch) -> None:
    """The sweep queues dead letters again by itself."""
    wake = sweeping.wake_deferred

    def wake_all(tx: Any, limit: int, *who: Any) -> int:
        dead = tx.governance.list_jobs(GovernanceJobFilter(status="dead_letter"), None, limit)
        changes = [jobs.requeue(job, tx.now, has_follow_up=True) for job in dead]
        writer.write_changes(tx, Who(actor="sweep"), changes)
        return wake(tx, limit, *who)

    patch.setattr(sweeping, "wake_deferred", wake_all)


def purge_dead_letters(patch: Patch) -> None:
    """Neither the walk nor the statement asks what a row is."""

    def find_old(self: Any, before: int, after: Any, limit: int) -> OldRows:
        wanted = GovernanceJobFilter()
        ended = [job for job in self.list_jobs(wanted, None, 10_000) if job.finished_at is not None]
        return OldRows([job.seq for job in ended], after, is_end=True)

    def remove(self: Any, seqs: Any) -> int:
        self._session.wrote = bool(seqs)
        for seq in seqs:
            self._session._cursor.execute("DELETE FROM governance_jobs WHERE seq = ?", (seq,))
        return len(seqs)

    patch.setattr(SqlGovernanceJobs, "find_old", find_old)
    patch.setattr(SqlGovernanceJobs, "remove", remove)


def count_an_attempt_for_a_deferral(patch: Patch) -> None:
    defer = hand_out._defer

    def counted(job: Any, *rest: Any) -> Any:
        change = defer(job, *rest)
        return replace(change, new=replace(change.new, attempt=job.attempt + 1))

    patch.setattr(hand_out, "_defer", counted)


def wake_nobody(patch: Patch) -> None:
    patch.setattr(sweeping, "wake_deferred", lambda *_: 0)
    patch.setattr(transactions, "wake_deferred", lambda *_: 0)


def wake_whoever_waits_for_any_gate(patch: Patch) -> None:
    """One gate opens, and what waits for another is queued again."""
    patch.setattr(sweeping, "list_opened", lambda settings: [setting.key for setting in settings])


def overlook_scopes(patch: Patch) -> None:
    patch.setattr(gates, "covers", lambda scope, *_: scope == "")


def gate_nobody(patch: Patch) -> None:
    patch.setattr(hand_out, "is_gated", lambda _: False)


def refuse_the_same_ack(patch: Patch) -> None:
    patch.setattr(ending, "is_same_ack", lambda *_: False)


def move_objects_anywhere(patch: Patch) -> None:
    patch.setattr(acks, "can_move", lambda *_: True)
    patch.setattr("ksana.domain.governance.objects.check_object", lambda _: None)
    patch.setattr(writer, "check_object", lambda _: None)


def hand_out_before_the_time(patch: Patch) -> None:
    """What falls due later in the same second is handed out."""
    take = SqlGovernanceDue.take_due

    def take_early(self: Any, wanted: Any) -> Any:
        return take(self, replace(wanted, now=wanted.now // SECOND * SECOND + SECOND - 1))

    patch.setattr(SqlGovernanceDue, "take_due", take_early)


def take_no_notice_of_priority(patch: Patch) -> None:
    take = SqlGovernanceDue.take_due
    patch.setattr(
        SqlGovernanceDue,
        "take_due",
        lambda self, wanted: take(self, replace(wanted, order="run_at")),
    )


def stay_after_the_budget(patch: Patch) -> None:
    """The job fails, and its object is not moved."""
    patch.setattr(hand_out, "_after_end", lambda *_: None)


def keep_no_record_of_failures(patch: Patch) -> None:
    record = writer._record_job
    patch.setattr(
        writer,
        "_record_job",
        lambda tx, who, change: [] if change.audit == "job.fail" else record(tx, who, change),
    )


def requeue_with_the_attempts_it_had(patch: Patch) -> None:
    requeue = transactions.requeue

    def requeue_as_it_was(job: Any, *rest: Any) -> Any:
        change = requeue(job, *rest)
        return replace(change, new=replace(change.new, attempt=job.attempt))

    patch.setattr(transactions, "requeue", requeue_as_it_was)


FAULTS: dict[str, Callable[[Patch], None]] = {
    fault.__name__.replace("_", " "): fault
    for fault in (
        read_gates_before_the_transaction,
        read_objects_before_the_transaction,
        take_a_budget_twice,
        judge_jobs_of_one_object_by_the_same_budget,
        verify_once_too_often,
        double_follow_ups,
        overlook_queued_follow_ups,
        forget_follow_ups,
        leave_a_follow_up_where_it_was,
        believe_any_token,
        believe_an_old_token_of_a_running_job,
        believe_a_late_worker,
        count_an_attempt_twice_on_expiry,
        count_no_attempt_on_expiry,
        try_once_too_often,
        expire_nothing,
        raise_dead_letters,
        purge_dead_letters,
        count_an_attempt_for_a_deferral,
        wake_nobody,
        wake_whoever_waits_for_any_gate,
        overlook_scopes,
        gate_nobody,
        refuse_the_same_ack,
        move_objects_anywhere,
        hand_out_before_the_time,
        take_no_notice_of_priority,
        stay_after_the_budget,
        keep_no_record_of_failures,
        requeue_with_the_attempts_it_had,
    )
}
