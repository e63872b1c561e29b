"""What a store answers for the ledger: how many slots of a task have a run, and which. Nothing here
reads more rows than it is told to."""

from collections.abc import Sequence
from typing import Protocol

from ksana.base.instant import Instant
from ksana.domain.tasks.ledger import SlotCounts
from ksana.ports.tasks.history import HistoryTx


class SlotLedger(Protocol):
    """Counts over (task, slot), by index."""

    def list_task_ids(self, after: int, limit: int) -> list[int]:
        """Tasks after an id, by id, deleted ones included."""
        ...

    def count_slots(self, task_id: int, after: Instant, until: Instant, limit: int) -> SlotCounts:
        """Runs of the slots later than `after`, up to `until`, by status and reason: the first
        `limit` in the order of slots. `last` is the last of them if there may be more."""
        ...

    def find_newest_slot(self, task_id: int, after: Instant, until: Instant) -> Instant | None:
        """The latest slot in a span that has a run."""
        ...

    def list_filled(self, task_ids: Sequence[int], after: Instant, until: Instant) -> set[int]:
        """Those among some tasks that have a run of a slot later than `after`, up to `until`."""
        ...

    def count_fired(self, task_id: int, after: Instant, limit: int) -> int:
        """Runs of slots later than `after` that are not skipped, looked for among `limit` rows."""
        ...


class LedgerTx(HistoryTx, Protocol):
    """A transaction that can be asked for the ledger."""

    @property
    def slot_ledger(self) -> SlotLedger: ...
