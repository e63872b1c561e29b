"""The queue's tables as a transaction sees them: `tx.jobs` reads and enters jobs, `tx.job_classes`
has their classes, `tx.job_order` says which are next, `tx.job_changes` moves them, `tx.leases` has
the leases, `tx.capacity` the units they share, `tx.gauges` what waits and runs now. What was
counted over time is the core's `tx.series`.

Nothing here decides: values come from `domain.queue`, and a table answers what it found or how many
rows its guard let through. None raises for a lost race. Locks are taken in one order: the pool of
capacity, allotments, jobs with their leases, gauges; allotments that are drawn from or added to
without the pool come last, and nobody waits for the pool then.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.admission import Capacity
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.escrow import Standing
from ksana.domain.queue.jobs import (
    DueJob,
    ExpiredClaim,
    Job,
    Lease,
    LeasedJob,
    LeaseWithJob,
    ReadyJob,
)
from ksana.domain.queue.turns import TurnNumbers
from ksana.ports.dead_letters import DeadLetterTx
from ksana.ports.handover import HandoverTx
from ksana.ports.pages import PageRows, Total
from ksana.ports.queue.capacity import CapacityTable
from ksana.ports.queue.job_classes import JobClassTable
from ksana.ports.retention import OldRows, WalkPlace
from ksana.ports.series import SeriesTx

Request = tuple[str, str]
"""An addon, and its own id for a job it submits."""

Line = tuple[int, str | None]
"""An urgency, and a fairness key or none."""


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs a listing shows; None means any."""

    state: str | None = None
    addon_id: str | None = None
    job_type: str | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None


class QueueDue(msgspec.Struct, frozen=True):
    """When something of the queue is due next; None means nothing waits."""

    job_at: Instant | None
    claim_at: Instant | None
    lease_at: Instant | None

    def soonest(self) -> Instant | None:
        """The first of them."""
        return min(
            (at for at in (self.job_at, self.claim_at, self.lease_at) if at is not None),
            default=None,
        )


class QueueGauges(msgspec.Struct, frozen=True):
    """What is so now. `arrivals` only grows: it changes whenever something became claimable."""

    queued: int
    running: int
    arrivals: int


class SubmitOpening(NamedTuple):
    """What a submit asks first: which jobs were submitted before. None: nothing waits."""

    before: dict[Request, Job]
    tails: dict[int, int | None]
    """The greatest turn that waits, by urgency."""
    heads: dict[int, int | None]
    """The least one, by urgency, where there are keys."""
    key_tails: dict[Line, int | None]
    """The greatest one of those with a key."""


class JobTable(Protocol):
    """Jobs, entered and read."""

    def insert(self, jobs: Sequence[Job], *, once: bool, is_checked: bool = False) -> int:
        """Enter jobs that wait; their numbers are given here. With `once`, those whose (addon_id,
        client_request_id) exists are passed over; answers how many were entered, so fewer than
        given means a duplicate, committed already. `is_checked`: this transaction found no
        duplicate; if another one is faster, it is run again. One that comes alone with the turn
        TAIL is entered so in any case, with the greatest turn that waits at its urgency by then."""
        ...

    def find_job(self, job_id: str) -> Job | None:
        """The job as last committed, or as this transaction left it."""
        ...

    def find_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """The same for many, by id. Ids that do not exist are missing."""
        ...

    def open_submit(self, requests: Sequence[Request], lines: Sequence[Line] = ()) -> SubmitOpening:
        """The jobs that addons submitted under their own ids, and what gives new jobs of these
        lines their turns: in one answer."""
        ...

    def lock_job(self, job_id: str) -> tuple[Job, bool] | None:
        """The job, held until the end of the transaction, and whether its claim, or its lease if it
        runs, lasts by the store's clock."""
        ...

    def lock_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Jobs by id, held in the order of ids. Ids that do not exist are missing."""
        ...

    def next_due(self) -> QueueDue:
        """When the first scheduled job, claim or lease is due: three ends of indexes."""
        ...

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        """Find up to `limit` jobs that ended before. Dead letters are passed over; a bounded number
        of jobs is looked at."""
        ...

    def remove(self, seqs: Sequence[int]) -> int:
        """Remove those of these jobs that have ended and are no dead letters, with their leases;
        answer how many."""
        ...

    def find_addons(self, seqs: Sequence[int]) -> dict[int, str]:
        """Whose jobs these are, by their numbers."""
        ...


class JobLists(Protocol):
    """Pages of jobs, newest first. Each costs about the same whatever the number of jobs."""

    def list_page(self, wanted: JobFilter, before: int | None, limit: int) -> PageRows[Job]:
        """Up to `limit` jobs and MAX_PAGE_BYTES, older than the job numbered `before`; `next_place`
        says where to go on. A job that comes or goes moves no other from page to page. With a job
        type, a span of time, or both a state and an addon, a page looks through LOOK_THROUGH jobs
        and may be short."""
        ...

    def count_depth(self) -> dict[str, list[Total]]:
        """How many jobs are READY, SCHEDULED, CLAIMED, PREPARING, LEASE_PENDING and RUNNING, by
        urgency: ready ones up to COUNT_LIMIT of each, the others among the first LOOK_UP."""
        ...


class ClaimOutlook(msgspec.Struct, frozen=True, gc=False):
    """What a claim asks first, in one answer."""

    has_due: bool
    """Whether a scheduled job's time has come by the store's clock."""
    used: int
    """Units in use, as last committed."""
    classes: int
    """Grows whenever classes are entered."""


class ClaimOpening(msgspec.Struct, frozen=True, gc=False):
    """What a claim that expects jobs finds: the capacity either held, or as it stands."""

    outlook: ClaimOutlook
    ready: list[ReadyJob]
    capacity: Capacity | None
    standing: Standing | None = None


class JobOrderTable(TurnNumbers, Protocol):
    """Which jobs are next: the ready ones in order, the scheduled ones that are due, claims that
    ran out. Reads only, and locks. The numbers of turns (see `TurnNumbers`) count what this
    transaction entered."""

    def outlook(self) -> ClaimOutlook:
        """What a claim asks before it takes anything. Unlocked."""
        ...

    def open_claim(
        self, class_id: int | None, limit: int, total: int | None, is_held: bool
    ) -> ClaimOpening:
        """The outlook, the capacity (only with a total) and the next ready jobs of a class or of
        any, held like `take_ready`: in this order, and in one answer. For a claim that expects to
        find some. Where the store is shared and the capacity need not be held, it is only looked
        at."""
        ...

    def list_due(self, limit: int) -> list[DueJob]:
        """Scheduled jobs whose time has come by the store's clock, held, passing over those that
        others hold."""
        ...

    def has_ready(self, class_ids: Sequence[int]) -> bool:
        """Whether a job of these classes is ready, as far as is known without a lock."""
        ...

    def take_ready(self, class_ids: Sequence[int] | None, limit: int) -> list[ReadyJob]:
        """The next ready jobs by urgency, turn and age, held and unchanged, passing over those that
        others hold: fewer where their payloads come to more than MAX_PAGE_BYTES, and one at least.
        None: of any class."""
        ...

    def list_expired_claims(self, limit: int) -> list[ExpiredClaim]:
        """Jobs whose claim ran out by the store's clock, held, passing over those that others
        hold."""
        ...

    def has_overdue(self, before: Instant) -> bool:
        """Whether a scheduled job that was due by then is not ready yet."""
        ...

    def next_ready_class(self, after: int) -> tuple[int, str] | None:
        """The least id above `after` of a class of which a job is ready, entered or not, and the id
        of such a job."""
        ...

    def count_ready(self, limit: int) -> int:
        """How many jobs could be claimed now, counted up to a limit."""
        ...

    def count_ready_ahead(self, job: Job, class_ids: Sequence[int], limit: int) -> int:
        """How many ready jobs of these classes are before this one, counted up to a limit."""
        ...

    def count_pending_ahead(
        self, job: Job, pending_at: Instant, addon_id: str | None = None
    ) -> int:
        """How many jobs wait for capacity before this one, of one addon or of all."""
        ...

    def best_pending_urgency(self, besides: str) -> int | None:
        """The urgency of the most urgent job that waits for capacity, besides this one."""
        ...


class JobChangeTable(Protocol):
    """The guarded writes of jobs, one for each move (`domain.queue.changes.Move`). Each takes the
    changes of its move and answers how many happened: those whose job is still where the guard
    says. `engine.queue.job_writer` is the only caller.

    `is_held`: this transaction has locked the jobs and seen that every guard holds. It is then
    answered without a wait, as if all had happened; should a guard say no all the same, the
    transaction fails."""

    def promote(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Scheduled becomes ready, with its turn. Guard: still scheduled."""
        ...

    def claim(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Ready becomes claimed, with a new token. Guard: still ready."""
        ...

    def start(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Ready becomes running under a new lease. Guard: still ready, and so many attempts were
        made."""
        ...

    def grant(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Claimed becomes running under a new lease. Guard: claimed under this token, the claim
        lasts by the store's clock, and so many attempts were made."""
        ...

    def deny(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Claimed waits for capacity; the claim is extended. Guard: claimed under this token, and
        the claim lasts by the store's clock."""
        ...

    def report(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Claimed gets another state of the claimed ones, and its note; the claim is extended.
        Guard: that state, this token, and the claim lasts by the store's clock."""
        ...

    def cancel(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Ends as CANCELED. Guard: that state; no running job is ended so."""
        ...

    def finish(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Running ends, and its lease with it. Guard: running under this very lease, by id and
        token."""
        ...

    def requeue(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Running is queued again, without its lease (see `LeaseTable.keep`). Guard: running under
        this very lease, by id and token."""
        ...

    def take_back(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        """Claimed is queued again. Guard: claimed under this token. That the claim ran out was
        found when it was locked."""
        ...

    def note_running(self, jobs: Sequence[Job], is_held: bool = False) -> int:
        """Progress and notes of running jobs, as given; no move. Guard: running under this very
        lease."""
        ...

    def request_cancel(self, seq: int, reason: str | None) -> bool:
        """Mark a running job as to be cancelled; no move. Guard: running."""
        ...


class LeaseTable(Protocol):
    """Leases. A job's last one lies in the job's row and is written by the moves of jobs; the
    earlier ones lie in a table of their own."""

    def find_lease(self, lease_id: str) -> Lease | None:
        """The lease as last committed."""
        ...

    def expect_claim(self, class_id: int | None, limit: int) -> None:
        """Say how `tx.job_order.open_claim` will be called for a total that is not held: what it
        asks may then be asked together with the leases that are locked next."""

    def lock_leases(self, lease_ids: Sequence[str]) -> dict[str, tuple[LeasedJob, bool]]:
        """Leases with their jobs, these held, and whether each is active and lasts by the store's
        clock. Ids that do not exist are missing. A payload of more than 16 KiB is left out:
        `payload_json` is empty."""
        ...

    def lock_with_jobs(self, lease_ids: Sequence[str]) -> dict[str, LeaseWithJob]:
        """Leases by id with what ending their attempts takes of their jobs, these held."""
        ...

    def list_of_job(self, job: Job) -> list[Lease]:
        """Every lease of the job, oldest first."""
        ...

    def list_active(self, limit: int) -> list[Lease]:
        """The first to run out first."""
        ...

    def list_expired(self, limit: int) -> list[LeaseWithJob]:
        """Active leases that ran out by the store's clock, the first to run out first, with what
        ending them takes of their jobs; held, passing over those that others hold."""
        ...

    def extend(self, leases: Sequence[LeasedJob], is_held: bool = False) -> int:
        """Leases last longer, as given. Guard: active, and this token. That they last was found
        when they were locked. `is_held`: as for the moves of jobs."""
        ...

    def keep(self, changes: Sequence[JobChange]) -> None:
        """Keep the leases that end with these changes, where their jobs' rows do not: those whose
        job is queued again, and those granted before leases lay in rows of jobs."""
        ...


class GaugeTable(Protocol):
    """How many jobs wait and run now."""

    def add(self, queued: int, running: int, arrivals: int, classes: int = 0) -> None:
        """Change the gauges; written once for all functions of a commit. `classes`: so many were
        entered."""
        ...

    def read(self) -> QueueGauges:
        """The gauges, what this transaction changed included."""
        ...

    def recount(self) -> QueueGauges:
        """Compare the gauges with the rows, both read at one instant, and put them right by the
        difference: what others commit meanwhile stays counted."""
        ...


class QueueTx(SeriesTx, DeadLetterTx, HandoverTx, Protocol):
    """A transaction with the queue's tables."""

    @property
    def jobs(self) -> JobTable: ...

    @property
    def job_lists(self) -> JobLists: ...

    @property
    def job_classes(self) -> JobClassTable: ...

    @property
    def job_order(self) -> JobOrderTable: ...

    @property
    def job_changes(self) -> JobChangeTable: ...

    @property
    def leases(self) -> LeaseTable: ...

    @property
    def capacity(self) -> CapacityTable: ...

    @property
    def gauges(self) -> GaugeTable: ...
