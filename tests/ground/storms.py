"""What storms against the real process need: timers whose punctuality is watched from the target's
side, the process's memory, and many connections that do nothing."""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ksana.base.instant import parse_instant
from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Target

MEBIBYTE = 1024 * 1024


@dataclass
class Firings:
    """How late the calls of the watched timers came, in milliseconds, and how many came."""

    late_ms: list[float]

    def p(self, percent: float) -> float:
        ordered = sorted(self.late_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Punctuality:
    """Timers that fire all the time at a target of their own."""

    def __init__(
        self, program: Program, target: Target, timers: int = 10, every: str = "500ms"
    ) -> None:
        self._target = target
        for number in range(timers):
            body = {
                "schedule": {"kind": "every", "every": every},
                "http": {"url": target.url("/watched")},
                "max_retries": 0,
                "name": f"watched {number}",
            }
            assert program.post("/jobs", body).status_code == 201
        self.wait_for_more(2 * timers)

    def wait_for_more(self, count: int, within_s: float = 30.0) -> None:
        """Wait until so many more calls came."""
        self._target.wait_for(len(self._target.requests("/watched")) + count, "/watched", within_s)

    @contextlib.contextmanager
    def watch(self) -> Iterator[Firings]:
        """Watch while something happens; what came is known at the end."""
        before = len(self._target.requests("/watched"))
        firings = Firings([])
        yield firings
        for call in self._target.requests("/watched")[before:]:
            slot = parse_instant(call.headers["x-ksana-scheduled-at"])
            firings.late_ms.append((call.at - slot) / 1000)


def memory_mib(program: Program) -> float:
    """The process's resident memory."""
    pid = program.program_pid
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


def peak_mib(program: Program) -> float:
    """The most it ever was."""
    fields = Path(f"/proc/{program.program_pid}/status").read_text().split("VmHWM:")[1].split()
    return int(fields[0]) / 1024


def forget_peak(program: Program) -> None:
    """Measure the peak anew from here on."""
    Path(f"/proc/{program.program_pid}/clear_refs").write_text("5")


def descriptors(program: Program) -> int:
    """How many descriptors the process has open."""
    return len(os.listdir(f"/proc/{program.program_pid}/fd"))


@contextlib.contextmanager
def idle_connections(
    program: Program, count: int, said: bytes = b""
) -> Iterator[list[socket.socket]]:
    """Open connections that say this much and nothing more; whoever is refused is left so."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                one = socket.create_connection((program.host, program.port), timeout=10)
                opened.append(one)
                if said:
                    one.sendall(said)
        yield opened
    finally:
        for one in opened:
            one.close()


def wait_answers(program: Program, within_s: float = 10.0) -> None:
    """Wait until a fresh connection is answered."""
    wait_for(lambda: _is_answered(program), "a fresh call is answered", within_s=within_s)


def _is_answered(program: Program) -> bool:
    try:
        with socket.create_connection((program.host, program.port), timeout=2) as one:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b"200 OK" in one.recv(4096)
    except OSError:
        return False
