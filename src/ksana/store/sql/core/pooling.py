"""A pooler between us and PostgreSQL that gives each transaction a connection of its choice."""

from typing import Any

from ksana.base.errors import SetupError
from ksana.store.sql.core.dialects import Dialect

ADVICE = (
    "is reached through a pooler that gives every transaction another connection to the server "
    "(PgBouncer: pool_mode = transaction). Ksana prepares statements and sets limits for a "
    "connection and waits for notices on one: use pool_mode = session, or connect to the server "
    "itself"
)


def refuse_pooler(dialect: Dialect, shown: str) -> None:
    """Raise SetupError where connections are handed from caller to caller: statements that were
    prepared are not found, and the limits of one caller hold for another."""
    if dialect.name != "postgres":
        return
    one = dialect.connect(read_only=True)
    try:
        if _ask(one) == one.info.backend_pid:
            return  # the server itself
        other = dialect.connect(read_only=True)
        try:
            if _is_passed_on(one, other):
                raise SetupError(f"the store {shown} {ADVICE}")
        finally:
            other.close()
    finally:
        one.close()


def _is_passed_on(one: Any, other: Any) -> bool:
    """Whether the server's process that serves one serves the other too, or one no longer while the
    other is in a transaction."""
    before = _ask(one)
    if before <= 0:
        return False  # a server of another make, which has no such numbers
    other.execute("BEGIN")
    taken = _ask(other)
    after = _ask(one)
    other.execute("ROLLBACK")
    return taken == before or after != before


def _ask(connection: Any) -> int:
    return int(connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()[0])
