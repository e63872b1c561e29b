"""A TCP proxy that fails on command: slow, silent, refusing, cutting, or losing just the answer to
a COMMIT.

with FaultProxy(server.host, server.port) as proxy: lost = proxy.lose_reply_to(b"COMMIT")      # the
server commits, the client never hears of it ...connect to proxy.port, or
proxy.url(server.url(database))... lost.wait()

A fault stays until `heal`; `cut` and `half_close` act once on what is connected now.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.ground.background import BackgroundLoop, stop_listening
from tests.ground.child import ChildError

CHUNK = 65_536
OVERLAP = 256
"""Bytes of the former chunk shown again to a predicate, so that a word split between two packets is
still seen."""

ANSWER_S = 0.05
"""So long a server's answer is taken to come: MariaDB sends one for each statement of several, and
rolls back if its client has gone before the last."""

Predicate = Callable[[bytes], bool]


class Trap:
    """Waits for certain bytes from a client, then springs `times` times."""

    def __init__(self, matches: Predicate, *, is_forwarded: bool, times: int) -> None:
        self.matches = matches
        self.is_forwarded = is_forwarded
        self._left = times
        self._sprung = threading.Semaphore(0)
        self._lock = threading.Lock()
        self.count = 0

    def take(self, seen: bytes) -> bool:
        """Tell whether it springs on these bytes; if so, that is one time less."""
        with self._lock:
            if self._left <= 0 or not self.matches(seen):
                return False
            self._left -= 1
            return True

    def spring(self) -> None:
        self.count += 1
        self._sprung.release()

    def wait(self, within_s: float = 10.0) -> None:
        """Block until it has sprung (once more)."""
        if not self._sprung.acquire(timeout=within_s):
            raise ChildError(f"the trap did not spring within {within_s:g} s")


class Link:
    """One client's connection and its twin to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.awaits_lost_reply: Trap | None = None

    def cut(self) -> None:
        """Reset the client's side, close the server's: nothing in flight arrives."""
        reset(self.client)
        self.server.transport.abort()


def reset(writer: asyncio.StreamWriter) -> None:
    """Drop a connection with RST rather than FIN."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class FaultProxy:
    """Listens on a port of its own and passes everything on, until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self.host = "127.0.0.1"
        self.port = 0
        self.connections = 0
        """How many clients have come, over all time."""
        self._delay_s = 0.0
        self._is_open = asyncio.Event()
        self._traps: list[Trap] = []
        self._links: set[Link] = set()
        self._listener: asyncio.Server | None = None
        self._background = BackgroundLoop("fault-proxy")
        self._background.call(self._listen())
        self._background.call(self._open(True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, url: str) -> str:
        """The same URL, led through this proxy."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        return urlunsplit(
            parts._replace(
                netloc=f"{user}@{self.host}:{self.port}" if user else f"{self.host}:{self.port}"
            )
        )

    # Faults, from any thread.

    def delay(self, each_ms: float) -> None:
        """Hold every packet, both ways, for so long."""
        self._delay_s = each_ms / 1000

    def blackhole(self) -> None:
        """Accept and keep connections, pass nothing on. `heal` lets through what was held."""
        self._background.call(self._open(False))

    def refuse(self) -> None:
        """Stop listening: new connections are refused. Those that exist live on; see `cut`."""
        self._background.call(self._unlisten())

    def cut(self) -> None:
        """Reset every connection now."""
        self._background.call(self._cut())

    def half_close(self) -> None:
        """Send the clients an end of stream (FIN) while their own direction stays open."""
        self._background.call(self._half_close())

    def lose_reply_to(self, what: bytes | Predicate, *, times: int = 1) -> Trap:
        """Pass on what matches, wait for the server's answer, swallow it, cut the connection."""
        return self._add_trap(what, is_forwarded=True, times=times)

    def cut_before(self, what: bytes | Predicate, *, times: int = 1) -> Trap:
        """Cut the connection before what matches reaches the server."""
        return self._add_trap(what, is_forwarded=False, times=times)

    def heal(self) -> None:
        """Behave again."""
        self._delay_s = 0.0
        self._traps = []
        self._background.call(self._listen())
        self._background.call(self._open(True))

    def close(self) -> None:
        """Cut everything and end the thread."""
        self._background.call(self._unlisten())
        self._background.call(self._cut())
        self._background.close()

    def _add_trap(self, what: bytes | Predicate, *, is_forwarded: bool, times: int) -> Trap:
        matches: Predicate = (lambda seen: what in seen) if isinstance(what, bytes) else what
        trap = Trap(matches, is_forwarded=is_forwarded, times=times)
        self._traps = [*self._traps, trap]
        return trap

    # What runs in the thread's loop.

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, self.host, self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        if self._listener is not None:
            await stop_listening(self._listener)
            self._listener = None

    async def _open(self, is_open: bool) -> None:
        if is_open:
            self._is_open.set()
        else:
            self._is_open.clear()

    async def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _half_close(self) -> None:
        for link in list(self._links):
            with contextlib.suppress(OSError, RuntimeError):
                link.client.write_eof()

    async def _accept(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        try:
            from_server, to_server = await asyncio.open_connection(*self.upstream)
        except (OSError, asyncio.CancelledError):
            reset(to_client)
            return
        link = Link(to_client, to_server)
        self._links.add(link)
        try:
            await asyncio.gather(
                self._carry_requests(link, from_client), self._carry_replies(link, from_server)
            )
        except (OSError, asyncio.CancelledError):
            link.cut()
        finally:
            self._links.discard(link)
            to_client.close()
            to_server.close()

    async def _carry_requests(self, link: Link, source: asyncio.StreamReader) -> None:
        tail = b""
        while chunk := await source.read(CHUNK):
            await self._hold()
            seen = tail + chunk
            trap = next((trap for trap in self._traps if trap.take(seen)), None)
            if trap is not None and not trap.is_forwarded:
                link.cut()
                trap.spring()
                return
            if trap is not None:
                link.awaits_lost_reply = trap
            tail = seen[-OVERLAP:]
            link.server.write(chunk)
            await link.server.drain()
        with contextlib.suppress(OSError, RuntimeError):
            link.server.write_eof()

    async def _carry_replies(self, link: Link, source: asyncio.StreamReader) -> None:
        while chunk := await source.read(CHUNK):
            if link.awaits_lost_reply is not None:
                await asyncio.sleep(ANSWER_S)
                link.cut()
                link.awaits_lost_reply.spring()
                return
            await self._hold()
            link.client.write(chunk)
            await link.client.drain()
        with contextlib.suppress(OSError, RuntimeError):
            link.client.write_eof()

    async def _hold(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._is_open.wait()
