"""The past of tasks in memory: what the tables of history and of slots answer, for services that
read them. Slots, runs and events are plain values; what was asked for is remembered."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ksana.base.instant import Instant
from ksana.domain.explain import Fact
from ksana.domain.tasks.firing import Counts, Outage
from ksana.domain.tasks.ledger import SlotCounts
from ksana.domain.tasks.records import Run, Task


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
        self.facts: list[tuple[str, int, Fact]] = []
        self.runs = PastRuns()
        self.outages: dict[Instant, list[Outage]] = {}
        self.leases: dict[str, Instant] = {}
        self.alive = 1
        self.ahead = 0
        self.asked: list[tuple[Any, ...]] = []

    @property
    def tasks(self) -> "Past":
        return self

    history = slot_ledger = events = instances = tasks

    def fire(self, task_id: int, *slots: Instant, **members: str) -> None:
        """Runs of these slots."""
        self.rows += [SlotRow(task_id, slot, **members) for slot in slots]

    def tell(
        self, entity_id: int, at: Instant, kind: str, /, entity: str = "TASK", **data: Any
    ) -> Fact:
        """An event of a task, or of a run."""
        fact = Fact(len(self.facts) + 1, at, kind, data)
        self.facts.append((entity, entity_id, fact))
        return fact

    # tasks
    def find(self, task_id: int, *, lock: bool = False) -> Task | None:
        return self.found.get(task_id)

    def find_id(self, *, job_id: str) -> int | None:
        living = (task for task in self.found.values() if not task.is_deleted)
        return next((task.id for task in living if task.job_id == job_id), None)

    # instances
    def list_outages(self, since: Instant) -> list[Outage]:
        return self.outages.get(since, [])

    # events
    def list_after(self, after: int, limit: int) -> list[Any]:
        """Events of anybody; they have the id and `ts`."""
        self.asked.append(("list_after", after, limit))
        return [_Told(fact.id, fact.at) for _, _, fact in self.facts if fact.id > after][:limit]

    # history
    def find_event_id_at(self, at: Instant) -> int:
        return max([fact.id for _, _, fact in self.facts if fact.at <= at], default=0)

    def list_events_down(self, entity: str, entity_id: int, upto: int, limit: int) -> list[Fact]:
        found = self._list_facts(entity, entity_id, lambda fact: fact.id <= upto)
        return found[::-1][:limit]

    def list_events_up(self, entity: str, entity_id: int, after: int, limit: int) -> list[Fact]:
        return self._list_facts(entity, entity_id, lambda fact: fact.id > after)[:limit]

    def _list_facts(self, entity: str, at: int, wanted: Callable[[Fact], bool]) -> list[Fact]:
        assert entity in ("TASK", "RUN")
        return [fact for *one, fact in self.facts if one == [entity, at] and wanted(fact)]

    def count_alive(self) -> int:
        return self.alive

    def count_before(self, run: Run, limit: int) -> int:
        self.asked.append(("count_before", run.id, limit))
        return min(self.ahead, limit)

    def find_lease_until(self, instance_id: str) -> Instant | None:
        return self.leases.get(instance_id)

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


class PastRuns:
    """The runs of that past."""

    def __init__(self) -> None:
        self.rows: list[Run] = []
        self.counts: dict[int, Counts] = {}

    def find(self, run_id: int, *, lock: bool = False) -> Run | None:
        return next((run for run in self.rows if run.id == run_id), None)

    def find_id(self, uid: str) -> int | None:
        return next((run.id for run in self.rows if run.uid == uid), None)

    def list_runs(self, *, task_id: int, limit: int, slot_at: Instant | None = None) -> list[Run]:
        assert limit > 0
        found = [run for run in self.rows if run.task_id == task_id]
        if slot_at is not None:
            found = [run for run in found if run.slot_at == slot_at]
        return sorted(found, key=lambda run: -run.id)[:limit]

    def count_open(self, task_ids: Sequence[int]) -> dict[int, Counts]:
        return {one: self.counts[one] for one in task_ids if one in self.counts}


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
