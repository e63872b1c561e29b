"""What every dialect answers."""

import importlib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

from ksana.base.errors import SetupError
from ksana.store.sql.core.statements import Macros


class Trouble(Enum):
    """What a driver's error means to us."""

    RETRY = "retry"  #: a deadlock or lock wait: nothing happened, run it again
    RACED = "raced"  #: what was read is no longer so: nothing happened, run it again soon
    LOST = "lost"  #: no connection; before COMMIT nothing happened, during COMMIT nobody knows yet
    FULL = "full"  #: no room: nothing happened, later perhaps
    BROKEN = "broken"  #: the disk refused to make it durable: nothing after this can be trusted
    SLOW = "slow"  #: a read was stopped because its time was over
    DAMAGED = "damaged"  #: the file holds what was never written to it
    OURS = "ours"  #: a statement or a constraint of ours failed: the function's own error


Send = Callable[[list[tuple[str, Any]]], list[int]]
"""The session's way to send statements: what waits goes before them. Answers how many rows each of
them matched; the cursor has the answer of the last one."""


class Dialect(Protocol):
    """One database family."""

    name: str
    macros: Macros
    is_network: bool
    has_keys: bool
    """Whether columns that never change lie with their indexes in tables of keys (`keyed`), because
    a changed row is entered anew into each index of its table."""

    def connect(self, read_only: bool) -> Any:
        """Open a DB-API connection in autocommit mode; transactions are begun by statement."""
        ...

    def cursor(self, connection: Any) -> Any:
        """What runs a session's statements and has the answer of the last one."""
        ...

    def limit_reads(self, connection: Any, seconds: float) -> None:
        """Have the database stop what is read on this connection from now on after so long; called
        again for each transaction. What is stopped is classified as SLOW."""
        ...

    def classify(self, error: BaseException) -> Trouble:
        """Say what an error from the driver means."""
        ...

    def find_refusal(self, error: BaseException) -> str | None:
        """Why the server will not have us, in words, if waiting does not help: there is no such
        role or database, or the password is wrong. None: it may have us later."""
        ...

    def insert_ids(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        """Insert rows into a table with an automatic id and answer the ids, in order."""
        ...

    def widen(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[tuple[str, Any]]:
        """As few statements as do for all rows what this one does for each."""
        ...

    def send(self, cursor: Any, statements: Sequence[tuple[str, Any]]) -> list[int]:
        """Run statements in this order, over a network in one round trip; answer how many rows each
        matched. The cursor has the answer of the last one. After an error the rest is not run."""
        ...

    def require(
        self, cursor: Any, sql: str, rows: Sequence[Any], *, is_race: bool = False
    ) -> list[tuple[str, Any]]:
        """The same, and statements that fail unless every row matched: for a guard whose answer is
        known, so that nobody waits for it. `is_race`: others may have been faster; the failure is
        then classified as RETRY."""
        ...

    def ask(
        self,
        cursor: Any,
        before: Sequence[tuple[str, Any]],
        questions: Sequence[tuple[str, Any]],
    ) -> list[list[Any]]:
        """Run statements in this order like `send`; answer the rows of each question."""
        ...

    def run_each(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        """Run a guarded change for each row and answer for each whether its guard held."""
        ...

    fold: Callable[[str], str] | None
    """Makes a SELECT answer each of its rows as one text, where that is read faster."""

    avoid_sorts: str | None
    """A statement after which, until the end of the transaction, rows are read from an index that
    has their order, if there is one; None where the statement itself can say which."""

    begin_write: str
    begin_read: str
    clock_sql: str


def all_match(dialect: Dialect, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> bool:
    """Run a guarded change for many rows at once, with one count for all of them. If a guard said
    no it is taken back, and they must be asked one by one. Over a network nobody waits for the end
    of the savepoint: the next one of its name takes its place, and COMMIT ends it."""
    begin, wide = ("SAVEPOINT run_each", None), dialect.widen(cursor, sql, rows)
    is_whole = sum(send([begin, *wide])[1:]) == len(rows)
    undo, end = ("ROLLBACK TO SAVEPOINT run_each", None), ("RELEASE SAVEPOINT run_each", None)
    if not is_whole:
        send([undo, end])
    elif not dialect.is_network:
        send([end])
    return is_whole


def load_driver(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SetupError(f"this store needs a driver: pip install 'ksana[{extra}]'") from None
