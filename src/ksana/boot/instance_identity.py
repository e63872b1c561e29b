"""Which machine and process this is, and whether a process that claims to be on the same one is
dead.

A host name alone proves nothing: two machines may share one, and containers hide each other's
processes. The boot id and the process namespace together name one table of processes; only inside
the same table is a missing process id a proof.
"""

import hashlib
import os
import re
import socket
from pathlib import Path

from ksana.base.ids import new_uid
from ksana.ports.store import Instance

_OWN_ID = re.compile(r".*-(\d+)-[0-9a-f]{6}\Z")


def find_host() -> str:
    """The host's name, and where it can be known the table of processes: `name@digest`."""
    name = socket.gethostname()[:200]
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        table = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return name
    return f"{name}@{hashlib.sha256(f'{boot}:{table}'.encode()).hexdigest()[:12]}"


def make_instance_id(configured: str) -> str:
    """The name of this life of the process: the configured name or the host's, the process id, and
    chance.

    Never the configured name alone: what a former life held must not look as if it were held by
    this one.
    """
    host = "".join(
        char if char.isalnum() or char in "._-" else "-" for char in socket.gethostname()
    )[:60]
    name = configured if configured != "auto" else host or "host"
    return f"{name}-{os.getpid()}-{new_uid()[:6]}"


def find_pid(instance: Instance) -> int | None:
    """The process id in an instance's name."""
    match = _OWN_ID.match(instance.id)
    return None if match is None else int(match[1])


def is_dead(instance: Instance, host: str) -> bool:
    """Whether an instance was a process of this very table and is no more."""
    pid = find_pid(instance)
    if "@" not in host or instance.host != host or pid is None:
        return False
    if pid == os.getpid():
        return True  # the process id is ours now
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
            == "Z"
        )
    except (OSError, IndexError):
        return False
