"""What one surface offers another that hands work over to it. Neither imports the other: boot gives
the one what the other offers.

The queue is in the same store, so an order is entered, looked up and cancelled inside the
transaction that moves the run: both happen, or neither. The end of a job is noted in
`tx.handover_ends` by the transaction that ends it, and taken up by whoever waits for it, soon
after. Nobody who ends a job waits for a run's row, and nobody who moves a run waits for a lease.

Node jobs are elsewhere and may be lost. The instance that holds the run waits for the job; if it
dies, the instance that takes the run over finds the same job by its id.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from ksana.base.errors import ConflictError
from ksana.base.instant import Micros
from ksana.domain.handover import HandedEnd, HandedJob
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
        """Enter jobs. Raise ConflictError if a request id is taken, or for one class too many; the
        caller lets it through, so that nothing of this stays."""
        ...

    def find_conflict(self, tx: Any, order: QueueOrder, beside: Sequence[QueueOrder]) -> str | None:
        """Why `submit` would refuse the order together with those beside it, if so."""
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

    def find_conflict(self, tx: Any, order: QueueOrder, beside: Sequence[QueueOrder]) -> str | None:
        """Nobody submits."""
        return None

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


class NodeOrder(msgspec.Struct, frozen=True, gc=False):
    """A node job to submit for an attempt of a run."""

    job_id: str
    request_id: str
    model: str
    labels: tuple[tuple[str, str], ...]
    priority: int
    payload_json: str
    wait_us: Micros
    timeout_us: Micros | None
    trace_id: str


class RunNodeJobs(Protocol):
    """Node jobs, as runs use them. They are not in the store: whoever submits one waits for its
    end, and another may take the waiting over."""

    @property
    def is_durable(self) -> bool:
        """Whether a job survives the end of the process that submitted it."""
        ...

    async def submit(self, order: NodeOrder) -> None:
        """Have the job made, unless it is there already. Raise ConflictError if no node may have
        it, UnavailableError if nobody can be asked."""
        ...

    async def find_job(self, job_id: str) -> HandedJob | None:
        """The job; None if it is gone. Raise UnavailableError."""
        ...

    async def cancel(self, job_id: str, reason: str) -> None:
        """End a job, if it can be reached. Never raises for one that has ended or is gone."""
        ...

    def is_here(self, job_id: str) -> bool:
        """Whether this instance is in charge of the job, so that its end will be told here."""
        ...

    def subscribe(self, hear: Callable[[str, HandedEnd], None]) -> None:
        """Be told the id and the end of every job that a run waits for and that this instance is in
        charge of."""
        ...


class NoRunNodeJobs:
    """Where no nodes are served."""

    is_durable = False

    async def submit(self, order: NodeOrder) -> None:
        """Refuse it."""
        raise ConflictError("no nodes are served here")

    async def find_job(self, job_id: str) -> HandedJob | None:
        """There is none."""
        return None

    async def cancel(self, job_id: str, reason: str) -> None:
        """There is none."""

    def is_here(self, job_id: str) -> bool:
        """None is."""
        return False

    def subscribe(self, hear: Callable[[str, HandedEnd], None]) -> None:
        """Nothing ends."""


NO_NODES: Final = NoRunNodeJobs()
