"""Moving SQLite's log into the database file beside the writer, not in it.

By default the connection that commits past a limit copies the log back itself, and everybody who
waits for the writer waits for that too: 30 to 100 ms every few thousand pages. Here a thread of its
own does it, in small portions, while commits go on. The writer's own limit stays as a net, far
higher. SQLite hides a failed sync of its automatic copy; ours is noted in the tally, because
after it the database file cannot be trusted.

A log of which all is copied is written from its start again, and a file that is overwritten is
synced in half the time of one that grows. While commits go on there is always a little more to
copy, so the writer is held for the last of it, once that is little.
"""

import sqlite3
import threading
from typing import Final

from ksana.store.sql.core.call_queue import CLOSE_SECONDS
from ksana.store.sql.core.dialects import SqliteDialect, Trouble
from ksana.store.sql.core.tally import Tally

PAUSE_SECONDS: Final = 0.2
"""Pause between two copies: a busy writer gives a few hundred pages meanwhile."""


ANEW_PAGES: Final = 1_000
"""From this size on the log is to begin anew: 4 MB."""

HELD_PAGES: Final = 1_000
"""The writer is held if the pass before the last had no more to copy: some milliseconds."""

PASSES: Final = 3
"""Passes before the last in which to come down to that. Else the log grows up to its limit."""


class Checkpointer:
    """One thread with a connection of its own. It sleeps, without a timer, while nothing is
    committed."""

    def __init__(self, dialect: SqliteDialect, tally: Tally) -> None:
        self._dialect = dialect
        self._tally = tally
        self.gate = threading.Lock()
        """The writer holds it while it writes."""
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="store-checkpoint", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Enough was committed to be worth a copy. Called by the writer."""
        self._asked.set()

    def close(self) -> None:
        """End after the copy under way. One held by a disk that hangs is left behind, like a writer
        is."""
        self._closing.set()
        self._asked.set()
        self._thread.join(CLOSE_SECONDS)

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closing.is_set() or self._tally.broken_reason is not None:
                break
            try:
                if connection is None:
                    connection = self._dialect.connect(read_only=False)
                self._copy_back(connection)
            except sqlite3.Error as error:
                trouble = self._dialect.classify(error)
                if trouble in (Trouble.BROKEN, Trouble.DAMAGED):
                    self._tally.mark_broken(error, trouble)
                    break
                # Busy, no room, or no descriptor to be had: the writer meets the same and says so;
                # the log keeps everything until later.
            self._closing.wait(PAUSE_SECONDS)
        if connection is not None:
            connection.close()

    def _copy_back(self, connection: sqlite3.Connection) -> None:
        """Copy what is committed, and have a long log begin anew."""
        size, before = _copy(connection)
        if size < ANEW_PAGES:
            return
        for _ in range(PASSES):
            _, copied = _copy(connection)
            if copied - before <= HELD_PAGES:
                with self.gate:
                    _copy(connection)
                return
            before = copied


def _copy(connection: sqlite3.Connection) -> tuple[int, int]:
    """Copy what is committed by now; the pages of the log, and how many of them are copied."""
    _, size, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return size, copied
