"""Connecting to one of several addresses, all of them checked before: the first that opens wins.

They are tried in the order given. The next one starts when one fails, or when none has opened for a
moment, so that a silent address does not use up the connect deadline; libcurl does the same.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Final

HEAD_START_S: Final = 0.2
_UNDER_WAY: Final = frozenset(
    {
        errno.EINPROGRESS,
        errno.EWOULDBLOCK,
        errno.EINTR,
        getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK),
    }
)


class ConnectAttempt:
    """One attempt to connect. It calls `opened` or `failed`, never before `start` has returned for
    the latter; or neither, once it was ended."""

    __slots__ = (
        "_failed",
        "_last_errno",
        "_loop",
        "_opened",
        "_port",
        "_timer",
        "_trying",
        "_untried",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        addresses: tuple[str, ...],
        port: int,
        opened: Callable[[socket.socket, str], None],
        failed: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._untried = list(reversed(addresses))
        self._port = port
        self._opened = opened
        self._failed = failed
        self._trying: dict[int, tuple[socket.socket, str]] = {}
        self._timer: asyncio.Handle | None = None
        self._last_errno = 0

    def start(self) -> None:
        """Begin with the first address."""
        self._try_next()

    def end(self) -> None:
        """Give up; neither callback is called."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for fd, (sock, _) in self._trying.items():
            self._loop.remove_writer(fd)
            sock.close()
        self._trying.clear()
        self._untried.clear()

    def _try_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._untried:
            if self._try_address(self._untried.pop()):
                if self._untried:
                    self._timer = self._loop.call_later(HEAD_START_S, self._try_next)
                return
        if not self._trying:
            self._timer = self._loop.call_soon(self._failed, self._last_errno)

    def _try_address(self, address: str) -> bool:
        """Start one address; tell whether it may still open."""
        sock: socket.socket | None = None
        try:
            sock = socket.socket(
                socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
            )
            sock.setblocking(False)
            # Not every system has it for every family; without it a call is slower, not wrong.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex((address, self._port))
        except OSError as error:
            code = error.errno or errno.EIO
        if sock is None:
            self._last_errno = code
            return False
        if code and code not in _UNDER_WAY:
            sock.close()
            self._last_errno = code
            return False
        fd = sock.fileno()
        self._trying[fd] = (sock, address)
        self._loop.add_writer(fd, self._on_writable, fd)
        return True

    def _on_writable(self, fd: int) -> None:
        sock, address = self._trying.pop(fd)
        self._loop.remove_writer(fd)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            self.end()
            self._opened(sock, address)
            return
        sock.close()
        self._last_errno = code
        self._try_next()
