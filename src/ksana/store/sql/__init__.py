"""The SQL store: one implementation of `ports.store` for SQLite, MariaDB/MySQL and PostgreSQL."""

from ksana.store.sql.core.store import SqlStore, check_schema, migrate, open_store

__all__ = ["SqlStore", "check_schema", "migrate", "open_store"]
