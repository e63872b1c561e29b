"""Counts of governance: what waits, read from the indexes; what happened, from rollups."""

from collections.abc import Mapping
from typing import Any, Final

from ksana.base.instant import SECOND, Instant
from ksana.ports.governance.tables import DueFigures
from ksana.store.sql.core.session import Session

COUNTED: Final = ("enqueued", "pulled", "succeeded", "retried", "failed", "dead")
_PREFIX: Final = "governance."
_COUNT_TO: Final = 1_000_000


class SqlGovernanceFigures:
    """Counts over `governance_jobs`, and governance's rows of `rollups`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now
        self._rollups = tx.rollups
        # Whoever writes a count has written an audit entry and holds its chain: named after the
        # chain, no two transactions add to the same row.
        self._audit = tx.audit

    def read(self) -> DueFigures:
        due = self._session.one(
            "governance.count_due", sec=self._now // SECOND, now_at=self._now, limit=_COUNT_TO
        )
        deferred = self._session.one("governance.count_deferred", limit=_COUNT_TO)
        assert due is not None
        assert deferred is not None
        return DueFigures(
            due=int(due[0]),
            oldest_due_at=due[1],
            running=self._count("running"),
            deferred=int(deferred[0]),
            dead_letters=self._count("dead_letter"),
        )

    def _count(self, status: str) -> int:
        row = self._session.one("governance.count_status", status=status, limit=_COUNT_TO)
        assert row is not None
        return int(row[0])

    def count(self, name: str, number: int) -> None:
        assert name in COUNTED
        self._rollups.add(_PREFIX + name, str(self._audit.chain), number)

    def sum_since(self, since: Instant) -> Mapping[str, int]:
        metrics = [_PREFIX + name for name in COUNTED]
        rows = self._session.all("governance.sum_counts", metrics=metrics, since=since)
        sums = {row[0].removeprefix(_PREFIX): int(row[1]) for row in rows}
        return {name: sums.get(name, 0) for name in COUNTED}
