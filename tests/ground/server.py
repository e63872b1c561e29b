"""What all private servers share: a temporary folder, a port on loopback, and the ways in which
they can go wrong."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NoReturn, Protocol, TypeVar

import pytest

from tests.ground.child import Child, ChildError, free_port, wait_for

S = TypeVar("S", bound="Startable")


PREFIX = "ksana-test-"
STALE_S = 3600
MEMORY = Path("/dev/shm")
NEEDED_BYTES = 4 * 1024**3


def sweep() -> None:
    """Delete the folders of servers whose tests were killed before they could: their process is
    gone, and for long."""
    folders = [path for root in (tempfile.gettempdir(), MEMORY) for path in _own_folders(root)]
    for folder in folders:
        starter = folder.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime > STALE_S
            if is_old and starter.isdecimal() and not _exists(int(starter)):
                shutil.rmtree(folder, ignore_errors=True)


def _own_folders(root: str | Path) -> list[Path]:
    return list(Path(root).glob(f"{PREFIX}*"))


def make_folder(root: Path | None = None) -> Path:
    """A folder for a server's files, in `root` if given: else in memory where there is room, since
    a schema of fifty tables and indexes made for each test is mostly waiting for the disk. What a
    server does about the disk is not ours to test; a killed one finds its files again all the
    same."""
    if root is not None:
        return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > NEEDED_BYTES
    place = MEMORY if has_room else None
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Startable(Protocol):
    """A server, or a group of them."""

    def start(self) -> None: ...


class MissingServerError(Exception):
    """The program of this server is not installed."""


def find_program(*names: str, beside: Sequence[str] = ()) -> str:
    """Find one of the programs on the path, in the system folders, or in the folders that match
    `beside`."""
    folders = [Path("/usr/sbin"), Path("/usr/local/sbin"), Path("/opt/homebrew/bin")]
    for pattern in beside:
        folders += sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    for name in names:
        found = shutil.which(name) or next(
            (str(f / name) for f in folders if os.access(f / name, os.X_OK)), None
        )
        if found:
            return found
    raise MissingServerError(f"{' or '.join(names)} is not installed")


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"true", "1"}


def skip_missing(missing: MissingServerError) -> NoReturn:
    """Skip on a laptop, fail in CI, so that nothing goes untested in silence."""
    if is_ci():
        pytest.fail(f"MISSING SERVER: {missing}, and CI=true forbids to skip", pytrace=False)
    pytest.skip(f"MISSING SERVER: {missing} (scripts/servers installs it)")


def need_program(name: str) -> str:
    """The path of a program that a test runs. Missing: skipped or failed like a server."""
    try:
        return find_program(name)
    except MissingServerError as missing:
        skip_missing(missing)


def obtain(make: Callable[[], S]) -> S:
    """Make and start a server, or skip what needs it."""
    try:
        server = make()
    except MissingServerError as missing:
        skip_missing(missing)
    sweep()
    server.start()
    return server


class Server(ABC):
    """A private server. Its data outlives stop, kill and start, and is deleted by `close`."""

    name: ClassVar[str]
    stop_signal: ClassVar[int] = signal.SIGTERM
    root: ClassVar[Path | None] = None
    """Where its folder is made, if that matters."""

    def __init__(self, port: int | None = None) -> None:
        self.host = "127.0.0.1"
        self.port = port or free_port()
        # Short, because a Unix socket's path has room for 107 bytes only.
        self.folder = make_folder(self.root)
        self.log = self.folder / "log"
        self._child: Child | None = None
        self._is_paused = False

    @abstractmethod
    def command(self) -> list[str]:
        """The command line that serves in the foreground."""

    @abstractmethod
    def is_answering(self) -> bool:
        """Ask it something; tell whether it answered well."""

    def run_as(self) -> str | None:
        """The user to drop to, if any."""
        return None

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was not started"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running()

    def start(self) -> None:
        """Start it (again, on the same port and data) and wait until it answers."""
        if self.is_running:
            return
        self._child = Child(self.command(), self.log, user=self.run_as(), cwd=self.folder)
        try:
            wait_for(
                lambda: not self.is_running or self.is_answering(),
                f"{self.name} answers",
                within_s=60,
            )
        except ChildError as error:
            self.kill()
            raise ChildError(f"{error}\n{self.log_tail()}") from None
        if not self.is_running:
            raise ChildError(f"{self.name} ended at once\n{self.log_tail()}")

    def stop(self) -> None:
        """Shut it down in good order."""
        if self._child is not None:
            self._child.end(self.stop_signal)
        self._is_paused = False

    def kill(self) -> None:
        """kill -9, as a crash would."""
        if self._child is not None:
            self._child.kill()
        self._is_paused = False

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing answers."""
        assert self._child is not None
        self._child.pause()
        self._is_paused = True

    def resume(self) -> None:
        """Thaw it."""
        assert self._child is not None
        self._child.resume()
        self._is_paused = False

    def heal(self) -> None:
        """Bring it back whatever a test did to it."""
        if self._is_paused:
            self.resume()
        self.start()

    def close(self) -> None:
        """End it and delete its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self, size: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def is_port_open(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.host, self.port), timeout=1),
        ):
            return True
        return False
