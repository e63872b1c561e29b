"""A body that was cut off is INVALID_JSON on every route, whichever way the request came in."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.api.core.routing import Route
from tests.api.ground import CoreServices, MakeThing, client_of, open_house
from tests.api.socket_ground import PATIENCE_SEC, check_refused, serving
from tests.api.surfaces_ground import every_route
from tests.api.test_fastpath import ASGI, FAST, make_thing, post, twins

pytestmark = pytest.mark.spec("X8")

UUID = "6f1c3c2e-8f0d-4b8e-9d55-0f6b1a2c3d4e"
IDS = {
    "{id:int}": "1",
    "{job_id:uuid}": UUID,
    "{lease_id:uuid}": UUID,
    "{token}": "ab",
    "{id}": "1",
}
CUT = [
    b"{",
    b'{"',
    b'{"unknown":1,',
    b'{"name":5,"target_url":[],"status":3,"items":[{"lease_id":7,"job_id":9',
    b'{"name":"half a na',
    b'{"schedule":{"kind":"never","every":',
    b'{"jobs":[{"cost_units":"many"}',
    b'{"status":"DONE","worker_id":3',
    b'[{"a":1}',
    b'"text',
    b"nul",
]


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[CoreServices]:
    async with open_house(tmp_path) as core:
        yield core


async def test_half_a_json_text_is_invalid_json_on_every_route(core: CoreServices) -> None:
    app = core.app(*every_route(core, core.clock))
    tried = 0
    async with client_of(app) as client:
        for route in app.router.routes:
            if not isinstance(route, Route) or route.decoder is None:
                continue
            path = route.path
            for name, value in IDS.items():
                path = path.replace(name, value)
            for body in CUT:
                reply = await client.request(route.method, path, content=body)
                told = (route.method, path, body, reply.text)
                assert (reply.status_code, reply.json()["code"]) == (400, "INVALID_JSON"), told
            tried += 1
    assert tried > 15


async def test_a_wrong_member_of_a_whole_body_is_still_named(core: CoreServices) -> None:
    async with client_of(core.app(*every_route(core, core.clock))) as client:
        reply = await client.post("/api/scheduler/jobs/submit", content=b'{"unknown":1}')
    assert (reply.json()["code"], reply.json()["field"]) == ("INVALID_ARGUMENT", "unknown")


async def half_close(port: int, *parts: bytes) -> bytes:
    """Send the parts, say that no more comes, and read the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(PATIENCE_SEC):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("path", [ASGI, FAST])
@pytest.mark.parametrize("sent", [0, 1, 12], ids=["none of it", "one byte", "but the last byte"])
async def test_a_caller_that_stops_inside_its_body_is_told(
    core: CoreServices, path: str, sent: int
) -> None:
    whole = post(path, b'{"name":"ab"}')
    head = whole[: whole.index(b"{")]
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        answer = await half_close(server.port, head, b'{"name":"ab"}'[:sent])
    check_refused(answer, 400, "INVALID_JSON")
    assert b"connection: close" in answer


@pytest.mark.parametrize("path", [ASGI, FAST])
async def test_what_came_before_the_cut_is_answered_in_order(core: CoreServices, path: str) -> None:
    whole = post(path, b'{"name":"ab"}')
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        answer = await half_close(server.port, whole + whole + whole[:-4])
        assert not await settled(server)
    assert answer.count(b"HTTP/1.1 201") == 2
    last = b"HTTP/1.1 400" + answer.rpartition(b"HTTP/1.1 400")[2]
    check_refused(last, 400, "INVALID_JSON")


async def settled(server: object) -> set[object]:
    """The connections left once they had time to go."""
    left: set[object] = server.server_state.connections  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE_SEC):
        while left:
            await asyncio.sleep(0.005)
    return left


async def test_a_cut_off_chunked_body_is_told_too(core: CoreServices) -> None:
    head = post(FAST, b"", b"transfer-encoding: chunked")
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        answer = await half_close(server.port, head, b'6\r\n{"name\r\n')
    check_refused(answer, 400, "INVALID_JSON")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["message"].startswith("the body ended")
