"""The line of requests that wait for a node (N5): by priority, then by age. Pure, one per instance.

9 is the most urgent priority, 0 the least. Nothing here has a clock: `now` is handed in.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator

import msgspec

from ksana.base.instant import Instant
from ksana.domain.nodes.choice import Wanted


class WaitingJob(msgspec.Struct, frozen=True):
    """A request in line."""

    job_id: str
    priority: int
    until: Instant
    """When it gives up."""
    wanted: Wanted


class WaitingLine:
    """Requests in the order in which they are offered to a node."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._jobs: dict[str, tuple[tuple[int, int, str], WaitingJob]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def add(self, job: WaitingJob) -> None:
        """Put a job at the end of its priority. One that is in line already keeps its place."""
        if job.job_id in self._jobs:
            return
        entry = (-job.priority, next(self._numbers), job.job_id)
        heapq.heappush(self._heap, entry)
        self._jobs[job.job_id] = (entry, job)

    def remove(self, job_id: str) -> WaitingJob | None:
        """Take one job out, wherever it stands."""
        found = self._jobs.pop(job_id, None)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._jobs):
            self._heap = [entry for entry, _ in self._jobs.values()]
            heapq.heapify(self._heap)
        return None if found is None else found[1]

    def in_order(self) -> Iterator[WaitingJob]:
        """All of them, the most urgent first. Changes while it is read are not seen."""
        for entry in sorted(self._heap):
            found = self._jobs.get(entry[2])
            # An entry of a job that left and came back stands for nothing any more.
            if found is not None and found[0] is entry:
                yield found[1]

    def take_first(self, fits: Callable[[WaitingJob], bool]) -> WaitingJob | None:
        """Take the first job in order that fits."""
        for job in self.in_order():
            if fits(job):
                return self.remove(job.job_id)
        return None

    def take_overdue(self, now: Instant) -> list[WaitingJob]:
        """Take out everything whose time in line is over."""
        over = [job for job in self.in_order() if job.until <= now]
        for job in over:
            self.remove(job.job_id)
        return over

    def next_until(self) -> Instant | None:
        """When the next one gives up."""
        return min((job.until for _, job in self._jobs.values()), default=None)
