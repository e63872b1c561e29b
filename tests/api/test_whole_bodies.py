"""A body that came with its head, on a route that goes through ASGI."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.ground import CoreServices, MakeThing, open_house
from tests.api.socket_ground import PATIENCE_SEC, check_refused, converse, serving
from tests.api.test_fastpath import ASGI, CLOSE, make_thing, post, twins


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[CoreServices]:
    async with open_house(tmp_path) as core:
        yield core


@pytest.mark.spec("X13")
async def test_a_body_that_came_with_its_head_is_taken_whole_through_asgi_too(
    core: CoreServices,
) -> None:
    expect = b"expect: 100-continue"
    whole, late = post(ASGI, b'{"name":"ab"}', expect), post(ASGI, b'{"name":"cd"}', expect, CLOSE)
    app = core.app(*twins(make_thing, body=MakeThing, max_body=64))
    async with serving(app, core) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(PATIENCE_SEC):
            writer.write(whole)
            first = await reader.readuntil(b'"payload":{}}')
            writer.write(late[:-13])
            told_to_go_on = await reader.readuntil(b"\r\n\r\n")
            writer.write(late[-13:])
            second = await reader.read()
        writer.close()
        large = post(ASGI, b'{"name":"%b"}' % (b"a" * 64), CLOSE)
        check_refused(await converse(server.port, large), 413, "TOO_LARGE")
    # Who has sent the body already need not be told to go on.
    assert first.startswith(b"HTTP/1.1 201 ")
    assert told_to_go_on.startswith(b"HTTP/1.1 100 ")
    assert second.startswith(b"HTTP/1.1 201 ")
    assert b'"name":"cd"' in second
