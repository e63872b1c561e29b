"""libcurl's multi interface on the event loop, which watches its sockets and keeps its timer."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pycurl


class LoopMulti:
    """One multi handle. `on_progress` is called with the number of transfers that still run, each
    time libcurl has moved on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_idle: int,
        on_progress: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._on_progress = on_progress
        self._watched: dict[int, int] = {}
        self._timer: asyncio.Handle | None = None
        self._closed = False
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, max_idle)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._act = self._multi.socket_action
        self.add_handle: Callable[[Any], None] = self._multi.add_handle
        self.remove_handle: Callable[[Any], None] = self._multi.remove_handle
        self.info_read: Callable[[], tuple[int, list[Any], list[Any]]] = self._multi.info_read
        self.opened: list[socket.socket] = []
        """Our ends of sockets that libcurl has just been given; it holds duplicates of them."""

    def close(self) -> None:
        """Free libcurl's sockets. No handle may be added any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for fd in list(self._watched):
            self._unwatch(fd)
        self._multi.close()

    def _set_timer(self, wait_ms: int) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_ms == 0:
            self._timer = self._loop.call_soon(self._on_timer)
        elif wait_ms > 0:
            self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)

    def _watch(self, what: int, fd: int, multi: Any, data: Any) -> None:
        if self._closed:  # libcurl calls this while it is freed
            return
        wanted = 0 if what == pycurl.POLL_REMOVE else what
        had = self._watched.get(fd, 0)
        changed = wanted ^ had
        if changed & pycurl.POLL_IN:
            if wanted & pycurl.POLL_IN:
                self._loop.add_reader(fd, self._on_ready, fd, pycurl.CSELECT_IN)
            else:
                self._loop.remove_reader(fd)
        if changed & pycurl.POLL_OUT:
            if wanted & pycurl.POLL_OUT:
                self._loop.add_writer(fd, self._on_ready, fd, pycurl.CSELECT_OUT)
            else:
                self._loop.remove_writer(fd)
        if wanted:
            self._watched[fd] = wanted
        elif had:
            del self._watched[fd]

    def _unwatch(self, fd: int) -> None:
        had = self._watched.pop(fd)
        if had & pycurl.POLL_IN:
            self._loop.remove_reader(fd)
        if had & pycurl.POLL_OUT:
            self._loop.remove_writer(fd)

    def _on_timer(self) -> None:
        self._timer = None
        self._on_ready(pycurl.SOCKET_TIMEOUT, 0)

    def _on_ready(self, fd: int, ready: int) -> None:
        running = self._act(fd, ready)[1]
        if self.opened:
            for opened in self.opened:
                opened.close()
            self.opened.clear()
        self._on_progress(running)
