"""A private MariaDB (or MySQL's fork of the same commands), durable as in production, small in
memory."""

import itertools
import os
import subprocess
from typing import Any

import pymysql

from tests.ground.server import Server, find_program


class MariaDB(Server):
    """One mariadbd on loopback; root without a password; a database per test."""

    name = "mariadb"

    def __init__(self, port: int | None = None, *, options: tuple[str, ...] = ()) -> None:
        self._daemon = find_program("mariadbd", "mysqld")
        self._installer = find_program("mariadb-install-db", "mysql_install_db")
        super().__init__(port)
        self._options = options
        self._numbers = itertools.count(1)
        self._install()

    def _install(self) -> None:
        subprocess.run(
            [
                self._installer,
                "--no-defaults",
                f"--datadir={self.folder}/data",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *self._as_root(),
            ],
            check=True,
            capture_output=True,
        )

    def _as_root(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def command(self) -> list[str]:
        return [
            self._daemon,
            "--no-defaults",
            *self._as_root(),
            f"--datadir={self.folder}/data",
            f"--tmpdir={self.folder}",
            f"--socket={self.folder}/socket",
            f"--pid-file={self.folder}/pid",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--performance-schema=OFF",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-buffer-pool-size=48M",
            "--innodb-log-file-size=32M",
            "--innodb-fast-shutdown=1",
            "--character-set-server=utf8mb4",
            "--max-connections=300",
            *self._options,
        ]

    def connect(self, database: str | None = None) -> "pymysql.connections.Connection[Any]":
        """A plain connection for the test's own questions; autocommit."""
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            connect_timeout=2,
            read_timeout=30,
        )

    def is_answering(self) -> bool:
        try:
            self.connect().close()
        except (pymysql.MySQLError, OSError):
            return False
        return True

    def url(self, database: str) -> str:
        return f"mysql://root@{self.host}:{self.port}/{database}"

    def create_database(self) -> str:
        """Make a fresh database and tell its name."""
        name = f"t{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        self.run(f"DROP DATABASE IF EXISTS {name}")

    def run(self, statement: str) -> None:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        finally:
            connection.close()
