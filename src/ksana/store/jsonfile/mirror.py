"""How `jobs.json` follows the database in memory: definitions before the answer, `last_*` within a
second.

    store thread                                     flusher (thread)
    ────────────                                     ────────────────
    batch ─▶ seal ─ tasks changed? ─ no ─▶ COMMIT ── firings left marks ─▶ waits half a second
                         │ yes                                                    │
                         ▼                                                        ▼
              encode them ─▶ write the file ─▶ COMMIT           asks the store thread for the pieces
                                                  │                               │
                                                  ▼                               ▼
                                               answers          writes the file, unless it is newer

Triggers note what changed, inside the transaction, so a rollback takes the notes with it:
`mirror_now` for what must be on disk before the answer (a definition; 0 stands for the API keys),
`mirror_soon` for what firing and delivery wrote. The file is put together from one piece of text
per job; a change encodes its own job anew and joins the others.

The pieces belong to the store thread. The file belongs to whoever holds `_file_lock`; a count of
writes shows the flusher that its copy is stale. If the file cannot be written the batch is rolled
back, and the file on disk is still the old one.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import StoreDownError
from ksana.base.instant import Instant
from ksana.domain.tasks.records import Task
from ksana.ports.store import ApiKey
from ksana.store.jsonfile.atomic import NotSyncedError, replace_file
from ksana.store.jsonfile.document import (
    Document,
    assemble,
    encode_head,
    encode_keys,
    encode_tail,
    encode_tail_of,
)
from ksana.store.jsonfile.memory import MemoryDialect
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.tasks.definitions import read_task

FLUSH_AFTER: Final = 0.5
"""Seconds between a firing and the write that shows it: half of what is promised, the other half is
for the write."""

RETRY_AFTER: Final = 1.0
SIGN_OF_LIFE_EVERY: Final = 0.9
_MARKS: Final = """
CREATE TABLE mirror_now (task_id INTEGER PRIMARY KEY);
CREATE TABLE mirror_soon (task_id INTEGER PRIMARY KEY);
CREATE TRIGGER mirror_new AFTER INSERT ON tasks
  BEGIN INSERT INTO mirror_now VALUES (NEW.id) ON CONFLICT DO NOTHING; END;
CREATE TRIGGER mirror_changed AFTER UPDATE OF version ON tasks
  BEGIN INSERT INTO mirror_now VALUES (NEW.id) ON CONFLICT DO NOTHING; END;
CREATE TRIGGER mirror_fired
  AFTER UPDATE OF next_slot_at, fire_at, last_run_at, last_status, last_error ON tasks
  BEGIN INSERT INTO mirror_soon VALUES (NEW.id) ON CONFLICT DO NOTHING; END;
CREATE TRIGGER mirror_removed AFTER DELETE ON tasks
  BEGIN INSERT INTO mirror_now VALUES (OLD.id) ON CONFLICT DO NOTHING; END;
CREATE TRIGGER mirror_new_key AFTER INSERT ON api_keys
  BEGIN INSERT INTO mirror_now VALUES (0) ON CONFLICT DO NOTHING; END;
CREATE TRIGGER mirror_ended_key AFTER UPDATE OF revoked_at ON api_keys
  BEGIN INSERT INTO mirror_now VALUES (0) ON CONFLICT DO NOTHING; END;
CREATE TRIGGER mirror_used_key AFTER UPDATE OF last_used_at ON api_keys
  BEGIN INSERT INTO mirror_soon VALUES (0) ON CONFLICT DO NOTHING; END;
"""
_SOON: Final = (
    "SELECT t.id, t.last_run_at, CASE WHEN t.fire_at IS NULL THEN NULL ELSE t.next_slot_at END, "
    "t.last_status, t.last_error, t.runs_fired "
    "FROM mirror_soon m JOIN tasks t ON t.id = m.task_id WHERE t.deleted = 0"
)
_ALL_KEYS: Final = (
    "SELECT id, name, secret_hash, scopes, created_at, revoked_at, last_used_at FROM api_keys "
    "ORDER BY created_at, id"
)


class _Piece(NamedTuple):
    head: bytes
    whole: bytes
    has_max_runs: bool


class Mirror:
    """The file, and what is needed to write it. With a `refusal`, because another process serves
    the file, nothing is written. Only a server signs life."""

    def __init__(
        self,
        path: Path,
        dialect: MemoryDialect,
        clock: Clock,
        found: Document,
        *,
        refusal: str | None,
        signs_life: bool,
    ) -> None:
        self.path = path
        self.problem: str | None = None
        """Why the last write failed; None once one has succeeded again."""
        self._connection = dialect.connection
        self._clock = clock
        self._refusal = refusal
        self._signs_life = signs_life
        self._pieces: dict[int, _Piece] = {}
        self._bad = [job.text for job in found.bad]
        self._unknown = found.unknown
        self._more: dict[str, bytes] = {}
        self._writes = 0
        self._file_lock = threading.Lock()
        self._marked = threading.Event()
        self._signed_at = -1e9
        self._alive_at: Instant | None = None
        """When this server last gave a sign of life: what the file's reader will believe."""
        self._broken = False
        self._connection.executescript(_MARKS)

    def seal(self, session: Session) -> None:
        """Commit a batch, with its changes of definitions on disk before. Raise StoreDownError if
        that cannot be."""
        is_urgent, is_marked = self._connection.execute(
            "SELECT EXISTS (SELECT 1 FROM mirror_now), EXISTS (SELECT 1 FROM mirror_soon)"
        ).fetchone()
        self._sign_life()
        if is_urgent:
            self._seal_on_disk(session)
            return
        session.raw("COMMIT")
        if is_marked:
            self._marked.set()

    def load(self, tasks: list[Task]) -> None:
        """Encode every task that the start put into the database, without writing the file."""
        self._pieces = {task.id: _encode(task) for task in tasks}
        self._more = self._gather_more(self._pieces)
        self._connection.execute("DELETE FROM mirror_now")
        self._connection.execute("DELETE FROM mirror_soon")

    def write(self) -> None:
        """Write the file as it should be now. Raise OSError."""
        pieces, more = self._take_soon(self._pieces)
        with self._file_lock:
            self._replace(pieces, more)
        self._pieces, self._more = pieces, more

    def write_if_marked(self) -> None:
        """The last word before the end: `last_*`, and for a server the time of the end."""
        if (
            not self._signs_life
            and not self._connection.execute(
                "SELECT EXISTS (SELECT 1 FROM mirror_soon)"
            ).fetchone()[0]
        ):
            return
        with contextlib.suppress(
            OSError
        ):  # shown by `problem`, and nothing acknowledged depends on it
            self.write()

    def flush(self, take: Callable[[], "Copy"]) -> bool:
        """Write what firings changed. `take` has the store thread hand over the pieces. Answer
        whether the file is current."""
        copy = take()
        with self._file_lock:
            if copy.writes != self._writes:
                return (
                    self.problem is None
                )  # a change was written meanwhile, and all of this with it
            try:
                self._replace(copy.pieces, copy.more)
            except OSError:
                return False
        return True

    def copy(self) -> "Copy":
        """Take up the marks of firings and hand over the pieces. For the store thread, between
        transactions."""
        self._marked.clear()
        self._pieces, self._more = self._take_soon(self._pieces)
        return Copy(self._pieces, self._more, self._writes)

    def wait_for_marks(self, seconds: float | None) -> bool:
        """Wait until there is something to flush."""
        return self._marked.wait(seconds)

    def wake(self) -> None:
        """End the waiting."""
        self._marked.set()

    def _seal_on_disk(self, session: Session) -> None:
        if self._refusal is not None:
            raise StoreDownError(f"{self._refusal} Changes go through its API.")
        if self._broken:
            raise StoreDownError(f"{self.problem}: restart the server", retry_after_sec=30)
        ids = [
            int(row[0])
            for row in self._connection.execute("SELECT task_id FROM mirror_now ORDER BY task_id")
        ]
        pieces = dict(self._pieces)
        for task_id in ids:
            row = session.one("tasks.get_task", id=task_id)
            task = None if row is None else read_task(row)
            if task is None or task.is_deleted:
                pieces.pop(task_id, None)
            else:
                pieces[task_id] = _encode(task)
        pieces, more = self._take_soon(pieces)
        self._connection.execute("DELETE FROM mirror_now")
        with self._file_lock:
            try:
                self._replace(pieces, more)
            except OSError as error:
                raise StoreDownError(
                    f"{self.path} could not be written: {_line(error)}", retry_after_sec=5
                ) from error
            # Held until the commit, or the flusher could put older pieces over these.
            try:
                session.raw("COMMIT")
            except BaseException:
                # The file is ahead of the database: the flusher writes the old one again.
                self._marked.set()
                raise
            self._pieces, self._more = pieces, more

    def _take_soon(self, pieces: dict[int, _Piece]) -> tuple[dict[int, _Piece], dict[str, bytes]]:
        """The pieces with what firings changed. Takes the marks away; in a transaction that fails
        they come back."""
        self._read_life()
        pieces = dict(pieces)
        for task_id, last_run_at, next_run_at, status, error, fired in self._connection.execute(
            _SOON
        ).fetchall():
            piece = pieces.get(task_id)
            if piece is not None:
                tail = encode_tail(
                    last_run_at, next_run_at, status, error, fired if piece.has_max_runs else None
                )
                pieces[task_id] = piece._replace(whole=piece.head + tail)
        self._connection.execute("DELETE FROM mirror_soon")
        return pieces, self._gather_more(pieces)

    def _gather_more(self, pieces: dict[int, _Piece]) -> dict[str, bytes]:
        more = dict(self._unknown)
        row = self._connection.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'tasks'"
        ).fetchone()
        if row is not None and row[0] > next(reversed(pieces), 0):
            more["last_task_id"] = b"%d" % row[0]
        keys = [_read_key(row) for row in self._connection.execute(_ALL_KEYS)]
        if keys:
            more["keys"] = encode_keys(keys)
        return more

    def _replace(self, pieces: dict[int, _Piece], more: dict[str, bytes]) -> None:
        """Write the file; the caller holds the lock."""
        self._writes += 1
        jobs = [piece.whole for piece in pieces.values()] + self._bad
        try:
            replace_file(self.path, assemble(self._clock.now(), jobs, more))
        except NotSyncedError as error:
            # Nobody knows which of the two files a power cut would leave. Show the old one again
            # and stop acknowledging.
            self._broken = True
            self.problem = f"{self.path}: {_line(error)}"
            with contextlib.suppress(OSError):
                jobs = [piece.whole for piece in self._pieces.values()] + self._bad
                replace_file(self.path, assemble(self._clock.now(), jobs, self._more))
            raise
        except OSError as error:
            self.problem = f"{self.path} could not be written: {_line(error)}"
            self._marked.set()  # the flusher tries again until it succeeds
            raise
        if self._signs_life and self._alive_at is not None:
            sign_life(self.path, self._alive_at)
        if not self._broken:
            self.problem = None

    def _sign_life(self) -> None:
        """Set the lock file's time to the last sign of life: after a kill it shows since when
        nobody was there. A server that drains gives none, however much it still writes."""
        here = time.monotonic()
        if self._signs_life and here - self._signed_at > SIGN_OF_LIFE_EVERY:
            self._signed_at = here
            self._read_life()
            if self._alive_at is not None:
                sign_life(self.path, self._alive_at)

    def _read_life(self) -> None:
        """Read the last sign of life of who came last: us, or the life before while we start."""
        row = self._connection.execute(
            "SELECT alive_at FROM instances ORDER BY rowid DESC LIMIT 1"
        ).fetchone()
        self._alive_at = None if row is None else row[0]


class Copy(msgspec.Struct, frozen=True):
    """The pieces at one instant, and how many files had been written by then."""

    pieces: dict[int, _Piece]
    more: dict[str, bytes]
    writes: int


class Flusher:
    """The thread that writes what firings changed, soon."""

    def __init__(self, mirror: Mirror, take: Callable[[], Copy]) -> None:
        self._mirror = mirror
        self._take = take
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="store-flush", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop; the caller flushes what is left."""
        self._is_ending.set()
        self._mirror.wake()
        self._thread.join()

    def _serve(self) -> None:
        pause = FLUSH_AFTER
        while not self._is_ending.is_set():
            self._mirror.wait_for_marks(None)
            if self._is_ending.wait(pause):
                return
            try:
                is_current = self._mirror.flush(self._take)
            except Exception as error:  # a bug of ours must be seen, and must not end the flushing
                self._mirror.problem = (
                    f"{self._mirror.path} could not be brought up to date: {error!r}"
                )
                self._mirror.wake()
                is_current = False
            pause = FLUSH_AFTER if is_current else RETRY_AFTER


def _encode(task: Task) -> _Piece:
    head = encode_head(task)
    return _Piece(head, head + encode_tail_of(task), task.definition.options.max_runs is not None)


def _read_key(row: Row) -> ApiKey:
    key_id, name, secret_hash, scopes, created_at, revoked_at, last_used_at = row
    return ApiKey(
        key_id, name, secret_hash, tuple(scopes.split()), created_at, revoked_at, last_used_at
    )


def sign_life(path: Path, at: Instant) -> None:
    """Set the lock file's time. Not worth failing for: an outage is then dated by an earlier
    sign."""
    with contextlib.suppress(OSError):
        os.utime(f"{path}.lock", ns=(at * 1000, at * 1000))


def _line(error: OSError) -> str:
    return error.strerror or str(error)
