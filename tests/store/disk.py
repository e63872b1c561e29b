"""Disks to torment a store with: small ones, full ones, traced ones."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def needs_strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("MISSING SERVER: strace is not installed (scripts/servers installs it)")
    if subprocess.run([found, "-qq", "-o", os.devnull, "true"], capture_output=True).returncode:
        pytest.skip("this machine forbids tracing")
    return found


@contextlib.contextmanager
def small_disk(folder: Path, size_kib: int) -> Iterator[Path]:
    """A file system of a few hundred KiB, where we may mount one."""
    mount = folder / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(mount)],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)
    return ballast
