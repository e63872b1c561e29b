"""How far this instance has begun the runs it holds.

    firing, claims, outcomes ──mark──▶ store          a run is sent only if its id is not above the mark on disk
    rescue ◀──mark── store                            an orphan above its holder's mark was never begun

A run that is held ahead waits in memory, and after a kill nobody could tell it from one that was
sent. So the instance keeps a mark beside its lease: runs up to this id may have been sent, those
above were not. The mark moves in commits that are made anyway, a little ahead of what begins, so a
call costs no commit of its own. What lies between the last call and the mark is not known after a
kill: of each host as many as it has places, or what it begins in a tenth of a second.
"""

from itertools import islice

from ksana.base.instant import Micros
from ksana.engine.tasks.host_limits import HostQueue


class Watermark:
    """The mark, and the hosts whose next run lies above it."""

    def __init__(self) -> None:
        self.upto = 0
        """As it stands in the store."""
        self._queues: dict[HostQueue, None] = {}
        self._barred: dict[HostQueue, None] = {}

    def watch(self, line: HostQueue) -> None:
        """Runs wait at this host."""
        self._queues[line] = None

    def count_waiting(self) -> int:
        """How many runs wait here, at all hosts."""
        return sum(len(line.waiting) for line in self._queues)

    def lets(self, line: HostQueue) -> bool:
        """Whether the next run of a host may be sent. If not, the host is remembered."""
        if line.waiting[0].run_id <= self.upto:
            return True
        self._barred[line] = None
        return False

    @property
    def is_barring(self) -> bool:
        """Whether a host waits for the mark."""
        return bool(self._barred)

    def next_mark(self, now_mono: Micros) -> int:
        """How far the mark should be for what begins soon; 0 if it stands far enough."""
        mark = self.upto
        for line in list(self._queues):
            if not line.waiting:
                del self._queues[line]
                continue
            mark = max(mark, max(run.run_id for run in islice(line.waiting, line.soon(now_mono))))
        return mark if mark > self.upto else 0

    def move(self, mark: int) -> list[HostQueue]:
        """The mark is on disk. Answer the hosts that waited for it."""
        if mark <= self.upto:
            return []
        self.upto = mark
        barred, self._barred = self._barred, {}
        return list(barred)
