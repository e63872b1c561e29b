"""Figures of governance (G14): what waits, and how the last hour went."""

from typing import Any, Final

import msgspec

from ksana.base.instant import HOUR, SECOND, Micros
from ksana.ports.governance.tables import DueFigures, GovernanceTx
from ksana.ports.store import Store

WINDOW: Final[Micros] = HOUR
"""What the rates look back on."""


class GovernanceMetrics(msgspec.Struct, frozen=True):
    """The figures by the names of the contract, and what they come from."""

    jobs_due_count: int
    jobs_lag_seconds: float
    job_success_rate: float | None
    """Jobs that succeeded among those that ended in the last hour; null if none did."""
    job_retry_rate: float | None
    """Attempts that failed or ran out among those that were made in the last hour."""
    dead_letter_count: int
    jobs_running_count: int
    jobs_deferred_count: int
    window_sec: int
    counts: dict[str, int]


def read_metrics(tx: GovernanceTx) -> GovernanceMetrics:
    """All of them, in one snapshot."""
    figures: DueFigures = tx.governance_figures.read()
    counts = dict(tx.governance_figures.sum_since(tx.now - WINDOW))
    ended = counts["succeeded"] + counts["failed"] + counts["dead"]
    again = counts["retried"] + counts["dead"]
    attempts = counts["succeeded"] + again
    lag_us = 0 if figures.oldest_due_at is None else max(tx.now - figures.oldest_due_at, 0)
    return GovernanceMetrics(
        jobs_due_count=figures.due,
        jobs_lag_seconds=lag_us / SECOND,
        job_success_rate=counts["succeeded"] / ended if ended else None,
        job_retry_rate=again / attempts if attempts else None,
        dead_letter_count=figures.dead_letters,
        jobs_running_count=figures.running,
        jobs_deferred_count=figures.deferred,
        window_sec=WINDOW // SECOND,
        counts=counts,
    )


class GovernanceStats:
    """Reads the figures."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self) -> GovernanceMetrics:
        """All of them."""
        return await self._store.read(read_metrics)

    async def snapshot(self) -> dict[str, Any]:
        """Governance's section of /api/v1/stats."""
        return msgspec.structs.asdict(await self.read())
