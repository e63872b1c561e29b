"""What one surface offers another that hands work over to it. Neither imports the other: boot gives
the one what the other offers.

The queue is in the same store, so an order is entered, looked up and cancelled inside the
transaction that moves the run: both happen, or neither. The end of a job is noted in
`tx.handover_ends` by the transaction that ends it, and taken up by whoever waits for it, soon
after. Nobody who ends a job waits for a run's row, and nobody who moves a run waits for a lease.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from ksana.domain.handover import HandedJob
from ksana.ports.store import Tx


class NotedEnd(NamedTuple):
    """The end of a job that a run waits for."""

    id: int
    job_id: str


class HandoverEnds(Protocol):
    """Jobs that ended and whose runs have not been told."""

    def note(self, job_ids: Sequence[str]) -> None:
        """These jobs end with this transaction."""
        ...

    def list_noted(self, limit: int) -> list[NotedEnd]:
        """The oldest, locked; rows another instance is at are left out."""
        ...

    def remove(self, ends: Sequence[NotedEnd]) -> None:
        """Their runs have been told."""
        ...

    def has_any(self) -> bool:
        """Whether something is noted."""
        ...


class HandoverTx(Tx, Protocol):
    """A transaction that can note ends."""

    @property
    def handover_ends(self) -> HandoverEnds: ...


class QueueOrder(msgspec.Struct, frozen=True, gc=False):
    """A queue job to submit for an attempt of a run. Texts with `_json` are JSON."""

    job_id: str
    request_id: str
    addon_id: str
    job_type: str
    cost_units: int
    priority: str
    constraints_json: str
    payload_json: str
    max_attempts: int
    fairness_key: str | None


class QueueJobs(Protocol):
    """The queue, as runs use it. `tx` is the transaction the caller is in."""

    def find_fault(self, addon_id: str, cost_units: int) -> str | None:
        """Why such a job could never run, if so."""
        ...

    def submit(self, tx: Any, orders: Sequence[QueueOrder]) -> None:
        """Enter jobs. Raise ConflictError if a request id is taken; the caller lets it through, so
        that nothing of this stays."""
        ...

    def is_taken(self, tx: Any, order: QueueOrder) -> bool:
        """Whether the order's request id is taken."""
        ...

    def submitted(self, orders: Sequence[QueueOrder]) -> None:
        """These are committed: wake who waits for jobs."""
        ...

    def find_jobs(self, tx: Any, job_ids: Sequence[str]) -> dict[str, HandedJob]:
        """Jobs by id; one that is gone is missing. None is locked: an ended one does not change."""
        ...

    def cancel(self, tx: Any, job_id: str, reason: str) -> HandedJob | None:
        """End a job that does not run, ask the worker of one that does. Nothing happens to one that
        has ended. Answer the job as it was; None if there is none."""
        ...

    def subscribe(self, hear: Callable[[], None]) -> None:
        """Be told when a job that a run waits for may have ended. A hint: it may be lost."""
        ...


class NoQueueJobs:
    """Where no queue is served: nothing can be handed over."""

    def find_fault(self, addon_id: str, cost_units: int) -> str | None:
        """There is no queue."""
        return "no queue is served here"

    def submit(self, tx: Any, orders: Sequence[QueueOrder]) -> None:
        """Nobody submits: each order has a fault."""

    def is_taken(self, tx: Any, order: QueueOrder) -> bool:
        """No id is."""
        return False

    def submitted(self, orders: Sequence[QueueOrder]) -> None:
        """Nobody waits."""

    def find_jobs(self, tx: Any, job_ids: Sequence[str]) -> dict[str, HandedJob]:
        """There are none."""
        return {}

    def cancel(self, tx: Any, job_id: str, reason: str) -> HandedJob | None:
        """There is none."""
        return None

    def subscribe(self, hear: Callable[[], None]) -> None:
        """Nothing ends."""


NO_QUEUE: Final = NoQueueJobs()
