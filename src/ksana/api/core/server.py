"""The HTTP server: uvicorn as Ksana runs it, with one deadline check a second over all connections.

The connections are ours (`fastpath`, `connection`) where the inside of uvicorn allows it, else
uvicorn's own: then every request goes through ASGI, and the deadlines are uvicorn's.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn

from ksana.api.core.connection_guard import ConnectionGuard
from ksana.api.core.uvicorn_check import find_fastpath_changes, find_guard_changes
from ksana.base import log
from ksana.base.clock import until_beat

KEEP_ALIVE_SEC: Final = 75
CHECK_SEC: Final = 1.0
MAX_CONNECTIONS: Final = 4096
BACKLOG: Final = 16_384
"""Connections that wait to be accepted; the kernel takes its own bound (`net.core.somaxconn`) if it
is less. Beyond it connects are dropped, and tried again after a second or more."""
WS_MAX_SIZE: Final = 1024 * 1024
WS_PING_SEC: Final = 20.0


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers (boot owns those) and with the deadline check.

    `stop` begins the end: listeners close, `on_stop` runs (live streams end there), what runs
    finishes.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_stop: Callable[[], Any] | None = None,
        guard: ConnectionGuard | None = None,
    ) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._guard = guard
        self._stopping = asyncio.Event()

    @property
    def port(self) -> int:
        """The port listened on, known once started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Ask for an orderly end."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Tick once a second, not ten times: renew the Date header and check deadlines."""
        loop = asyncio.get_running_loop()
        while not self.should_exit:
            await self.on_tick(0)
            now = loop.time()
            if self._guard is not None:
                self._guard.sweep()
            for connection in list(self.server_state.connections):
                check_deadlines = getattr(connection, "check_deadlines", None)
                if check_deadlines is not None:  # uvicorn's own and sockets have none
                    check_deadlines(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_beat(now, CHECK_SEC)):
                    await self._stopping.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        if self._on_stop is not None:
            result = self._on_stop()
            if asyncio.iscoroutine(result):
                await result
        await super().shutdown(sockets)


def choose_protocols(
    max_connections: int = MAX_CONNECTIONS, guard: ConnectionGuard | None = None
) -> tuple[type[asyncio.Protocol] | None, type[asyncio.Protocol] | None]:
    """The best of our connections that this uvicorn carries, and the sockets that go with them;
    None leaves them to uvicorn."""
    changes = find_guard_changes()
    if changes:
        log.warning(
            "this uvicorn is unknown: no deadlines and no fast path for requests",
            uvicorn=uvicorn.__version__,
            missing=changes,
        )
        return None, None
    from ksana.api.core.crowd import Crowd, counted_socket

    crowd = Crowd()
    guard = ConnectionGuard() if guard is None else guard
    limits = {"max_connections": max_connections, "crowd": crowd, "guard": guard}
    changes = find_fastpath_changes()
    if changes:
        from ksana.api.core.connection import GuardedProtocol

        log.warning(
            "this uvicorn is unknown: no fast path for requests",
            uvicorn=uvicorn.__version__,
            missing=changes,
        )
        guarded = type("LimitedGuardedProtocol", (GuardedProtocol,), limits)
        return guarded, counted_socket(crowd)
    from ksana.api.core.fastpath import FastpathProtocol

    fast = type("LimitedFastpathProtocol", (FastpathProtocol,), limits)
    return fast, counted_socket(crowd)


def make_config(
    app: Any,
    host: str,
    port: int,
    *,
    graceful_sec: int = 10,
    keep_alive_sec: int = KEEP_ALIVE_SEC,
    max_connections: int = MAX_CONNECTIONS,
    guard: ConnectionGuard | None = None,
) -> uvicorn.Config:
    """Configure uvicorn as Ksana runs it."""
    protocol, socket = choose_protocols(max_connections, guard)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="auto",  # uvloop where it exists, so that Windows still starts
        http=protocol or "auto",
        ws=socket or "websockets-sansio",
        ws_max_size=WS_MAX_SIZE,
        ws_ping_interval=WS_PING_SEC,
        ws_ping_timeout=WS_PING_SEC,
        ws_per_message_deflate=False,  # F51: no compression, no bombs
        backlog=BACKLOG,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        # Our protocol caps connections itself, with our error body.
        limit_concurrency=max_connections if protocol is None else None,
        timeout_keep_alive=keep_alive_sec,
        timeout_graceful_shutdown=graceful_sec,
    )
