"""The built-in worker (G13), off by default. It fades and archives by itself, a small batch at a
time with a pause between, and has the other actions performed by a webhook or a callable.

Decay and archive are handed out and acknowledged in one transaction: nobody has to hold a lease,
and a worker that dies has done all of a batch or nothing of it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import UNSET, UnsetType

from ksana.base.clock import Clock
from ksana.base.durations import format_duration
from ksana.base.errors import KsanaError
from ksana.base.instant import MILLISECOND, MINUTE, Instant, Micros
from ksana.domain.governance.decay import decay, next_decay_at
from ksana.domain.governance.jobs import Ack, AttemptFailure, digest_of
from ksana.domain.governance.objects import NO_FIELDS, ObjectFields
from ksana.domain.governance.records import (
    LEASE_US,
    MAX_ERROR,
    RETRY_DELAY_US,
    GovernanceJob,
    GovernedObject,
    Rules,
    Who,
)
from ksana.engine.core.pump import Pump
from ksana.engine.governance.ending import Ended, ack_jobs, fail_jobs
from ksana.engine.governance.performing import Perform, Performed
from ksana.engine.governance.pulling import Pull, pull_jobs
from ksana.engine.governance.writer import LostRaceError
from ksana.ports.governance.tables import GovernanceTx
from ksana.ports.store import Store

NAME: Final = "built-in"
WHO: Final = Who(actor=NAME)
OWN_ACTIONS: Final = ("decay", "archive")
ASKED_ACTIONS: Final = ("verify", "revalidate", "reinstate-check")
BATCH: Final = 50
"""Jobs in one transaction: so few that a worker who pulls at the same time hardly waits."""
AT_ONCE: Final = 16
"""Jobs that are performed elsewhere at the same time."""
PERFORM_US: Final[Micros] = MINUTE
"""How long an action may take elsewhere. Its lease is twice as long, at least: the rest is for
writing down what came of it."""
PAUSE: Final[Micros] = 20 * MILLISECOND
"""Between two batches: what serves callers goes first."""


def work_off(tx: GovernanceTx, limit: int, rules: Rules) -> int:
    """Fade and archive what is due; answer how many jobs were worked off."""
    pull = Pull(worker_id=NAME, limit=limit, lease_us=LEASE_US, actions=OWN_ACTIONS)
    jobs = [one.job.job for one in pull_jobs(tx, pull, rules, WHO).handed]
    if not jobs:
        return 0
    objects = tx.objects.read(sorted({job.key for job in jobs}))
    acks = [_ack_own(job, objects.get(job.key), tx.now) for job in jobs]
    for ended in ack_jobs(tx, acks, rules, WHO):
        if isinstance(ended, KsanaError):
            raise ended
    return len(jobs)


def _ack_own(job: GovernanceJob, governed: GovernedObject | None, now: Instant) -> Ack:
    fields = NO_FIELDS
    next_at: Instant | UnsetType | None = UNSET
    if job.action == "decay" and governed is not None:
        faded = decay(governed, now)
        fields = ObjectFields(weight=faded.weight)
        next_at = next_decay_at(faded, now) or UNSET
    return Ack(
        job_id=job.job_id,
        token=job.lease_token,
        next_action_at=next_at,
        next_action=None if next_at is UNSET else "decay",
        fields=fields,
        digest=digest_of(job.job_id, job.lease_token),
    )


class GovernanceWorker:
    """Two loops, on pumps: what it does itself, and what it has done by others. Without `perform`
    it leaves the latter to other workers."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rules: Rules,
        interval_us: Micros,
        perform: Perform | None = None,
        *,
        perform_us: Micros = PERFORM_US,
        count_free: Callable[[], int] = lambda: AT_ONCE,
    ) -> None:
        """`perform_us` bounds an action that is performed elsewhere; `count_free` says how many
        more may be, now."""
        self._store = store
        self._clock = clock
        self._rules = rules
        self._interval_us = interval_us
        self._perform = perform
        self._perform_us = perform_us
        self._lease_us = max(LEASE_US, 2 * perform_us)
        self._count_free = count_free
        self.pump = Pump("governance-worker", clock, self._step, interval_us)
        self.asking = Pump("governance-asking", clock, self._ask, interval_us)
        """What others perform takes as long as they like, and holds up nothing here."""

    async def _step(self) -> Instant | None:
        try:
            worked = await self._store.transact(work_off, BATCH, self._rules)
        except LostRaceError:
            worked = BATCH
        return self._clock.now() + (PAUSE if worked >= BATCH else self._interval_us)

    async def _ask(self) -> Instant | None:
        asked = 0 if self._perform is None else await self._perform_due(self._perform)
        return self._clock.now() + (PAUSE if asked >= AT_ONCE else self._interval_us)

    async def _perform_due(self, perform: Perform) -> int:
        limit = min(AT_ONCE, self._count_free())
        if limit <= 0:
            return 0
        pull = Pull(worker_id=NAME, limit=limit, lease_us=self._lease_us, actions=ASKED_ACTIONS)
        asked_at = self._clock.boottime()
        pulled = await self._store.transact(pull_jobs, pull, self._rules, WHO)
        jobs = [one.job.job for one in pulled.handed]
        if jobs:
            keys = sorted({job.key for job in jobs})
            objects: dict[str, GovernedObject] = await self._store.read(
                lambda tx: tx.objects.read(keys)
            )
            if self._clock.boottime() >= asked_at + self._lease_us - self._perform_us:
                return len(jobs)  # frozen meanwhile: another may have them before we are done
            await asyncio.gather(
                *(self._perform_one(perform, job, objects.get(job.key)) for job in jobs)
            )
        return len(jobs)

    async def _perform_one(
        self, perform: Perform, job: GovernanceJob, governed: GovernedObject | None
    ) -> None:
        performed = await self._perform_in_time(perform, job, governed)
        if performed.error is None:
            refusal = await self._ack(job, performed)
            if refusal is None:
                return
            performed = Performed(error=refusal)
        failure = AttemptFailure(
            job_id=job.job_id,
            error=(performed.error or "")[:MAX_ERROR],
            token=job.lease_token,
            retry_delay_us=RETRY_DELAY_US,
        )
        await self._store.transact(fail_jobs, [failure], self._rules, WHO)

    async def _perform_in_time(
        self, perform: Perform, job: GovernanceJob, governed: GovernedObject | None
    ) -> Performed:
        """What it answers, while the lease lasts."""
        over = asyncio.Event()
        task = asyncio.ensure_future(perform(job, governed))
        task.add_done_callback(lambda _: over.set())
        try:
            if not await self._clock.wait(over, self._clock.now() + self._perform_us):
                return Performed(error=f"not done within {format_duration(self._perform_us)}")
            return task.result()
        except Exception as error:
            return Performed(error=f"{type(error).__name__}: {error}")
        finally:
            task.cancel()

    async def _ack(self, job: GovernanceJob, performed: Performed) -> str | None:
        ack = Ack(
            job_id=job.job_id,
            token=job.lease_token,
            next_action_at=performed.next_action_at,
            next_action=performed.next_action,
            fields=performed.fields,
            digest=digest_of(job.job_id, job.lease_token),
        )
        while True:
            try:
                ended: list[Ended] = await self._store.transact(ack_jobs, [ack], self._rules, WHO)
            except LostRaceError:
                continue
            one = ended[0]
            return one.message if isinstance(one, KsanaError) else None
