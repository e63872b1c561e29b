"""The fast path: requests served without ASGI and without a task are answered as the way through
ASGI answers them; routes are checked at start; a changed uvicorn is served through ASGI."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.core import uvicorn_check
from ksana.api.core.exchange import IncomingRequest
from ksana.api.core.fastpath import MAX_BUFFERED, FastpathProtocol
from ksana.api.core.routing import Answer, Call, Route, Stream
from ksana.api.core.server import choose_protocols
from ksana.base.errors import ConflictError, StoreDownError
from tests.api.ground import CoreServices, ListThings, MakeThing, open_house
from tests.api.socket_ground import PATIENCE_SEC, check_refused, converse, serving
from tests.ground.logs import capture_logs

ASGI, FAST = "/api/v1/asgi", "/api/v1/fast"
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[CoreServices]:
    async with open_house(tmp_path) as core:
        yield core


def twins(handler: Any, **more: Any) -> list[Route]:
    """The same route twice, one of them on the fast path."""
    return [
        Route(
            "POST",
            path,
            handler,
            scope="queue:write",
            summary="Make",
            is_fastpath=path == FAST,
            **more,
        )
        for path in (ASGI, FAST)
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
async def test_the_fast_path_answers_what_the_way_through_asgi_answers(
    core: CoreServices, body: bytes, headers: tuple[bytes, ...]
) -> None:
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        asgi, fast = [
            told(await converse(server.port, post(path, body, CLOSE, *headers)))
            for path in (ASGI, FAST)
        ]
    assert fast == asgi
    assert b"secret" not in fast[2]
    assert b"set-cookie" not in fast[1]


@pytest.mark.spec("X19")
async def test_a_fast_path_route_asks_for_the_key(core: CoreServices) -> None:
    made = await core.keys.create_key("reader", ["queue:read"])
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        check_refused(
            await converse(server.port, post(FAST, b'{"name":"a"}', CLOSE)), 401, "UNAUTHENTICATED"
        )
        key = b"x-api-key: " + made.text.encode()
        check_refused(
            await converse(server.port, post(FAST, b'{"name":"a"}', CLOSE, key)), 403, "FORBIDDEN"
        )


@pytest.mark.spec("X13")
async def test_a_body_over_the_limit_is_refused_and_one_too_large_for_the_fast_path_is_taken(
    core: CoreServices,
) -> None:
    routes = twins(make_thing, body=MakeThing)
    small = twins(make_thing, body=MakeThing, max_body=1000)
    async with serving(core.app(*small), core) as server:
        check_refused(await converse(server.port, post(FAST, b"x" * 1001, CLOSE)), 413, "TOO_LARGE")
    async with serving(core.app(*routes), core) as server:
        large = b'{"name":"a","payload":"%s"}' % (b"x" * MAX_BUFFERED)
        assert b"HTTP/1.1 201 Created" in await converse(server.port, post(FAST, large, CLOSE))


async def test_requests_sent_without_waiting_are_answered_in_order(core: CoreServices) -> None:
    async def slowly(call: Call, body: MakeThing) -> Any:
        await core.store.read(
            lambda tx: tx.events.latest_id()
        )  # really waits: the answer comes from another thread
        return {"name": body.name}

    sent = b"".join(
        [
            post(FAST, b'{"name":"one"}'),
            post(FAST, b'{"name":"two"}'),
            GET,
            post(ASGI, b'{"name":"three"}'),
            post(FAST, b'{"name":"four"}', CLOSE),
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


async def test_one_connection_serves_many_fast_requests_and_bodies_in_pieces(
    core: CoreServices,
) -> None:
    parts: list[bytes] = []
    for number in range(50):
        whole = post(FAST, b'{"name":"n%d"}' % number, *((CLOSE,) if number == 49 else ()))
        parts += [whole[:40], whole[40:-3], whole[-3:]]
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        answer = await converse(server.port, *parts)
    assert re.findall(rb'"name":"n(\d+)"', answer) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(
            FAST, b'c\r\n{"name":"ab"\r\n1\r\n}\r\n0\r\n\r\n', CLOSE, b"transfer-encoding: chunked"
        ),
        post(FAST, b'{"name":"ab"}', CLOSE, b"expect: 100-continue"),
        post(FAST + "?page=2", b'{"name":"ab"}', CLOSE),
        post(FAST.replace("f", "%66", 1), b'{"name":"ab"}', CLOSE),
        post(FAST, b'{"name":"ab"}', version=b"1.0"),
    ],
    ids=["chunked", "expect", "query", "escaped", "1.0"],
)
async def test_what_the_fast_path_does_not_take_is_answered_all_the_same(
    core: CoreServices, request_bytes: bytes
) -> None:
    app = core.app(*twins(make_thing, body=MakeThing, query=ListThings))
    async with serving(app, core) as server:
        answer = await converse(server.port, request_bytes)
    assert b"HTTP/1.1 201 Created" in answer
    assert answer.endswith(b'{"name":"ab","payload":{}}')


async def test_a_fast_path_with_an_id_reads_and_refuses_it(core: CoreServices) -> None:
    async def get_thing(call: Call) -> Any:
        return {"id": call.params["id"]}

    route = Route(
        "POST", "/api/v1/t/{id:int}/go", get_thing, scope=None, summary="Go", is_fastpath=True
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
        writer.write(post(FAST, b'{"name":"a"}'))
        await began.wait()
        writer.transport.abort()
        while server.server_state.connections:
            await asyncio.sleep(0.005)
        may_end.set_result(None)
        await ended.wait()
        assert (
            await converse(server.port, GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        ).endswith(b"ok")


async def test_an_unknown_query_member_is_refused_on_a_fast_path_route(core: CoreServices) -> None:
    async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
        answer = await converse(server.port, post(FAST + "?x=1", b'{"name":"ab"}', CLOSE))
    check_refused(answer, 400, "INVALID_ARGUMENT")


@pytest.mark.spec("X14")
async def test_a_stop_waits_for_the_answer_of_a_fast_request(core: CoreServices) -> None:
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
        answer = asyncio.create_task(converse(server.port, post(FAST, b'{"name":"a"}')))
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
        assert await converse(server.port, post(FAST, b'{"name":"a"}')) == b""


def fast_route(handler: Any, **more: Any) -> Route:
    return Route("POST", FAST, handler, scope=None, summary="Go", is_fastpath=True, **more)


async def stream_things(call: Call) -> Answer | Stream:
    return Answer(204)


async def wait_with_a_timeout(call: Call) -> None:
    async with asyncio.timeout(1):
        await asyncio.sleep(0)


async def wait_inside(call: Call) -> Any:
    return [await asyncio.wait_for(asyncio.sleep(0), 1) for _ in range(2)]


def answer_at_once(call: Call) -> dict[str, Any]:
    return {}


async def answer_empty(call: Call) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("route", "told"),
    [
        (fast_route(stream_things), "does not stream"),
        (fast_route(answer_empty, media_types=("text/event-stream",)), "does not stream"),
        (fast_route(wait_with_a_timeout), "asyncio.timeout fails"),
        (fast_route(wait_inside), "asyncio.wait_for fails"),
        (fast_route(answer_at_once), "coroutine function"),
    ],
    ids=["stream", "event stream", "timeout", "nested wait_for", "not a coroutine"],
)
async def test_a_route_that_would_not_work_on_the_fast_path_stops_the_start(
    core: CoreServices, route: Route, told: str
) -> None:
    with pytest.raises(ValueError, match=f"POST {FAST} is on the fast path.*{told}"):
        core.app(route)


def test_this_uvicorn_is_the_one_the_connections_were_written_for() -> None:
    protocol, _ = choose_protocols()
    assert protocol is not None
    assert issubclass(protocol, FastpathProtocol)


@pytest.mark.parametrize("lost", ["fast path", "guard"])
async def test_a_uvicorn_whose_inside_has_changed_serves_everything_through_asgi(
    core: CoreServices, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    if lost == "guard":
        monkeypatch.setitem(uvicorn_check.GUARD_METHODS, "on_trailers", ("trailers",))
    else:
        monkeypatch.setattr(uvicorn_check, "FASTPATH_ATTRIBUTES", {"renamed_parser"})
    body = b'{"name":"a","payload":{"n":1}}'
    with capture_logs() as logs:
        async with serving(core.app(*twins(make_thing, body=MakeThing)), core) as server:
            asgi, fast = [
                told(await converse(server.port, post(path, body, CLOSE))) for path in (ASGI, FAST)
            ]
            refused = await converse(server.port, post(FAST, b"{", CLOSE))
    assert fast == asgi
    assert fast[0] == b"HTTP/1.1 201 Created"
    check_refused(refused, 400, "INVALID_JSON")
    warned = [one for one in logs if one["log_level"] == "warning"]
    assert len(warned) == 1
    assert "no fast path" in warned[0]["event"] or "no deadlines" in warned[0]["event"]


async def test_both_ways_pass_the_one_pipeline(
    core: CoreServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = core.app(*twins(make_thing, body=MakeThing))
    seen: list[str] = []
    serve = app.pipeline.serve

    async def watch(request: IncomingRequest) -> Any:
        seen.append(request.path)
        return await serve(request)

    monkeypatch.setattr(app.pipeline, "serve", watch)
    async with serving(app, core) as server:
        for path in (ASGI, FAST):
            await converse(server.port, post(path, b'{"name":"a"}', CLOSE))
    assert seen == [ASGI, FAST]
