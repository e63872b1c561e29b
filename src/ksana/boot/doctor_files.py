"""What `ksana doctor` looks at where the store is a file: the disk, the file, who holds it, and the
jobs that a start would read from `jobs.json`. Nothing here writes."""

import os
import shutil
from pathlib import Path
from typing import Final

from ksana.base.clock import Clock
from ksana.base.errors import SetupError
from ksana.boot.doctor_server import OwnServer
from ksana.boot.settings.sections.tasks import TimerSettings
from ksana.boot.settings.table import Settings
from ksana.boot.stores import find_file, is_json
from ksana.domain.tasks.timer_document import TimerDefaults
from ksana.store import jsonfile
from ksana.store.sql.core.private_files import is_open_to_others
from ksana.store.sql.core.sqlite_file import find_holder

LEAST_FREE: Final = 256 << 20
_ELSEWHERE: Final = "the store is elsewhere"
_SHOWN_JOBS: Final = 5


async def look_at_disk(settings: Settings) -> str:
    """Whether there is a folder to write to, and room in it."""
    file = find_file(settings.store.url)
    if file is None:
        return _ELSEWHERE
    folder = _nearest_folder(file.parent)
    if not folder.is_dir():
        raise SetupError(f"{folder} is a file; the store needs a folder: correct KSANA_DATA")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(f"{folder} cannot be written by this user")
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        raise SetupError(
            f"{folder} has {free >> 20} MiB free; at least {LEAST_FREE >> 20} are wanted"
        )
    if hasattr(os, "statvfs"):
        entries = os.statvfs(folder)
        if entries.f_files and not entries.f_favail:
            raise SetupError(f"the file system of {folder} has no room for another file (inodes)")
    return f"{folder} has {free >> 20} MiB free"


async def look_at_files(settings: Settings) -> str:
    """Whether the file is one, and for its owner alone."""
    file = find_file(settings.store.url)
    if file is None:
        return _ELSEWHERE
    if file.is_dir():
        raise SetupError(f"{file} is a folder; the store is a file: point KSANA_STORE at one")
    if not file.exists():
        return f"{file} does not exist yet"
    if not os.access(file, os.R_OK | os.W_OK):
        raise SetupError(f"{file} cannot be read and written by this user")
    wide = [str(path) for path in _private_paths(file, settings) if is_open_to_others(path)]
    if wide:
        raise SetupError(
            f"others can read {', '.join(wide)}, which may hold secrets; "
            "a start of the server closes what it owns (chmod go= does it now)"
        )
    return f"{file} is for its owner alone"


async def look_at_holder(settings: Settings, own: OwnServer | None) -> str:
    """Whether another server than ours is on the file: a start would be refused."""
    file = find_file(settings.store.url)
    if file is None:
        return "a database server may be shared"
    if own is not None:
        return f"our own server (pid {own.pid}) is on {file}"
    holder = find_holder(str(file))
    if holder is not None:
        raise SetupError(
            f"ksana serve (pid {holder}) is on {file}: a second server would be refused"
        )
    return "no server is on the file"


async def look_at_jobs(settings: Settings, clock: Clock) -> str:
    """Whether the jobs of a `jobs.json` that a start reads can be armed."""
    timers = settings.section(TimerSettings)
    defaults = TimerDefaults(timers.default_timeout_us, timers.max_retries, timers.retry_backoff_us)
    url = settings.store.url
    file, source = find_file(url), Path(settings.store.data_dir, "jobs.json")
    if is_json(url):
        document = await jsonfile.check_file(url, clock, defaults)
        problems = [f"the job {bad.label} is not armed: {bad.reason}" for bad in document.bad]
        count, verb = len(document.timers), "are armed"
    elif file is not None and _is_taken_over(file, source):
        found, problems = jsonfile.find_import(source, clock.now(), defaults)
        count, verb = len(found.timers) if found else 0, f"would be taken over from {source}"
    else:
        return "no jobs.json is read at a start"
    if problems:
        more = f", and {len(problems) - _SHOWN_JOBS} more" if len(problems) > _SHOWN_JOBS else ""
        raise SetupError("; ".join(problems[:_SHOWN_JOBS]) + more)
    return f"{count} jobs {verb}"


def _is_taken_over(file: Path, source: Path) -> bool:
    return not file.exists() and source.exists()


def _private_paths(file: Path, settings: Settings) -> list[Path]:
    paths = [file.with_name(file.name + suffix) for suffix in ("", "-wal", "-shm", ".lock")]
    folder = file.parent.resolve()
    return [*paths, folder] if Path(settings.store.data_dir).resolve() == folder else paths


def _nearest_folder(folder: Path) -> Path:
    """The folder, or where it would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
