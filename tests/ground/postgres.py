"""A private PostgreSQL with fsync on, run by an unprivileged user when the tests run as root."""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
from typing import Any

import psycopg

from tests.ground.server import MissingServerError, Server, find_program

FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
ROLE = "ksana"


class Postgres(Server):
    """One postgres on loopback; trusts its callers; a database per test."""

    name = "postgres"
    order: tuple[str, ...] = ("--locale-provider=icu", "--icu-locale=en-US")
    """How text is ordered: by the rules of a language, as on most installations, where this server
    knows them (15 and later); they differ from the order of bytes."""
    stop_signal = signal.SIGINT  # "fast": do not wait for clients to leave

    def __init__(self, port: int | None = None, *, options: tuple[str, ...] = ()) -> None:
        self._daemon = find_program("postgres", beside=FOLDERS)
        self._installer = find_program("initdb", beside=FOLDERS)
        self._user = _unprivileged_user()
        super().__init__(port)
        self._options = options
        self._numbers = itertools.count(1)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._install()

    def run_as(self) -> str | None:
        return self._user

    def _install(self) -> None:
        asked = subprocess.run([self._installer, "--help"], capture_output=True, text=True)
        order = self.order if "--icu-locale" in asked.stdout else ()
        subprocess.run(
            [
                self._installer,
                f"--pgdata={self.folder}/data",
                f"--username={ROLE}",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                *order,
                "--no-sync",  # what a test begins with need not survive a power cut
                "--no-instructions",
            ],
            check=True,
            capture_output=True,
            user=self._user,
            extra_groups=[] if self._user is not None else None,
            cwd=self.folder,
        )

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": "on",
            "synchronous_commit": "on",
            "shared_buffers": "32MB",
            "max_connections": "200",
            "max_wal_size": "256MB",
            "autovacuum_naptime": "10s",
            "logging_collector": "off",
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [self._daemon, "-D", f"{self.folder}/data", *flags, *self._options]

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A plain connection for the test's own questions; autocommit."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=2)

    def is_answering(self) -> bool:
        try:
            self.connect().close()
        except psycopg.Error:
            return False
        return True

    def url(self, database: str) -> str:
        return f"postgresql://{ROLE}@{self.host}:{self.port}/{database}"

    def create_database(self) -> str:
        """Make a fresh database and tell its name."""
        name = f"t{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name

    def drop_database(self, name: str) -> None:
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise MissingServerError(
        "PostgreSQL will not run as root, and there is neither a user postgres nor nobody"
    )
