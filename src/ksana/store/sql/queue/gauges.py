"""How many queue jobs wait and run now, in SQL."""

from typing import Any, Final

from ksana.base.ids import new_token
from ksana.ports.queue.tables import QueueGauges
from ksana.store.sql.core.session import Session
from ksana.store.sql.core.tx import GatheredSums

_PROCESS: Final = new_token() >> 8 << 4
"""Tells the rows of this process from those of others."""

_GAUGE: Final = ("shard", "queued", "running", "arrivals", "classes")
_NONE: Final = (0, 0, 0, 0)


class SqlGauges:
    """`queue_gauges`: how many jobs wait and run now. A row for each connection, so that writers
    never wait for each other."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._jobs = tx.jobs
        self._row = _PROCESS ^ id(session)
        self._sums = GatheredSums("queue.add_to_gauges", _GAUGE, (self._row,))
        tx.sums.append(self._sums)

    def add(self, queued: int, running: int, arrivals: int, classes: int = 0) -> None:
        self._session.wrote = True
        before = self._sums.added.get((), _NONE)
        self._sums.added[()] = (
            before[0] + queued,
            before[1] + running,
            before[2] + arrivals,
            before[3] + classes,
        )

    def read(self) -> QueueGauges:
        row = self._session.one("queue.sum_gauges")
        assert row is not None
        added = self._sums.added.get((), _NONE)
        return QueueGauges(int(row[0]) + added[0], int(row[1]) + added[1], int(row[2]) + added[2])

    def recount(self) -> QueueGauges:
        self._fold()
        row = self._jobs.session.one("queue.compare_gauges")
        assert row is not None
        queued, running, said_queued, said_running = (int(number) for number in row)
        added = self._sums.added.get((), _NONE)
        self.add(queued - said_queued - added[0], running - said_running - added[1], 0)
        return self.read()

    def _fold(self) -> None:
        """Take over the rows of other connections; one that is alive starts a new row when it next
        counts."""
        rows = self._session.all("queue.list_gauges", shard=self._row, limit=1000)
        self._session.run_rows("queue.delete_gauges", ("shard",), [(row[0],) for row in rows])
        for _, queued, running, arrivals, classes in rows:
            self.add(queued, running, arrivals, classes)
