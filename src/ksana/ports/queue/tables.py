"""The queue's tables as a transaction sees them: jobs, lines and gauges in `tx.queue`, leases and
capacity in `tx.leases`, what was counted over time in `tx.counts`.

Locks are taken in one order: capacity, leases, jobs, gauges. Whoever frees or admits units takes
the capacity first. Every method that may not happen answers a bool or a count; none raises for a
lost race.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain.queue.admission import Room
from ksana.domain.queue.jobs import Hold, Job, Lease, Line, ReadyJob, Settled
from ksana.ports.store import Tx


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs a listing shows; None means any."""

    state: str | None = None
    addon_id: str | None = None
    job_type: str | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None


class Due(msgspec.Struct, frozen=True):
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


class Gauges(msgspec.Struct, frozen=True):
    """What is so now. `arrivals` only grows: it changes whenever something became claimable."""

    queued: int
    running: int
    arrivals: int


class QueueTable(Protocol):
    """Jobs."""

    def insert(self, jobs: Sequence[Job], *, once: bool) -> int:
        """Insert jobs that wait; their numbers are given here. With `once`, those whose (addon_id,
        client_request_id) exists are passed over; answers how many were inserted, so fewer than
        given means a duplicate, committed already."""
        ...

    def enter_lines(self, lines: Sequence[Line]) -> None:
        """Make lines known; those known already are passed over."""
        ...

    def line_mark(self) -> tuple[int, int]:
        """A value that changes when a line is added."""
        ...

    def list_lines(self) -> list[Line]:
        """Every line."""
        ...

    def find_job(self, job_id: str) -> Job | None: ...

    def find_job_by_request(self, addon_id: str, client_request_id: str) -> Job | None: ...

    def lock_job(self, job_id: str) -> tuple[Job, bool] | None:
        """The job, held, and whether its claim lasts by the store's clock."""
        ...

    def lock_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Jobs by id, held."""
        ...

    def list_jobs(self, wanted: JobFilter, before: int | None, limit: int) -> list[Job]:
        """Newest first, older than the job numbered `before`."""
        ...

    def turn(self, urgency: int, fairness_key: str | None) -> int:
        """The turn of one more job that becomes ready in this transaction (see
        `domain.queue.next_turn`)."""
        ...

    def front_turn(self, urgency: int) -> int:
        """The least turn that waits: the place of a job that comes back."""
        ...

    def promote_due(self, limit: int) -> list[int]:
        """Move scheduled jobs whose time has come, by the store's clock, to the ready ones; answer
        their lines."""
        ...

    def has_ready(self, line_ids: Sequence[int]) -> bool:
        """Whether a job of these lines is ready, as far as is known without a lock."""
        ...

    def take_ready(self, line_ids: Sequence[int] | None, limit: int) -> list[ReadyJob]:
        """The next ready jobs in order, held and unchanged, passing over those that others hold.
        None: of any line."""
        ...

    def claim_ready(self, jobs: Sequence[ReadyJob], worker_id: str, until: Instant) -> int:
        """Taken jobs become CLAIMED."""
        ...

    def run_ready(self, grants: Sequence[tuple[int, str]], worker_id: str) -> int:
        """Taken jobs become RUNNING; each comes as (seq, lease_id)."""
        ...

    # The next three write events that differ only by what the rows of the jobs hold themselves: for
    # many jobs at once this costs a fraction of events that are put together here. They say the
    # same words as those for a few.

    def tell_grants(self, job_seqs: Sequence[int], worker_json: str) -> None:
        """Jobs that have just become RUNNING: JOB_CLAIMED, LEASE_GRANTED, JOB_RUNNING."""
        ...

    def tell_released(self, job_seqs: Sequence[int], status: str) -> None:
        """Jobs whose leases have just been released, as long as they name them: LEASE_RELEASED."""
        ...

    def tell_done(self, job_seqs: Sequence[int], reason: str) -> None:
        """Jobs that have just become DONE: JOB_DONE."""
        ...

    def grant_if_claimed(self, job_id: str, lease_id: str) -> bool:
        """A job whose claim lasts becomes RUNNING, attempts + 1."""
        ...

    def deny_if_claimed(self, job_id: str, next_retry_at: Instant, until: Instant) -> bool:
        """A job whose claim lasts becomes LEASE_PENDING and keeps its claim."""
        ...

    def report_if_claimed(
        self, job: Job, to: str, progress: float | None, note: str | None, until: Instant
    ) -> bool:
        """Move a job whose claim lasts from the state it was seen in, with its note; the claim is
        extended."""
        ...

    def report_if_running(
        self, job_id: str, lease_id: str, progress: float | None, note: str | None
    ) -> bool: ...

    def cancel_if_waiting(self, job_id: str, reason: str | None) -> bool:
        """A job that does not run becomes CANCELED."""
        ...

    def request_cancel_if_running(self, job_id: str, reason: str | None) -> bool: ...

    def end_running(self, ends: Sequence[Settled]) -> int:
        """Running jobs end, each guarded by its lease."""
        ...

    def requeue_running(self, ends: Sequence[Settled]) -> int:
        """Running jobs are queued again, each guarded by its lease."""
        ...

    def list_expired_claims(self, limit: int) -> list[Job]:
        """Jobs whose claim ran out by the store's clock, held."""
        ...

    def requeue_expired(self, jobs: Sequence[Job]) -> int:
        """They become QUEUED again, at the front of their priority."""
        ...

    def next_due(self) -> Due: ...

    def best_pending_urgency(self, besides: str) -> int | None:
        """The most urgent other job that waits for capacity."""
        ...

    def count_pending_ahead(self, job: Job, pending_at: Instant) -> int: ...

    def count_ready_ahead(self, job: Job, limit: int) -> int: ...

    def count(
        self,
        *,
        queued: int = 0,
        running: int = 0,
        leases: int = 0,
        units: int = 0,
        arrivals: int = 0,
    ) -> None:
        """Change the gauges, and the rollups from which their history is read."""
        ...

    def tally(self, metric: str, count: int = 1) -> None:
        """Count something in its minute."""
        ...

    def observe(self, metric: str, spans: Mapping[int, int]) -> None:
        """Add counts by bucket (see `domain.histogram`) to the minute's histogram."""
        ...

    def gauges(self) -> Gauges: ...

    def recount(self) -> Gauges:
        """Count in truth and put the gauges right."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` jobs that ended before, with their leases."""
        ...


class LeaseTable(Protocol):
    """Leases and the capacity they share."""

    def lock_room(self, total: int) -> Room:
        """The capacity, held until the end of the transaction."""
        ...

    def try_lock_room(self, total: int) -> Room | None:
        """The same; None, at once, if another transaction holds it."""
        ...

    def room(self, total: int) -> Room:
        """The capacity as last committed."""
        ...

    def set_room(self, room: Room) -> None:
        """Write the capacity, under its lock."""
        ...

    def free(self, units: int, leases: int) -> None:
        """Give units back, with the end of so many leases. Needs no lock: it is written last,
        relative to what is there."""
        ...

    def drop_reserve(self, job_id: str) -> None:
        """Units kept for this job are free again."""
        ...

    def sum_of_addon(self, addon_id: str) -> int:
        """Units held by an addon's active leases."""
        ...

    def sum_active(self) -> tuple[int, int]:
        """(leases, units) in truth."""
        ...

    def insert(self, leases: Sequence[Lease], job_seqs: Sequence[int]) -> None:
        """New leases, each with the number of its job."""
        ...

    def insert_of_jobs(self, job_seqs: Sequence[int], ttl_sec: float, expires_at: Instant) -> int:
        """New leases of jobs that have just become RUNNING and name them; answers how many."""
        ...

    def find_lease(self, lease_id: str) -> Lease | None: ...

    def lock_lease(self, lease_id: str) -> tuple[Lease, bool] | None:
        """The lease, held, and whether it is active and lasts by the store's clock."""
        ...

    def lock_leases(self, lease_ids: Sequence[str]) -> dict[str, tuple[Lease, bool]]: ...

    def lock_holds(self, lease_ids: Sequence[str]) -> dict[str, Hold]:
        """Leases by id with what ending their attempts takes of their jobs, both held."""
        ...

    def list_of_job(self, job_seq: int) -> list[Lease]:
        """Every lease of the job with this number, oldest first."""
        ...

    def list_active(self, limit: int) -> list[Lease]:
        """The first to run out first."""
        ...

    def list_expired(self, limit: int) -> list[Lease]:
        """Active leases that ran out by the store's clock, held."""
        ...

    def beat_locked(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Leases that were locked and found live last longer."""
        ...

    def release_locked(self, releases: Sequence[tuple[str, str, str]]) -> int:
        """Leases that were locked and found live become RELEASED; each comes as (lease_id, status,
        digest)."""
        ...

    def expire_locked(self, lease_ids: Sequence[str]) -> int:
        """Leases that were locked and had run out become EXPIRED."""
        ...


class CountTable(Protocol):
    """What `tx.queue` counted, by the time it happened. A count is kept to the minute, and read
    over stretches of any number of minutes at a cost that follows the stretches, not the minutes.
    """

    def sum_stretches(
        self, metric: str, since: Instant, until: Instant, width_us: Micros
    ) -> dict[Instant, int]:
        """A metric summed over stretches of whole minutes, by their starts; those with nothing in
        them may be missing. `since` is the start of one. A histogram's sum is the histogram, packed
        as `domain.histogram` says."""
        ...

    def sum_since(self, metric: str, since: Instant) -> int:
        """The sum of the minutes that began since then."""
        ...

    def pack_minutes(self, limit: int) -> int:
        """Move up to `limit` counts of minutes that are over to where they are read faster; answer
        how many. Nothing told changes by it. Instances may do it at once, and a minute may be
        counted in again afterwards."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Forget up to `limit` hours that ended before."""
        ...


class QueueTx(Tx, Protocol):
    """A transaction with the queue's tables."""

    @property
    def queue(self) -> QueueTable: ...

    @property
    def leases(self) -> LeaseTable: ...

    @property
    def counts(self) -> CountTable: ...
