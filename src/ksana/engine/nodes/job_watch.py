"""What waits for time or for a slot: the deadlines of attempts, and the line of jobs without a
node. It decides nothing; it calls the home of the jobs when something is due."""

import asyncio
import heapq
from typing import Any, Final, Protocol

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant
from ksana.domain.nodes.attempts import AttemptTimes
from ksana.domain.nodes.records import JobProgress, JobRequest, NodeJob
from ksana.domain.nodes.waiting import WaitingClass, WaitingJob, WaitingLine
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.background import Background

_NET: Final = 30 * SECOND
"""Both pumps are signalled; this is the net under a signal that was lost."""
_OFFER_EVERY: Final = SECOND
"""So often somebody who waits is offered again, whatever was told of slots."""
_AT_ONCE: Final = 32
"""Jobs that are placed at a time: they share round trips."""


class HomeJob:
    """A job in our charge."""

    __slots__ = (
        "attempt",
        "early",
        "instance_id",
        "is_ending",
        "is_moving",
        "node_id",
        "progress",
        "request",
        "times",
        "wait_until",
    )

    def __init__(self, request: JobRequest, wait_until: Instant) -> None:
        self.request = request
        self.wait_until = wait_until
        self.attempt = 1
        self.node_id = ""
        self.instance_id = ""
        self.progress = JobProgress()
        self.times = AttemptTimes(dispatched_at=0)
        self.is_moving = False
        self.is_ending = False
        """Whether its outcome is here and being recorded."""
        self.early: list[Any] | None = None
        """Messages that came before whoever asked was told of the job; None afterwards."""


class HomeJobTable(dict[str, HomeJob]):
    """The jobs in our charge by their id, and how many bytes their payloads take."""

    payload_bytes = 0

    def __setitem__(self, job_id: str, job: HomeJob) -> None:
        self.pop(job_id, None)
        super().__setitem__(job_id, job)
        self.payload_bytes += len(job.request.payload)

    def __delitem__(self, job_id: str) -> None:
        self.pop(job_id)

    def pop(self, job_id: str, *default: Any) -> Any:
        """Remove a job."""
        found = super().pop(job_id, *default)
        if isinstance(found, HomeJob):
            self.payload_bytes -= len(found.request.payload)
        return found


class RecentIds:
    """The last few thousand ids: what is told twice is noticed."""

    def __init__(self, most: int = 20_000) -> None:
        self._ids: dict[str, None] = {}
        self._most = most

    def add(self, one: str) -> bool:
        """Note an id; False if it is known."""
        if one in self._ids:
            return False
        self._ids[one] = None
        if len(self._ids) > self._most:
            del self._ids[next(iter(self._ids))]
        return True


def times_of(record: NodeJob, now: Instant) -> AttemptTimes:
    """What a record says about the stages of its attempt. All of them count from now: when it was
    acknowledged or started is not recorded, and what was told of it went to the dead."""
    is_acked = record.state in ("ACCEPTED", "RUNNING")
    return AttemptTimes(
        dispatched_at=now,
        acked_at=now if is_acked else 0,
        started_at=now if record.state == "RUNNING" else 0,
    )


class WatchedHome(Protocol):
    """Who is called."""

    async def overdue(self, job_id: str, attempt: int) -> None:
        """A deadline of this attempt has passed."""
        ...

    async def give_up_waiting(self, job_id: str) -> None:
        """Its time in line is over."""
        ...

    async def place_waiting(self, job_id: str) -> bool:
        """Try to find a node for it; False if there is none."""
        ...


class JobWatch:
    """Two pumps: deadlines, and offers to the line."""

    def __init__(self, clock: Clock, background: Background, home: WatchedHome) -> None:
        self._clock = clock
        self._background = background
        self._home = home
        self.line = WaitingLine()
        self._deadlines: list[tuple[Instant, str, int]] = []
        self.deadlines = Pump("node-deadlines", clock, self._check, poll_us=_NET)
        self.offer = Pump("node-line", clock, self._offer, poll_us=_NET)

    def arm(self, job_id: str, attempt: int, at: Instant) -> None:
        """Call when this instant has come. One that is not needed any more does no harm."""
        if not self._deadlines or at < self._deadlines[0][0]:
            self.deadlines.signal()
        heapq.heappush(self._deadlines, (at, job_id, attempt))

    def wait(self, job: WaitingJob) -> None:
        """Put a job in line."""
        self.line.add(job)
        self.deadlines.signal()
        if len(self.line) == 1:
            self.offer.signal()  # it stood still: a slot that came free just now was told to nobody

    async def _check(self) -> Instant | None:
        now, heap = self._clock.now(), self._deadlines
        while heap and heap[0][0] <= now:
            _, job_id, attempt = heapq.heappop(heap)
            self._background.spawn(self._home.overdue(job_id, attempt))
        for waiting in self.line.take_overdue(now):
            self._background.spawn(self._home.give_up_waiting(waiting.job_id))
        soonest = [at for at in (heap[0][0] if heap else None, self.line.next_until()) if at]
        return min(soonest, default=None)

    async def _offer(self) -> Instant | None:
        """Offer free slots to those that wait, in their order, several at a time. Where the first
        of a class found nothing, nobody of it will."""
        refused: set[WaitingClass] = set()
        while batch := self.line.first(_AT_ONCE, refused):
            placed = await asyncio.gather(
                *(self._home.place_waiting(waiting.job_id) for waiting in batch)
            )
            for waiting, is_placed in zip(batch, placed, strict=True):
                if not is_placed:
                    refused.add(waiting.kind)
        return self._clock.now() + _OFFER_EVERY if self.line else None
