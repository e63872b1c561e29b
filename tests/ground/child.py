"""Child processes of the tests: started on a leash, logged to a file, ended by pid together with
their own children.

The leash holds the child to the *thread* that started it, so start children from a thread that
outlives them.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")

PORTS = range(12_000, 22_000)
"""Below the range from which systems take ports for outgoing calls, so that a server can come back
on its own port. A Redis Cluster node also needs its port + 10,000."""

_dice = random.SystemRandom()


class ChildError(Exception):
    """A child did not start or did not become ready; the message carries the end of its log."""


def free_port(*, bus_offset: int = 0) -> int:
    """Find a port on loopback that nobody listens on (nor on the one `bus_offset` above)."""
    for _ in range(200):
        port = _dice.choice(PORTS)
        if is_port_free(port) and (not bus_offset or is_port_free(port + bus_offset)):
            return port
    raise ChildError("no free port on loopback")


def is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(
    fact: Callable[[], object], what: str, *, within_s: float = 20.0, every_s: float = 0.01
) -> None:
    """Block until `fact()` is true. Failing to become true in time is an error that says what was
    awaited."""
    give_up_at = time.monotonic() + within_s
    while not fact():
        if time.monotonic() > give_up_at:
            raise ChildError(f"waited {within_s:g} s in vain: {what}")
        time.sleep(every_s)


class Child:
    """One process that the tests own."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        leash = [sys.executable, "-I", "-S", str(LEASH), "--starter", str(os.getpid())]
        if user is not None:
            leash += ["--user", user]
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                [*leash, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,  # a Ctrl-C at the terminal is for pytest alone
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def is_running(self) -> bool:
        return self._popen.poll() is None

    def exit_code(self) -> int | None:
        return self._popen.poll()

    def send(self, number: int) -> None:
        """Signal this process only."""
        if self.is_running():
            self._popen.send_signal(number)

    def wait(self, within_s: float = 30.0) -> int:
        """Wait for its end and tell the exit code."""
        try:
            return self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise ChildError(
                f"pid {self.pid} did not end in {within_s:g} s\n{self.log_tail()}"
            ) from None

    def end(self, number: int = signal.SIGTERM, within_s: float = 15.0) -> int:
        """Ask it to end; if it will not, kill it."""
        family = self.family()
        self.resume()
        self.send(number)
        try:
            code = self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            return self.kill()
        _signal_each(family[1:], signal.SIGKILL)
        return code

    def kill(self) -> int:
        """kill -9, children included, and reap."""
        if self.is_running():
            _signal_each(self.family(), signal.SIGKILL)
        return self._popen.wait()

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): sockets stay open, nobody answers."""
        if self.is_running():
            _signal_each(self.family(), signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        if self.is_running():
            _signal_each(self.family(), signal.SIGCONT)

    def family(self) -> list[int]:
        """Pids of this process and all below it, parents first. (PostgreSQL's children leave the
        process group.)"""
        children = _children_by_parent()
        found = [self.pid]
        for pid in found:
            found.extend(children.get(pid, ()))
        return found

    def log_tail(self, size: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""


def _signal_each(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _children_by_parent() -> dict[int, list[int]]:
    answer = (
        subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
        if not _HAS_PROC
        else None
    )
    pairs = [line.split() for line in answer.stdout.splitlines()] if answer else _pairs_from_proc()
    children: dict[int, list[int]] = {}
    for pid, parent in pairs:
        children.setdefault(int(parent), []).append(int(pid))
    return children


def _pairs_from_proc() -> list[list[str]]:
    pairs = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold spaces; what follows its last parenthesis is state
            # and parent.
            pairs.append(
                [stat.parent.name, stat.read_text(errors="replace").rpartition(")")[2].split()[1]]
            )
        except OSError:
            continue
    return pairs


_HAS_PROC = Path("/proc/self/stat").exists()
