"""Which slots of tasks have a run: bounded counts for the ledger."""

from collections.abc import Sequence
from typing import Any

from ksana.base.instant import Instant
from ksana.domain.tasks.ledger import SlotCounts
from ksana.store.sql.core.session import Session


class SqlSlotLedger:
    """The slots as one transaction sees them."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def list_task_ids(self, after: int, limit: int) -> list[int]:
        rows = self._session.all("ledger.list_task_ids", after=after, limit=limit)
        return [int(row[0]) for row in rows]

    def count_slots(self, task_id: int, after: Instant, until: Instant, limit: int) -> SlotCounts:
        rows = self._session.all(
            "ledger.count_slots", task_id=task_id, after=after, until=until, limit=limit
        )
        by_status = {row[0]: int(row[2]) for row in rows if row[0] != "SKIPPED"}
        skipped = {row[1]: int(row[2]) for row in rows if row[0] == "SKIPPED"}
        total = sum(by_status.values()) + sum(skipped.values())
        last = max((int(row[3]) for row in rows), default=None) if total >= limit else None
        return SlotCounts(by_status, skipped, total, last)

    def find_newest_slot(self, task_id: int, after: Instant, until: Instant) -> Instant | None:
        row = self._session.one("ledger.newest_slot", task_id=task_id, after=after, until=until)
        return None if row is None else int(row[0])

    def list_filled(self, task_ids: Sequence[int], after: Instant, until: Instant) -> set[int]:
        if not task_ids:
            return set()
        rows = self._session.all(
            "ledger.list_filled", task_ids=list(task_ids), after=after, until=until
        )
        return {int(row[0]) for row in rows}

    def count_fired(self, task_id: int, after: Instant, limit: int) -> int:
        row = self._session.one("ledger.count_fired", task_id=task_id, after=after, limit=limit)
        return 0 if row is None else int(row[0])
