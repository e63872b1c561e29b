"""The line of requests that wait for a node (N5): by priority, then by age. Pure, one per instance.

9 is the most urgent priority, 0 the least. Requests that want the same of a node are one class:
where the first of a class finds no node, none of it does, so a long line costs no more than a short
one. Nothing here has a clock: `now` is handed in.
"""

import heapq
import itertools
from collections.abc import Collection, Iterator

import msgspec

from ksana.base.instant import Instant
from ksana.domain.nodes.choice import Wanted

WaitingClass = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""(model, labels, nodes tried)"""


class WaitingJob(msgspec.Struct, frozen=True):
    """A request in line."""

    job_id: str
    priority: int
    until: Instant
    """When it gives up."""
    wanted: Wanted

    @property
    def kind(self) -> WaitingClass:
        """What it wants of a node."""
        wanted = self.wanted
        return (wanted.model, tuple(sorted(wanted.labels.items())), wanted.tried)


class WaitingLine:
    """Requests in the order in which they are offered to a node."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[int, WaitingJob]] = {}
        self._classes: dict[WaitingClass, dict[int, dict[str, None]]] = {}
        """By class and priority, the oldest first."""
        self._untils: list[tuple[Instant, int, str]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def add(self, job: WaitingJob) -> None:
        """Put a job at the end of its priority. One that is in line already keeps its place."""
        if job.job_id in self._jobs:
            return
        number = next(self._numbers)
        self._jobs[job.job_id] = (number, job)
        by_priority = self._classes.setdefault(job.kind, {})
        by_priority.setdefault(job.priority, {})[job.job_id] = None
        heapq.heappush(self._untils, (job.until, number, job.job_id))

    def remove(self, job_id: str) -> WaitingJob | None:
        """Take one job out, wherever it stands."""
        found = self._jobs.pop(job_id, None)
        if found is None:
            return None
        job = found[1]
        by_priority = self._classes[job.kind]
        alike = by_priority[job.priority]
        del alike[job_id]
        if not alike:
            del by_priority[job.priority]
            if not by_priority:
                del self._classes[job.kind]
        if len(self._untils) > 64 and len(self._untils) > 2 * len(self._jobs):
            self._untils = [(one.until, n, one.job_id) for n, one in self._jobs.values()]
            heapq.heapify(self._untils)
        return job

    def first(self, count: int, without: Collection[WaitingClass] = ()) -> list[WaitingJob]:
        """The first jobs in order, those of some classes left out."""
        heads = [
            (-priority, self._jobs[job_id][0], job_id)
            for kind, by_priority in self._classes.items()
            if kind not in without
            for priority, alike in by_priority.items()
            for job_id in itertools.islice(alike, count)
        ]
        return [self._jobs[job_id][1] for _, _, job_id in heapq.nsmallest(count, heads)]

    def in_order(self) -> Iterator[WaitingJob]:
        """All of them, the most urgent first."""
        yield from self.first(len(self._jobs))

    def take_overdue(self, now: Instant) -> list[WaitingJob]:
        """Take out everything whose time in line is over."""
        over = []
        while self._untils and self._untils[0][0] <= now:
            _, number, job_id = heapq.heappop(self._untils)
            if self._jobs.get(job_id, (-1,))[0] == number and (job := self.remove(job_id)):
                over.append(job)
        return over

    def next_until(self) -> Instant | None:
        """When the next one gives up."""
        while self._untils:
            until, number, job_id = self._untils[0]
            if self._jobs.get(job_id, (-1,))[0] == number:
                return until
            heapq.heappop(self._untils)  # it left the line
        return None
