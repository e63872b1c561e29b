"""Governance as callers use it: check, one transaction, tell who waits. No HTTP and no SQL."""

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import InvalidError, KsanaError, UnavailableError
from ksana.base.instant import Instant, Micros, format_instant
from ksana.domain.governance.gates import EVERYTHING
from ksana.domain.governance.jobs import (
    AHEAD_GRACE,
    Ack,
    AttemptFailure,
    NewGovernanceJob,
    Renewal,
)
from ksana.domain.governance.objects import ObjectFields, check_status
from ksana.domain.governance.records import (
    GATES,
    Gate,
    GovernanceJob,
    GovernedObject,
    Rules,
    Who,
    object_key,
)
from ksana.engine.core.long_poll import LongPoll, Waiter
from ksana.engine.core.turns import WaitTurns
from ksana.engine.governance.ending import (
    Ended,
    ack_jobs,
    fail_jobs,
    new_job_ids,
    not_found,
    renew_jobs,
)
from ksana.engine.governance.pulling import Pull, Pulled, pull_jobs
from ksana.engine.governance.sweep import GovernanceSweep
from ksana.engine.governance.writer import LostRaceError
from ksana.ports.governance.tables import GovernanceJobFilter, GovernanceTx, ObjectFilter
from ksana.ports.pages import PageRows
from ksana.ports.store import Store
from ksana.service.governance.transactions import (
    Enqueued,
    enqueue_job,
    object_not_found,
    put_object,
    requeue_job,
    requeue_matching,
    set_gate,
)

P = ParamSpec("P")
T = TypeVar("T")

MAX_ITEMS: Final = 500
REQUEUE_BATCH: Final = 500
RACES: Final = 5
"""How often a decision is made again because another was faster."""
AT_ONCE: Final = 4
"""Pulls of those who wait that try at the same time, on a shared store."""


class GovernanceJobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first, and the number to go on before."""

    jobs: list[GovernanceJob]
    next_before: int | None


class GovernanceService:
    """Enqueue, pull, ack, fail, renew, requeue; objects and gates."""

    def __init__(self, store: Store, clock: Clock, rules: Rules) -> None:
        self._store = store
        self._clock = clock
        self.rules = rules
        self.waiting: LongPoll[GovernanceJob] = LongPoll(
            clock, self._read_mark, lambda: not store.sole
        )
        self.sweep = GovernanceSweep(store, clock, self.waiting.notify_all)
        self._turns = WaitTurns(clock, AT_ONCE)
        self.on_gate: Callable[[], None] = lambda: None
        """A gate was set here: tells the other instances."""

    # Jobs

    def new_id(self) -> str:
        """An id for a job to be."""
        return new_job_ids(self._clock.now(), 1)[0]

    async def enqueue(self, new: NewGovernanceJob, who: Who) -> Enqueued:
        """Put a job in the queue, once for each idempotency key."""
        made = await self._store.transact(enqueue_job, new, self.rules, who)
        if isinstance(made, KsanaError):
            raise made
        if not made.is_duplicate:
            self.waiting.notify([made.job])
        return made

    async def pull(
        self, pull: Pull, who: Who, wait_us: Micros = 0, is_gone: Callable[[], bool] = bool
    ) -> Pulled:
        """Hand out due jobs; if there are none, wait for some. A caller that has gone by then gets
        none: they would be lost until their leases ran out."""
        self._check_now(pull.now)
        if wait_us <= 0:
            return await self._pull(pull, who)
        until = self._clock.now() + wait_us
        with Waiter(self.waiting, lambda job: _concerns(pull, job)) as waiter:
            while True:
                pulled = await self._pull_in_turn(pull, who, until)
                if pulled.handed or not await self._wait(waiter, pulled, until) or is_gone():
                    return pulled

    async def _wait(self, waiter: Waiter[GovernanceJob], pulled: Pulled, until: Instant) -> bool:
        """Wait for a change, or for the next job's time; False when the caller's time is over."""
        due_at = pulled.next_due_at
        if due_at is None or due_at <= self._clock.now():  # what is due is not for this caller
            return await self.waiting.wait(waiter, until)
        if await self.waiting.wait(waiter, min(due_at, until)):
            return True
        return self._clock.now() < until and not self.waiting.is_closed

    async def _pull_in_turn(self, pull: Pull, who: Who, until: Instant) -> Pulled:
        """A pull of one who waits anyway: a few at a time on a store that is shared."""
        if self._store.sole:
            return await self._pull(pull, who)
        if not await self._turns.take(until):
            return Pulled([])
        try:
            return await self._pull(pull, who)
        finally:
            self._turns.give_back()

    async def _pull(self, pull: Pull, who: Who) -> Pulled:
        pulled = await self._transact(pull_jobs, pull, self.rules, who)
        if pulled.handed:
            expires_at = pulled.handed[0].job.job.lease_expires_at
            assert expires_at is not None
            self.sweep.note_lease(expires_at)
        return pulled

    def _check_now(self, now: Instant | None) -> None:
        if now is None or self.rules.allow_simulation:
            return
        ours = self._clock.now()
        if now > ours + AHEAD_GRACE:
            raise InvalidError(
                f"'now': {format_instant(now)} is ahead of ours ({format_instant(ours)}) by more"
                " than 5 s; allowed only with governance.allow_simulation",
                field="now",
            )

    async def ack(self, ack: Ack, who: Who) -> GovernanceJob:
        """End one job. Raise LEASE_LOST when it is not, or no longer, the caller's."""
        return _or_raise((await self.ack_batch([ack], who))[0])

    async def ack_batch(self, acks: Sequence[Ack], who: Who) -> list[Ended]:
        """End jobs, each answered on its own."""
        ended = await self._transact(ack_jobs, acks, self.rules, who)
        # A follow-up may be due at once, and a late ack may have put its job back in line.
        self.waiting.notify_all()
        return ended

    async def fail(self, failure: AttemptFailure, who: Who) -> GovernanceJob:
        """End one attempt. Raise LEASE_LOST when it is not, or no longer, the caller's."""
        return _or_raise((await self.fail_batch([failure], who))[0])

    async def fail_batch(self, failures: Sequence[AttemptFailure], who: Who) -> list[Ended]:
        """End attempts, each answered on its own."""
        ended = await self._transact(fail_jobs, failures, self.rules, who)
        self.waiting.notify_all()
        return ended

    async def renew(self, renewal: Renewal, lease_us: Micros) -> GovernanceJob:
        """Hold a job longer."""
        return _or_raise((await self.renew_batch([renewal], lease_us))[0])

    async def renew_batch(self, renewals: Sequence[Renewal], lease_us: Micros) -> list[Ended]:
        """Hold jobs longer, each answered on its own."""
        renewed = await self._store.transact(renew_jobs, renewals, lease_us, self.rules)
        for one in renewed:
            if not isinstance(one, KsanaError) and one.lease_expires_at is not None:
                self.sweep.note_lease(one.lease_expires_at)
                break  # they all end at the same time
        return renewed

    async def get_job(self, job_id: str) -> GovernanceJob:
        """One job."""
        found: GovernanceJob | None = await self._store.read(lambda tx: tx.governance.find(job_id))
        if found is None:
            raise not_found(job_id)
        return found

    async def list_jobs(
        self, wanted: GovernanceJobFilter, before: int | None, limit: int
    ) -> GovernanceJobPage:
        """One page. A job that comes or goes meanwhile moves no other from page to page."""
        jobs: list[GovernanceJob] = await self._store.read_list(
            lambda tx: tx.governance.list_jobs(wanted, before, limit + 1)
        )
        has_more = len(jobs) > limit
        return GovernanceJobPage(
            jobs=jobs[:limit], next_before=jobs[limit - 1].seq if has_more else None
        )

    async def requeue(self, job_id: str, who: Who) -> GovernanceJob:
        """Queue one dead letter again."""
        job = await self._store.transact(requeue_job, job_id, who)
        self.waiting.notify([job])
        return job

    async def requeue_all(self, wanted: GovernanceJobFilter, who: Who) -> int:
        """Queue all dead letters again that match; answer how many."""
        wanted = msgspec.structs.replace(wanted, status="dead_letter")
        before: int | None = None
        total = 0
        while True:
            count, before = await self._store.transact(
                requeue_matching, wanted, before, REQUEUE_BATCH, who
            )
            total += count
            if count:
                self.waiting.notify_all()
            if before is None:
                return total

    async def count_dead_letters(self, wanted: GovernanceJobFilter) -> int:
        """How many dead letters match."""
        wanted = msgspec.structs.replace(wanted, status="dead_letter")
        before: int | None = None
        total = 0
        while True:
            page = await self.list_jobs(wanted, before, REQUEUE_BATCH)
            total += len(page.jobs)
            before = page.next_before
            if before is None:
                return total

    # Objects

    async def put_object(
        self, object_type: str, object_id: str, fields: ObjectFields, who: Who
    ) -> tuple[GovernedObject, bool]:
        """Register an object, or put another in its place; answer it and whether it is new."""
        return await self._change(object_type, object_id, fields, who, is_replaced=True)

    async def patch_object(
        self, object_type: str, object_id: str, fields: ObjectFields, who: Who
    ) -> GovernedObject:
        """Change what is given of an object."""
        return (await self._change(object_type, object_id, fields, who, is_replaced=False))[0]

    async def _change(
        self,
        object_type: str,
        object_id: str,
        fields: ObjectFields,
        who: Who,
        *,
        is_replaced: bool,
    ) -> tuple[GovernedObject, bool]:
        changed = await self._transact(
            put_object, object_type, object_id, fields, self.rules, who, is_replaced=is_replaced
        )
        self.waiting.notify_all()
        return changed

    async def get_object(self, object_type: str, object_id: str) -> GovernedObject:
        """One object."""
        key = object_key(object_type, object_id)
        found: GovernedObject | None = await self._store.read(lambda tx: tx.objects.find(key))
        if found is None:
            raise object_not_found(object_type, object_id)
        return found

    async def list_objects(
        self, wanted: ObjectFilter, after: str, limit: int
    ) -> PageRows[GovernedObject]:
        """One page, by type and id. `is_cut` where more follow."""
        if wanted.id_prefix and wanted.object_type is None:
            raise InvalidError("'id_prefix' needs 'object_type'", field="id_prefix")
        if not wanted.id_prefix.isprintable():
            raise InvalidError("'id_prefix': ids are printable", field="id_prefix")
        if wanted.object_type is not None and wanted.status is not None:
            check_status(wanted.object_type, wanted.status)
        page: PageRows[GovernedObject] = await self._store.read_list(
            lambda tx: tx.objects.list_page(wanted, after, limit)
        )
        return page

    # Gates

    async def set_gate(
        self, gate: str, scope: str, state: str, reason: str | None, who: Who
    ) -> tuple[Gate, int]:
        """Set a gate; answer the setting and how many jobs it woke."""
        setting, woken = await self._store.transact(set_gate, gate, scope, state, reason, who)
        self.sweep.pump.signal()
        self.on_gate()
        if woken:
            self.waiting.notify_all()
        return setting, woken

    async def list_gates(self) -> list[Gate]:
        """Every setting, each gate's own first."""
        settings: list[Gate] = await self._store.read(lambda tx: tx.gates.list_gates())
        order: dict[str, int] = {name: place for place, name in enumerate(GATES)}
        return sorted(settings, key=lambda one: (order[one.gate], one.scope != EVERYTHING))

    # Inside

    async def _transact(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Decide again where another transaction was faster."""
        for _ in range(RACES):
            try:
                return await self._store.transact(fn, *args, **kwargs)
            except LostRaceError:
                continue
        raise UnavailableError("the object is being changed by others: try again")

    async def _read_mark(self) -> int:
        return await self._store.read(_mark)


def _mark(tx: GovernanceTx) -> int:
    return tx.audit.mark()


def _concerns(pull: Pull, job: GovernanceJob) -> bool:
    return (not pull.actions or job.action in pull.actions) and (
        not pull.object_types or job.object_type in pull.object_types
    )


def _or_raise(ended: Ended) -> GovernanceJob:
    if isinstance(ended, KsanaError):
        raise ended
    return ended
