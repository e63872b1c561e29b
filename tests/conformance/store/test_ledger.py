"""Which slots have a run, on every SQL store: what the ledger counts by."""

from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition
from ksana.service.tasks.ledger import Window, read_ledger
from ksana.store.sql import SqlStore
from tests.conformance.store.test_history import new_run
from tests.ground.task_rows import a_task

STATES = ("SUCCESS", "SKIPPED", "SUCCESS", "FAILED", "SKIPPED", "SKIPPED")
REASONS = (None, "QUEUE_FULL", None, None, "CONCURRENCY_LIMIT", "QUEUE_FULL")


@pytest.mark.spec("X2", "B2")
async def test_slots_are_counted_by_status_and_reason_within_their_bounds(store: SqlStore) -> None:

    def fill(tx: Any) -> tuple[int, int]:
        began = tx.now - HOUR
        definition = Definition("t", "", Every(MINUTE, began, False))
        task = a_task("j", definition, began, began + 7 * MINUTE)
        other = Definition("u", "", definition.schedule)
        [task_id, _] = tx.tasks.insert([task, a_task("k", other, tx.now, None)])
        tx.events.append("TASK", task_id, "TASK_CREATED", {"status": "ENABLED"})
        tx.run_changes.insert(
            [
                new_run(
                    task_id,
                    began + at * MINUTE,
                    state,
                    slot_at=began + at * MINUTE,
                    trigger="schedule",
                    reason=reason or "BELOW_LIMIT",
                )
                for at, (state, reason) in enumerate(zip(STATES, REASONS, strict=True), 1)
            ]
        )
        return task_id, began

    task_id, began = await store.transact(fill)

    def count(after: int, until: int, limit: int = 100) -> Any:
        return store.read(
            lambda tx: tx.slot_ledger.count_slots(
                task_id, began + after * MINUTE, began + until * MINUTE, limit
            )
        )

    whole = await count(0, 60)
    assert (whole.by_status, whole.skipped) == (
        {"SUCCESS": 2, "FAILED": 1},
        {"QUEUE_FULL": 2, "CONCURRENCY_LIMIT": 1},
    )
    assert (whole.rows, whole.last) == (6, None)
    part = await count(1, 4)
    assert (part.by_status, part.rows) == ({"SUCCESS": 1, "FAILED": 1}, 3)
    assert part.skipped == {"QUEUE_FULL": 1}
    cut = await count(0, 60, limit=4)
    assert (cut.rows, cut.last) == (4, began + 4 * MINUTE)

    def look(tx: Any) -> list[Any]:
        ledger = tx.slot_ledger
        return [
            ledger.find_newest_slot(task_id, began, began + 3 * MINUTE),
            ledger.find_newest_slot(task_id, began + HOUR, began + 2 * HOUR),
            ledger.count_fired(task_id, began, 100),
            ledger.count_fired(task_id, began, 3),
            ledger.list_task_ids(0, 10),
            ledger.list_task_ids(task_id, 10),
            ledger.list_task_ids(0, 1),
        ]

    found = await store.read(look)
    assert found[:4] == [began + 3 * MINUTE, None, 3, 2]
    assert found[4:] == [[task_id, task_id + 1], [task_id + 1], [task_id]]
    page = await store.read(
        read_ledger, Window(began, began + 10 * MINUTE, HOUR, SECOND), task_id, None, 10
    )
    [entry] = page.entries
    assert (entry.sums.expected, entry.sums.fired, entry.sums.pending) == (9, 3, 3)
    assert (entry.sums.skipped, entry.missing) == (whole.skipped, 0)
