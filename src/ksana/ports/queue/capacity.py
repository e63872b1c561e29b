"""The queue's capacity as a transaction sees it, `tx.capacity`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ksana.domain.queue.admission import Capacity
from ksana.domain.queue.escrow import Allotment, Draw, Standing


class CapacityTable(Protocol):
    """The capacity: a pool and, on a shared store, what is set aside for the connections of each
    instance (`domain.queue.escrow`)."""

    is_shared: bool
    """Whether units are set aside here: other instances may use the store."""
    instance: int
    """For whom units are set aside."""
    shard: int
    """The row of this connection."""

    def lock(self, total: int) -> Capacity:
        """The capacity, held until the end of the transaction, with all that was set aside brought
        home: `used` is what the active leases hold."""
        ...

    def lock_whole(self, total: int) -> Capacity:
        """The same, even where nobody shares the store: units may have been set aside before its
        rows were copied to here."""
        ...

    def look(self, total: int) -> Standing:
        """The pool and what is set aside, as last committed, less what this transaction drew, and
        what it freed."""
        ...

    def list_held(self) -> list[Allotment]:
        """What was set aside when the capacity was locked."""
        ...

    def read(self, total: int) -> Capacity:
        """The capacity as last committed."""
        ...

    def write(self, capacity: Capacity, dealt: Mapping[int, int] | None = None) -> None:
        """Write the capacity, under its lock, with units set aside by shard; whatever was set aside
        before is at home."""
        ...

    def draw(self, drawn: Sequence[Draw], units: int, leases: int) -> None:
        """Take units for so many leases: those that are drawn were set aside, the others this
        transaction has freed. Needs no lock: it is written last. Guard: what was set aside is still
        there and was not brought home since, or the transaction is run again."""
        ...

    def free(self, units: int, leases: int) -> None:
        """Give units back, with the end of so many leases: they are set aside for this connection.
        Needs no lock: it is written last, relative to what is there."""
        ...

    def drop_reserve(self, job_id: str) -> None:
        """Units kept for this job are free again."""
        ...

    def sum_of_addon(self, addon_id: str) -> int:
        """Units held by an addon's active leases."""
        ...

    def sum_active(self) -> tuple[int, int]:
        """(leases, units) of the active leases, counted."""
        ...
