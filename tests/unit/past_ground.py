"""The past of tasks in memory: what the tables of history and of slots answer, for services that
read them. Slots, runs and events are plain values; what was asked for is remembered."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ksana.base.instant import Instant
from ksana.domain.explain import Fact
from ksana.domain.tasks.ledger import SlotCounts
from ksana.domain.tasks.records import Task


class SlotRow(NamedTuple):
    """A run of a slot."""

    task_id: int
    slot: Instant
    status: str = "SUCCESS"
    reason: str = "BELOW_LIMIT"


class Past:
    """A transaction that reads. It is its own tables: no two of them have a method of one name."""

    def __init__(self, now: Instant, *tasks: Task) -> None:
        self.now = now
        self.found = {task.id: task for task in tasks}
        self.rows: list[SlotRow] = []
        self.facts: list[tuple[int, Fact]] = []
        self.asked: list[tuple[Any, ...]] = []

    @property
    def tasks(self) -> "Past":
        return self

    history = slot_ledger = events = tasks

    def fire(self, task_id: int, *slots: Instant, **members: str) -> None:
        """Runs of these slots."""
        self.rows += [SlotRow(task_id, slot, **members) for slot in slots]

    def tell(self, task_id: int, at: Instant, kind: str, **data: Any) -> None:
        """An event of a task."""
        self.facts.append((task_id, Fact(len(self.facts) + 1, at, kind, data)))

    # tasks
    def find(self, task_id: int) -> Task | None:
        return self.found.get(task_id)

    # events
    def list_after(self, after: int, limit: int) -> list[Any]:
        """Events of anybody; they have the id and `ts`."""
        self.asked.append(("list_after", after, limit))
        return [
            _Told(fact.id, fact.at)
            for _, fact in sorted(self.facts, key=lambda one: one[1].id)
            if fact.id > after
        ][:limit]

    # history
    def find_event_id_at(self, at: Instant) -> int:
        return max([fact.id for _, fact in self.facts if fact.at <= at], default=0)

    def list_events_down(self, entity: str, task_id: int, upto: int, limit: int) -> list[Fact]:
        found = self._list_facts(entity, task_id, lambda fact: fact.id <= upto)
        return found[::-1][:limit]

    def list_events_up(self, entity: str, task_id: int, after: int, limit: int) -> list[Fact]:
        return self._list_facts(entity, task_id, lambda fact: fact.id > after)[:limit]

    def _list_facts(self, entity: str, task_id: int, wanted: Callable[[Fact], bool]) -> list[Fact]:
        assert entity == "TASK"
        return [fact for one, fact in self.facts if one == task_id and wanted(fact)]

    # slots
    def list_task_ids(self, after: int, limit: int) -> list[int]:
        return sorted(one for one in self.found if one > after)[:limit]

    def count_slots(self, task_id: int, after: Instant, until: Instant, limit: int) -> SlotCounts:
        assert limit > 0
        rows = self._list_rows([task_id], after, until)[:limit]
        by_status = Counter(row.status for row in rows if row.status != "SKIPPED")
        skipped = Counter(row.reason for row in rows if row.status == "SKIPPED")
        last = rows[-1].slot if len(rows) == limit else None
        return SlotCounts(by_status, skipped, len(rows), last)

    def find_newest_slot(self, task_id: int, after: Instant, until: Instant) -> Instant | None:
        return max((row.slot for row in self._list_rows([task_id], after, until)), default=None)

    def list_filled(self, task_ids: Sequence[int], after: Instant, until: Instant) -> set[int]:
        return {row.task_id for row in self._list_rows(task_ids, after, until)}

    def count_fired(self, task_id: int, after: Instant, limit: int) -> int:
        self.asked.append(("count_fired", after, limit))
        rows = self._list_rows([task_id], after, 2**62)[:limit]
        return sum(row.status != "SKIPPED" for row in rows)

    def _list_rows(self, ids: Sequence[int], after: Instant, until: Instant) -> list[SlotRow]:
        return sorted(row for row in self.rows if row.task_id in ids and after < row.slot <= until)


class _Told(NamedTuple):
    id: int
    ts: Instant


class PastStore:
    """A store whose every transaction reads that past."""

    def __init__(self, past: Past) -> None:
        self._past = past

    async def read(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(self._past, *args)

    read_list = read
