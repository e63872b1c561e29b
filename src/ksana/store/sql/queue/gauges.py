"""How many queue jobs wait and run now, in SQL: a row for each connection, so that writers never
wait for each other."""

from typing import Any, Final

from ksana.base.ids import new_token
from ksana.ports.queue.tables import QueueGauges
from ksana.store.sql.core.session import Session

_PROCESS: Final = new_token() >> 8 << 4
"""Tells the rows of this process from those of others."""

_COLUMNS: Final = ("shard", "queued", "running", "arrivals")


class SqlGauges:
    """`queue_gauges`."""

    flush_order = 1

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._jobs = tx.jobs
        self._row = _PROCESS ^ id(session)
        self._added = (0, 0, 0)

    def add(self, queued: int, running: int, arrivals: int) -> None:
        before = self._added
        self._session.wrote = True
        self._added = (before[0] + queued, before[1] + running, before[2] + arrivals)

    def flush(self) -> None:
        """Write one change for all functions of a commit."""
        added, self._added = self._added, (0, 0, 0)
        if added != (0, 0, 0):
            self._session.run_rows_later("queue.add_to_gauges", _COLUMNS, [(self._row, *added)])

    def forget(self) -> None:
        """Drop what was gathered."""
        self._added = (0, 0, 0)

    def read(self) -> QueueGauges:
        self.flush()
        row = self._session.one("queue.sum_gauges")
        assert row is not None
        return QueueGauges(int(row[0]), int(row[1]), int(row[2]))

    def recount(self) -> QueueGauges:
        self._fold()
        self.flush()
        row = self._jobs.session.one("queue.compare_gauges")
        assert row is not None
        queued, running, said_queued, said_running = (int(number) for number in row)
        self.add(queued - said_queued, running - said_running, 0)
        return self.read()

    def _fold(self) -> None:
        """Take over the rows of other connections; one that is alive starts a new row when it next
        counts."""
        rows = self._session.all("queue.list_gauges", shard=self._row, limit=1000)
        self._session.run_rows("queue.delete_gauges", ("shard",), [(row[0],) for row in rows])
        for _, queued, running, arrivals in rows:
            self.add(queued, running, arrivals)
