"""The tables of governance as a transaction function sees them: `tx.governance`, `tx.objects`,
`tx.gates`, `tx.audit`. The store is told values and guards them; it decides nothing."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

from ksana.base.instant import Instant
from ksana.domain.governance.audit import Anchor, AuditEntry, AuditRow, ChainHead
from ksana.domain.governance.records import Gate, GovernanceJob, GovernedObject
from ksana.ports.dead_letters import DeadLetterTx
from ksana.ports.pages import PageRows
from ksana.ports.retention import OldRows, WalkPlace

Order = Literal["run_at", "priority"]

_LAST: Final = "\U0010ffff"
"""Greater than every letter that a key may have."""


class LockedJob(GovernanceJob, frozen=True, array_like=True, gc=False):
    """A job held by this transaction, and whether its lease is over by the store's clock."""

    is_expired: int = 0


class PullFilter(msgspec.Struct, frozen=True, gc=False):
    """What a pull takes."""

    now: Instant
    limit: int
    order: Order = "run_at"
    actions: tuple[str, ...] = ()
    object_types: tuple[str, ...] = ()

    @property
    def is_filtered(self) -> bool:
        """Whether it takes only some kinds of jobs."""
        return bool(self.actions or self.object_types)


class GovernanceJobFilter(msgspec.Struct, frozen=True, gc=False):
    """Which jobs to list; None matches all."""

    status: str | None = None
    object_type: str | None = None
    object_id: str | None = None
    action: str | None = None
    worker_id: str | None = None
    run_after: Instant | None = None
    run_before: Instant | None = None


class ObjectFilter(msgspec.Struct, frozen=True, gc=False):
    """Which objects to list; None matches all. A prefix of ids is printable, as ids are, and needs
    a type: keys begin with it."""

    object_type: str | None = None
    status: str | None = None
    id_prefix: str = ""

    @property
    def _first(self) -> str:
        return "" if self.object_type is None else f"{self.object_type}:{self.id_prefix}"

    @property
    def floor(self) -> str:
        """The keys that match are greater than this, and nothing lies between it and the first
        that could."""
        first = self._first
        return f"{first[:-1]}{chr(ord(first[-1]) - 1)}{_LAST}" if first else ""

    @property
    def top(self) -> str:
        """The keys that match are less than this."""
        return f"{self._first}{_LAST}"


class AuditFilter(msgspec.Struct, frozen=True, gc=False):
    """Which audit entries to list; None matches all."""

    event_type: str | None = None
    actor: str | None = None
    object_type: str | None = None
    object_id: str | None = None
    job_id: str | None = None
    since: Instant | None = None
    until: Instant | None = None


class DueFigures(msgspec.Struct, frozen=True, gc=False):
    """What waits at this moment."""

    due: int
    oldest_due_at: Instant | None
    running: int
    deferred: int
    dead_letters: int


class Removal(msgspec.Struct, frozen=True, gc=False):
    """Entries that were removed at the beginning of a chain: up to where, and the last one's hash.
    Chain -1 is that of the anchors."""

    chain: int
    seq: int
    hash: str
    count: int


AuditPlace = tuple[Instant, int, int]
"""Where a page of the audit ends: (time, chain, place)."""

JobWrite = tuple[GovernanceJob | None, GovernanceJob | None]
"""(old, new): None for old is a new job, None for new a removed one."""


class GovernanceJobs(Protocol):
    """`governance_jobs`."""

    def insert_once(self, job: GovernanceJob) -> bool:
        """Enter a job; False if one of its object type has its idempotency key."""
        ...

    def write(self, changes: Sequence[JobWrite]) -> None:
        """Write changes of jobs that this transaction has locked. Guard: the status and the lease
        token each had. Raise RuntimeError if a guard fails: then it was not locked."""
        ...

    def lock(self, job_ids: Sequence[str]) -> dict[str, LockedJob]:
        """Lock jobs, waiting for others who have them."""
        ...

    def lock_follow_ups(self, object_keys: Sequence[str]) -> dict[str, GovernanceJob]:
        """Lock the queued follow-up of each object that has one."""
        ...

    def find(self, job_id: str) -> GovernanceJob | None:
        """One job."""
        ...

    def find_by_key(self, object_type: str, idempotency_key: str) -> GovernanceJob | None:
        """The job with an idempotency key."""
        ...

    def list_jobs(
        self, wanted: GovernanceJobFilter, before: int | None, limit: int
    ) -> list[GovernanceJob]:
        """Jobs, newest first, with a lower number than `before`."""
        ...

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        """Find up to `limit` jobs that ended before. Dead letters are passed over; a bounded number
        of jobs is looked at."""
        ...

    def remove(self, seqs: Sequence[int]) -> int:
        """Remove those of these jobs that have ended and are no dead letters; answer how many."""
        ...


class GovernanceDue(Protocol):
    """Which jobs of `governance_jobs` wait for somebody: reads by index, each bounded."""

    def take_due(self, wanted: PullFilter) -> list[GovernanceJob]:
        """Lock queued jobs that are due, in order, passing over those that others have locked. An
        index range: jobs that are not due, not wanted or not queued cost nothing."""
        ...

    def lock_expired(self, limit: int) -> list[GovernanceJob]:
        """Lock running jobs whose lease is over by the store's clock, the oldest first."""
        ...

    def lock_deferred(self, gate_key: str, limit: int) -> list[GovernanceJob]:
        """Lock jobs that wait for a setting of a gate, the oldest first."""
        ...

    def has_deferred(self, gate_key: str) -> bool:
        """Whether a job waits for a setting of a gate."""
        ...

    def next_due(self) -> tuple[Instant | None, Instant | None]:
        """When the next queued job is due, and when the next lease ends."""
        ...


class GovernanceFigures(Protocol):
    """Counts of governance."""

    def read(self) -> DueFigures:
        """What waits now. Counting stops at a million."""
        ...

    def count(self, name: str, number: int) -> None:
        """Add to the count of this minute."""
        ...

    def sum_since(self, since: Instant) -> Mapping[str, int]:
        """Every count since then, by name."""
        ...


class Objects(Protocol):
    """`governance_objects`."""

    def find(self, object_key: str) -> GovernedObject | None:
        """One object."""
        ...

    def read(self, object_keys: Sequence[str]) -> dict[str, GovernedObject]:
        """Objects by their keys; those that nobody registered are not there."""
        ...

    def read_of_tier(self, object_keys: Sequence[str], risk_tier: str) -> dict[str, GovernedObject]:
        """Those among them of one tier of risk."""
        ...

    def lock(self, object_keys: Sequence[str]) -> dict[str, GovernedObject]:
        """Objects by their keys, held. Only who holds an object changes its follow-up."""
        ...

    def list_page(self, wanted: ObjectFilter, after: str, limit: int) -> PageRows[GovernedObject]:
        """Objects whose keys are greater than `after`, in the order of the bytes of their keys.
        `is_cut` where more follow: there were more, or their bytes too many."""
        ...

    def insert_if_new(self, objects: Sequence[GovernedObject]) -> int:
        """Enter objects; answer how many were new. Waits for others who enter the same."""
        ...

    def update_if_unchanged(self, changes: Sequence[tuple[GovernedObject, GovernedObject]]) -> int:
        """Write (old, new); answer how many still had the old one's version and status."""
        ...


class Gates(Protocol):
    """`governance_gates`: at most one row for each gate and scope."""

    def list_gates(self) -> list[Gate]:
        """Every setting."""
        ...

    def lock_gates(self) -> list[Gate]:
        """The same, and nobody sets a gate until this transaction is over."""
        ...

    def set_gate(self, gate: Gate) -> None:
        """Write one setting."""
        ...


class AuditLog(Protocol):
    """`audit_events`, `audit_chains`, `audit_anchors`.

    Entries are gathered and written at the end of the transaction, hashed onto a chain that this
    transaction has taken for itself: two writers never wait for one chain, and what is rolled back
    leaves no gap.
    """

    def append(self, entry: AuditEntry) -> str:
        """Record at `tx.now`; answer the entry's id."""
        ...

    def find(self, entry_id: str) -> AuditRow | None:
        """One entry."""
        ...

    def list_entries(
        self, wanted: AuditFilter, before: AuditPlace | None, limit: int
    ) -> PageRows[AuditRow]:
        """Entries, newest first, before a place; fewer where their bytes are many."""
        ...

    def list_chain(self, chain: int, after: int, until: int, limit: int) -> PageRows[AuditRow]:
        """The entries of a chain with places in (after, until], in order; fewer where their bytes
        are many."""
        ...

    def list_heads(self) -> list[ChainHead]:
        """Every chain that has entries."""
        ...

    def list_anchors(self, after: int, limit: int) -> list[Anchor]:
        """Anchors with a greater number, in order."""
        ...

    def add_anchor(self, anchor: Anchor) -> bool:
        """Write an anchor; False if another took its number."""
        ...

    def latest_anchor(self) -> Anchor | None:
        """The newest anchor."""
        ...

    def purge(self, before: Instant, limit: int) -> list[Removal]:
        """Remove entries at the beginning of chains, and anchors, that are older than `before`;
        answer what was removed. A newer entry keeps all that come after it."""
        ...

    def mark(self) -> int:
        """A number that changes with every entry."""
        ...


class GovernanceTx(DeadLetterTx, Protocol):
    """A transaction with the tables of governance."""

    @property
    def governance(self) -> GovernanceJobs: ...

    @property
    def governance_due(self) -> GovernanceDue: ...

    @property
    def governance_figures(self) -> GovernanceFigures: ...

    @property
    def objects(self) -> Objects: ...

    @property
    def gates(self) -> Gates: ...

    @property
    def audit(self) -> AuditLog: ...
