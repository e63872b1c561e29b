"""The watermark: how far this instance may have sent the runs it claimed.

    firing, claims, outcomes ── watermark ──▶ store    only runs up to the stored one are sent
    rescue ◀── watermark ── store                      an orphan above it was never sent

A prefetched run waits in memory, and after a kill nobody could tell it from one that was sent. So
the instance keeps a watermark beside its lease: runs up to this id may have been sent, those above
were not. It moves in commits that are made anyway, a little ahead of what is sent, so a call costs
no commit of its own. What lies between the last call and the watermark is not known after a kill:
for each host as many as it has slots, or what it begins in a tenth of a second.
"""

from itertools import islice

from ksana.base.instant import Micros
from ksana.engine.tasks.host_limits import HostQueue


class Watermark:
    """The stored watermark, and the hosts whose next run lies above it."""

    def __init__(self) -> None:
        self.stored = 0
        self._queues: dict[HostQueue, None] = {}
        self._blocked: dict[HostQueue, None] = {}

    def watch(self, queue: HostQueue) -> None:
        """Runs wait at this host."""
        self._queues[queue] = None

    def count_waiting(self) -> int:
        """How many runs wait here, at all hosts."""
        return sum(len(queue.waiting) for queue in self._queues)

    def allows_next(self, queue: HostQueue) -> bool:
        """Whether the next run of a host may be sent. If not, the host is remembered."""
        if queue.waiting[0].run_id <= self.stored:
            return True
        self._blocked[queue] = None
        return False

    @property
    def is_blocking(self) -> bool:
        """Whether a host waits for the watermark to move."""
        return bool(self._blocked)

    def find_next(self, now_mono: Micros) -> int:
        """How far the watermark should be for what is sent soon; 0 if it is far enough."""
        wanted = self.stored
        for queue in list(self._queues):
            if not queue.waiting:
                del self._queues[queue]
                continue
            soon = islice(queue.waiting, queue.soon(now_mono))
            wanted = max(wanted, max(run.run_id for run in soon))
        return wanted if wanted > self.stored else 0

    def move(self, stored: int) -> list[HostQueue]:
        """The watermark is on disk. Answer the hosts that waited for it."""
        if stored <= self.stored:
            return []
        self.stored = stored
        blocked, self._blocked = self._blocked, {}
        return list(blocked)
