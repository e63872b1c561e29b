"""The real server on a real socket, and a talk with it byte by byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from ksana.api.core.app import Application
from ksana.api.core.server import Server, make_config
from tests.api.ground import CoreServices

PATIENCE_SEC = 10


@contextlib.asynccontextmanager
async def serving(app: Application, core: CoreServices, **options: Any) -> AsyncIterator[Server]:
    server = Server(make_config(app, "127.0.0.1", 0, **options), on_stop=core.events.close)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE_SEC):
        while not server.started:
            await asyncio.sleep(0.005)
    try:
        yield server
    finally:
        server.stop()
        async with asyncio.timeout(PATIENCE_SEC):
            await task


async def converse(port: int, *parts: bytes) -> bytes:
    """Send the parts and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(PATIENCE_SEC):
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def check_refused(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"content-type: application/json" in head
    told = json.loads(body)
    assert told["code"] == code
    assert told["message"] == told["detail"]
    assert told["request_id"]
