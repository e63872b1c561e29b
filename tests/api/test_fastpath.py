"""Swift routes: requests answered without ASGI and without a task say and do what the usual way
does."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.core.fastpath import MAX_WHOLE
from ksana.api.core.routing import Answer, Call, Route
from ksana.base.errors import ConflictError, StoreDownError
from tests.api.ground import CoreServices, MakeThing, open_house
from tests.api.socket_ground import PATIENCE_SEC, check_refused, converse, serving

USUAL, SWIFT = "/api/v1/usual", "/api/v1/swift"
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[CoreServices]:
    async with open_house(tmp_path) as core:
        yield core


def twins(handler: Any, **more: Any) -> list[Route]:
    """The same route twice, one of them swift."""
    return [
        Route(
            "POST",
            path,
            handler,
            scope="queue:write",
            summary="Make",
            is_swift=path == SWIFT,
            **more,
        )
        for path in (USUAL, SWIFT)
    ]


async def make_thing(call: Call, body: MakeThing) -> Answer:
    if body.name == "taken":
        raise ConflictError("the name is taken", code="ALREADY_EXISTS", current={"name": body.name})
    if body.name == "down":
        raise StoreDownError("the store is away", retry_after_sec=3)
    if body.name == "broken":
        raise RuntimeError("a secret that must not be seen")
    if body.name == "empty":
        return Answer(204)
    if body.name == "split":
        return Answer(200, {}, ((b"x-said", b"a\r\nset-cookie: b"),))
    return Answer(
        201, {"name": body.name, "payload": body.payload}, ((b"location", b"/api/v1/things/1"),)
    )


def post(path: str, body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [b"POST %s HTTP/%s" % (path.encode(), version), b"host: localhost", *headers]
    if not any(line.startswith(b"transfer-encoding") for line in headers):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def told(answer: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """First line, headers and body; without what differs from answer to answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    assert headers.pop(b"x-request-id"), "every answer has its request id"
    assert headers.pop(b"date")
    return first, headers, re.sub(rb'"request_id":"[^"]+"', b'"request_id":"-"', body)


CLOSE = b"connection: close"
SAID = [
    pytest.param(b'{"name":"a","payload":{"n":1}}', (), id="made"),
    pytest.param(b'{"name":"taken"}', (), id="conflict"),
    pytest.param(b'{"name":"down"}', (), id="store down"),
    pytest.param(b'{"name":"broken"}', (), id="bug"),
    pytest.param(b'{"name":"empty"}', (), id="no content"),
    pytest.param(b'{"name":"split"}', (), id="line break in a header"),
    pytest.param(b'{"name":"a","wrong":1}', (), id="unknown member"),
    pytest.param(b"", (), id="no body"),
    pytest.param(b"{", (), id="half a body"),
    pytest.param(b'{"name":"\xff"}', (), id="not UTF-8"),
    pytest.param(b"[" * 2000, (), id="deep"),
    pytest.param(b'{"name":"a"}', (b"content-type: text/plain",), id="media type"),
    pytest.param(b'{"name":"a"}', (b"origin: http://elsewhere.example",), id="foreign origin"),
    pytest.param(b'{"name":"a"}', (b"x-request-id: mine",), id="request id"),
]


@pytest.mark.spec("X8")
@pytest.mark.parametrize(("body", "headers"), SAID)
async def test_the_swift_way_answers_what_the_usual_way_answers(
    core: CoreServices, body: bytes, headers: tuple[bytes, ...]
) -> None:
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        usual, swift = [
            told(await converse(server.port, post(path, body, CLOSE, *headers)))
            for path in (USUAL, SWIFT)
        ]
    assert swift == usual
    assert b"secret" not in swift[2]
    assert b"set-cookie" not in swift[1]


@pytest.mark.spec("X19")
async def test_a_swift_route_asks_for_the_key(core: CoreServices) -> None:
    made = await core.keys.create_key("reader", ["queue:read"])
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        check_refused(
            await converse(server.port, post(SWIFT, b'{"name":"a"}', CLOSE)), 401, "UNAUTHENTICATED"
        )
        key = b"x-api-key: " + made.text.encode()
        check_refused(
            await converse(server.port, post(SWIFT, b'{"name":"a"}', CLOSE, key)), 403, "FORBIDDEN"
        )


@pytest.mark.spec("X13")
async def test_a_body_over_the_limit_is_refused_and_one_too_large_for_the_swift_way_is_taken(
    core: CoreServices,
) -> None:
    routes = twins(make_thing, body=MakeThing)
    small = twins(make_thing, body=MakeThing, max_body=1000)
    async with serving(core.app(*small), core) as server:
        check_refused(
            await converse(server.port, post(SWIFT, b"x" * 1001, CLOSE)), 413, "TOO_LARGE"
        )
    async with serving(core.app(*routes), core) as server:
        large = b'{"name":"a","payload":"%s"}' % (b"x" * MAX_WHOLE)
        assert b"HTTP/1.1 201 Created" in await converse(server.port, post(SWIFT, large, CLOSE))


async def test_requests_sent_without_waiting_are_answered_in_order(core: CoreServices) -> None:
    async def slowly(call: Call, body: MakeThing) -> Any:
        await core.store.read(
            lambda tx: tx.events.latest_id()
        )  # really waits: the answer comes from another thread
        return {"name": body.name}

    sent = b"".join(
        [
            post(SWIFT, b'{"name":"one"}'),
            post(SWIFT, b'{"name":"two"}'),
            GET,
            post(USUAL, b'{"name":"three"}'),
            post(SWIFT, b'{"name":"four"}', CLOSE),
        ]
    )
    async with serving(core.app(*twins(slowly, body=MakeThing)), core) as server:
        answer = await converse(server.port, sent)
    bodies = re.findall(rb'\r\n\r\n(\{"name":"\w+"\}|ok)', answer)
    assert [b"ok" if one == b"ok" else json.loads(one)["name"].encode() for one in bodies] == [
        b"one",
        b"two",
        b"ok",
        b"three",
        b"four",
    ]


async def test_one_connection_serves_many_swift_requests_and_bodies_in_pieces(
    core: CoreServices,
) -> None:
    parts: list[bytes] = []
    for number in range(50):
        whole = post(SWIFT, b'{"name":"n%d"}' % number, *((CLOSE,) if number == 49 else ()))
        parts += [whole[:40], whole[40:-3], whole[-3:]]
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        answer = await converse(server.port, *parts)
    assert re.findall(rb'"name":"n(\d+)"', answer) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(
            SWIFT, b'c\r\n{"name":"ab"\r\n1\r\n}\r\n0\r\n\r\n', CLOSE, b"transfer-encoding: chunked"
        ),
        post(SWIFT, b'{"name":"ab"}', CLOSE, b"expect: 100-continue"),
        post(SWIFT + "?x=1", b'{"name":"ab"}', CLOSE),
        post(SWIFT.replace("s", "%73", 1), b'{"name":"ab"}', CLOSE),
        post(SWIFT, b'{"name":"ab"}', version=b"1.0"),
    ],
    ids=["chunked", "expect", "query", "escaped", "1.0"],
)
async def test_what_the_swift_way_does_not_take_is_answered_all_the_same(
    core: CoreServices, request_bytes: bytes
) -> None:
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        answer = await converse(server.port, request_bytes)
    assert b"HTTP/1.1 201 Created" in answer
    assert answer.endswith(b'{"name":"ab","payload":{}}')


async def test_a_swift_path_with_an_id_reads_and_refuses_it(core: CoreServices) -> None:
    async def get_thing(call: Call) -> Any:
        return {"id": call.params["id"]}

    route = Route(
        "POST", "/api/v1/t/{id:int}/go", get_thing, scope=None, summary="Go", is_swift=True
    )
    async with serving(core.app(route), core) as server:
        assert (await converse(server.port, post("/api/v1/t/7/go", b"", CLOSE))).endswith(
            b'{"id":7}'
        )
        check_refused(
            await converse(server.port, post("/api/v1/t/x/go", b"", CLOSE)), 400, "INVALID_ID"
        )
        check_refused(
            await converse(server.port, post("/api/v1/t/7/no", b"", CLOSE)), 404, "NOT_FOUND"
        )


async def test_a_caller_who_leaves_harms_nobody_and_the_work_is_done(core: CoreServices) -> None:
    began, may_end, ended = (
        asyncio.Event(),
        asyncio.get_running_loop().create_future(),
        asyncio.Event(),
    )

    async def wait(call: Call, body: MakeThing) -> Any:
        began.set()
        await may_end
        ended.set()
        return {}

    async with (
        serving(core.app(*twins(wait, body=MakeThing)), core) as server,
        asyncio.timeout(PATIENCE_SEC),
    ):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post(SWIFT, b'{"name":"a"}'))
        await began.wait()
        writer.transport.abort()
        while server.server_state.connections:
            await asyncio.sleep(0.005)
        may_end.set_result(None)
        await ended.wait()
        assert (
            await converse(server.port, GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        ).endswith(b"ok")


@pytest.mark.spec("X14")
async def test_a_stop_waits_for_the_answer_of_a_swift_request(core: CoreServices) -> None:
    began, may_end = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def wait(call: Call, body: MakeThing) -> Any:
        began.set()
        await asyncio.sleep(0)
        await may_end
        return {"name": body.name}

    async with (
        serving(core.app(*twins(wait, body=MakeThing)), core) as server,
        asyncio.timeout(PATIENCE_SEC),
    ):
        answer = asyncio.create_task(converse(server.port, post(SWIFT, b'{"name":"a"}')))
        await began.wait()
        server.stop()
        await asyncio.sleep(0.05)
        may_end.set_result(None)
        told_at_last = await answer
    assert told_at_last.endswith(b'{"name":"a"}')
    assert b"connection: close" in told_at_last


async def test_a_handler_whose_future_is_cancelled_closes_the_connection(
    core: CoreServices,
) -> None:
    async def wait(call: Call, body: MakeThing) -> Any:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.cancel)
        await future

    async with serving(core.app(*twins(wait, body=MakeThing)), core) as server:
        assert await converse(server.port, post(SWIFT, b'{"name":"a"}')) == b""
