"""Hostile and slow targets of the plain client."""

import asyncio
import contextlib
import itertools
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest

from ksana.ports.caller import Reply, Request
from tests.outbound.plain_target import MS, OK, idle_connections, listening, until, used_curl


@pytest.mark.parametrize("size", [1, 7, 100])
def test_an_answer_in_pieces_is_put_together(run_plain: Callable[..., None], size: int) -> None:
    data = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n3\r\nay!\r\n0\r\n\r\n"
    )

    async def scenario(net: Any) -> None:
        async def talk(reader: Any, writer: Any) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for at in range(0, len(data), size):
                    writer.write(data[at : at + size])
                    await writer.drain()
                    await asyncio.sleep(0)

        async with listening(talk) as url:
            caller = net.caller()
            for _ in range(3):
                reply = await net.ask(url, caller=caller)
                assert (reply.status, reply.body) == (200, b"okay!")
            assert idle_connections(caller) == 1 and not used_curl(caller)

    run_plain(scenario)


@pytest.mark.fault("F54")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, "Too large response headers"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000, "Too large response headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "not HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            "cut short after 3 bytes",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
            "Malformed encoding",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: br\r\n\r\n", "Unsolicited Transfer-Encoding (br)"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "cut short"),
    ],
)
def test_a_hostile_answer_costs_one_call_and_no_more(
    run_plain: Callable[..., None], data: bytes, words: str
) -> None:
    async def scenario(net: Any) -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )

        async def talk(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await writer.drain()

        async with listening(talk) as url:
            caller = net.caller()
            reply = await net.ask(url, caller=caller)
            assert reply.kind == "unreachable" and reply.status is None and words in reply.error
            assert (await net.ask("/ok", caller=caller)).status == 200
            assert caller.in_flight == 0 and idle_connections(caller) == 1 and not complaints

    run_plain(scenario)


def test_a_mistake_of_ours_costs_one_call_which_still_hears_of_it(
    run_plain: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(net: Any) -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )

        def fail(raw: bytes) -> str:
            raise RuntimeError("a bug")

        monkeypatch.setattr("ksana.outbound.plain.call.read_wait", fail)
        reply = await net.ask("/wait?after=5")
        assert (reply.kind, reply.error) == ("unreachable", "the answer cannot be read: a bug")
        assert len(complaints) == 1
        assert (await net.ask("/ok")).status == 200

    run_plain(scenario)


def test_a_large_request_to_a_slow_reader_arrives_whole(run: Callable[..., None]) -> None:
    body = bytes(range(256)) * 40_000

    async def scenario(net: Any) -> None:
        async def talk(reader: Any, writer: Any) -> None:
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.02)
                assert await reader.readexactly(len(body)) == body
                writer.write(OK)

        async with listening(talk) as url:
            caller = net.caller()
            for _ in range(2):
                assert (await net.ask(url, caller=caller, method="POST", body=body)).body == b"ok"

    run(scenario)


def test_an_answer_before_the_request_has_left_is_taken_and_the_connection_closed(
    run_plain: Callable[..., None],
) -> None:
    async def scenario(net: Any) -> None:
        async def talk(reader: Any, writer: Any) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            await writer.drain()
            reader._transport.pause_reading()
            await asyncio.Event().wait()

        async with listening(talk) as url:
            caller = net.caller()
            reply = await net.ask(url, caller=caller, method="POST", body=b"x" * 30_000_000)
            assert (reply.status, reply.body, idle_connections(caller)) == (413, b"no", 0)

    run_plain(scenario)


def test_calls_can_be_aborted_while_they_dial(run: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        with contextlib.ExitStack() as stack:
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(8):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            told: list[Reply] = []
            caller = net.caller()
            call = caller.call(
                Request("GET", f"http://127.0.0.1:{full.getsockname()[1]}/"), told.append
            )
            await asyncio.sleep(0)
            call.abort()
            call.abort()
            await until(lambda: bool(told))
            assert [reply.kind for reply in told] == ["aborted"] and caller.in_flight == 0

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_servers_do_every_call_is_told_once_and_nothing_is_left(
    run_plain: Callable[..., None], seed: int
) -> None:
    chance = random.Random(seed)
    ways = [
        b"",
        b"\0\xff" * 99,
        OK,
        OK + b"more",
        OK[:-1],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n",
    ]
    total = 400

    async def scenario(net: Any) -> None:
        complaints: list[Any] = []
        told: dict[int, int] = {}
        over = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context)
        )

        async def talk(reader: Any, writer: Any) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(chance.choice(ways))
                await writer.drain()
                fate = chance.random()
                if fate < 0.15:
                    writer.transport.abort()
                if fate < 0.3:
                    return

        async with listening(talk) as url:
            caller = net.caller(
                max_idle=5, names={"a.test": ["127.0.0.2", "127.0.0.1"], "b.test": ["127.0.0.1"]}
            )
            started = itertools.count()

            def start() -> None:
                number, host = (
                    next(started),
                    chance.choice(["127.0.0.1", "127.0.0.2", "a.test", "b.test"]),
                )

                def done(reply: Reply) -> None:
                    told[number] = told.get(number, 0) + 1
                    if number + 40 < total:
                        start()
                    elif len(told) == total:
                        over.set()

                request = Request(
                    "POST",
                    url.replace("127.0.0.1", host),
                    (),
                    b"z" * chance.choice([0, 9, 200_000]),
                    timeout_us=chance.choice([30, 60, 2000]) * MS,
                    follow_redirects=2,
                )
                call = caller.call(request, done)
                if chance.random() < 0.1:
                    asyncio.get_running_loop().call_later(chance.random() / 100, call.abort)

            for _ in range(40):
                start()
            await asyncio.wait_for(over.wait(), 20)
            assert set(told.values()) == {1} and caller.in_flight == 0 and not complaints
            assert (
                idle_connections(caller)
                == sum(len(origin.idle) for origin in caller._plain._pool.origins.values())
                <= 5
            )

    run_plain(scenario)
