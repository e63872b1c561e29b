"""Tasks as they were committed, by id. What is remembered is never the truth: firing reads the
version of every due task, uses what is here only if that is its version, and claims the slot by
compare-and-set on it."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from ksana.domain.tasks.records import Task

MOST: Final = 16_384
"""Tasks remembered at most, some 2 kB each."""

LARGEST: Final = 4096
"""Characters of body and headers of a task that is remembered: larger ones are read each time."""


class TaskCache:
    """Filled on the event loop, after the commit that made or fired a task; read by the writer."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        # Its oldest entry is found in constant time; a dict walks over all that were removed.
        self._tasks: OrderedDict[int, Task] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, tasks: Sequence[Task]) -> None:
        """These tasks are committed as they are here."""
        held = self._tasks
        for task in tasks:
            known = held.get(task.id)
            if (known is None or known.version != task.version) and not _is_large(task):
                held[task.id] = task
        while len(held) > self._most:
            held.popitem(last=False)

    def find(self, task_id: int, version: int) -> Task | None:
        """The task, if it is remembered with this version."""
        task = self._tasks.get(task_id)
        return task if task is not None and task.version == version else None


def _is_large(task: Task) -> bool:
    """Whether a task would make the memory of the cache grow beyond what MOST stands for."""
    definition = task.definition
    size = len(definition.body) if definition.body is not None else 0
    if definition.headers:
        size += sum(map(len, definition.headers.values()))
    return size > LARGEST
