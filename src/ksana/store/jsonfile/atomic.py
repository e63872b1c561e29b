"""Replacing a file whole: at every instant there is the old one or the new one, never neither and
never half.

write NAME.tmp  →  fsync it  →  rename over NAME  →  fsync the folder
"""

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ksana.store.sql.core import private_files


class NotSyncedError(OSError):
    """The new file is in its place, but the disk would not say that it stays there."""


def replace_file(path: Path, content: Iterable[bytes]) -> None:
    """Put `content`, given in parts, in the place of the file, durably. An OSError means that the
    old file is untouched, except NotSyncedError, which says that the new one is there but may not
    outlive a power cut."""
    draft = path.with_name(path.name + ".tmp")
    try:
        _write_synced(draft, content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise NotSyncedError(error.errno, f"the folder would not sync: {error.strerror}") from error


def set_aside(path: Path) -> Path:
    """Rename an unreadable file to `NAME.bad.json`, numbered if that is taken; answer the new
    place."""
    stem = path.name.removesuffix(".json")
    number = 0
    while True:
        aside = path.with_name(f"{stem}.bad.json" if number == 0 else f"{stem}.bad.{number}.json")
        if not aside.exists():
            os.rename(path, aside)
            private_files.restrict_file(aside)
            sync_folder(path.parent)
            return aside
        number += 1


def list_set_aside(path: Path) -> list[Path]:
    """The unreadable files that earlier starts set aside."""
    return sorted(path.parent.glob(f"{path.name.removesuffix('.json')}.bad*.json"))


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable. Windows has no such call, and needs none."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_synced(draft: Path, content: Iterable[bytes]) -> None:
    # A fresh inode each time: what a failed sync left behind in an old one must not pass for
    # written.
    draft.unlink(missing_ok=True)
    handle = private_files.open_private(draft, os.O_WRONLY | os.O_EXCL)
    try:
        for part in content:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(handle, rest) :]
        _sync(handle)
    finally:
        os.close(handle)


if sys.platform == "darwin":
    import fcntl

    def _sync(handle: int) -> None:
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync on macOS does not reach the platter
else:

    def _sync(handle: int) -> None:
        os.fsync(handle)
