"""One socket to the nodes surface: how it is opened, what is written when, what reading answers."""

import asyncio
import logging
import ssl
from typing import Any

import pytest
import websockets.asyncio.client
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from ksana.client import node_socket
from ksana.client.errors import AccessError, BusyError, ClientError, TransportError
from ksana.client.node_socket import (
    MAX_QUEUED,
    FrameSocket,
    SocketAddress,
    SocketClosed,
    first_answer,
    wait_at_most,
)
from ksana.domain.nodes import frames
from tests.client.fake_socket import FakeConnection, assign
from tests.ground.jumping import loop_time, on_jumping_time, pass_time

pytestmark = pytest.mark.spec("N3", "N4")


def open_socket(connection: FakeConnection) -> FrameSocket:
    return FrameSocket(connection, frames.to_node)  # type: ignore[arg-type]


def ack(n: int) -> frames.JobAck:
    return frames.JobAck(job_id=f"j{n}", attempt_id=n)


# --- the address ---


def address(*urls: str, **more: Any) -> SocketAddress:
    options = {"api_key": None, "connect_sec": 7.0, "tls": None, "headers": None, **more}
    return SocketAddress(urls[0] if len(urls) == 1 else urls, "/ws/node", **options)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h", "ws://h/ws/node"),
        ("http://h:81/", "ws://h:81/ws/node"),
        ("https://h/ksana/", "wss://h/ksana/ws/node"),
        ("http://user:word@h:81/a", "ws://h:81/a/ws/node"),
        ("http://a@b@h", "ws://h/ws/node"),
        ("http://[::1]:80", "ws://[::1]:80/ws/node"),
    ],
)
def test_the_address_of_a_socket_follows_from_that_of_the_server(given: str, url: str) -> None:
    assert (address(given).url, address(given).shown) == (url, url)


@pytest.mark.parametrize("given", ["ftp://h", "h:80", "http://", "ws://h", ""])
def test_what_is_no_address_of_a_server_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is not an http:// or https:// address"):
        address(given)


def test_the_first_of_several_addresses_is_chosen_by_chance() -> None:
    urls = ("http://a", "http://b", "http://c")
    assert {address(*urls).url for _ in range(200)} == {
        "ws://a/ws/node",
        "ws://b/ws/node",
        "ws://c/ws/node",
    }


def test_a_key_is_shown_and_none_is_not() -> None:
    assert address("http://h")._headers == {}
    assert address("http://h", headers={"X-A": "b"})._headers == {"X-A": "b"}
    assert address("http://h", api_key="k")._headers == {"Authorization": "Bearer k"}


class Wire:
    """Takes the place of `websockets.connect`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[Any] = []
        monkeypatch.setattr(websockets.asyncio.client, "connect", self._connect)

    async def _connect(self, url: str, **how: Any) -> Any:
        self.asked.append((url, how))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def test_a_socket_is_opened_with_the_limits_of_the_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, tls = Wire(monkeypatch), ssl.create_default_context()
    plain, secure = FakeConnection(), FakeConnection()
    wire.answers = [plain, secure]
    both = address("http://a", "https://b", tls=tls, api_key="k")
    both._turn = 0
    for connection in (plain, secure):
        socket = await both.open(frames.to_node)
        assert socket._connection is connection
        await socket.close()
        both.pass_on()
    limits = {
        "additional_headers": {"Authorization": "Bearer k"},
        "compression": None,
        "max_size": frames.MAX_FRAME,
        "open_timeout": 7.0,
        "close_timeout": 5.0,
        "ping_interval": 15.0,
        "ping_timeout": 30.0,
        "proxy": None,
    }
    assert wire.asked == [
        ("ws://a/ws/node", {"ssl": None, **limits}),
        ("wss://b/ws/node", {"ssl": tls, **limits}),
    ]


def refused(status: int, body: bytes | None, retry_after: str | None = None) -> InvalidStatus:
    headers = Headers() if retry_after is None else Headers({"Retry-After": retry_after})
    return InvalidStatus(Response(status, "No", headers, body))


@pytest.mark.parametrize(
    ("answer", "kind", "status", "code", "retry_after_sec"),
    [
        (refused(503, b'{"code":"STORE_DOWN"}', "7"), BusyError, 503, "STORE_DOWN", 7.0),
        (refused(503, b'{"code":"STORE_DOWN"}', "soon"), BusyError, 503, "STORE_DOWN", None),
        (refused(401, b'{"code":"UNAUTHORIZED"}'), AccessError, 401, "UNAUTHORIZED", None),
        (refused(502, None), ClientError, 502, "", None),
    ],
)
async def test_a_server_that_refuses_the_socket_says_why(
    monkeypatch: pytest.MonkeyPatch,
    answer: InvalidStatus,
    kind: type[ClientError],
    status: int,
    code: str,
    retry_after_sec: float | None,
) -> None:
    Wire(monkeypatch).answers = [answer]
    with pytest.raises(kind) as raised:
        await address("http://h").open(frames.to_node)
    error: Any = raised.value
    assert (error.status, error.code, error.retry_after_sec) == (status, code, retry_after_sec)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (OSError("no route"), "no route"),
        (TimeoutError(), "TimeoutError"),
        (EOFError("cut"), "cut"),
        (InvalidHandshake("odd"), "odd"),
    ],
)
async def test_a_server_that_cannot_be_reached_was_told_nothing(
    monkeypatch: pytest.MonkeyPatch, answer: Exception, why: str
) -> None:
    Wire(monkeypatch).answers = [answer]
    with pytest.raises(TransportError) as raised:
        await address("http://h").open(frames.to_node)
    assert str(raised.value) == f"cannot connect to ws://h/ws/node: {why}"
    assert raised.value.is_outcome_unknown is False


async def test_another_address_is_mentioned_and_one_that_failed_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ksana.client")
    wire = Wire(monkeypatch)
    wire.answers = [OSError("down")] * 2
    both = address("http://a", "http://b")
    both._turn = 0
    with pytest.raises(TransportError, match="ws://b/ws/node"):
        await both.open(frames.to_node)
    assert [url for url, _ in wire.asked] == ["ws://a/ws/node", "ws://b/ws/node"]
    assert both.url == "ws://a/ws/node"
    assert caplog.messages == ["cannot connect to ws://a/ws/node: down; trying another address"]
    wire.answers = [refused(403, b'{"code":"FORBIDDEN"}')]
    with pytest.raises(AccessError):
        await both.open(frames.to_node)
    assert len(wire.asked) == 3, "who is refused for good asks nobody else"


# --- writing ---


@on_jumping_time
async def test_frames_are_written_in_their_order_and_flush_waits_for_them() -> None:
    connection = FakeConnection(is_stuck=True)
    socket = open_socket(connection)
    await socket.flush()  # nothing waits
    assert [socket.send(ack(n)) for n in (1, 2)] == [True, True]
    flushed = asyncio.create_task(socket.flush())
    await pass_time()
    assert (flushed.done(), connection.sent) == (False, [])
    connection.may_write.set()
    await asyncio.wait_for(flushed, 5)
    assert [frame["job_id"] for frame in connection.sent] == ["j1", "j2"]
    assert socket.send(ack(3)) is True
    await asyncio.wait_for(socket.flush(), 5)
    assert [frame["job_id"] for frame in connection.sent] == ["j1", "j2", "j3"]
    await socket.close()
    assert connection.is_closed


@on_jumping_time
async def test_partials_are_dropped_while_too_much_waits_and_results_never_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_socket, "MAX_QUEUED", len(frames.encode(ack(1))))
    connection = FakeConnection(is_stuck=True)
    socket = open_socket(connection)
    taken = [socket.send(ack(n), is_dispensable=True) for n in (1, 2, 3)]
    assert (taken, socket.send(ack(4))) == ([True, True, False], True)
    connection.may_write.set()
    await asyncio.wait_for(socket.flush(), 5)
    assert [frame["job_id"] for frame in connection.sent] == ["j1", "j2", "j4"]
    assert socket.send(ack(5), is_dispensable=True) is True, "there is room again"
    await asyncio.wait_for(socket.flush(), 5)
    assert (len(connection.sent), MAX_QUEUED) == (4, 4 * 1024 * 1024)
    await socket.close()


@on_jumping_time
async def test_what_waits_counts_by_its_bytes() -> None:
    connection = FakeConnection(is_stuck=True)
    socket = open_socket(connection)
    socket.send(ack(1))
    socket.send(ack(2))
    assert socket._queued == len(frames.encode(ack(1))) + len(frames.encode(ack(2)))
    await socket.close()


@on_jumping_time
async def test_a_socket_that_has_ended_takes_no_more_and_keeps_nobody_waiting() -> None:
    connection = FakeConnection()
    socket = open_socket(connection)
    connection.end(1001, "going down")
    socket.send(ack(1))
    await asyncio.wait_for(socket.flush(), 5)
    await asyncio.wait_for(asyncio.wait({socket._writer}), 5)
    assert connection.sent == []
    assert socket.send(ack(2)) is False
    await socket.close()
    stuck = FakeConnection(is_stuck=True)
    closing = open_socket(stuck)
    closing.send(ack(1))
    waiting = asyncio.create_task(closing.flush())
    await pass_time()
    await asyncio.wait_for(closing.close(), 5)
    await asyncio.wait_for(waiting, 5)
    assert (closing.send(ack(2)), stuck.is_closed, stuck.sent) == (False, True, [])


@on_jumping_time
async def test_a_cut_that_the_reader_saw_ends_the_writing_side_too() -> None:
    connection = FakeConnection(is_stuck=True)
    socket = open_socket(connection)
    await pass_time()
    connection._inbox.put_nowait(_closed := _cut())
    with pytest.raises(SocketClosed):
        await socket.read()
    assert socket.send(ack(1)) is False
    assert _closed.rcvd is None
    await socket.close()


def _cut() -> Any:
    connection = FakeConnection()
    connection.end()
    return connection._closed


# --- reading ---


@on_jumping_time
async def test_pings_are_answered_and_what_is_not_known_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "ksana.client")
    connection = FakeConnection()
    socket = open_socket(connection)
    connection.say(
        frames.Ping(id="p1"), b'{"type":"of_tomorrow"}', b"no JSON", b'"\xff"', frames.Pong(id="?")
    )
    connection.say(assign("j1", 3, {"a": 1}))
    frame = await socket.read()
    assert (frame.job_id, frame.attempt_id, bytes(frame.payload)) == ("j1", 3, b'{"a":1}')
    await socket.flush()
    assert connection.sent == [{"type": "pong", "id": "p1"}]
    assert len([text for text in caplog.messages if "a frame was passed over: " in text]) == 3
    await socket.close()


@pytest.mark.parametrize(
    ("code", "reason", "told"),
    [
        (4012, "KEY_REVOKED", (4012, "KEY_REVOKED", "the socket was closed: 4012 KEY_REVOKED")),
        (1001, "", (1001, "", "the socket was closed: 1001")),
        (None, "", (1006, "cut off", "the socket was closed: 1006 cut off")),
    ],
)
@on_jumping_time
async def test_the_end_of_a_socket_is_told_with_its_code(
    code: int | None, reason: str, told: tuple[int, str, str]
) -> None:
    connection = FakeConnection()
    socket = open_socket(connection)
    connection.end(code, reason)
    with pytest.raises(SocketClosed) as closed:
        await socket.read()
    assert (closed.value.code, closed.value.reason, str(closed.value)) == told
    assert closed.value.is_outcome_unknown
    assert socket.send(ack(1)) is False
    await socket.close()


@on_jumping_time
async def test_who_asks_whether_the_server_lives_waits_for_its_own_pong() -> None:
    connection = FakeConnection()
    socket = open_socket(connection)
    asked = asyncio.create_task(socket.ask_alive("a"))
    reading = asyncio.create_task(socket.read())
    await pass_time()
    assert connection.sent == [{"type": "ping", "id": "a"}]
    connection.say(frames.Pong(id="b"))
    await pass_time()
    assert not asked.done()
    connection.say(frames.Pong(id="a"), frames.Pong(id="a"))
    await asyncio.wait_for(asked, 5)
    assert (socket._pongs, reading.done()) == ({}, False)
    reading.cancel()
    await socket.close()


# --- waiting ---


@on_jumping_time
async def test_the_first_answer_is_waited_for_no_longer_than_said() -> None:
    connection = FakeConnection()
    socket = open_socket(connection)
    connection.say(frames.ErrorFrame(code="X"))
    assert (await first_answer(socket, 2.5)).code == "X"
    with pytest.raises(TransportError) as late:
        await first_answer(socket, 2.5)
    assert str(late.value) == "the server did not answer the first frame within 2.5 s"
    assert late.value.is_outcome_unknown
    assert (connection.is_closed, loop_time()) == (True, 2.5)


@on_jumping_time
async def test_an_event_is_waited_for_at_most_so_long() -> None:
    event = asyncio.Event()
    await wait_at_most(event, 3.0)
    assert loop_time() == 3.0
    asyncio.get_running_loop().call_later(1.0, event.set)
    await wait_at_most(event, 3.0)
    assert loop_time() == 4.0


async def test_without_the_package_of_sockets_it_is_said_which_one_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "websockets.asyncio.client", None)
    with pytest.raises(RuntimeError, match=r"install `ksana-client\[nodes\]`"):
        await address("http://h").open(frames.to_node)
    assert node_socket.RECONNECT.most_sec == 30.0
