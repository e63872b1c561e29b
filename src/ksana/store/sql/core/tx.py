"""The transaction as a function sees it: typed tables over one session, with events and rollups gathered for one bulk write."""

from typing import Any

from ksana.base.instant import Instant
from ksana.store.sql.core.events import SqlEvents
from ksana.store.sql.tasks.history import SqlHistory
from ksana.store.sql.core.tables import SqlInstances, SqlKeys, SqlLocks, SqlMarks
from ksana.store.sql.core.idempotency import SqlIdempotency
from ksana.store.sql.queue.jobs import SqlQueue
from ksana.store.sql.queue.counts import SqlCounts
from ksana.store.sql.queue.leases import SqlLeases
from ksana.store.sql.core.rollups import SqlRollups
from ksana.store.sql.tasks.runs import SqlRuns
from ksana.store.sql.core.session import Session
from ksana.store.sql.tasks.definitions import SqlTasks


class SqlTx:
    """One transaction; tables of the surfaces are made when first used. They keep no reference to it: it goes with the last one
    who uses it, and leaves nothing to the collector, whose rounds everybody waits for."""

    def __init__(self, session: Session, now: Instant) -> None:
        self._session = session
        self.now = now
        self.events = SqlEvents(session, now)
        self.rollups = SqlRollups(session, now)

    def __getattr__(self, name: str) -> Any:
        """Make a surface's table on first use and keep it on the instance."""
        table = _TABLES.get(name)
        if table is None:
            raise AttributeError(name)
        made = table(self._session, self)
        setattr(self, name, made)
        return made

    def forget(self) -> None:
        """Drop what was gathered: its function failed."""
        if (queue := self.__dict__.get("queue")) is not None:
            queue.forget()
        if (leases := self.__dict__.get("leases")) is not None:
            leases.forget()
        self.events.forget()
        self.rollups.forget()

    def flush(self) -> None:
        """Write what was gathered; the lane calls it before COMMIT. The capacity comes before the counts for everybody, or one
        who holds it and one who has counted would wait for each other."""
        if (leases := self.__dict__.get("leases")) is not None:
            leases.flush()
        if (queue := self.__dict__.get("queue")) is not None:
            queue.flush()
        self.events.flush()
        self.rollups.flush()


_TABLES: dict[str, Any] = {
    "instances": SqlInstances,
    "locks": SqlLocks,
    "keys": SqlKeys,
    "tasks": SqlTasks,
    "runs": SqlRuns,
    "marks": SqlMarks,
    "queue": SqlQueue,
    "leases": SqlLeases,
    "counts": SqlCounts,
    "idempotency": SqlIdempotency,
    "history": SqlHistory,
}
