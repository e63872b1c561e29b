"""A name server on loopback that answers some names and is silent about all others, and the prefix
by which a program of ours asks it: a resolv.conf of its own, in a mount namespace."""

import os
import shutil
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import Final, Self

import pytest

ADDRESS: Final = "127.0.0.153"
_TYPE_A: Final = 1
_HEAD: Final = struct.Struct(">HHHHHH")
_ANSWER: Final = struct.Struct(">HHHIH4s")


class NameServer:
    """Answers the names under `.healthy.test` with 127.0.0.1; it never answers another one."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, 53))
        self._thread = threading.Thread(target=self._serve, name="names", daemon=True)
        self.asked: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (ADDRESS, 53))
        self._thread.join(5)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, peer = self._socket.recvfrom(4096)
            if not question:
                return
            name, end = _read_name(question)
            self.asked.append(name)
            if name.endswith(".healthy.test"):
                self._socket.sendto(_answer(question, end), peer)


def _read_name(question: bytes) -> tuple[str, int]:
    """The name asked for, and where the question ends."""
    labels, place = [], _HEAD.size
    while size := question[place]:
        labels.append(question[place + 1 : place + 1 + size].decode("ascii", "replace"))
        place += 1 + size
    return ".".join(labels), place + 5


def _answer(question: bytes, end: int) -> bytes:
    number, kind = question[:2], struct.unpack(">H", question[end - 4 : end - 2])[0]
    found = kind == _TYPE_A
    head = number + struct.pack(">HHHHH", 0x8180, 1, int(found), 0, 0)
    record = _ANSWER.pack(0xC00C, _TYPE_A, 1, 60, 4, socket.inet_aton("127.0.0.1"))
    return head + question[_HEAD.size : end] + (record if found else b"")


def asking_prefix(folder: Path) -> tuple[str, ...]:
    """What goes before a command so that it asks this server. Skips where that is not allowed."""
    place = folder / "resolv.conf"
    place.write_text(f"nameserver {ADDRESS}\n")
    prefix = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind {place} /etc/resolv.conf && exec "$@"',
        "sh",
    )
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root: a name server on port 53, and a resolv.conf of its own")
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount in a namespace")
    return prefix
