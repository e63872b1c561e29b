"""Tasks that firing remembers, bounded by entries and by bytes. Which of them is due, and whether
what is remembered still holds, is read from the store."""

from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof
from typing import Final

from ksana.domain.schedule import Once
from ksana.domain.tasks.records import Task

MOST_CACHED: Final = 16_384
"""Tasks remembered at most, some 2 kB each."""

KEPT_OUT: Final = 8
"""When the cache is full, one of so many fired tasks takes the place of the oldest."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of all tasks remembered, about."""

LARGEST_CACHED: Final = 16 * 1024
"""Bytes of a task that is remembered: larger ones are read each time."""

_LEAST_BYTES: Final = 1536
"""A task without its texts."""


class TaskCache:
    """Tasks as they were committed, by id. Changed on the event loop, after the commit that made or
    fired a task; read by the writer. What is remembered is never the truth: firing reads the
    version of every due task, uses what is here only if that is its version, and claims the slot by
    compare-and-set on it."""

    def __init__(self, most: int = MOST_CACHED, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        # Its oldest entry is found in constant time; a dict walks over all that were removed.
        self._tasks: OrderedDict[int, tuple[Task, int]] = OrderedDict()  # with its bytes
        self._kept_out = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, tasks: Sequence[Task]) -> None:
        """These tasks were made or changed, and are committed as they are here."""
        held = self._tasks
        for task in tasks:
            known = held.get(task.id)
            if known is None or known[0].version != task.version:
                self._put(task, 0 if known is None else known[1])
        while len(held) > self._most or self._bytes > self._most_bytes:
            self._bytes -= held.popitem(last=False)[1][1]

    def _put(self, task: Task, weight_known: int) -> None:
        weight = _weigh(task)
        if weight <= LARGEST_CACHED:
            self._tasks[task.id] = task, weight
            self._bytes += weight - weight_known

    def add_fired(self, tasks: Sequence[Task]) -> None:
        """These tasks were due. One that has no other slot is let go. When the cache is full most
        stay out: tasks that come round in turn, more of them than fit, would otherwise push each
        other out just before they are due again, and none would be found."""
        held = self._tasks
        for task in tasks:
            if isinstance(task.definition.schedule, Once):
                known = held.pop(task.id, None)
                if known is not None:
                    self._bytes -= known[1]
                continue
            known = held.get(task.id)
            if known is None or known[0].version != task.version:
                if known is None and self._is_full:
                    self._kept_out += 1
                    if self._kept_out % KEPT_OUT:
                        continue
                self.add((task,))

    @property
    def _is_full(self) -> bool:
        return len(self._tasks) >= self._most or self._bytes + LARGEST_CACHED > self._most_bytes

    def find(self, task_id: int, version: int) -> Task | None:
        """The task, if it is remembered with this version."""
        known = self._tasks.get(task_id)
        return known[0] if known is not None and known[0].version == version else None


def _weigh(task: Task) -> int:
    """About how many bytes a task takes."""
    definition = task.definition
    options = definition.options
    weight = _LEAST_BYTES + getsizeof(definition.target_url) + getsizeof(definition.description)
    if definition.body is not None:
        weight += getsizeof(definition.body)
    for name, value in definition.headers.items():
        weight += getsizeof(name) + getsizeof(value)
    if definition.tags or options.secret_headers:
        weight += sum(map(getsizeof, (*definition.tags, *options.secret_headers)))
    if options.queue is not None:
        weight += getsizeof(options.queue.constraints)
    if options.node is not None:
        weight += sum(getsizeof(name) + getsizeof(value) for name, value in options.node.labels)
    return weight
