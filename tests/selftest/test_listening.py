"""A listener that is closed leaves no connection behind, whenever it was accepted."""

import asyncio
import gc
import socket

import pytest

from tests.ground.background import end_connections, stop_listening


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_was_accepted_a_moment_ago_is_ended(turns: int) -> None:
    """Whatever is left open fails the test: the collector's warnings are errors."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    with socket.create_connection(listener.sockets[0].getsockname()):
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop_listening(listener)
        await end_connections()
        assert listener.sockets == ()
        gc.collect()
