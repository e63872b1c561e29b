"""Whether the SQLite file is where it was: no empty store is made over what is left of a former
one, and nothing is acknowledged into a file that was removed.

A server leaves a note in the lock file beside the database, once it has opened it. A note or a log
without the database means that the database has vanished.
"""

import os
from pathlib import Path
from typing import Final

from ksana.base.errors import SetupError

WAY_BACK: Final = "docs/operate/backup.md, The way back"


def lock_of(path: str) -> Path:
    """The lock file beside a database."""
    return Path(path + ".lock")


def check_vanished(path: str) -> None:
    """Raise SetupError if a database that is not there, or is empty, has left something behind."""
    found = _find_remains(path)
    # Looked at again, after what is beside it: another process may be making a new store just now,
    # and it writes the database first.
    if found and not _has_content(path):
        missing = "is empty" if os.path.exists(path) else "is missing"
        raise SetupError(
            f"{path} {missing}, but a store was here: {', '.join(found)}. No empty one was made in "
            f"its place; nothing was touched. Put the file back or restore a backup ({WAY_BACK}); "
            "to begin with an empty store move what was found away."
        )


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _find_remains(path: str) -> list[str]:
    found = []
    log = Path(path + "-wal")
    if _has_content(str(log)):
        found.append(f"{log.name} with {log.stat().st_size} bytes")
    note = read_note(lock_of(path))
    if note:
        found.append(f"{lock_of(path).name}, which says: {note}")
    return found


def read_note(lock: Path) -> str:
    """The note in a lock file; empty if there is none."""
    try:
        return note_in(lock.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def note_in(text: str) -> str:
    """The note in a lock file's text, which stands in its second line."""
    lines = text.splitlines()
    return lines[1].strip()[:200] if len(lines) > 1 else ""
