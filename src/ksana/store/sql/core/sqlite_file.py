"""The SQLite file itself: is it ours, is it whole, who serves it, and with which durability it is
opened.

A file that is not ours, or is damaged, is refused with what was found, and never touched.
"""

import contextlib
import hashlib
import os
import sqlite3
import struct
import sys
import time
from pathlib import Path
from typing import IO, Final

from ksana.base.clock import Clock
from ksana.base.errors import SetupError
from ksana.store.sql.core import private_files, sqlite_place

APPLICATION_ID: Final = 0x4B53414E
"""`KSAN`, in the file's header."""

_LOOKS: Final = 25
_LOOK_AGAIN_SEC: Final = 0.02
"""Half a second for another process that makes the file, or writes its log back into it."""
_MAGIC: Final = b"SQLite format 3\x00"
_PRAGMAS: Final = (
    "synchronous = FULL",  # NORMAL loses acknowledged rows in a power cut
    "temp_store = MEMORY",
    "busy_timeout = 5000",  # the CLI may write keys beside the server
    "wal_autocheckpoint = 16000",  # a net: see checkpoints
    "secure_delete = OFF",  # some builds overwrite deleted rows with zeros: a cost of every change
    "journal_size_limit = 67108864",
)


_WRITER_PRAGMAS: Final = (
    "cache_size = -65536",
    "mmap_size = 33554432",  # more would count as our memory with a large database
)
_READER_PRAGMAS: Final = (
    "cache_size = -8192",
    "mmap_size = 8388608",
)
"""A reader's cache is void after the next commit of the writer: a large one would only be memory
that nobody reads again, once for each reader. The system's own cache serves them all."""


# The driver looks for a way to adapt each NULL, and makes an exception because there is none: four
# times the cost of a number. Told of this one, it finds at once that None stays None.
sqlite3.register_adapter(type(None), {}.get)  # type: ignore[arg-type]


def connect(path: str, clock: Clock, read_only: bool) -> sqlite3.Connection:
    """Open a connection with our pragmas and the store clock as a function of SQL."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    add_functions(connection, clock)
    for pragma in (*_PRAGMAS, *(_READER_PRAGMAS if read_only else _WRITER_PRAGMAS)):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    if sys.platform == "darwin":  # fsync on macOS does not reach the platter
        connection.execute("PRAGMA fullfsync = 1").fetchall()
        connection.execute("PRAGMA checkpoint_fullfsync = 1").fetchall()
    if read_only:
        connection.execute("PRAGMA query_only = 1").fetchall()
    return connection


def add_functions(connection: sqlite3.Connection, clock: Clock) -> None:
    """What our statements call: the store's clock, and a digest, which SQLite has not."""
    connection.create_function("ksana_now", 0, clock.now)
    connection.create_function("ksana_sha256", 1, _sha256, deterministic=True)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def prepare(path: str, clock: Clock, *, make: bool = True) -> None:
    """Check an existing file; make a new one ours, in WAL mode, before anything else is written.
    With `make` false nothing is changed, and a file that is not there is refused."""
    if path == ":memory:" or path.startswith("file:"):
        return
    file = Path(path)
    try:
        is_new = not file.exists() or (file.is_file() and file.stat().st_size == 0)
        if is_new:
            sqlite_place.check_vanished(path)
        if not make:
            if is_new:
                raise SetupError(f"there is no store at {path} yet: run ksana migrate")
            _examine(file)
            return
        private_files.make_folder(file.parent)
        if not is_new:
            _examine(file)
        private_files.make_database(file)
        private_files.restrict_database(file)
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        _make_ours(path, clock, is_new)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_FULL,
        ):
            raise  # not for ever
        raise SetupError(
            f"{path} cannot be opened as a Ksana store: {error}. The file was left as it is."
        ) from None


def _make_ours(path: str, clock: Clock, is_new: bool) -> None:
    with contextlib.closing(connect(path, clock, read_only=False)) as connection:
        if is_new:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise SetupError(
                f"{path}: this file system does not carry SQLite's WAL mode (got {mode})"
            )
        # After a failed fsync the kernel may hold pages it will not write again; rewriting them
        # into the main file and starting a fresh log makes what comes next stand on synced ground.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _unusable(path: str, error: OSError) -> SetupError:
    why = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
    return SetupError(f"cannot use {path} as the store: {why}")


def _read_header(file: Path) -> bytes:
    """The first bytes. Another process that makes the file at this moment may have given it a size
    and nothing in it yet."""
    for _ in range(_LOOKS):
        with file.open("rb") as stream:
            header = stream.read(100)
        if any(header):
            break
        time.sleep(_LOOK_AGAIN_SEC)
    return header


def is_foreign(file: Path) -> bool:
    """Whether something else than a store of ours is there, whole or damaged."""
    if file.is_dir():
        return True
    header = _read_header(file)
    return not header.startswith(_MAGIC) or (
        len(header) >= 72 and struct.unpack(">i", header[68:72])[0] != APPLICATION_ID
    )


def _examine(file: Path) -> None:
    if file.is_dir():
        raise SetupError(f"{file} is a folder; the store is a file: point KSANA_STORE at one")
    header = _read_header(file)
    if not header.startswith(_MAGIC):
        raise SetupError(
            f"{file} is not a SQLite database: it begins with {header[:16]!r}. "
            "The file was left as it is; point KSANA_STORE at another one."
        )
    if len(header) >= 72 and struct.unpack(">i", header[68:72])[0] != APPLICATION_ID:
        raise SetupError(
            f"{file} is a SQLite database of another program: it holds {_tables(file)}. "
            "The file was left as it is; point KSANA_STORE at another one."
        )
    for _ in range(_LOOKS):  # beside a checkpoint pages of two instants are seen, for a moment
        damage = _find_damage(file, header)
        if not damage:
            return
        time.sleep(_LOOK_AGAIN_SEC)
        header = _read_header(file)
    raise SetupError(f"{file} is damaged: {damage}. The file was left as it is; restore a backup.")


def _find_damage(file: Path, header: bytes) -> str:
    """What is wrong with the file at one look; empty if nothing is."""
    if len(header) < 100:
        return "its header is cut short"
    wal = file.with_name(file.name + "-wal")
    page_size, pages = (
        struct.unpack(">H", header[16:18])[0] or 65536,
        struct.unpack(">I", header[28:32])[0],
    )
    page_size = 65536 if page_size == 1 else page_size
    expected = page_size * pages
    if file.stat().st_size < expected and (not wal.exists() or wal.stat().st_size == 0):
        return f"it should have {expected} bytes and has {file.stat().st_size}"
    try:
        _list_tables(file)
    except sqlite3.DatabaseError as error:
        return str(error)
    return ""


def _list_tables(file: Path) -> list[str]:
    """The names of the tables, read without a lock and without a side file."""
    uri = f"{file.resolve().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        ).fetchall()
    return [str(row[0]) for row in rows]


def _tables(file: Path) -> str:
    try:
        names = _list_tables(file)
    except sqlite3.DatabaseError as error:
        return f"tables that cannot be read ({error})"
    if not names:
        return "no tables"
    return "the tables " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


class ServeLock:
    """One `ksana serve` per file: an advisory lock beside it, gone with the process however it
    ends."""

    def __init__(self, path: str) -> None:
        self._path = path + ".lock"
        self._stream: IO[str] | None = None

    def take(self) -> None:
        """Take it or refuse to start, naming the holder."""
        try:
            private_files.make_folder(Path(self._path).parent)
            handle = private_files.open_private(Path(self._path), os.O_RDWR)
            stream = os.fdopen(handle, "r+", encoding="utf-8")  # held for the process's life
        except OSError as error:
            raise _unusable(self._path.removesuffix(".lock"), error) from None
        try:
            _lock(stream)
        except OSError:
            stream.seek(0)
            holder = stream.readline().strip()[:64] or "unknown"
            stream.close()
            raise SetupError(
                f"another ksana serve (pid {holder}) is on this store already: "
                f"{self._path.removesuffix('.lock')}. "
                "One server per SQLite or JSON file; for several use MySQL or PostgreSQL."
            ) from None
        self._stream = stream
        stream.seek(0)
        self.leave(sqlite_place.note_in(stream.read()))

    def leave(self, note: str) -> None:
        """Leave a note beside our process's number, for those who find it without the database."""
        stream = self._stream
        assert stream is not None, "the lock was not taken"
        stream.seek(0)
        stream.truncate()
        stream.write(f"{os.getpid()}\n{note}\n" if note else str(os.getpid()))
        stream.flush()

    def drop(self) -> None:
        """Give it back."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def find_holder(path: str) -> str | None:
    """The process that serves a file, if one does: its number, as the lock file has it."""
    try:
        with open(f"{path}.lock", encoding="utf-8") as stream:
            if _is_free(stream):
                return None
            return stream.readline().strip()[:64] or "unknown"
    except OSError:  # there is none, or it is not ours to read
        return None


if sys.platform == "win32":
    import msvcrt

    def _lock(stream: IO[str]) -> None:
        stream.seek(1 << 20)  # past the text, which stays readable to the one refused
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)

    def _is_free(stream: IO[str]) -> bool:
        stream.seek(1 << 20)
        try:
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBRLCK, 1)
        except OSError:
            return False
        finally:
            stream.seek(0)
        return True
else:
    import fcntl

    def _lock(stream: IO[str]) -> None:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _is_free(stream: IO[str]) -> bool:
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
        return True
