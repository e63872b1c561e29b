"""Where the stores of benchmarks lie: on a real disk, opened so that a commit waits for it."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.figure import BenchError
from ksana.base.clock import SystemClock
from ksana.store.sql.core import sqlite_file

PLACE = Path("/var/tmp")
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
FULL = 2


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards. One in memory would make every sync free: it is refused."""
    refuse_memory()
    with tempfile.TemporaryDirectory(prefix="ksana-bench-", dir=PLACE) as name:
        yield Path(name)


def refuse_memory() -> None:
    """Fail if the place of the stores is no disk."""
    kind = file_system_of(PLACE)
    if kind in IN_MEMORY:
        raise BenchError(f"{PLACE} is a {kind}: nothing is synced there")


def file_system_of(path: Path) -> str:
    """What the path is mounted as; nothing where that cannot be asked."""
    table = Path("/proc/self/mounts")
    if not table.exists():
        return ""
    mounts = [line.split()[1:3] for line in table.read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else ""


def check_synced(file: Path) -> None:
    """Open the file the way the program does, and look that it would wait for the disk."""
    if not file.exists():
        raise BenchError(f"there is no {file.name}")
    with closing(sqlite_file.connect(str(file), SystemClock(), read_only=False)) as connection:
        level = connection.execute("PRAGMA synchronous").fetchone()[0]
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if (mode, level) != ("wal", FULL):
        raise BenchError(f"{file.name} is not durable: journal_mode={mode}, synchronous={level}")


def count_states(file: Path, addon_id: str | None = None) -> dict[str, int]:
    """Queue jobs by state, by what is committed."""
    where, places = ("", ()) if addon_id is None else (" WHERE addon_id = ?", (addon_id,))
    uri = f"file:{file}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)) as connection:
        rows = connection.execute(
            f"SELECT state, COUNT(*) FROM scheduler_job_runs{where} GROUP BY state", places
        ).fetchall()
    return {str(state): int(count) for state, count in rows}


def sync(file: Path) -> None:
    """Write the file out, so that what is measured next does not pay for it."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def forget(file: Path) -> None:
    """Ask the system to drop its cached pages of the file: the next read comes from the disk."""
    sync(file)
    handle = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
