"""Files and folders that only their owner may read, whatever the umask says: they hold headers,
secrets and tokens.

A file is made with its mode, not narrowed afterwards. What an earlier version left readable is
restricted at the next start. Root may run a command on another user's store: what it makes there is
given to the folder's owner, so that the server can still read it.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from ksana.base.errors import SetupError

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077
_SIDE_FILES: Final = ("", "-wal", "-shm", "-journal", ".lock")
_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_BINARY: Final = getattr(os, "O_BINARY", 0)
_HAS_MODES: Final = hasattr(os, "fchmod") and hasattr(os, "geteuid")
"""Windows has access lists instead: a file there belongs to who made it, like its folder."""


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; the folder itself is for its owner alone. One that exists
    is left as it is."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    if _HAS_MODES:
        folder.chmod(FOLDER_MODE)
        if os.geteuid() == 0:
            _give_to_owner_of(folder.parent, folder)


def restrict_folder(folder: Path) -> None:
    """Keep others out of a folder that is ours by its setting. The root, a home and a folder that
    is shared by its sticky bit are left as they are; so is one that belongs to somebody else."""
    if not _HAS_MODES or not folder.is_dir():
        return
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    is_shared = bool(mode & stat.S_ISVTX) or folder.resolve() in _find_shared()
    if mode & _OTHERS and found.st_uid == os.geteuid() and not is_shared:
        folder.chmod(mode & ~_OTHERS)


def open_private(path: Path, flags: int) -> int:
    """Open a file, or make it, for its owner alone, and answer its descriptor. Raise SetupError for
    a link or anything else that is no plain file of one name: writing to it would write
    elsewhere."""
    try:
        handle = os.open(path, flags | os.O_CREAT | _NO_FOLLOW | _CLOEXEC | _BINARY, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP or path.is_symlink():
            raise _not_plain(path, "a symbolic link") from None
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _not_plain(path, "no plain file")
        if found.st_nlink > 1:
            raise _not_plain(path, "a second name of another file")
        restrict_handle(handle, path.parent)
    except BaseException:
        os.close(handle)
        raise
    return handle


def restrict_handle(handle: int, folder: Path) -> None:
    """Keep others out of an open file; give a file that root made to the folder's owner."""
    if not _HAS_MODES:
        return
    found, me = os.fstat(handle), os.geteuid()
    if stat.S_IMODE(found.st_mode) != FILE_MODE and me in (0, found.st_uid):
        os.fchmod(handle, FILE_MODE)
    if me == 0 and found.st_uid == 0:
        owner = folder.stat()
        if owner.st_uid != 0:
            os.fchown(handle, owner.st_uid, owner.st_gid)


def make_database(path: Path) -> None:
    """Make an empty file for a database if there is none. SQLite gives its side files the mode of
    the file beside them."""
    if path.exists():
        return
    with contextlib.suppress(FileExistsError):  # made by another process meanwhile
        os.close(open_private(path, os.O_RDWR | os.O_EXCL))


def restrict_database(path: Path) -> None:
    """Keep others out of a database and its side files that an earlier version left readable."""
    for suffix in _SIDE_FILES:
        restrict_file(path.with_name(path.name + suffix))


def restrict_file(path: Path) -> None:
    """Keep others out of a file, if there is one and its mode is ours to change."""
    with contextlib.suppress(FileNotFoundError):
        if _HAS_MODES and is_open_to_others(path) and os.geteuid() in (0, path.stat().st_uid):
            path.chmod(FILE_MODE)


def is_open_to_others(path: Path) -> bool:
    """Whether somebody but its owner may read or write it; False where modes mean nothing."""
    with contextlib.suppress(OSError):
        return _HAS_MODES and bool(stat.S_IMODE(path.stat().st_mode) & _OTHERS)
    return False


def _not_plain(path: Path, what: str) -> SetupError:
    return SetupError(f"{path} is {what}: it is not followed. Remove it and start again.")


def _give_to_owner_of(folder: Path, made: Path) -> None:
    owner = folder.stat()
    if owner.st_uid != 0 and not owner.st_mode & stat.S_ISVTX:
        os.chown(made, owner.st_uid, owner.st_gid)


def _find_shared() -> frozenset[Path]:
    places = {Path("/")}
    with contextlib.suppress(RuntimeError, OSError):
        places.add(Path.home().resolve())
    return frozenset(places)
