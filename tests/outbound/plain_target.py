"""Targets of one connection at a time, and what tests look at in a plain client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ksana.outbound.by_scheme import HttpCaller
from tests.ground.background import stop_listening
from tests.outbound.conftest import GONE

MS = 1000
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@contextlib.asynccontextmanager
async def listening(talk: Talk, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve each connection by a function, and end it after."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(*GONE, asyncio.LimitOverrunError):
                await talk(reader, writer)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, host, port)
    try:
        where = f"[{host}]" if ":" in host else host
        yield f"http://{where}:{server.sockets[0].getsockname()[1]}"
    finally:
        await stop_listening(server)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def used_curl(caller: HttpCaller) -> bool:
    return caller._curl is not None


def idle_connections(caller: HttpCaller) -> int:
    return len(caller._plain._pool)


async def until(fact: Callable[[], bool]) -> None:
    while not fact():
        await asyncio.sleep(0.002)
