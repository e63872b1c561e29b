"""What an operator may have set on a database server that weakens "durable before answered", in
sentences."""

from typing import Any

from ksana.store.sql.core.dialects import Dialect


def list_weaknesses(dialect: Dialect) -> list[str]:
    """The server's settings under which an acknowledged write may be lost; one sentence each."""
    if not dialect.is_network:
        return []  # the pragmas are ours, on every connection
    connection = dialect.connect(read_only=False)
    try:
        cursor = connection.cursor()
        return _mysql(cursor) if dialect.name == "mysql" else _postgres(cursor)
    finally:
        connection.close()


def _mysql(cursor: Any) -> list[str]:
    cursor.execute(
        "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@innodb_doublewrite"
    )
    flush, has_binlog, sync_binlog, doublewrite = (str(value) for value in cursor.fetchone())
    found = []
    if flush not in ("1", "3"):  # MariaDB's 3 also syncs at every commit
        found.append(
            f"innodb_flush_log_at_trx_commit is {flush}: a crash may lose a second of acknowledged "
            "writes; set it to 1"
        )
    if has_binlog == "1" and sync_binlog != "1":
        found.append(
            f"sync_binlog is {sync_binlog}: after a crash replicas may lack acknowledged writes; "
            "set it to 1"
        )
    if doublewrite in ("0", "OFF"):
        found.append("innodb_doublewrite is off: a power cut may tear pages; switch it on")
    return found


def _postgres(cursor: Any) -> list[str]:
    # The connection has switched synchronous_commit on for itself; reset_val is what the server
    # would have done.
    cursor.execute(
        "SELECT name, CASE name WHEN 'synchronous_commit' THEN reset_val ELSE setting END "
        "FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
    )
    settings = {str(row[0]): str(row[1]) for row in cursor.fetchall()}
    found = []
    if settings.get("fsync") == "off":
        found.append("fsync is off: a power cut may lose or destroy the database; switch it on")
    if settings.get("full_page_writes") == "off":
        found.append("full_page_writes is off: a power cut may tear pages; switch it on")
    if settings.get("synchronous_commit") == "off":
        found.append(
            "synchronous_commit is off on this server: Ksana switches it on for its own writes"
        )
    return found
