"""Looking names up off the loop: one lookup per name at a time, many names side by side, answers
kept for a while.

libcurl has its own resolver, but a bounded one: ten names whose servers are silent would keep every
other name waiting. Asking ourselves also shows all addresses of a name to the egress rules before
anything is connected.

The loop's side owns all state; a thread only takes a name from the queue and hands the result back
to the loop.
"""

import asyncio
import contextlib
import queue
import re
import socket
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

MAX_THREADS: Final = 1024
"""Lookups at once. A silent server holds a thread for the resolver's own patience, some seconds,
whether anybody still waits or not; one that waits takes about 40 KiB and a descriptor."""
KEEP_S: Final = 30.0
MAX_KEPT: Final = 4096

LookupResult = tuple[str, ...] | str
"""The addresses of a name, or one line that says why there are none."""
LookUpFunction = Callable[[str], Sequence[str]]

_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]*|\d*))*\Z", re.ASCII)
_NO_SUCH_NAME: Final = frozenset(
    {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
)


@lru_cache(maxsize=4096)
def is_literal(host: str) -> bool:
    """Tell whether a host is an address in any spelling libcurl reads, so that there is nothing to
    look up."""
    return ":" in host or _NUMBERS.match(host) is not None


def look_up_addresses(host: str) -> Sequence[str]:
    """Ask the machine's resolver; blocks. Raise OSError if it has no result."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


class Resolver:
    """The resolver of one caller, on its loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        look_up: LookUpFunction = look_up_addresses,
        max_threads: int = MAX_THREADS,
    ) -> None:
        self._loop = loop
        self._max_threads = max_threads
        self._look_up = look_up
        self._kept: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._waiting: dict[str, list[Callable[[LookupResult], None]]] = {}
        self._asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._outstanding = 0
        self._threads = 0

    def find(self, host: str) -> tuple[str, ...] | None:
        """LookupResult the addresses if they are known and fresh."""
        kept = self._kept.get(host)
        if kept is None:
            return None
        if kept[0] < self._loop.time() and self._outstanding < self._max_threads:
            return None  # while every thread is taken by silent names the last answer stands
        return kept[1]

    def ask(self, host: str, done: Callable[[LookupResult], None]) -> None:
        """Look a name up; `done` is called with the result on the loop, later."""
        waiting = self._waiting.get(host)
        if waiting is not None:
            waiting.append(done)
            return
        self._waiting[host] = [done]
        self._outstanding += 1
        if self._outstanding > self._threads < self._max_threads:
            self._threads += 1
            threading.Thread(target=self._serve, name="ksana-names", daemon=True).start()
        self._asked.put(host)

    def forget(self, host: str, done: Callable[[LookupResult], None]) -> None:
        """Stop waiting. A lookup that is under way cannot be ended, only ignored; one that nobody
        waits for any more when its turn comes is not made."""
        waiting = self._waiting.get(host, [])
        if done in waiting:
            waiting.remove(done)

    def close(self) -> None:
        """Let the threads end, each when its lookup does."""
        self._waiting.clear()
        for _ in range(self._threads):
            self._asked.put(None)

    def _serve(self) -> None:
        while (host := self._asked.get()) is not None:
            if not self._waiting.get(host):
                self._tell(self._skip, host)
                continue
            result: LookupResult
            try:
                result = tuple(self._look_up(host)) or f"name not found: {host}"
            except socket.gaierror as error:
                result = (
                    f"name not found: {host}"
                    if error.errno in _NO_SUCH_NAME
                    else _explain(host, error)
                )
            except (OSError, UnicodeError) as error:
                result = _explain(host, error)
            self._tell(self._deliver, host, result)

    def _tell(self, step: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(step, *args)

    def _skip(self, host: str) -> None:
        """Nobody waited when its turn came. Whoever asked since then is served in a new turn."""
        if self._waiting.get(host):
            self._asked.put(host)
            return
        self._waiting.pop(host, None)
        self._outstanding -= 1

    def _deliver(self, host: str, result: LookupResult) -> None:
        self._outstanding -= 1
        if not isinstance(result, str):
            self._keep(host, result)
        for done in self._waiting.pop(host, ()):
            done(result)

    def _keep(self, host: str, addresses: tuple[str, ...]) -> None:
        self._kept.pop(host, None)
        while len(self._kept) >= MAX_KEPT:  # the oldest goes first
            del self._kept[next(iter(self._kept))]
        self._kept[host] = (self._loop.time() + KEEP_S, addresses)


def _explain(host: str, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"the name {host} could not be looked up: {reason}"
