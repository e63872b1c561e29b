"""What every dialect answers."""

import importlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from ksana.base.errors import SetupError
from ksana.store.sql.core.statements import Macros


class Trouble(Enum):
    """What a driver's error means to us."""

    RETRY = "retry"  #: a deadlock or lock wait: nothing happened, run it again
    LOST = "lost"  #: no connection; before COMMIT nothing happened, during COMMIT nobody knows yet
    FULL = "full"  #: no room: nothing happened, later perhaps
    BROKEN = "broken"  #: the disk refused to make it durable: nothing after this can be trusted
    DAMAGED = "damaged"  #: the file holds what was never written to it
    OURS = "ours"  #: a statement or a constraint of ours failed: the function's own error


class Dialect(Protocol):
    """One database family."""

    name: str
    macros: Macros
    is_network: bool

    def connect(self, read_only: bool) -> Any:
        """Open a DB-API connection in autocommit mode; transactions are begun by statement."""
        ...

    def classify(self, error: BaseException) -> Trouble:
        """Say what an error from the driver means."""
        ...

    def insert_ids(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        """Insert rows into a table with an automatic id and answer the ids, in order."""
        ...

    def run_rows(self, cursor: Any, sql: str, rows: Sequence[Any]) -> int:
        """Run a statement for each row and answer how many rows matched in all."""
        ...

    def run_each(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        """Run a guarded change for each row and answer for each whether its guard held."""
        ...

    begin_write: str
    begin_read: str
    clock_sql: str


def all_match(dialect: Dialect, cursor: Any, sql: str, rows: Sequence[Any]) -> bool:
    """Run a guarded change for many rows at once, with one count for all of them. If a guard said
    no it is taken back, and they must be asked one by one."""
    cursor.execute("SAVEPOINT run_each")
    is_whole = dialect.run_rows(cursor, sql, rows) == len(rows)
    if not is_whole:
        cursor.execute("ROLLBACK TO SAVEPOINT run_each")
    cursor.execute("RELEASE SAVEPOINT run_each")
    return is_whole


def load_driver(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SetupError(f"this store needs a driver: pip install 'ksana[{extra}]'") from None
