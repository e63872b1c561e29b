"""Steps of the store's clock, remembered until the time they concern is over: `tx.clock_steps`."""

from typing import Protocol

import msgspec

from ksana.base.instant import Instant
from ksana.ports.store import Tx


class ClockStep(msgspec.Struct, frozen=True):
    """One step. Ahead: what lies between the instants was skipped. Back: it was lived while the
    clock was ahead."""

    is_back: bool
    from_at: Instant
    to_at: Instant
    seen_at: Instant
    """What the clock showed after the step."""


class ClockStepTable(Protocol):
    """The steps that concern time to come."""

    def add(self, step: ClockStep) -> None:
        """Remember a step."""
        ...

    def list_beyond(self, at: Instant) -> list[ClockStep]:
        """Steps that concern time after an instant."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Forget up to `limit` steps that concern only time before; answer how many."""
        ...


class ClockStepTx(Tx, Protocol):
    """A transaction with steps of the clock."""

    @property
    def clock_steps(self) -> ClockStepTable: ...
