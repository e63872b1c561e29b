"""The commit queue: how transaction functions that wait become one durable transaction.

    callers (event loop)      writer (thread, or inline in tests)
    ────────────────────      ───────────────────────────────────
    transact(fn) ─┐
    transact(fn) ─┼─ queue ─▶ take all that wait ─▶ BEGIN ─▶ fn, fn, fn ─▶ rollups, events ─▶ COMMIT
    transact(fn) ─┘                                                                            │
         ▲                                                                                     │
         └──────────────────── one wake-up of the loop for the whole batch ◀───────────────────┘

Nobody waits for a timer: a lone function is committed at once, and while one commit runs the next
batch piles up by itself.

**Isolated failures.** A batch is first run with nothing between its functions. One that raises
before it wrote anything just gets its exception, after the commit, because it may have decided by
what a neighbour wrote. If one raises *after* a write (an event or a count is one), or a statement
fails, the batch is rolled back and run again carefully, each function with its events inside a
savepoint, and only the savepoint of the one that raises is undone. Functions may be run twice; that
is in their contract.

**Trouble.** A deadlock or a lock wait: roll back, wait a little, again. A connection lost before
COMMIT: nothing happened; connect anew, again. No connection to be had: every waiting function gets
StoreDownError and nothing is tried until the pause is over. A full disk: StoreDownError, nothing
written. A disk that refused to sync: the queue is closed until a restart, because after a failed
fsync the kernel may report success for data it dropped. A damaged file: the same.

**Unknown commits.** A connection lost *while* committing leaves the outcome open. Each batch on a
network database therefore writes a fresh mark into its writer's own row of `commit_marks`. To
resolve, connect anew and read that row `FOR UPDATE`: this waits for the old transaction if the
server still has it, and then the mark is either ours, so it happened, or not, so it never will.
Nothing is guessed and no function runs again after it was committed.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import KsanaError, StoreDownError
from ksana.base.ids import new_token, new_uid
from ksana.ports.store import Committed, RaceLostError
from ksana.store.sql.core.database_clock import DatabaseClock
from ksana.store.sql.core.dialects import Dialect, Trouble
from ksana.store.sql.core.session import Session
from ksana.store.sql.core.statements import Statement
from ksana.store.sql.core.tally import Tally, summary
from ksana.store.sql.core.tx import SqlTx

MAX_RETRIES: Final = 12
"""Deadlocks in a row before a batch gives up; with the pauses below about four seconds."""

MAX_RECONNECTS: Final = 3
RESOLVE_SECONDS: Final = 60.0
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts to connect: so late at most it is noticed that the store is back."""
CHECK_SECONDS: Final = 1.0
"""How often a writer looks whether its file is still in its place; a look costs 2 µs."""
ENTER_SECONDS: Final = 600.0
"""How often a writer makes sure that its row of marks is there; far below their retention."""


class StoreCall:
    """One function that waits, and later what came of it."""

    __slots__ = ("args", "error", "fn", "future", "kwargs", "loop", "result", "waits_since")

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: Any,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.future = future
        self.loop = loop
        self.waits_since = time.monotonic()
        self.result: Any = None
        self.error: BaseException | None = None


class _CarefulNeeded(Exception):
    """A function failed after it wrote: the batch must be run again with savepoints."""


class Writer:
    """One connection that commits batches. Used by one thread at a time."""

    def __init__(
        self,
        dialect: Dialect,
        statements: Mapping[str, Statement],
        clock: Clock,
        tally: Tally,
        seal: Callable[[Session], None] | None = None,
        check: Callable[[], None] | None = None,
        database_clock: DatabaseClock | None = None,
    ) -> None:
        """`seal` commits in the place of a bare COMMIT, for a store that must write more than the
        database. `check` is asked before a batch, once a second, and raises while nothing may be
        written. Writers of a network database share its clock."""
        self._dialect = dialect
        self._seal = seal
        self._check = check
        self._check_at = 0.0
        self._statements = statements
        self._clock = clock
        self._tally = tally
        self._session: Session | None = None
        self._id = new_uid()
        self._mark = 0
        self._database_clock = database_clock or DatabaseClock(dialect.clock_sql)
        self._entered_at = -1e9
        self._pause = FIRST_PAUSE
        self._flushed: list[Committed] = []
        """What the listener is told if the transaction under way is committed."""

    def commit(self, batch: list[StoreCall]) -> None:
        """Run and commit the batch. Afterwards each work has its result or its error; nothing is
        raised."""
        try:
            if self._tally.down_reason is not None or self._tally.broken_reason is not None:
                self._refuse_if_away()
            if self._check is not None and time.monotonic() >= self._check_at:
                self._check()
                self._check_at = time.monotonic() + CHECK_SECONDS
            self._commit_until_settled(batch)
        except StoreDownError as error:
            self._tally.down_reason = self._tally.down_reason or error.message
            for work in batch:
                work.result, work.error = None, error
        except BaseException as error:  # a bug here must not leave callers waiting for ever
            self._drop()
            for work in batch:
                work.result, work.error = None, error

    def close(self) -> None:
        """Close the connection."""
        self._drop()

    def _refuse_if_away(self) -> None:
        if self._tally.broken_reason is not None:
            raise StoreDownError(self._tally.broken_reason, retry_after_sec=30)
        wait = self._tally.down_until - time.monotonic()
        reason = self._tally.down_reason  # another writer may reach the store at any moment
        if wait > 0 and reason is not None:
            raise StoreDownError(
                f"the store is away: {reason}", retry_after_sec=max(1, round(wait))
            )

    def _commit_until_settled(self, batch: list[StoreCall]) -> None:
        careful, is_network = False, self._dialect.is_network
        retries, lost = itertools.count(1), itertools.count(1)
        for run_before in itertools.count():
            session = self._session or self._connect()
            self._flushed = []
            try:
                if is_network and time.monotonic() - self._entered_at > ENTER_SECONDS:
                    self._enter(session)
                session.raw_later(self._dialect.begin_write)
                now = self._database_clock.read(session) if is_network else self._clock.now()
                tx = SqlTx(session, now, is_again=run_before > 0)
                run = self._run_apart if careful else self._run_together
                session.wrote = run(session, tx, batch)
                if session.wrote and is_network:
                    self._mark = new_token()
                    session.run_later("core.set_mark", writer=self._id, mark=self._mark, at=tx.now)
            except _CarefulNeeded:
                self._roll_back(session)
                careful = True
                continue
            except Exception as error:
                self._handle_trouble(session, error, retries, lost)
                continue
            try:
                if self._try_commit(session, batch, careful, retries, lost):
                    return
            except _CarefulNeeded:
                self._roll_back(session)
                careful = True

    def _try_commit(
        self, session: Session, batch: list[StoreCall], careful: bool, retries: Any, lost: Any
    ) -> bool:
        if not session.wrote:
            self._roll_back(session)
            return True
        try:
            if self._seal is None:
                session.raw("COMMIT")
            else:
                self._seal(session)
        except Exception as error:
            trouble = self._dialect.classify(error) if self._dialect.is_network else None
            if trouble is Trouble.OURS and not careful:
                # A statement that travelled with COMMIT failed: the careful run shows whose it is.
                raise _CarefulNeeded from error
            if trouble is not Trouble.LOST:
                self._handle_trouble(session, error, retries, lost)
                return False
            self._drop()
            if not self._resolve():
                self._tally.retries += 1
                return False
        tally = self._tally
        tally.commits += 1
        tally.transactions += len(batch)
        tally.round_trips += session.round_trips
        session.round_trips = 0
        if tally.down_reason is not None:
            tally.mark_reached()
        if tally.listener is not None:
            for flushed in self._flushed:
                try:
                    tally.listener(flushed)
                except Exception as error:  # what is committed stays so, whoever counts it wrongly
                    log.error("a listener to commits failed", exc_info=error)
        return True

    def _run_together(self, session: Session, tx: SqlTx, batch: list[StoreCall]) -> bool:
        """Run the functions with nothing between them; answer whether any wrote."""
        wrote = False
        for work in batch:
            session.wrote = False
            work.error = None
            try:
                work.result = work.fn(tx, *work.args, **work.kwargs)
            except Exception as error:
                if self._classify(error) is not Trouble.OURS:
                    raise
                if session.wrote or not isinstance(error, KsanaError):
                    raise _CarefulNeeded from error
                work.result, work.error = None, error
            else:
                wrote = wrote or session.wrote
        try:
            self._flushed.append(tx.flush(self._tally.event_types))
        except Exception as error:
            if self._dialect.classify(error) is not Trouble.OURS:
                raise
            # An event that the table will not take: the careful run shows whose it is.
            raise _CarefulNeeded from error
        return wrote

    def _run_apart(self, session: Session, tx: SqlTx, batch: list[StoreCall]) -> bool:
        """Run each function, events and rollups included, inside its own savepoint; answer
        whether any wrote."""
        wrote = False
        for work in batch:
            session.wrote = False
            work.error = None
            session.raw("SAVEPOINT one")
            try:
                work.result = work.fn(tx, *work.args, **work.kwargs)
                flushed = tx.flush(self._tally.event_types)
                session.raw("RELEASE SAVEPOINT one")  # and before it all that waited
            except Exception as error:
                if self._classify(error) is not Trouble.OURS:
                    raise
                session.raw("ROLLBACK TO SAVEPOINT one")
                session.raw("RELEASE SAVEPOINT one")
                work.result, work.error = None, error
                tx.forget()
            else:
                wrote = wrote or session.wrote
                self._flushed.append(flushed)
        return wrote

    def _enter(self, session: Session) -> None:
        """Make sure that this writer has its row, in a commit of its own: the rows of writers that
        were idle for long are purged, and one that is not there yet cannot be waited for."""
        session.run("core.enter_mark", writer=self._id, mark=0, at=self._clock.now())
        self._entered_at = time.monotonic()

    def _connect(self) -> Session:
        session: Session | None = None
        try:
            session = Session(
                self._dialect, self._dialect.connect(read_only=False), self._statements
            )
            if self._dialect.is_network:
                self._enter(session)
        except Exception as error:
            if session is not None:
                session.close()
            if self._dialect.classify(error) is Trouble.DAMAGED:
                reason = self._tally.mark_broken(error, Trouble.DAMAGED)
                raise StoreDownError(reason, retry_after_sec=30) from error
            self._tally.mark_away(error, self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            raise StoreDownError(f"the store is away: {summary(error)}") from error
        self._pause = FIRST_PAUSE
        self._tally.mark_reached()
        self._database_clock.forget()
        self._session = session
        return session

    def _handle_trouble(self, session: Session, error: Exception, retries: Any, lost: Any) -> None:
        trouble = self._classify(error)
        self._tally.retries += 1
        if trouble is Trouble.LOST:
            self._drop()
            if next(lost) > MAX_RECONNECTS:
                raise StoreDownError(
                    f"the store fails again and again: {summary(error)}"
                ) from error
            return
        self._roll_back(session)
        if trouble in (Trouble.RETRY, Trouble.RACED):
            attempt = next(retries)
            if attempt > MAX_RETRIES:
                raise StoreDownError(f"the store is too busy: {summary(error)}") from error
            first = 0.01 if trouble is Trouble.RETRY else 0.0001  # who won a race has committed
            time.sleep(random.uniform(0, min(0.5, first * 2**attempt)))
            return
        if trouble is Trouble.FULL:
            raise StoreDownError(
                f"the store has no room: {summary(error)}", retry_after_sec=5
            ) from error
        if trouble in (Trouble.BROKEN, Trouble.DAMAGED):
            self._drop()
            reason = self._tally.mark_broken(error, trouble)
            raise StoreDownError(reason, retry_after_sec=30) from error
        raise error

    def _classify(self, error: BaseException) -> Trouble:
        """What an error in the middle of a batch means for it."""
        if isinstance(error, RaceLostError):
            return Trouble.RACED
        return self._dialect.classify(error)

    def _resolve(self) -> bool:
        """Find out whether the batch whose COMMIT got no answer happened."""
        deadline = time.monotonic() + RESOLVE_SECONDS
        pause = 0.05
        while True:
            try:
                session = Session(
                    self._dialect, self._dialect.connect(read_only=False), self._statements
                )
                try:
                    session.raw(self._dialect.begin_write)
                    row = session.one("core.get_mark", writer=self._id)
                    session.raw("COMMIT")
                finally:
                    session.close()
                return row is not None and row[0] == self._mark
            except Exception as error:
                if time.monotonic() > deadline:
                    raise StoreDownError(
                        "the connection broke while committing and the store has not come back: "
                        "whether this write happened is not known yet"
                    ) from error
                self._tally.down_reason = summary(error)
                time.sleep(pause)
                pause = min(pause * 2, 1.0)

    def _roll_back(self, session: Session) -> None:
        session.forget_later()
        try:
            session.raw("ROLLBACK")
        except Exception as error:
            # SQLite rolls back by itself on a full disk and then says there is nothing to roll
            # back.
            if self._dialect.is_network or "no transaction is active" not in str(error):
                self._drop()

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
