"""What the store's checks need from the outside: connections of their own, and the power to end
those of the store."""

import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

SECOND = 1_000_000
MINUTE = 60 * SECOND
LEASE = 30 * SECOND


class Database:
    """The database behind a store's URL, seen past the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kind = url.split(":", 1)[0]

    def connect(self) -> Any:
        """A plain connection in autocommit mode."""
        if self.kind == "sqlite":
            return sqlite3.connect(
                self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=10
            )
        if self.kind == "postgresql":
            return psycopg.connect(self.url, autocommit=True)
        parts = urlsplit(self.url)
        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username or "root",
            database=parts.path.strip("/"),
            autocommit=True,
        )

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement; answer its rows if it has any."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    @property
    def can_sever(self) -> bool:
        """Whether there are connections to be cut."""
        return self.kind != "sqlite"

    @property
    def leaves_dead_rows(self) -> bool:
        """Whether rows that were replaced lie in their table until it is vacuumed."""
        return self.kind == "postgresql"

    @property
    def ddl_is_transactional(self) -> bool:
        """Whether a change of schema can be rolled back."""
        return self.kind != "mysql"

    def connection_of(self, tx: Any) -> int:
        """The server's number for the connection that a transaction uses."""
        sql = "SELECT pg_backend_pid()" if self.kind == "postgresql" else "SELECT CONNECTION_ID()"
        return int(tx._session.raw(sql)[0])

    def sever(self, number: int) -> None:
        """End a connection from the server's side and wait until it is gone."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            if self.kind == "postgresql":
                cursor.execute(f"SELECT pg_terminate_backend({number}, 5000)")
                return
            cursor.execute(f"KILL {number}")
            while True:
                cursor.execute(
                    f"SELECT COUNT(*) FROM information_schema.processlist WHERE id = {number}"
                )
                if not cursor.fetchone()[0]:
                    return
